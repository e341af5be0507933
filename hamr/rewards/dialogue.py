"""Dialogue quality: does the response read like that of a good agent (second paper, section 3.1 and Appendix A.2)?

Each response is judged alone and gets one grade from 1 to 5 over seven traits: intent recognition, semantic
understanding, empathy, linguistic diversity, naturalness, proactiveness, conversational flow.
"""

from __future__ import annotations

from collections.abc import Sequence

from hamr.config.judged import GradedConfig
from hamr.rewards.grades import SCHEMA, graded_value, read_grade
from hamr.rewards.questions import JudgedText, judge_question
from hamr.types import Judgement, Question, ServiceSample

name = "dialogue"


def absent(sample: ServiceSample, config: GradedConfig) -> str | None:
    return None


def question(
    sample: ServiceSample, responses: Sequence[JudgedText], config: GradedConfig, attempt: int = 0
) -> Question:
    (response,) = responses
    return judge_question(
        sample, config.prompt or f"dialogue.{config.language}", SCHEMA, attempt=attempt, response=response
    )


def read(text: str, sample: ServiceSample, count: int, config: GradedConfig) -> tuple[Judgement | None, ...]:
    return (read_grade(text, name),)


def value(judgement: Judgement, config: GradedConfig) -> float:
    """Return the normalised grade, in [0, 1]."""
    return graded_value(judgement, config.scale)
