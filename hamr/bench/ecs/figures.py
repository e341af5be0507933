"""ECS metrics of a policy, and the comparison of two policies on the same samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hamr.bench.ecs.score import EcsScores
from hamr.bench.statistics import Estimate, mean_interval, share_interval, sign_flip_p
from hamr.calibration.prediction_powered import DebiasedMean
from hamr.errors import DataError

BySample = Mapping[str, float | None]
"""Sample id -> the mean of its scored responses; None where no response is scored."""
ScoreValue = Callable[[EcsScores], float | None]

VALUES: Mapping[str, ScoreValue] = {
    "multi_ecs": lambda s: s.multi,
    "single_ecs": lambda s: s.single,
    "call_tool_accuracy": lambda s: None if s.call is None else float(s.call),
}
"""All in [0, 1]. Call-tool accuracy is over the responses to samples whose logged action is a tool call, or, without a
logged action, whose references are all tool calls; the paper does not define it."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Means over samples, with their intervals.

    `unscored`: responses without a vote on any reference. `unlogged`: responses to samples without a logged reference,
    which have no Single-ECS. `kinds`: number of responses that are a reply, a tool call, of the wrong type or
    malformed. `missing` of `asked` votes failed.
    """

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
    """Policy A minus policy B on the `difference.n` samples with a score for both.

    `left_out`: samples with a score for one policy or none. `p_value`: two-sided permutation test; None without a pair.
    """

    difference: Estimate
    p_value: float | None
    wins: int
    ties: int
    losses: int
    left_out: int


def figures(scores: Sequence[EcsScores], *, resamples: int, seed: int) -> Figures:
    """Compute the metrics. Responses to one sample are not independent: they are averaged first, then the samples."""
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


def by_sample(scores: Sequence[EcsScores], value: ScoreValue) -> dict[str, float | None]:
    held: dict[str, list[float]] = {}
    for s in scores:
        known = held.setdefault(s.id, [])
        if (v := value(s)) is not None:
            known.append(v)
    return {sample: fmean(known) if known else None for sample, known in held.items()}


def corrected_mean(scores: Sequence[EcsScores], labels: Mapping[tuple[str, int], float]) -> dict[str, float]:
    """Return Multi-ECS as people would score it, with an interval (`hamr.calibration.prediction_powered`).

    `labels`: people's scores of a random share of the judged responses, by sample and index. Empty with too few of
    them. The mean of a sample's residuals counts as far as its responses were judged.
    """
    held: dict[str, list[tuple[EcsScores, float]]] = {}
    for s in scores:
        if s.multi is not None:
            held.setdefault(s.id, []).append((s, s.multi))
    means = DebiasedMean()
    for own in held.values():
        judged = [(s, value) for s, value in own if s.votes]
        found = [labels[s.id, s.index] - value for s, value in judged if (s.id, s.index) in labels]
        residual = fmean(found) * len(judged) / len(own) if found else None
        means.add(fmean(value for _, value in own), auditable=bool(judged), residual=residual)
    return means.estimate()


def _interval(values: Sequence[float], resamples: int, seed: int) -> Estimate:
    if set(values) <= {0.0, 1.0}:  # a bootstrap of 5 of 5 has no variance
        return share_interval([value == 1.0 for value in values])
    return mean_interval(values, resamples=resamples, seed=seed)


def compare(a: BySample, b: BySample, *, resamples: int, seed: int) -> Comparison:
    """Return the mean difference with a paired bootstrap interval and a sign-flip permutation test.

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
    """Raise DataError for the first sample that only one of the two has."""
    for ours, others, side in ((a, b, "compare"), (b, a, "input")):
        missing = next((sample for sample in ours if sample not in others), None)
        if missing is not None:
            remedy = (
                f"is missing this sample; {len(ours)} and {len(others)} samples: compare responses to the same ones"
            )
            raise DataError(side, missing, remedy)
