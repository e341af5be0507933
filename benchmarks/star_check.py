"""From real tickets to two fine-tuned policies: every recipe on STAR, with the bundled 135M model in every part.

    python benchmarks/star_check.py DATA            # the folder of star_steps.jsonl and star_policies.json
    python benchmarks/star_check.py DATA --only patm --only dra                      # some of its steps
    python benchmarks/star_check.py DATA --tickets 2 --points 4 --steps 2 --most 6   # to see that it runs

DATA may be left out where HAMR_PUBLIC_DATA names it. Each step is the command that a user would type, and is shown;
what it made stays in --work, and a step that has ended is not run again. README.md in this folder says what the
figures mean. Prints them as Markdown and writes results/star_check.json once all steps have ended.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from results_json import write_results  # noqa: E402
from template_teacher import served  # noqa: E402

from hamr.data.progress import ItemResult, summary  # noqa: E402
from hamr.data.samples import read_rows, read_samples  # noqa: E402
from hamr.telemetry.ledger import Ledger  # noqa: E402
from hamr.types import ToolCall  # noqa: E402

SMALL = ("pools=sage_small", "teacher=talk", "pools.talk.max_context=4096")
BATCH = 8
ARMS = ("original", "decision", "mix")
MADE = ("plans.jsonl", "plans_small.jsonl", "reasons.jsonl")
"""Files that the mix adds to the decisions, where a recipe kept anything."""


@dataclass(frozen=True)
class Step:
    """One command, with the file or folder that tells that it has ended. `endpoint`: it asks the template's."""

    name: str
    command: str
    made: str
    endpoint: bool = False


def steps(given: argparse.Namespace) -> list[Step]:
    small = " ".join(SMALL)
    return [
        Step(
            "import",
            'hamr data import star input="$DATA/star_steps.jsonl" policies="$DATA/star_policies.json" output=star '
            "pii=hide",
            "star/report.json",
        ),
        Step(
            "tickets",
            f"grep '\"split\": \"train\"' star/trajectories.jsonl | awk 'NR % 20 == 1 && ++n <= {given.tickets}' "
            "> tickets.jsonl",
            "tickets.jsonl",
        ),
        Step("points", f"awk 'NR % 20 == 1 && ++n <= {given.points}' star/train.jsonl > points.jsonl", "points.jsonl"),
        Step("patm", f"hamr data patm input=tickets.jsonl output=plans_small.jsonl {small}", "plans_small.jsonl"),
        Step("dra", f"hamr data dra input=points.jsonl output=reasons.jsonl {small}", "reasons.jsonl"),
        Step(
            "multigt",
            f"hamr data multigt input=points.jsonl output=points_multi.jsonl {small} pools.talk.engine.threads=1 "
            "judge=judge utility=talk candidates=4 max_new_tokens=64",
            "points_multi.jsonl",
        ),
        Step(
            "template",
            "hamr data patm input=star/trajectories.jsonl output=plans.jsonl pools=sage_small teacher=words "
            "'+pools.words={role: grader, type: openai, model: template, endpoint: \"'$ENDPOINT'\"}'",
            "plans.jsonl",
            endpoint=True,
        ),
        _sft("decision", "{}", given.steps),
        _sft("mix", ", ".join(["{}", *(f"{{path: {n}}}" for n in MADE if _rows(given.work / n))]), 2 * given.steps),
        *(_evaluation(arm, given) for arm in ARMS),
    ]  # fmt: skip


def _rows(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.is_file() else 0


def _sft(arm: str, sets: str, count: int) -> Step:
    """Held out is the validation split of `data`, which no recipe has seen: a set of a few items can spare none."""
    return Step(
        f"sft_{arm}",
        f"hamr sft experiment=sft_small data=star 'sft.sets=[{sets}]' sft.steps={count} "
        f"sft.batch_size={BATCH} sft.held_out_frac=0 experiment.eval_every=0 "
        f"experiment.checkpoint.every={count} experiment.run_dir=sft_{arm} logging=off",
        f"sft_{arm}/summary.json",
    )


def _evaluation(arm: str, given: argparse.Namespace) -> Step:
    """Nothing is trained: `hamr train` without a step shows what a policy does on the test split."""
    last = given.steps * (2 if arm == "mix" else 1)
    model = f"model.path=sft_{arm}/checkpoints/step_{last}/policy " if arm != "original" else ""
    return Step(
        f"test_{arm}",
        f"hamr train {model}data=star data.max_eval={given.most} experiment.steps=0 pools=tiny rewards=reranker "
        f"rollout.max_new_tokens=128 rollout.engine.threads=2 rollout.engine.kv_cache_mb=768 "
        f"experiment.run_dir=test_{arm} logging=off",
        f"test_{arm}/summary.json",
    )


# --- running -----------------------------------------------------------------------------------


def run(step: Step, work: Path) -> None:
    """Runs the step unless it has ended, from where an earlier call left it."""
    if (work / step.made).exists():
        return
    command = step.command
    folder = (work / step.made).parent
    if step.name.startswith("sft_") and (folder / "config.yaml").is_file():
        command = f"hamr sft resume={folder.name}"
    elif folder != work and folder.is_dir():
        shutil.rmtree(folder)
    with ExitStack() as stack:
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]))
        if step.endpoint:
            env["ENDPOINT"] = stack.enter_context(served())
        print(f"\n$ {command}", flush=True)
        begun = time.monotonic()
        # `hamr` is this checkout's, whatever is installed; a step that was killed in the middle leaves no file behind.
        shell = f'set -eo pipefail; hamr() {{ {shlex.quote(sys.executable)} -m hamr "$@"; }}; {command}'
        done = subprocess.run(["bash", "-c", shell], cwd=work, env=env)
        if done.returncode:
            (work / step.made).unlink(missing_ok=True)
            sys.exit(f"{step.name} ended with {done.returncode}; the same call continues with it")
    took = {"command": command, "seconds": round(time.monotonic() - begun, 1)}
    (work / f"{step.name}.took.json").write_text(json.dumps(took) + "\n")


# --- figures -----------------------------------------------------------------------------------


def figures(work: Path, plan: list[Step], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Figures of all steps, read from their files."""
    from hamr.apps.shared.machine import machine, versions

    took = {s.name: _json(work / f"{s.name}.took.json") for s in plan if (work / f"{s.name}.took.json").is_file()}
    return {
        "import": _json(work / "star/report.json"),
        "recipes": {name: _became(work / f"{name}.records.jsonl") for name in RECIPES},
        "table_3": _json(work / "points_multi.jsonl.table3.jsonl"),
        "arms": {arm: _arm(work, arm) for arm in ARMS},
        "steps": took,
        "machine": machine(),
        "versions": versions(),
        "sizes": sizes,
    }


RECIPES = {
    "plans_small.jsonl": "PATM, the 135M model as teacher and judge",
    "reasons.jsonl": "DRA, the same",
    "points_multi.jsonl": "Multi-GT, the same: its candidates",
    "plans.jsonl": "PATM in the tickets' own words (a template, no model; rules only)",
}


def _became(records: Path) -> dict[str, int]:
    rows = [{k: v for k, v in row.items() if k != "id"} for _, row in read_rows(records)]
    return {"items": len(rows), **dict(summary(ItemResult(**{**row, "notes": tuple(row["notes"])}) for row in rows))}


def _arm(work: Path, arm: str) -> dict[str, Any]:
    """Loss on held-out decisions in nats a token, and what the policy does on the test split."""
    tested = _json(work / f"test_{arm}/summary.json")
    stage = tested["stages"]["base"]
    with Ledger(work / f"test_{arm}/ledger.sqlite", readonly=True) as ledger:
        asked = {record.key.prompt for record in ledger.rows() if record.key.run.endswith("/eval-base")}
    samples = [s for s in read_samples(work / "star/test.jsonl") if s.id in asked]
    calls = sum(isinstance(s.references[0].action, ToolCall) for s in samples)
    trained = _json(work / f"sft_{'decision' if arm == 'original' else arm}/summary.json")
    validation = trained["sft"]["validations"][0 if arm == "original" else -1]["sets"]
    return {
        "loss": {name: round(own["loss"], 4) for name, own in validation.items()},
        "items_trained_on": 0 if arm == "original" else trained["steps"] * BATCH,
        "sets": {} if arm == "original" else {name: own["train"] for name, own in trained["sft"]["sets"].items()},
        "points": stage["n"],
        "tool_calls": calls,
        "tool_calls_exact": round(calls * (stage["tool_exact_match"] or 0.0)),
        "decision_accuracy": round(stage["action_accuracy"], 4),
        "format_errors": round(stage["format_error_rate"], 4),
        "seconds": {name: round(s, 1) for name, s in tested["timing"].items()},
    }


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def tables(found: Mapping[str, Any]) -> str:
    told = found["import"]
    windows = told["planning windows"]
    complete = windows.pop("complete")
    cut = ", ".join(f"{count} incomplete ({why})" for why, count in windows.items())
    lines = [
        f"{told['tickets']} tickets, {told['decision points']} decision points, {complete} complete planning windows, "
        f"{cut}; private values hidden: {sum(told['private values hidden'].values()) or 'none'}",
        "",
        "| recipe | items | kept | dropped by |",
        "|---|---|---|---|",
    ]
    for name, title in RECIPES.items():
        rows = found["recipes"][name]
        prefix = "candidates: " if name == "points_multi.jsonl" else "dropped: "
        dropped = {what.removeprefix(prefix): n for what, n in rows.items() if what.startswith(prefix)}
        kept = dropped.pop("added", 0) if prefix == "candidates: " else rows["kept"]
        shown = ", ".join(f"{what} {n}" for what, n in dropped.items()) or "-"
        lines.append(f"| {title} | {kept + sum(dropped.values())} | {kept} | {shown} |")
    lines += ["", f"| {' | '.join(found['table_3'])} |", "|---" * len(found["table_3"]) + "|"]
    lines += [f"| {' | '.join(map(str, found['table_3'].values()))} |", ""]
    lines += ["| arm | trained on | held-out loss | right decision | tool calls to the letter | no action |"]
    lines += ["|---|---|---|---|---|---|"]
    for arm, own in found["arms"].items():
        sets = f"{own['items_trained_on']} items of {', '.join(own['sets'])}" if own["sets"] else "-"
        share = f"{own['tool_calls_exact']} of {own['tool_calls']}"
        cells = [f"{own['loss']['references']:.3f}", f"{own['decision_accuracy']:.2f}", share]
        lines.append(f"| {arm} | {sets} | {' | '.join(cells)} | {own['format_errors']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=os.environ.get("HAMR_PUBLIC_DATA"))
    parser.add_argument("--work", type=Path, default=Path("runs/star_check"), help="folder of everything that is made")
    parser.add_argument("--only", action="append", default=[], help="a step's name; several times for several")
    parser.add_argument("--tickets", type=int, default=5, help="that the small model writes plans for")
    parser.add_argument("--points", type=int, default=24, help="decision points for DRA and Multi-GT")
    parser.add_argument("--steps", type=int, default=12, help="of SFT, 8 items each; on the mix twice as many")
    parser.add_argument("--most", type=int, default=60, help="decision points that a policy is tested on")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "star_check.json")
    given = parser.parse_args()
    if given.data is None:
        parser.error("where is the data? give its folder, or set HAMR_PUBLIC_DATA")
    os.environ["DATA"] = str(Path(given.data).resolve())  # by this name in the commands that are written down
    given.work.mkdir(parents=True, exist_ok=True)
    plan = steps(given)
    unknown = set(given.only) - {step.name for step in plan}
    if unknown:
        parser.error(f"no such step: {', '.join(unknown)}; there are: {', '.join(step.name for step in plan)}")
    for name in (step.name for step in plan if not given.only or step.name in given.only):
        # Looked up when its turn comes: what the mix holds is known once the recipes have ended.
        run(next(step for step in steps(given) if step.name == name), given.work)
    left = [step.name for step in plan if not (given.work / step.made).exists()]
    if left:
        print(f"left to do: {', '.join(left)}")
        return
    sizes = {name: getattr(given, name) for name in ("tickets", "points", "steps", "most")}
    found = figures(given.work, plan, sizes)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(given.out, found)
    print(tables(found))


if __name__ == "__main__":
    main()
