"""OlaBench's overall score (second paper, section 5.1), and its rates of risk and hallucination with their types
(sections 3.1 and 5.3, Figure 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hamr.bench.statistics import Estimate, share_interval
from hamr.errors import BadInput
from hamr.rewards import hallucination, risk
from hamr.types import Judgement

HALLUCINATIONS = tuple(label for label in hallucination.LABELS if label != "none")


def overall(dialogue: float, policy: float, tool: float, risk_rate: float, hallucination_rate: float) -> float:
    """Return 100 * mean(DQ/5, PC/5, TC/5, 1 - risk, 1 - hallucination), in [12, 100].

    `dialogue`, `policy` and `tool` are mean grades, 1 to 5; the rates are shares, 0 to 1. The paper says only that the
    metrics are scaled to at most 1. That a grade is divided by 5, rather than shifted to start at 0, follows from its
    tables, whose rows are all reproduced this way. Latency is not included.

    >>> round(overall(4.03, 4.19, 4.11, 0.087, 0.197), 2)
    83.64

    Raises BadInput for a grade or a rate outside its range, such as a rate in percent.
    """
    grades = {"dialogue": dialogue, "policy": policy, "tool": tool}
    for name, value in grades.items():
        if not 1.0 <= value <= 5.0:
            raise BadInput(name, value, "is not a grade from 1 to 5; give the mean of the grades")
    rates = {"risk_rate": risk_rate, "hallucination_rate": hallucination_rate}
    for name, value in rates.items():
        if not 0.0 <= value <= 1.0:
            raise BadInput(name, value, "is not a share in [0, 1]; divide a percentage by 100")
    return 100.0 * (sum(value / 5.0 for value in grades.values()) + sum(1.0 - rate for rate in rates.values())) / 5.0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Shares in [0, 1] of the `rate.n` responses that were judged.

    `types`: the share of each type. Responses without a judgement are excluded and counted in `unjudged`.
    """

    rate: Estimate
    types: Mapping[str, Estimate]
    unjudged: int


def risk_rates(judgements: Mapping[str, Judgement | None]) -> Rates:
    """Return the share of responses with a critical business risk, and with each of its four types.

    `judgements` by response; None: not judged. A response may have several types, so the types' shares add up to the
    rate or to more. Raises BadInput for an unknown label: it would count in the rate and in no type.
    """
    return _rates(risk.name, judgements, risk.vetoes, risk.TYPES)


def hallucination_rates(judgements: Mapping[str, Judgement | None]) -> Rates:
    """Return the share of responses with a hallucination, and with each of its four types.

    `judgements` by response; None: not judged. A response has one label, so the types' shares add up to the rate.
    Raises BadInput for an unknown label, and for several, which would count in two types.
    """
    return _rates(hallucination.name, judgements, hallucination.vetoes, HALLUCINATIONS, single=True)


def _rates(
    component: str,
    judgements: Mapping[str, Judgement | None],
    vetoes: Callable[[Judgement], bool],
    types: Sequence[str],
    *,
    single: bool = False,
) -> Rates:
    known = {name: judgement for name, judgement in judgements.items() if judgement is not None}
    allowed = {*types, "none"} if single else set(types)
    for name, judgement in known.items():
        if not set(judgement.labels) <= allowed or (single and len(judgement.labels) != 1):
            remedy = f"sample {name}: give {'one' if single else 'some'} of {', '.join(sorted(allowed))}"
            raise BadInput(f"{component} labels", judgement.labels, remedy)
    return Rates(
        rate=share_interval([vetoes(judgement) for judgement in known.values()]),
        types={kind: share_interval([kind in judgement.labels for judgement in known.values()]) for kind in types},
        unjudged=len(judgements) - len(known),
    )
