"""OlaBench's rates of risk and hallucination with their types (second paper, sections 3.1 and 5.3, Figure 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hamr.bench.statistics import Estimate, share_interval
from hamr.errors import BadInput
from hamr.rewards import hallucination, risk
from hamr.types import Judgement, RewardRecord

HALLUCINATIONS = tuple(label for label in hallucination.LABELS if label != "none")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Shares in [0, 1] of the `rate.n` responses that were judged.

    `types`: the share of each type. Responses without a judgement are excluded and counted in `unjudged`.
    """

    rate: Estimate
    types: Mapping[str, Estimate]
    unjudged: int


def risk_rates(records: Sequence[RewardRecord]) -> Rates:
    """Return the share of responses with a critical business risk, and with each of its four types.

    A response may have several types, so the types' shares add up to the rate or to more.
    """
    return _rates(records, risk.name, risk.vetoes, risk.TYPES)


def hallucination_rates(records: Sequence[RewardRecord]) -> Rates:
    """Return the share of responses with a hallucination, and with each of its four types.

    A response has one label, so the types' shares add up to the rate.
    """
    return _rates(records, hallucination.name, hallucination.vetoes, HALLUCINATIONS, single=True)


def _rates(
    records: Sequence[RewardRecord],
    component: str,
    found: Callable[[Judgement], bool],
    types: Sequence[str],
    *,
    single: bool = False,
) -> Rates:
    """Compute the rates.

    Raises BadInput for a judgement with unknown labels, or with several where one is expected: it would count in the
    rate and in no type, or in two.
    """
    judged = [next((j for j in record.judgements if j.component == component), None) for record in records]
    known = [judgement for judgement in judged if judgement is not None]
    allowed = {*types, "none"} if single else set(types)
    for record, judgement in zip(records, judged, strict=True):
        if judgement is None:
            continue
        if not set(judgement.labels) <= allowed or (single and len(judgement.labels) != 1):
            expected = "one of" if single else "some of"
            remedy = f"sample {record.key.prompt}: give {expected} {', '.join(sorted(allowed))}"
            raise BadInput(f"{component} labels", judgement.labels, remedy)

    return Rates(
        rate=share_interval([found(judgement) for judgement in known]),
        types={kind: share_interval([kind in judgement.labels for judgement in known]) for kind in types},
        unjudged=len(records) - len(known),
    )
