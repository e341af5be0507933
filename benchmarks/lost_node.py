"""A training run that loses a node in mid-step and is given another one: real engines, several nodes on one machine.

    python benchmarks/lost_node.py

Ray's own `cluster_utils.Cluster` makes a head with the trainer and the rollout worker, and two nodes with a replica of
the reranker and one of the judge each. `hamr train experiment=smoke` runs on it as a process of its own. While a step's
questions wait for their answers, one of the two nodes is killed; a while later another one joins. Written down: what
became of every response, what was asked again, and how long the steps took before, meanwhile and after.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from results_json import write_results

PROMPTS, SAMPLES = 8, 2
POOLS = ("reranker", "judge")
STORE = {"object_store_memory": 100 << 20}
LIMIT_S = 240.0


@contextmanager
def three_nodes() -> Iterator[Any]:
    """A head for the learners and two nodes that hold one replica of each pool, behind a token of their own."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="hl", dir="/tmp", ignore_cleanup_errors=True) as folder:
        Path("/tmp/ray").mkdir(exist_ok=True)  # where Cluster notes the address, whatever its temp_dir
        cluster = Cluster()
        try:
            cluster.add_node(num_cpus=4, labels={"room": "learners"}, include_dashboard=False, temp_dir=folder, **STORE)
            for room in ("west", "east"):
                cluster.add_node(num_cpus=1, labels={"room": room}, **STORE)
            yield cluster
        finally:
            cluster.shutdown()


def settings(address: str, run: Path, steps: int) -> list[str]:
    """Learners on the head, pools on other nodes; questions one by one, so that some always wait."""
    given = {
        "experiment": "smoke", "experiment.run_dir": run, "experiment.steps": steps, "cluster.address": address,
        "experiment.prompts_per_step": PROMPTS, "rollout.samples_per_prompt": SAMPLES, "logging.console": "false",
        "algorithm.dynamic_sampling.enabled": "false", "trainer.node_labels.room": "learners",
        "rollout.engine.node_labels.room": "learners",
    }  # fmt: skip
    for pool in POOLS:
        mine = {"replicas": 2, "max_replicas_per_node": 1, "batch_size": 1, "max_ongoing_requests": 2, "attempts": 6}
        given |= {f"pools.{pool}.{key}": value for key, value in mine.items()}
        given |= {f"pools.{pool}.engine.num_cpus": 0.5, f"pools.{pool}.engine.node_labels.room": "'!learners'"}
    given |= {"pools.judge.thinking_tokens": 16, "data.max_eval": 2}
    return [f"{key}={value}" for key, value in given.items()]


class Watched:
    """A run, seen from outside through its folder."""

    def __init__(self, run: Path, process: subprocess.Popen[bytes]) -> None:
        self.run, self.process = run, process

    def steps(self) -> list[dict[str, Any]]:
        from hamr.telemetry.metrics import read_metrics

        file = self.run / "metrics.jsonl"
        return [row for row in read_metrics(file) if row["stage"] == "rl"] if file.is_file() else []

    def pools(self) -> dict[str, dict[str, Any]]:
        from hamr.telemetry.live import LiveStatus

        status = LiveStatus.read(self.run)
        return dict(status.pools) if status else {}

    def running(self) -> list[int]:
        return [self.pools().get(pool, {}).get("running", 0) for pool in POOLS]

    def until(self, what: str, seen: Callable[[], bool]) -> float:
        """Seconds until `seen`; ends everything when the run or the time is over first."""
        started = time.monotonic()
        while not seen():
            if self.process.poll() is not None or time.monotonic() - started > LIMIT_S:
                sys.exit(f"not seen: {what}; the run's exit code is {self.process.poll()}")
            time.sleep(0.05)
        return time.monotonic() - started


def trouble(cluster: Any, seen: Watched) -> dict[str, Any]:
    """Waits for the third step, kills a node while questions wait, and adds another one two steps later."""
    seen.until("two steps", lambda: len(seen.steps()) >= 2)
    seen.until("questions that wait", lambda: any(p.get("waiting", 0) >= 4 for p in seen.pools().values()))
    done = len(seen.steps())
    west = next(node for node in cluster.worker_nodes if '"west"' in json.dumps(node._ray_params.labels))
    cluster.remove_node(west, allow_graceful=False)
    seen.until("the loss", lambda: 1 in seen.running())
    # The step that was under way is the one behind those that were done; it has ended by the second one after them.
    seen.until("two steps without the node", lambda: len(seen.steps()) >= done + 2)
    without = len(seen.steps())
    cluster.add_node(num_cpus=1, labels={"room": "new"}, **STORE)
    back_s = seen.until("the pools' return", lambda: seen.running() == [2, 2])
    return {"done_before": done, "done_without": without, "done_with": len(seen.steps()), "back_s": round(back_s, 1)}


def figures(seen: Watched, told: dict[str, Any], steps: int) -> dict[str, Any]:
    """Figures from the run's own files."""
    from hamr.telemetry.ledger import Ledger
    from hamr.types import Failure

    rows = seen.steps()
    seconds = [row["timing/step/total"] for row in rows]
    with Ledger(seen.run / "ledger.sqlite", readonly=True) as ledger:
        runs = [run for (run,) in ledger.query("SELECT DISTINCT run FROM records WHERE run NOT LIKE '%/eval-%'")]
        records = [record for run in runs for record in ledger.rows(run=run)]
    again = Counter(r.key.step for r in records for call in r.calls if call.attempts > 1)
    before, without, after = told.pop("done_before"), told.pop("done_without"), told.pop("done_with")
    return {
        "exit_code": seen.process.returncode,
        "steps": len(rows),
        "responses_due": steps * PROMPTS * SAMPLES,
        "responses_recorded": len({r.key for r in records}),
        "responses_without_a_reward": sum(isinstance(r.total, Failure) for r in records),
        "questions_asked_again": sum(again.values()),
        "in_steps": {str(step): n for step, n in sorted(again.items())},
        "step_s": {
            "before": round(median(seconds[1:before]), 2),
            "in which the node went": round(seconds[before], 2),
            "with one node fewer": round(median(seconds[before + 1 : without]), 2),
            "with the new node": round(median(seconds[after + 1 :]), 2) if seconds[after + 1 :] else None,
        },
        "pools_back_on_the_new_node_s": told["back_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--run", type=Path, help="run folder; a temporary one if not given")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "lost_node.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hamr-lost-") as aside, three_nodes() as cluster:
        # Ray's own handler, which those nodes have brought, would drain them first.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        run = args.run or Path(aside) / "run"
        command = [sys.executable, "-m", "hamr", "train", *settings(cluster.address, run, args.steps)]
        process = subprocess.Popen(command)
        try:
            seen = Watched(run, process)
            told = trouble(cluster, seen)
            process.wait(LIMIT_S)
        finally:
            process.terminate()
            process.wait(60)
        found = figures(seen, told, args.steps)
    args.out.parent.mkdir(exist_ok=True)
    write_results(args.out, found)
    print(json.dumps(found, indent=2))
    if found["exit_code"] or found["responses_recorded"] != found["responses_due"]:
        sys.exit("the run did not come through")


if __name__ == "__main__":
    main()
