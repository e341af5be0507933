"""The papers' ablations as one sweep over the bundled model and generated data: which orderings are there?

    python benchmarks/ablations.py --seeds 0,1,2                       # all arms
    python benchmarks/ablations.py --only init,ours --seeds 0          # some parts, and some arms by name
    python benchmarks/ablations.py --only judge                        # the judge's ECS of what was said so far
    python benchmarks/ablations.py --only table                        # tables and plots of what is finished

Every arm and seed is a `hamr sft` or `hamr train` of its own. What is finished is not run again, what was killed goes
on: the same command, or one with more seeds or parts, may be given as often as needed. README.md beside this file says
how to read what comes out.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from ablation import world  # noqa: E402
from ablation.arms import PARTS, Arm, arms  # noqa: E402
from ablation.figures import (  # noqa: E402
    entropies,
    exact_scores,
    judge_scores,
    last_third,
    read_votes,
    said,
    write_answers,
)
from ablation.graders import Grader, write_prompts  # noqa: E402
from ablation.runs import Start, Sweep, hamr_process  # noqa: E402
from ablation.tables import TABLES, Claim, as_json, claims, counted, entropy_claim, markdown  # noqa: E402

from hamr.data.samples import read_samples  # noqa: E402
from hamr.errors import BadInput, HamrError  # noqa: E402
from hamr.evaluation.folder import locked  # noqa: E402

STEPS = (*PARTS, "judge", "table")
NAME = "ablations"


def main() -> int:
    args = arguments()
    start = hamr_process(shlex.split(args.before))
    try:
        sweep = prepared(args.out.resolve(), args, start)
        left = run_arms(sweep, args.only, args.seeds)
        if "judge" in args.only:
            ask_judge(sweep, args.seeds, start)
        found, curves = everything(sweep, args.seeds)
        write(args.results, found, curves, args.seeds)
    except HamrError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    for one in left:
        print(f"not finished: {one}")
    return 1 if left else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choices = f"of {','.join(STEPS)}, or arms by name; all if not given"
    parser.add_argument("--only", type=_listed, default=STEPS, help=choices)
    parser.add_argument("--seeds", type=_numbers, default=[0, 1, 2])
    items = "decision points that SFT learns, and as many plans; another number needs another --out"
    parser.add_argument("--items", type=int, default=world.SFT_ITEMS, help=items)
    parser.add_argument("--out", type=Path, default=Path("runs") / NAME, help="folder of the data and the runs")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the tables and the plots")
    parser.add_argument("--before", default="", help="put before every hamr command, such as 'nice -n 19'")
    parser.add_argument("--port", type=int, default=8377, help="of the rule engine's endpoint, for --only rewards")
    parser.add_argument("overrides", nargs="*", help="further key=value for every run, such as experiment.steps=20")
    return parser.parse_args()


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> list[int]:
    return sorted({int(number) for number in text.split(",")})


def run_arms(sweep: Sweep, only: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """What could not be finished. Raises BadInput for a name that is neither a part nor an arm, and where another call
    is at work in the same folder: it would take an unfinished run for a killed one."""
    unknown = next((name for name in only if name not in STEPS and name not in sweep.arms), None)
    if unknown is not None:
        raise BadInput("--only", unknown, f"is none of {', '.join((*STEPS, *sweep.arms))}")
    wanted = [arm for arm in sweep.arms.values() if arm.part in only or arm.name in only]
    # Looks come last: others may have found by then what they would.
    wanted.sort(key=lambda arm: arm.job == "look")
    with locked(sweep.out) if wanted else nullcontext():
        # Seed after seed: a call that is stopped leaves whole tables of the seeds before.
        runs = [(arm, seed) for seed in dict.fromkeys((*seeds, 0)) for arm in wanted if seed in seeds_of(arm, seeds)]
        return [f"{arm.name}, seed {seed}" for arm, seed in runs if not sweep.run(arm, seed)]


def prepared(out: Path, args: argparse.Namespace, start: Start) -> Sweep:
    """Data and prompts are written anew by every call; they are the same unless the code that makes them changed."""
    files = world.prepare(out / "data", args.items)
    prompts = write_prompts(out / "prompts")
    listed = arms(files, f"http://127.0.0.1:{args.port}/v1", prompts, args.overrides)
    samples = [sample for name in ("single", "test") for sample in read_samples(files[name])]
    return Sweep(
        out=out,
        arms={arm.name: arm for arm in listed},
        files=sorted(files.values()),
        start=start,
        grader=Grader(samples, prompts),
        port=args.port,
    )


def seeds_of(arm: Arm, seeds: Sequence[int]) -> Sequence[int]:
    """With which seeds an arm is run: one run of what no seed changes stands for all."""
    return (0,) if seedless(arm) else seeds


def seedless(arm: Arm) -> bool:
    """The bundled model answers the same whatever the seed: held-out luck follows from the prompts."""
    return arm.job == "look" and arm.start is None


def ask_judge(sweep: Sweep, seeds: Sequence[int], start: Start) -> None:
    """One call for the answers of all arms: most of them were given by several. Votes are kept between calls."""
    folder = sweep.out / "judge"
    folder.mkdir(exist_ok=True)
    finished = [(said(sweep, arm, seed), arm.response_format) for arm, seed in _finished(sweep, seeds)]
    if not finished:
        raise BadInput("--only", "judge", "no arm is finished; run some first")
    count = write_answers(folder / "answers.jsonl", finished)
    data = {name: sweep.out / "data" / f"{file}.jsonl" for name, file in _JUDGES_DATA.items()}
    print(f"judge: {count} different answers of {len(finished)} runs", flush=True)
    code = start(
        [
            "evaluate",
            "benchmark=ecs",
            f"input={folder / 'answers.jsonl'}",
            f"output={folder / 'votes'}",
            "judges=judge",
            "scores=soft",
            "data.type=jsonl",
            *(f"data.{name}={path}" for name, path in data.items()),
            "model.response_format=plain",
        ],
        folder / "judge.log",
    )
    if code:
        raise HamrError(f"the judge is not done (exit code {code}); see {folder / 'judge.log'}, and call again")


_JUDGES_DATA = {"train": "single", "validation": "validation", "test": "test"}
"""What the judge was trained on: the same pairs as in the RL arms, so that it is the same cached model."""


def _finished(sweep: Sweep, seeds: Sequence[int]) -> list[tuple[Arm, int]]:
    answering = [arm for arm in sweep.arms.values() if arm.job != "sft"]
    return [(arm, seed) for arm in answering for seed in seeds_of(arm, seeds) if sweep.finished(arm, seed)]


def everything(sweep: Sweep, seeds: Sequence[int]) -> tuple[list[Claim], dict[str, dict[int, list[float]]]]:
    """All claims, and the curves of Figure 2, from what is finished."""
    votes = read_votes(sweep.out / "judge" / "votes")
    scores: dict[str, dict[str, dict[int, dict[str, float]]]] = {}
    for arm, seed in _finished(sweep, seeds):
        groups = said(sweep, arm, seed)
        exact = exact_scores(groups, arm.response_format)
        judged = judge_scores(groups, arm.response_format, votes)
        for measure, by_item in {**exact, **judged}.items():
            own = scores.setdefault(arm.name, {}).setdefault(measure, {})
            own.update(dict.fromkeys(seeds if seedless(arm) else [seed], by_item))
    curves = {
        name: {s: entropies(sweep.folder(sweep.arms[name], s)) for s in seeds if sweep.finished(sweep.arms[name], s)}
        for name in ("ours", "multi_gt")
    }
    thirds = {name: {s: last_third(curve) for s, curve in own.items() if curve} for name, own in curves.items()}
    found = [claim for table in TABLES for claim in claims(table, scores)]
    return [*found, entropy_claim(thirds["ours"], thirds["multi_gt"])], curves


def write(
    results: Path, found: Sequence[Claim], curves: dict[str, dict[int, list[float]]], seeds: Sequence[int]
) -> None:
    from ablation.plots import draw_entropy, draw_orderings

    results.mkdir(parents=True, exist_ok=True)
    texts = [markdown(t.title, [c for c in found if c.table == t.name]) for t in TABLES]
    kept: dict[str, Any] = {"seeds": list(seeds), "claims": as_json(found), "entropy": curves}
    (results / f"{NAME}.json").write_text(json.dumps(kept, indent=1) + "\n")
    (results / f"{NAME}.md").write_text("\n\n".join(texts) + "\n")
    draw_orderings(results / f"{NAME}_orderings.png", found)
    draw_entropy(results / f"{NAME}_entropy.png", curves)
    print("\n\n".join(texts))
    print(f"\norderings: {counted(found)}")


if __name__ == "__main__":
    sys.exit(main())
