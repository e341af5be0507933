"""OlaBench metrics of a policy by scenario kind and subset, with intervals (second paper, Tables 1 and 3).

Grades are means of 1 to 5, rates are shares of responses, latency is that of the response (in post-CoT of the answer).
The overall score of five means exists only where all five exist. Items without a judgement are left out and counted.

Judges err. Where people labelled a random share of the responses, `debiased` has the grades and rates as people would
give them, with intervals (`hamr.calibration.prediction_powered`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hamr.bench.answers import PolicyResponse
from hamr.bench.olabench.grading import label_value
from hamr.bench.olabench.items import KINDS, SUBSETS, BenchItem
from hamr.bench.olabench.labelled import Labelled
from hamr.bench.olabench.rates import hallucination_rates, overall, risk_rates
from hamr.bench.olabench.responses import ResponseReading
from hamr.bench.statistics import LEVEL, Estimate, mean_interval
from hamr.calibration.prediction_powered import DebiasedMean
from hamr.errors import BadInput
from hamr.rewards import hallucination, risk
from hamr.types import Judgement

GRADES = ("dialogue", "policy", "tool")
RATES = ("risk", "hallucination")


@dataclass(frozen=True, kw_only=True)
class ItemOutcome:
    """Result for one item.

    `reading` is None where there is no text. `judgements` by judge; `missing`: the judges that were asked without
    success. `labelled`: people's labels of this response, those of the first file first.
    """

    item: BenchItem
    response: PolicyResponse
    reading: ResponseReading | None
    judgements: Mapping[str, Judgement]
    missing: tuple[str, ...] = ()
    labelled: tuple[Labelled, ...] = ()


def policy_figures(outcomes: Sequence[ItemOutcome], *, resamples: int, seed: int) -> dict[str, Any]:
    """Return JSON-serialisable metrics by group: `all`, each kind, each subset, and each non-empty kind and subset."""
    both = [f"{kind}/{subset}" for kind in KINDS for subset in SUBSETS]
    groups: dict[str, list[ItemOutcome]] = {name: [] for name in ("all", *KINDS, *SUBSETS, *both)}
    for outcome in outcomes:
        kind, subset = outcome.item.kind, outcome.item.subset
        for name in ("all", kind, subset, f"{kind}/{subset}"):
            groups[name].append(outcome)
    return {name: _group(mine, resamples, seed) for name, mine in groups.items() if mine}


def _group(outcomes: Sequence[ItemOutcome], resamples: int, seed: int) -> dict[str, Any]:
    luck = {"resamples": resamples, "seed": seed}
    judged = {
        name: {o.item.sample.id: o.judgements.get(name) for o in outcomes if name in (*o.judgements, *o.missing)}
        for name in RATES
    }
    return {
        "items": len(outcomes),
        "overall": asdict(overall_interval(outcomes, **luck)),
        "grades": {
            name: asdict(
                mean_interval([_value(outcome, name) for outcome in outcomes if name in outcome.judgements], **luck)
            )
            for name in GRADES
        },
        "risk": asdict(risk_rates(judged["risk"])),
        "hallucination": asdict(hallucination_rates(judged["hallucination"])),
        "debiased": {name: found for name in (*GRADES, *RATES) if (found := _corrected_mean(outcomes, name))},
        "latency": _latency(outcomes, luck),
        "responses": _counts(outcomes),
    }


def _corrected_mean(outcomes: Sequence[ItemOutcome], name: str) -> dict[str, float]:
    """Return the mean of a judge corrected by people's labels of the same responses; empty with too few labels."""
    means = DebiasedMean(limits=(1.0, 5.0), unseen=2.0) if name in GRADES else DebiasedMean()
    for outcome in outcomes:
        if name in outcome.judgements:
            value = _value(outcome, name)
            known = (label_value(row, name) for row in outcome.labelled)
            label = next((value for value in known if value is not None), None)
            means.add(value, residual=None if label is None else label - value)
    return means.estimate()


def overall_interval(outcomes: Sequence[ItemOutcome], *, resamples: int, seed: int) -> Estimate:
    """Return the overall score with a bootstrap over items, stratified by subset, since the subset sizes are fixed.

    `n` counts the items with at least one judgement. All None where one of the five means is missing. A draw with a
    missing mean is left out of the interval.
    """
    names = (*GRADES, *RATES)
    values = np.array([[_value(outcome, name) for name in names] for outcome in outcomes], dtype=np.float64)
    subsets = [np.flatnonzero([o.item.subset == s for o in outcomes]) for s in SUBSETS]
    strata = [rows for rows in subsets if rows.size]
    n = int((~np.isnan(values)).any(axis=1).sum())
    mean = _overall(values)
    if mean is None:
        return Estimate(mean=None, low=None, high=None, n=n)
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(resamples):
        drawn = np.concatenate([rows[rng.integers(rows.size, size=rows.size)] for rows in strata])
        draws.append(_overall(values[drawn]))
    low, high = np.quantile([d for d in draws if d is not None], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean=mean, low=float(low), high=float(high), n=n)


def _overall(values: np.ndarray) -> float | None:
    known = ~np.isnan(values)
    if not known.any(axis=0).all():
        return None
    means = np.where(known, values, 0.0).sum(axis=0) / known.sum(axis=0)
    return overall(*(float(mean) for mean in means))


def _value(outcome: ItemOutcome, name: str) -> float:
    judgement = outcome.judgements.get(name)
    if judgement is None:
        return float("nan")
    if name in RATES:
        return float(risk.vetoes(judgement) if name == "risk" else hallucination.vetoes(judgement))
    if judgement.grade is None:
        raise BadInput(
            f"{name} judgement", outcome.item.sample.id, "has no grade; remove its line from judgements.jsonl"
        )
    return float(judgement.grade)


def _latency(outcomes: Sequence[ItemOutcome], luck: Mapping[str, int]) -> dict[str, Any]:
    """Return seconds and tokens of the responses that the policy generated in this evaluation.

    The seconds are those of the responses at concurrency 1. `concurrent` has those of the others, None without any.
    Without a response at concurrency 1, the seconds are those of all, under the load `at_once`.
    The tokens of a response with thinking are split between thinking and the rest in proportion to their characters.
    """
    timed = [o for o in outcomes if o.response.seconds is not None]
    alone = [o for o in timed if o.response.at_once == 1] or timed
    loaded = [o for o in timed if o.response.at_once != 1] if len(alone) < len(timed) else []
    counted = [(o.response.tokens, o.reading.cot_share) for o in timed if o.reading and o.response.tokens is not None]
    thought = [float(tokens * share) for tokens, share in counted if share > 0]
    answered = [float(tokens * (1 - share)) for tokens, share in counted]
    return {
        **_seconds(alone, luck),
        "concurrent": _seconds(loaded, luck) if loaded else None,
        "response_tokens": asdict(mean_interval(answered, **luck)),
        "cot_tokens": asdict(mean_interval(thought, **luck)),
    }


def _seconds(outcomes: Sequence[ItemOutcome], luck: Mapping[str, int]) -> dict[str, Any]:
    seconds = [float(o.response.seconds or 0.0) for o in outcomes]
    return {
        "at_once": max((o.response.at_once or 0 for o in outcomes), default=0) or None,
        "seconds": asdict(mean_interval(seconds, **luck)),
        "median_s": float(np.median(seconds)) if seconds else None,
        "p95_s": float(np.quantile(seconds, 0.95)) if seconds else None,
    }


def _counts(outcomes: Sequence[ItemOutcome]) -> dict[str, Any]:
    return {
        "given": sum(o.response.text is not None for o in outcomes),
        "failed": sum(o.response.text is None for o in outcomes),
        "malformed": sum(bool(o.reading and o.reading.malformed) for o in outcomes),
        "cut_off": sum(o.response.cut_off for o in outcomes),
        "unjudged": dict(Counter(name for o in outcomes for name in o.missing)),
    }
