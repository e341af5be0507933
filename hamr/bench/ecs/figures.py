"""A policy's ECS figures from its responses' scores, and two policies on the same samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hamr.bench.ecs.score import EcsScores
from hamr.bench.statistics import Estimate, mean_interval, share_interval, sign_flip_p
from hamr.errors import DataError

BySample = Mapping[str, float | None]
"""Sample id -> the mean of its responses that have a score; None where none has."""
Value = Callable[[EcsScores], float | None]

VALUES: Mapping[str, Value] = {
    "multi_ecs": lambda s: s.multi,
    "single_ecs": lambda s: s.single,
    "call_tool_accuracy": lambda s: None if s.call is None else float(s.call),
}
"""All in [0, 1]. Call-tool accuracy is over the responses to samples whose logged action is a tool call, or, where none
was logged, whose references all are; the paper does not say what it counts."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Means over samples, with their intervals. `unscored`: responses none of whose references has a vote. `unlogged`:
    responses to samples without a logged reference, which have no Single-ECS. `kinds`: how many responses are a reply,
    a tool call, of the wrong type or malformed. `missing` of `asked` votes failed."""

    values: Mapping[str, Estimate]
    samples: int
    responses: int
    unscored: int
    unlogged: int
    kinds: Mapping[str, int]
    asked: int
    missing: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Policy A minus policy B on the samples that both have a score for, `difference.n` of them; `left_out` have one
    for one policy only, or for neither. `p_value`: two-sided permutation test; None without a pair."""

    difference: Estimate
    p_value: float | None
    wins: int
    ties: int
    losses: int
    left_out: int


def figures(scores: Sequence[EcsScores], *, resamples: int, seed: int) -> Figures:
    """Responses to one sample are no independent draws: they are averaged first, then the samples."""
    values = {
        name: _interval([v for v in by_sample(scores, value).values() if v is not None], resamples, seed)
        for name, value in VALUES.items()
    }
    votes = [vote for s in scores for held in s.votes.values() for vote in held]
    return Figures(
        values=values,
        samples=len({s.id for s in scores}),
        responses=len(scores),
        unscored=sum(s.multi is None for s in scores),
        unlogged=sum(not s.logged for s in scores),
        kinds=dict(Counter(s.kind for s in scores)),
        asked=len(votes),
        missing=sum(vote is None for vote in votes),
    )


def by_sample(scores: Sequence[EcsScores], value: Value) -> dict[str, float | None]:
    held: dict[str, list[float]] = {}
    for s in scores:
        known = held.setdefault(s.id, [])
        if (v := value(s)) is not None:
            known.append(v)
    return {sample: fmean(known) if known else None for sample, known in held.items()}


def _interval(values: Sequence[float], resamples: int, seed: int) -> Estimate:
    if set(values) <= {0.0, 1.0}:  # a bootstrap of 5 of 5 never varies
        return share_interval([value == 1.0 for value in values])
    return mean_interval(values, resamples=resamples, seed=seed)


def compare(a: BySample, b: BySample, *, resamples: int, seed: int) -> Comparison:
    """Paired bootstrap of the mean difference and a sign-flip permutation test.

    Raises DataError, with the id of a sample, where the two were not measured on the same samples.
    """
    check_same_samples(a, b)
    pairs = [(x, y) for sample, x in a.items() if x is not None and (y := b[sample]) is not None]
    differences = [x - y for x, y in pairs]
    return Comparison(
        difference=mean_interval(differences, resamples=resamples, seed=seed),
        p_value=sign_flip_p(differences, resamples=resamples, seed=seed) if differences else None,
        wins=sum(d > 0 for d in differences),
        ties=sum(d == 0 for d in differences),
        losses=sum(d < 0 for d in differences),
        left_out=len(a) - len(pairs),
    )


def check_same_samples(a: Mapping[str, object], b: Mapping[str, object]) -> None:
    """Raises DataError for the first sample that one of the two does not have."""
    for ours, others, side in ((a, b, "compare"), (b, a, "input")):
        missing = next((sample for sample in ours if sample not in others), None)
        if missing is not None:
            remedy = f"sample not in it; {len(ours)} and {len(others)} samples: compare responses to the same ones"
            raise DataError(side, missing, remedy)
