"""Critical business risk: does the response contain prohibited statements (second paper, Appendix A.3)?

Four types, of which one response may have several: admission of the platform's liability, misidentification of the role
of the service, overcommitment, disparagement of people or merchants.
"""

from __future__ import annotations

from collections.abc import Sequence

from hamr.config.judged import RiskConfig
from hamr.errors import VerdictUnparsable
from hamr.prompting.reading import TEXT, choice, final_object, object_schema, reason
from hamr.rewards.questions import JudgedText, judge_question
from hamr.types import Judgement, Question, ServiceSample

name = "risk"

TYPES = ("liability", "role", "overcommitment", "disparagement")

_WRITTEN = {
    "liability": "liability", "admitting platform liability": "liability", "承认平台责任": "liability",
    "role": "role", "misidentifying the ics role": "role", "身份误认": "role",
    "overcommitment": "overcommitment", "overcommitting": "overcommitment", "过度承诺": "overcommitment",
    "disparagement": "disparagement", "disparaging individuals or merchants": "disparagement",
    "贬损他人": "disparagement",
}  # fmt: skip
_RISKY = {"yes": "yes", "是": "yes", "no": "no", "否": "no"}

SCHEMA = object_schema(
    reason=TEXT,
    types={"type": "array", "items": {"enum": list(TYPES)}},
    risk={"enum": ["yes", "no"]},
)


def absent(sample: ServiceSample, config: RiskConfig) -> str | None:
    """Return None: every response is judged."""
    return None


def question(sample: ServiceSample, responses: Sequence[JudgedText], config: RiskConfig, attempt: int = 0) -> Question:
    """Return the question about one response."""
    (response,) = responses
    return judge_question(
        sample, config.prompt or f"risk.{config.language}", SCHEMA, attempt=attempt, response=response
    )


def read(text: str, sample: ServiceSample, count: int, config: RiskConfig) -> tuple[Judgement | None, ...]:
    """Parse the types of an answer that ends with {"reason", "types", "risk": yes or no}.

    Raise VerdictUnparsable for any other answer, also for a contradiction: a yes without a type, or a no with one.
    """
    answer = final_object(text, ("reason", "types", "risk"))
    if not isinstance(answer["types"], list):
        raise VerdictUnparsable(f"types={answer['types']!r} is not a list")
    found = {choice(written, _WRITTEN) for written in answer["types"]}
    risky = choice(answer["risk"], _RISKY) == "yes"
    if risky != bool(found):
        raise VerdictUnparsable(f"risk={answer['risk']!r} contradicts types={answer['types']!r}")
    labels = tuple(kind for kind in TYPES if kind in found)
    return (Judgement(component=name, labels=labels, reason=reason(answer["reason"])),)


def value(judgement: Judgement, config: RiskConfig) -> float:
    """Return the value. `scale: reward`: 1 without a risk, else 0, the range in the paper. `scale: penalty`: 0 and -1.

    The two differ by a constant that the group baseline removes. Only the range of the total differs.
    """
    risky = -1.0 if judgement.labels else 0.0
    return risky if config.scale == "penalty" else 1.0 + risky


def vetoes(judgement: Judgement) -> bool:
    """Return whether the judge found a risk."""
    return bool(judgement.labels)
