"""Speed of a SAGE evaluation without the time of models: the harness alone, in one process.

    python benchmarks/sage_speed.py
    python benchmarks/sage_speed.py --dialogues 2000 --scenario all

Scripted customers write ten messages, a scripted agent answers without delay, three scripted judges vote on turns 1, 5
and 10. Prints dialogues a second by the wall and by the process's own CPU time: on a busy machine only the second says
what the harness costs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from hamr.bench.sage.coverage import plan_dialogues  # noqa: E402
from hamr.bench.sage.run import Cast, hold, summarise  # noqa: E402
from hamr.bench.sage.scripted import TALK, scripted_pool  # noqa: E402
from hamr.bench.sage.store import Store  # noqa: E402
from hamr.config.sage import SageConfig  # noqa: E402
from hamr.procedures import load_scenario, scenario_names  # noqa: E402


def measure(names: list[str], dialogues: int, agent: str) -> dict[str, object]:
    """One evaluation from an empty folder; its written rows and its summary are part of the time."""
    scenarios = {name: load_scenario(name) for name in names}
    each = -(-dialogues // len(names))
    config = SageConfig(per_path=each, limit=each)
    plans = [plan for scenario in scenarios.values() for plan in plan_dialogues(scenario, config)]
    by_id = {plan.id: plan for plan in plans}
    judges = ("gold", "strict", "contrary")
    cast = Cast(
        agents={agent: scripted_pool("agent", agent, scenarios, by_id)},
        user=scripted_pool("simulator", "patient", scenarios, by_id),
        simulator="patient",
        judges={name: scripted_pool("judges", name, scenarios, by_id) for name in judges},
    )
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), {"agents": {}, "scenarios": {}}) as store:
        wall, cpu = time.perf_counter(), time.process_time()
        asyncio.run(hold(store, scenarios, [(agent, plan) for plan in plans], cast, config, at_once=64))
        held_wall, held_cpu = time.perf_counter() - wall, time.process_time() - cpu
        found = summarise(store, scenarios, plans, [agent], config)
        all_cpu = time.process_time() - cpu
        turns = sum(len(trace.turns) for trace in store.traces.values())
    return {
        "scenarios": len(names),
        "dialogues": len(plans),
        "turns_per_dialogue": turns / len(plans),
        "judged_turns": found.summary["votes"]["turns"],
        "wall_s": round(held_wall, 3),
        "cpu_s": round(held_cpu, 3),
        "summary_cpu_s": round(all_cpu - held_cpu, 3),
        "dialogues_per_wall_s": round(len(plans) / held_wall, 1),
        "dialogues_per_cpu_s": round(len(plans) / held_cpu, 1),
        "load_before": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="telecom_package", help="a name, or `all`")
    parser.add_argument("--dialogues", type=int, default=1000)
    parser.add_argument("--agent", default="perfect")
    given = parser.parse_args()
    names = scenario_names() if given.scenario == "all" else [given.scenario]
    assert TALK == 10
    print(json.dumps(measure(names, given.dialogues, given.agent), indent=1))


if __name__ == "__main__":
    main()
