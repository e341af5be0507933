"""Quality of scorers: errors on negations, and the AUC on labelled reply pairs.

    python benchmarks/scorers.py                                         # word overlap and embedding
    python benchmarks/scorers.py --reranker FOLDER --judge FOLDER        # the quickstart's fine-tuned ones too
    python benchmarks/scorers.py --cross-encoder FOLDER --pairs FILE.jsonl --probes FILE.jsonl

Sets of pairs:
  generated      the quickstart's test split
  hard           hard_pairs.yaml: paraphrases against contradictions and half-right replies of either wording; words in
                 common point the wrong way. "hard, unseen" is the quarter of it by which no choice was made.
  given          the file of labelled pairs
  plain          its consistent pairs, against their first replies with a reply to another dialogue
  misleading     its consistent pairs with fewer words in common than the median, against inconsistent ones with more

Then the contexts of `hamr scorer check` in which a wrong reply wins: of the quickstart, and of samples of your own.

benchmarks/README.md says how to read what it prints.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from benchmarks.results_json import write_results  # noqa: E402
from hamr.apps.scorer.check import SEED as CONTEXTS_SEED  # noqa: E402
from hamr.apps.scorer.gate import gate  # noqa: E402
from hamr.apps.scorer.pair_check import auc, auc_standard_error, pair_question, word_overlap  # noqa: E402
from hamr.apps.shared.machine import machine, versions  # noqa: E402
from hamr.apps.shared.reply_clusters import scorer_splits  # noqa: E402
from hamr.config.load import load_config  # noqa: E402
from hamr.config.pools import PoolConfig  # noqa: E402
from hamr.config.safe_yaml import load_yaml  # noqa: E402
from hamr.config.schema import SageDataConfig  # noqa: E402
from hamr.data.contrasts import Contrast, contrasts  # noqa: E402
from hamr.data.pairs import ReplyPair, read_pairs, reply_pairs  # noqa: E402
from hamr.data.sage_samples import generate_samples  # noqa: E402
from hamr.data.samples import read_rows  # noqa: E402
from hamr.errors import BadInput  # noqa: E402
from hamr.models.bundled import resolve_model  # noqa: E402
from hamr.pools.scorers import build_scorer, check_scorer, scorer_env  # noqa: E402

PLAIN_SEED = 0
PROBES = (
    (
        "same topic, contradictory",
        "If your router keeps losing the line, restart it first: that clears its memory and mostly brings it back.",
        "If your router keeps losing the line, do not restart it first: that clears its memory, and the log that would "
        "show the cause is gone. Save the log before anything else.",
    ),
    (
        "half contradictory",
        "To pay less, take the two-year contract: its monthly price is lower, and longer contracts cost less overall.",
        "A two-year contract has a lower monthly price, but if you leave early you pay a fee for every month that is "
        "left. Take it only if you are sure to stay.",
    ),
    (
        "paraphrase",
        "Please open the app, choose your line under Contracts, and press Cancel at the bottom of the page.",
        "It is quickly done: in Contracts, pick the number that you want to give up. The button that ends it is the "
        "last thing you see there.",
    ),
    (
        "unrelated",
        "Your bill shows a higher charge for roaming. You can see day by day in the app where it came from.",
        "A sourdough starter wants the same weight of flour and water every day, and a warm place to rest.",
    ),
    ("negation", "You can cancel at any time without a fee.", "You can not cancel at any time without a fee."),
)
"""Pairs in the relations of the first paper's Table 6, in our own words, and a bare negation. A scorer of consistency
should put the paraphrase above all others."""


def hard_pairs(*, unseen: bool = False) -> list[ReplyPair]:
    """A paraphrase and its reply, either way round, against the wrong replies of both: common words mislead here."""
    found = []
    for group in load_yaml((HERE / "hard_pairs.yaml").read_text(encoding="utf-8")):
        if unseen and not group.get("unseen"):
            continue
        two, wrong = (group["reply"], group["paraphrase"]), (group["contradiction"], group["half"])
        found += [(first, other, "consistent") for first, other in (two, two[::-1])]
        found += [(first, other, "inconsistent") for first in two for other in wrong]
    return [ReplyPair(history="", statement_a=a, statement_b=b, label=label) for a, b, label in found]


def plain_pairs(pairs: Sequence[ReplyPair]) -> list[ReplyPair]:
    """The consistent pairs, each also with the second reply of one from another dialogue in place of its own."""
    rng, consistent = Random(PLAIN_SEED), [pair for pair in pairs if pair.label == "consistent"]
    found = list(consistent)
    for pair in consistent:
        others = [o for o in consistent if o.history != pair.history and o.statement_b != pair.statement_b]
        found.append(replace(pair, statement_b=rng.choice(others).statement_b, label="inconsistent"))
    return found


def misleading_pairs(pairs: Sequence[ReplyPair]) -> list[ReplyPair]:
    """Consistent pairs whose word overlap is below the median of all, and inconsistent ones whose is above it."""
    shares = [word_overlap(pair.statement_a, pair.statement_b) for pair in pairs]
    middle, sign = median(shares), {"consistent": -1, "inconsistent": 1, "partial": 0}
    return [pair for pair, share in zip(pairs, shares, strict=True) if sign[pair.label] * (share - middle) > 0]


def score_here(spec: dict[str, Any]) -> dict[str, Any]:
    """Scores (None for a failure) of all pairs by one scorer, in this process, and the seconds they took."""
    pairs = [ReplyPair(**row) for row in spec["pairs"]]
    questions = [pair_question(pair) for pair in pairs]
    config, model = PoolConfig.model_validate(spec["pool"]), Path(spec["model"])
    check_scorer(spec["name"], config, model)
    scorer = build_scorer(spec["name"], config, model)

    async def ask() -> tuple[list[float | None], list[str], float]:
        await scorer.score(questions[:2])
        started = time.perf_counter()
        answers = await scorer.score(questions)
        return [a.score for a in answers], [a.detail for a in answers if a.failure], time.perf_counter() - started

    scores, failures, seconds = asyncio.run(ask())
    scorer.close()
    return {"scores": scores, "failures": failures, "seconds": seconds}


def score_in_child(name: str, pool: dict[str, Any], model: Path, pairs: Sequence[ReplyPair]) -> dict[str, Any]:
    """The same in a process of its own: an engine reads its environment when it is imported, and there is one each."""
    spec = {"name": name, "pool": pool, "model": str(model), "pairs": [vars(pair) for pair in pairs]}
    environment = os.environ | dict(scorer_env(PoolConfig.model_validate(pool)))
    with tempfile.TemporaryDirectory() as folder:
        asked, said = Path(folder) / "asked.json", Path(folder) / "said.json"
        asked.write_text(json.dumps(spec))
        command = [sys.executable, __file__, "--child", str(asked), str(said)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        return json.loads(said.read_text())


def overlap(pairs: Sequence[ReplyPair]) -> dict[str, Any]:
    started = time.perf_counter()
    scores = [word_overlap(pair.statement_a, pair.statement_b) for pair in pairs]
    return {"scores": scores, "failures": [], "seconds": time.perf_counter() - started}


def context_pairs(drawn: Sequence[Contrast]) -> list[ReplyPair]:
    """Every right and wrong reply of the contexts, with its reference."""
    texts = [(c.reference, text) for c in drawn for text in dict.fromkeys((*c.right, *(w.text for w in c.wrong)))]
    return [ReplyPair(history="", statement_a=a, statement_b=b, label="partial") for a, b in texts]


def fooled(scores: Sequence[float | None], drawn: Sequence[Contrast]) -> dict[str, Any]:
    """Count the contexts in which the best wrong reply outscores the median right one, as `hamr scorer check` does."""
    given, known = iter(scores), {}
    for number, contrast in enumerate(drawn):
        for text in dict.fromkeys((*contrast.right, *(wrong.text for wrong in contrast.wrong))):
            if (score := next(given)) is not None:
                known[number, text] = score
    result = gate(drawn, known)
    return {"contexts": result.contexts, "fooled": len(result.fooled), "share": result.share}


def figures(
    found: dict[str, Any],
    sets: dict[str, list[ReplyPair]],
    probes: Sequence[str],
    contexts: dict[str, list[Contrast]],
) -> dict[str, Any]:
    """Scores of the probes, the AUC of each set, and the contexts that fool it, from the scores of all in a row."""
    scores: list[float | None] = found["scores"]
    out: dict[str, Any] = {
        "ms_per_pair": 1000 * found["seconds"] / len(scores),
        "failed": len(found["failures"]),
        "failures": sorted(set(found["failures"]))[:3],
        "probes": dict(zip(probes, scores, strict=False)),
        "auc": {},
        "contexts": {},
    }
    at = len(probes)
    for name, pairs in sets.items():
        own, at = scores[at : at + len(pairs)], at + len(pairs)
        rated = [(s, p.label == "consistent") for s, p in zip(own, pairs, strict=True) if s is not None]
        positives = sum(label for _, label in rated)
        if not 0 < positives < len(rated):
            continue
        value = auc([s for s, _ in rated], [label for _, label in rated])
        error = auc_standard_error(value, positives, len(rated) - positives)
        out["auc"][name] = {"auc": value, "standard_error": error, "pairs": len(rated)}
    for name, drawn in contexts.items():
        own, at = scores[at : at + len(context_pairs(drawn))], at + len(context_pairs(drawn))
        out["contexts"][name] = fooled(own, drawn)
    return out


def clear(pairs: Sequence[ReplyPair], most: int) -> list[ReplyPair]:
    """At most `most` pairs, half of them consistent and half inconsistent, each evenly from the whole file."""
    found = []
    for label in ("consistent", "inconsistent"):
        own = [pair for pair in pairs if pair.label == label]
        found += own[:: max(1, -(-len(own) // max(1, most // 2)))]
    return found


def wanted(args: argparse.Namespace) -> dict[str, tuple[dict[str, Any], Path] | str]:
    """Name -> (pool, model folder), or why the scorer is not at hand."""
    out: dict[str, tuple[dict[str, Any], Path] | str] = {}
    given: list[tuple[str, str | None, dict[str, Any]]]
    given = [("embedding", args.embedding, {}), ("cross_encoder", args.cross_encoder, {})]
    given += [("cross_encoder with topic", args.cross_encoder, {"topic": {}})]
    for title, name, more in given:
        pool = {"role": "reranker", "type": title.split()[0], "model": name or "", "dtype": "float32", **more}
        if not name:
            out[title] = "no model given"
            continue
        try:
            model = resolve_model(name)
            check_scorer(title, PoolConfig.model_validate(pool), model)
            out[title] = (pool, model)
        except BadInput as error:
            out[title] = str(error)
    pools = load_config(["experiment=quickstart"]).pools
    for role, folder in (("reranker", args.reranker), ("judge", args.judge)):
        pool = pools[role].model_dump(mode="json")
        out[f"quickstart's {role}"] = (pool, folder) if folder else "no checkpoint given"
    return out


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embedding", default="all-minilm-l6-v2", help='a bundled name or a folder; "" for none')
    parser.add_argument("--cross-encoder", help="a folder")
    parser.add_argument("--reranker", type=Path, help="folder of the quickstart's fine-tuned reranker")
    parser.add_argument("--judge", type=Path, help="folder of its fine-tuned judge")
    parser.add_argument("--pairs", type=Path, help='labelled pairs: {"content_A", "content_B", "label"}')
    parser.add_argument("--probes", type=Path, help='further probes: {"name", "content_A", "content_B"}')
    parser.add_argument("--seed", type=int, default=13, help="draw of the generated dialogues; the quickstart's is 13")
    parser.add_argument(
        "--data", type=Path, help="folder of samples of your own, for the contexts of `hamr scorer check`"
    )
    parser.add_argument("--contexts", type=int, default=100, help="contexts of the generated and of your own samples")
    parser.add_argument("--most", type=int, default=150, help="pairs of each set")
    parser.add_argument("--keep", action="store_true", help="keep what the file has of scorers not asked for now")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "scorers.json")
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        args.child[1].write_text(json.dumps(score_here(json.loads(args.child[0].read_text()))))
        return
    rows = [row for _, row in read_rows(args.probes)] if args.probes else []
    probes = [*PROBES, *((f"{r['name']} (given)", r["content_A"], r["content_B"]) for r in rows)]
    test = generate_samples(SageDataConfig(seed=args.seed)).test
    sets = {"generated": clear(reply_pairs(test, 3 * args.most, 17), args.most)}
    sets |= {"hard": hard_pairs(), "hard, unseen": hard_pairs(unseen=True)}
    if args.pairs:
        given = read_pairs(args.pairs)
        sets |= {"given": given, "plain": plain_pairs(given), "misleading": misleading_pairs(given)}
        sets |= {name: clear(sets[name], args.most) for name in ("given", "plain", "misleading")}
    everything = [ReplyPair(history="", statement_a=a, statement_b=b, label="partial") for _, a, b in probes]
    everything += [pair for pairs in sets.values() for pair in pairs]
    contexts = {"generated": contrasts(test, args.contexts, CONTEXTS_SEED)}
    if args.data:
        splits = scorer_splits(load_config(["experiment=own_data", f"data={args.data}"]), print)
        contexts["own"] = contrasts((*splits.validation, *splits.test), args.contexts, CONTEXTS_SEED)
    everything += [pair for drawn in contexts.values() for pair in context_pairs(drawn)]
    names = [name for name, *_ in probes]
    out: dict[str, Any] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine() | {"load": os.getloadavg()},
    }
    out |= {"versions": versions(), "seed": args.seed, "most": args.most, "scorers": {}, "not_at_hand": {}}
    if args.keep and args.out.is_file():
        before = json.loads(args.out.read_text())
        if (before["seed"], before["most"]) == (args.seed, args.most):
            out["scorers"] = before["scorers"]
    kept = out["scorers"].get("word overlap", {})
    out["scorers"]["word overlap"] = found = figures(overlap(everything), sets, names, contexts)
    for part in ("probes", "auc", "contexts"):  # word overlap is always measured, perhaps not on all of the kept sets
        found[part] = kept.get(part, {}) | found[part]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name, what in wanted(args).items():
        if isinstance(what, str):
            if name not in out["scorers"]:
                out["not_at_hand"][name] = what
                print(f"{name}: not at hand: {what}", flush=True)
            continue
        load = os.getloadavg()[0]
        scored = score_in_child(name, *what, everything)
        out["scorers"][name] = figures(scored, sets, names, contexts) | {"load": load}
        write_results(args.out, out)
    for name, found in out["scorers"].items():
        print(f"\n{name}: {found['ms_per_pair']:.1f} ms a pair, {found['failed']} failed {found['failures']}")
        for probe, score in found["probes"].items():
            print(f"  {'-' if score is None else f'{score:.3f}'}  {probe}")
        for which, value in found["auc"].items():
            print(f"  AUC {value['auc']:.3f} +- {value['standard_error']:.3f} on {value['pairs']} {which} pairs")
        for which, value in found["contexts"].items():
            print(f"  fooled in {value['fooled']} of {value['contexts']} {which} contexts ({value['share']:.1%})")
    write_results(args.out, out)
    print(f"\nwritten to {args.out}")


if __name__ == "__main__":
    main()
