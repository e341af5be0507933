"""Accuracy of judged rewards: risk and hallucination on planted flaws, by the raw model, a trained one, word overlap.

    python benchmarks/judges.py --reward risk
    python benchmarks/judges.py --reward hallucination --public hallucination.jsonl

README.md in this folder says how to read what it prints.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from calibration import machine  # noqa: E402
from planted_flaws import hallucination_rows, public_rows, risk_rows  # noqa: E402
from results_json import write_results  # noqa: E402

from hamr.apps.scorer.grader import FLAWS  # noqa: E402
from hamr.apps.scorer.judged import JudgedResponse, read_judged  # noqa: E402
from hamr.apps.scorer.lessons import grader_exam, grading_of  # noqa: E402
from hamr.apps.scorer.pair_check import auc_standard_error  # noqa: E402
from hamr.apps.scorer.prepare import prepare_scorers  # noqa: E402
from hamr.apps.scorer.run import measure_scorer  # noqa: E402
from hamr.config.load import load_config  # noqa: E402
from hamr.config.schema import Config, SageDataConfig  # noqa: E402
from hamr.data.sage_samples import generate_samples  # noqa: E402
from hamr.data.samples import read_rows, write_rows  # noqa: E402
from hamr.errors import VerdictUnparsable  # noqa: E402
from hamr.pools.scorers import build_scorer, scorer_env  # noqa: E402
from hamr.rewards.judged import VETOES  # noqa: E402
from hamr.rewards.questions import JudgedText  # noqa: E402

ROWS = {"risk": risk_rows, "hallucination": hallucination_rows}


def configured(args: argparse.Namespace, folder: Path) -> Config:
    """A grader that learns from the training split's flaws and is measured on the test split's."""
    prompt = HERE / "judge_prompts" / f"{args.reward}_short.en.yaml"
    tuning = {
        "when": "always", "reward": args.reward, "labelled": str(folder / "train.jsonl"),
        "held_out": str(folder / "test.jsonl"), "layers": args.layers, "examples": args.examples,
        "epochs": args.epochs, "batch_size": args.batch_size, "learning_rate": args.learning_rate,
        "train_embeddings": False, "threads": 2,
    }  # fmt: skip
    own = ", ".join(f"{key}: {'null' if value is None else value}" for key, value in tuning.items())
    pool = f"role: grader, model: {args.model}, structured: true, answer_tokens: 64, finetune: {{{own}}}"
    config = load_config(
        [
            "data.type=sage",
            f"pools.grader={{{pool}}}",
            f"rewards.{args.reward}.weight=1",
            f"rewards.{args.reward}.pool=grader",
            f"rewards.{args.reward}.prompt={prompt}",
            "rewards.consistency.weight=0",
            *args.overrides,
        ]
    )
    return config.model_copy(update={"pools": {"grader": config.pools["grader"]}})


def planted(args: argparse.Namespace, folder: Path) -> None:
    """Writes train.jsonl and test.jsonl."""
    made = generate_samples(
        SageDataConfig(train=2 * args.examples, validation=1, test=4 * args.held_out, seed=args.seed)
    )
    for name, samples, most in (("train", made.train, args.examples), ("test", made.test, args.held_out)):
        rows = list(ROWS[args.reward](samples, args.seed))[:most]
        write_rows(folder / f"{name}.jsonl", rows)


async def written(config: Config, model: Path, rows: Sequence[JudgedResponse], reward: str) -> dict[str, Any]:
    """The grader's answers from the engine, held to its schema, as a pool would run it."""
    section, pool = getattr(config.rewards, reward), config.pools["grader"]
    os.environ.update(scorer_env(pool))
    scorer = build_scorer("grader", pool, model)
    try:
        asked = [VETOES[reward].question(row.sample, [JudgedText(words=row.response)], section) for row in rows]
        answers = await scorer.score(asked)
    finally:
        scorer.close()
    called, right = 0, 0
    lost = flawed = found = exact = 0
    for row, answer in zip(rows, answers, strict=True):
        try:
            (said,) = VETOES[reward].read(answer.text, row.sample, 1, section)
        except VerdictUnparsable:
            said = None
        if said is None:
            lost += 1
            continue
        vetoed = VETOES[reward].vetoes(said)
        flawed, called, found = flawed + bool(row.labels), called + vetoed, found + (vetoed and bool(row.labels))
        right += vetoed == bool(row.labels)
        exact += tuple(label for label in said.labels if label != "none") == row.labels
    read = len(rows) - lost
    return {
        "n": len(rows), "unread": lost, "accuracy": right / read if read else None,
        "precision": found / called if called else None, "recall": found / flawed if flawed else None,
        "exact_label": exact / read if read else None,
    }  # fmt: skip


def by_flaw(rows: Sequence[JudgedResponse]) -> dict[str, list[JudgedResponse]]:
    kinds: dict[str, list[JudgedResponse]] = {"all": list(rows)}
    for row in rows:
        if flaw := row.sample.meta.get("flaw"):
            kinds.setdefault(str(flaw), []).append(row)
    return kinds


def run(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    planted(args, folder)
    config = configured(args, folder)
    sets = {"planted": folder / "test.jsonl"}
    if args.public:
        sets["public"] = folder / "public.jsonl"
        write_rows(sets["public"], list(public_rows([row for _, row in read_rows(args.public)])))
    tuned = prepare_scorers(config, (), (), lambda line: print(line, flush=True))["grader"]
    pool, grading = config.pools["grader"], grading_of(config.pools["grader"], config)
    out: dict[str, Any] = {
        "model": Path(pool.model).name,
        "prompt": grading.prompt_id,
        "asked_at_once": {},
        "written": {},
    }
    for name, path in sets.items():
        rows = read_judged(path, FLAWS[args.reward])
        for kind, own in by_flaw(rows).items():
            figures = measure_scorer(pool, tuned, grader_exam(grading, own))
            clean = sum(not row.labels for row in own)
            for model, q in figures.items():
                error = auc_standard_error(q.auc, clean, len(own) - clean) if q.auc is not None else None
                shown = {"n": q.n, "auc": q.auc, "auc_error": error, "precision": q.precision, "recall": q.recall}
                out["asked_at_once"][f"{name}/{kind}/{model}"] = shown
                print(f"{args.reward} {name}/{kind}/{model}: {_line(shown)}", flush=True)
        if name == "planted" and not args.no_engine:
            out["written"] = asyncio.run(written(config, tuned.path, rows[: args.written], args.reward))
            print(f"{args.reward} {name}, written through the engine: {_line(out['written'])}", flush=True)
    return out


def _line(figures: dict[str, Any]) -> str:
    return "  ".join(f"{k} {'-' if v is None else format(v, '.3g')}" for k, v in figures.items())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reward", choices=tuple(ROWS), default="risk")
    parser.add_argument("--public", type=Path, help="JSONL of third-party responses with evidence and a label")
    parser.add_argument("--examples", type=int, default=640)
    parser.add_argument("--held-out", type=int, default=200)
    parser.add_argument("--written", type=int, default=60, help="held-out responses put to the engine")
    parser.add_argument("--model", default="smollm2-135m", help="a bundled name or a folder, e.g. a trained scorer's")
    parser.add_argument("--layers", type=int, help="limit; default: all")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-engine", action="store_true", help="leave out what is written through vLLM")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "judges.json")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="hj") as folder:
        found = run(args, Path(folder))
    out = json.loads(args.out.read_text()) if args.out.is_file() else {}
    stamp = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "seed": args.seed}
    out[args.reward] = stamp | {"examples": args.examples, "layers": args.layers} | found
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(args.out, out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
