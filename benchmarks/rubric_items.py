"""The cascade over rubric items: how many questions to the judge, at which loss of rho?

    python benchmarks/rubric_items.py                      # minutes a seed on two cores, most of them for training
    python benchmarks/rubric_items.py --only simulated     # simulated answers of better and worse scorers, in a minute

README.md in this folder says what is real and what is made.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from calibration import machine  # noqa: E402
from results_json import write_results  # noqa: E402

from hamr.apps.calibrate.items import ItemAnswers  # noqa: E402
from hamr.calibration.cascade import Cascade  # noqa: E402
from hamr.calibration.fit import calibrate  # noqa: E402
from hamr.calibration.ranks import Floats, spearman  # noqa: E402
from hamr.calibration.search import mix_scores  # noqa: E402
from hamr.cascade.rubric_cascade import item_question, pass_score  # noqa: E402
from hamr.config.pools import PoolConfig, ScorerTrainingConfig  # noqa: E402
from hamr.config.schema import SageDataConfig  # noqa: E402
from hamr.data.contrasts import STRAY  # noqa: E402
from hamr.data.sage_samples import generate_samples  # noqa: E402
from hamr.data.words import facts  # noqa: E402
from hamr.models.bundled import resolve_model  # noqa: E402
from hamr.pools.pair_training import PairExample, finetune_pairs  # noqa: E402
from hamr.pools.scorers import build_scorer  # noqa: E402
from hamr.procedures.acts import ASK, Context, SageActs  # noqa: E402
from hamr.rewards.questions import JudgedText  # noqa: E402
from hamr.rewards.rubric import RubricItem  # noqa: E402
from hamr.types import Reply, ServiceSample  # noqa: E402

RESPONSES = 4
"""Responses to each sample."""
TRAINING = {
    "reranker": ("compact-encoder", {"examples": 8000, "epochs": 2, "batch_size": 32, "learning_rate": 1e-3}),
    "judge": (
        "all-minilm-l6-v2",
        {"examples": 3000, "batch_size": 32, "learning_rate": 3e-4, "train_embeddings": False},
    ),
}
"""Models and training of the quickstart's two scorers, on items instead of pairs of replies."""
SHARES = (0.1, 0.2, 0.35, 0.5)
"""Bounds on the share of items that the judge answers."""


@dataclass(frozen=True)
class Response:
    """A made response: its sentences, the acts that it takes, and the numbers and names that it states."""

    text: str
    acts: frozenset[str]
    facts: frozenset[str]


@dataclass(frozen=True)
class ItemCase:
    """One item of one response, and whether the response passes it."""

    sample: ServiceSample
    item: RubricItem
    response: str
    passes: bool
    number: int


def act_item(acts: SageActs, act: str, weight: float) -> RubricItem:
    """An item about an act of the scenario, in the words of its description."""
    if act.startswith(ASK):
        field = act.removeprefix(ASK)
        return RubricItem(
            title="Question", description=f"Asks {_text(acts.scenario.file.fields[field])}.", weight=weight
        )
    return RubricItem(title="Step", description=_text(acts.scenario.file.actions[act]), weight=weight)


def _text(described: Any) -> str:
    return described.description.en


def rubric(sample: ServiceSample, acts: SageActs, due: str, rng: Random) -> list[tuple[RubricItem, Any]]:
    """Return the items of a sample, each with the rule for its truth: a function of a response."""
    wanted = set.intersection(*(facts(r.action.content) for r in sample.references if isinstance(r.action, Reply)))
    known = set.union(*(facts(r.action.content) for r in sample.references if isinstance(r.action, Reply)))
    others = [act for act in acts.names(sample.meta["split"]) if act != due]
    items: list[tuple[RubricItem, Any]] = [(act_item(acts, due, 5.0), lambda r: due in r.acts)]
    for fact in sorted(wanted)[:2]:
        item = RubricItem(title="Fact", description=f"States {fact}.", weight=3.0)
        items.append((item, lambda r, fact=fact: fact in r.facts))
    for act in rng.sample(others, min(2, len(others))):
        items.append((act_item(acts, act, -2.0), lambda r, act=act: act not in r.acts))
    question = RubricItem(title="Manner", description="Ends with a question to the customer.", weight=1.0)
    items.append((question, lambda r: r.text.endswith("?")))
    if wanted:
        wrong = RubricItem(
            title="Wrong fact", description=f"States other numbers than {', '.join(sorted(known))}.", weight=-2.0
        )
        items.append((wrong, lambda r: r.facts <= known))
    return items


def respond(sample: ServiceSample, acts: SageActs, due: str, rng: Random) -> Response:
    """Make a response: mostly the expected act, another one in half of them, sometimes wrong facts or chatter."""
    context = Context.of(sample)
    names = [act for act in acts.names(context.split) if acts.texts(act, context)]
    taken = [due] if rng.random() < 0.6 else []
    if not taken or rng.random() < 0.4:
        taken.append(rng.choice([act for act in names if act != due]))
    rng.shuffle(taken)
    sentences = []
    for act in taken:
        drawn = acts.elsewhere(context, rng) if rng.random() < 0.25 else context
        sentences.append(rng.choice(acts.texts(act, drawn) or acts.texts(act, context)))
    if rng.random() < 0.15:
        sentences.insert(rng.randrange(len(sentences) + 1), rng.choice(STRAY["en"][context.split]))
    if rng.random() < 0.1:
        sentences, taken = [rng.choice(STRAY["en"][context.split])], []
    text = " ".join(sentences)
    return Response(text=text, acts=frozenset(taken), facts=frozenset(facts(text)))


def cases(samples: Sequence[ServiceSample], rng: Random) -> Iterator[ItemCase]:
    """Yield the items of RESPONSES responses to each sample whose expected act is a reply."""
    number = 0
    for sample in samples:
        acts, due = SageActs.of(sample), str(sample.meta["act"])
        if acts is None or not all(isinstance(r.action, Reply) for r in sample.references):
            continue
        items = rubric(sample, acts, due, rng)
        for _ in range(RESPONSES):
            response = respond(sample, acts, due, rng)
            for item, truth in items:
                yield ItemCase(sample, item, response.text, bool(truth(response)), number)
            number += 1


def trained(role: str, given: Sequence[ItemCase], folder: Path, seed: int) -> Path:
    """Train the model of a role on items and return its folder. The target is whether what is described is present."""
    model, how = TRAINING[role]
    config = ScorerTrainingConfig(threads=1, **how)
    rng = Random(f"{role}/{seed}")
    chosen = rng.sample(list(given), min(config.examples, len(given)))
    examples = []
    for case in chosen:
        asked = item_question(case.sample, case.item, JudgedText(words=case.response)).variables
        target = pass_score(case.item, float(case.passes))
        examples.append(PairExample(asked["statement_a"], asked["statement_b"], target))
    out = folder / f"{role}-{seed}"
    if out.is_dir():
        return out

    def progress(step: int, steps: int, loss: float) -> None:
        if step % 50 == 0 or step == steps:
            print(f"{role}, seed {seed}: step {step} of {steps}, loss {loss:.3f}", flush=True)

    finetune_pairs(resolve_model(model), out, examples, config, seed=seed, progress=progress)
    return out


def score(role: str, model: Path, given: Sequence[ItemCase]) -> Floats:
    """Return the probability that each item is passed, by a trained model."""
    pool = PoolConfig.model_validate(
        {"role": role, "type": "cross_encoder", "model": str(model), "dtype": "float32", "prompt": ""}
    )
    scorer = build_scorer(role, pool, model)
    questions = [item_question(case.sample, case.item, JudgedText(words=case.response)) for case in given]

    async def ask() -> list[float]:
        answers = await scorer.score(questions)
        return [float(answer.score) for answer in answers]

    said = asyncio.run(ask())
    scorer.close()
    return np.array([pass_score(case.item, p) for case, p in zip(given, said, strict=True)])


def answers_of(given: Sequence[ItemCase], s_r: Floats, s_j: Floats) -> ItemAnswers:
    return ItemAnswers(
        s_r=s_r,
        s_j=s_j,
        y=np.array([float(case.passes) for case in given]),
        weight=np.array([case.item.weight for case in given]),
        response=np.array([case.number for case in given]),
    )


def rho(answers: ItemAnswers, values: Floats) -> float:
    """Return rho of the responses' rubric values with those by the truth."""
    return float(spearman(answers.rewards(values), answers.rewards(answers.y)))


def accuracy(answers: ItemAnswers, values: Floats) -> float:
    return float(np.mean((values >= 0.5) == (answers.y >= 0.5)))


def measure(seed: int, most: int, folder: Path) -> dict[str, Any]:
    """Train both models on the training split, fit the cascade on validation, and report on test."""
    data = SageDataConfig(scenario="all", seed=seed, train=600, validation=most, test=most)
    splits = generate_samples(data)
    train = list(cases(splits.train, Random(f"train/{seed}")))
    parts: dict[str, ItemAnswers] = {}
    models = {role: trained(role, train, folder, seed) for role in TRAINING}
    for part in ("validation", "test"):
        given = list(cases(getattr(splits, part), Random(f"{part}/{seed}")))
        s_r, s_j = (score(role, models[role], given) for role in ("reranker", "judge"))
        # The judge of the product gives verdicts, not probabilities.
        parts[part] = answers_of(given, s_r, (s_j >= 0.5).astype(float))
    fitted, test = parts["validation"], parts["test"]
    found: dict[str, Any] = {
        "seed": seed,
        "items": {part: int(answers.y.size) for part, answers in parts.items()},
        "responses": {part: int(answers.response[-1]) + 1 for part, answers in parts.items()},
        "item_accuracy": {"reranker": accuracy(test, test.s_r), "judge": accuracy(test, test.s_j)},
        "rho": {"reranker": rho(test, test.s_r), "judge": rho(test, test.s_j)},
        "cascades": [],
    }
    for share in SHARES:
        fit = calibrate(
            fitted.s_r, fitted.s_j, fitted.y, max_escalated_frac=share, folds=0, resamples=0, over="confidence"
        )
        found["cascades"].append({"most": share, **outcome(fit.cascade, test)})
    return found


def outcome(cascade: Cascade, test: ItemAnswers) -> dict[str, Any]:
    doubt = (test.confidence < cascade.tau_a) | (test.confidence > cascade.tau_b)
    value = rho(test, mix_scores(cascade, test.s_r, test.s_j, test.confidence))
    return {
        "cascade": cascade.parameters,
        "items_judged": float(doubt.mean()),
        "responses_judged": float((np.bincount(test.response, doubt) > 0).mean()),
        "rho": value,
        "rho_minus_judge": value - rho(test, test.s_j),
    }


def drawn(rng: np.random.Generator, responses: int, reranker: float, judge: float) -> ItemAnswers:
    """Draw eight items for each response and their answers. `reranker`: distance of its two modes, in standard
    deviations. `judge`: share of its verdicts that are wrong."""
    response = np.repeat(np.arange(responses), 8)
    weight = rng.choice([1.0, 2.0, 3.0, 4.0, 5.0, -1.0, -2.0], response.size)
    quality = rng.normal(0.0, 0.8, responses)[response] + rng.normal(0.3, 1.0, response.size)
    y = (rng.random(response.size) < 1.0 / (1.0 + np.exp(-quality))).astype(float)
    s_r = 1.0 / (1.0 + np.exp(-1.5 * ((y - 0.5) * reranker + rng.normal(0.0, 1.0, response.size))))
    s_j = np.where(rng.random(response.size) < judge, 1.0 - y, y)
    return ItemAnswers(s_r=s_r, s_j=s_j, y=y, weight=weight, response=response)


def simulate(seeds: int) -> list[dict[str, Any]]:
    """Fit on 400 drawn responses, at most 0.35 of the items judged, and measure on 1,000 others. Means over seeds."""
    rows = []
    for reranker, judge in itertools.product((1.5, 2.0, 2.7, 3.5), (0.0, 0.05, 0.1)):
        ends = []
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            fitted, test = drawn(rng, 400, reranker, judge), drawn(rng, 1000, reranker, judge)
            fit = calibrate(
                fitted.s_r, fitted.s_j, fitted.y, max_escalated_frac=0.35, folds=0, resamples=0, over="confidence"
            )
            ends.append(
                {**outcome(fit.cascade, test), "reranker": accuracy(test, test.s_r), "judge": rho(test, test.s_j)}
            )
        keys = ("reranker", "judge", "items_judged", "responses_judged", "rho", "rho_minus_judge")
        row = {key: fmean(end[key] for end in ends) for key in keys}
        deviation = float(np.std([end["rho_minus_judge"] for end in ends]))
        rows.append({"judge_wrong": judge, **row, "deviation": deviation})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", choices=("models", "simulated"), help="one of the two parts; the file keeps the other"
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--most", type=int, default=200, help="samples of each split")
    parser.add_argument("--models", type=Path, help="folder of trained models: used again, or filled")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "rubric_items.json")
    args = parser.parse_args(argv)
    found: dict[str, Any] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": {"samples": args.most, "responses": RESPONSES, "training": TRAINING},
        "seeds": [],
    }
    if args.only is not None and args.out.is_file():
        found = json.loads(args.out.read_text())
    if args.only != "models":
        found["simulated"] = simulate(max(args.seeds, 5))
        write_results(args.out, found)
    if args.only == "simulated":
        return
    found["seeds"] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.models or scratch
        for seed in range(args.seeds):
            found["seeds"].append(measure(seed, args.most, Path(folder)))
            found["mean"] = [mean_of(found["seeds"], i) for i in range(len(SHARES))]
            write_results(args.out, found)
            print(json.dumps(found["seeds"][-1], indent=1), flush=True)
    print(json.dumps(found["mean"], indent=1) + f"\nwritten to {args.out}")


def mean_of(seeds: Sequence[dict[str, Any]], number: int) -> dict[str, float]:
    rows = [seed["cascades"][number] for seed in seeds]
    keys = ("items_judged", "responses_judged", "rho", "rho_minus_judge")
    return {"most": rows[0]["most"], **{key: fmean(row[key] for row in rows) for key in keys}}


if __name__ == "__main__":
    main()
