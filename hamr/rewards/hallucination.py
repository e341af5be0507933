"""Hallucination: does the response contradict the facts, the evidence or the business (second paper, Appendix A.4, G)?

Exactly one of five labels. `misuse` is for responses that had relevant evidence. Without evidence, an invented answer
is `factual`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hamr.config.judged import HallucinationConfig
from hamr.prompting.reading import TEXT, choice, final_object, object_schema, reason
from hamr.rewards.questions import JudgedText, judge_question
from hamr.types import Judgement, Question, ServiceSample

name = "hallucination"

LABELS = ("none", "misuse", "factual", "relevance", "logical")

_WRITTEN = {
    "none": "none", "no hallucination": "none", "无幻觉": "none",
    "misuse": "misuse", "misuse of retrieved results": "misuse", "检索结果误用": "misuse",
    "factual": "factual", "factual hallucination": "factual", "事实性幻觉": "factual",
    "relevance": "relevance", "relevance hallucination": "relevance", "相关性幻觉": "relevance",
    "logical": "logical", "logical inconsistency": "logical", "logical inconsistency hallucination": "logical",
    "逻辑不一致幻觉": "logical",
}  # fmt: skip

SCHEMA = object_schema(reason=TEXT, judgment={"enum": list(LABELS)})


def absent(sample: ServiceSample, config: HallucinationConfig) -> str | None:
    """Return None: every response is judged."""
    return None


def question(
    sample: ServiceSample, responses: Sequence[JudgedText], config: HallucinationConfig, attempt: int = 0
) -> Question:
    """Return the question about one response."""
    (response,) = responses
    return judge_question(
        sample, config.prompt or f"hallucination.{config.language}", SCHEMA, attempt=attempt, response=response
    )


def read(text: str, sample: ServiceSample, count: int, config: HallucinationConfig) -> tuple[Judgement | None, ...]:
    """Parse the label of an answer that ends with {"reason", "judgment"}. Raise VerdictUnparsable otherwise."""
    answer = final_object(text, ("reason", "judgment"))
    label = choice(answer["judgment"], _WRITTEN)
    return (Judgement(component=name, labels=(label,), reason=reason(answer["reason"])),)


def value(judgement: Judgement, config: HallucinationConfig) -> float:
    """Return 0 for `none` and -1 for every other label (Appendix C)."""
    return -1.0 if vetoes(judgement) else 0.0


def vetoes(judgement: Judgement) -> bool:
    """Return whether the judge found a hallucination."""
    return judgement.labels != ("none",)
