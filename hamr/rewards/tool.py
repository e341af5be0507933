"""Tool calling: is the right tool called when needed, with the right parameters (second paper, Appendix A.2, G)?

A grade from 1 to 5 over four dimensions: necessity, choice of the tool, tool and parameter matching, overall policy.
The paper grades by comparison of the responses of a group. A response without a call is graded too, because a missing
call can be right or wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from hamr.config.judged import ComparedConfig
from hamr.rewards.comparative import compared_question, read_compared
from hamr.rewards.grades import graded_value
from hamr.rewards.questions import JudgedText
from hamr.types import Judgement, Question, ServiceSample

name = "tool"


def absent(sample: ServiceSample, config: ComparedConfig) -> str | None:
    return None


def question(
    sample: ServiceSample, responses: Sequence[JudgedText], config: ComparedConfig, attempt: int = 0
) -> Question:
    return compared_question(name, sample, responses, config, attempt)


def read(text: str, sample: ServiceSample, count: int, config: ComparedConfig) -> tuple[Judgement | None, ...]:
    return read_compared(text, name, count)


def value(judgement: Judgement, config: ComparedConfig) -> float:
    """Return the normalised grade, in [0, 1]."""
    return graded_value(judgement, config.scale)
