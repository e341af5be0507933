"""Utility judge: would another reply than the logged one have helped too (first paper, section 3.1, Appendix D.2)?

It sees the summary of the ticket (`privileged`), which no policy sees. Used for data construction, not as a reward.
"""

from __future__ import annotations

from dataclasses import dataclass

from hamr.errors import VerdictUnparsable
from hamr.prompting.reading import TEXT, choice, final_object, object_schema, reason
from hamr.rewards.questions import JudgedText, judge_question
from hamr.types import Question, ServiceSample

VETOES = (
    "redundant_request", "core_deviation", "vague_addition", "no_evidence", "bare_restatement", "skipped_validation",
)  # fmt: skip

_STAGES = {
    "diagnostic": "diagnostic", "诊断阶段": "diagnostic", "operational": "operational", "操作阶段": "operational",
}  # fmt: skip
_RESULTS = {"available": "available", "可用": "available", "unavailable": "unavailable", "不可用": "unavailable"}
_POINTS = {point.replace("_", " "): point for point in VETOES}

SCHEMA = object_schema(
    reason=TEXT,
    stage={"enum": ["diagnostic", "operational"]},
    vetoes={"type": "array", "items": {"enum": list(VETOES)}},
    judge_result={"enum": ["available", "unavailable"]},
)


@dataclass(frozen=True, kw_only=True)
class Utility:
    """Judgement. `available`: the reply would have helped. `vetoes`: the points of the list that apply, in their
    order."""

    available: bool
    stage: str
    vetoes: tuple[str, ...]
    reason: str


def utility_question(
    sample: ServiceSample,
    summary: str,
    reference: str,
    response: str,
    *,
    prompt: str = "utility.en",
    attempt: int = 0,
) -> Question:
    """Return the question. `summary` and `reference` are the standard: the ticket summary and the reply that solved
    it."""
    return judge_question(
        sample,
        prompt,
        SCHEMA,
        attempt=attempt,
        summary=summary,
        reference=reference,
        response=JudgedText(words=response),
    )


def read_utility(text: str) -> Utility:
    """Parse an answer.

    Raises:
        VerdictUnparsable: The answer does not end with exactly {"reason", "stage", "vetoes", "judge_result"}, or calls
            a reply available despite a veto.
    """
    answer = final_object(text, ("reason", "stage", "vetoes", "judge_result"))
    if not isinstance(answer["vetoes"], list):
        raise VerdictUnparsable(f"vetoes={answer['vetoes']!r} is not a list")
    struck = {choice(point, _POINTS) for point in answer["vetoes"]}
    available = choice(answer["judge_result"], _RESULTS) == "available"
    if available and struck:
        raise VerdictUnparsable(f"judge_result={answer['judge_result']!r} contradicts vetoes={answer['vetoes']!r}")
    return Utility(
        available=available,
        stage=choice(answer["stage"], _STAGES),
        vetoes=tuple(point for point in VETOES if point in struck),
        reason=reason(answer["reason"]),
    )
