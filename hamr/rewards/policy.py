"""Policy compliance: does the response follow the service policy (second paper, Appendix A.2 and G)?

A grade from 1 to 5 over four dimensions: core workflow, authorization and commitment, script and wording, output
constraints and red lines. The paper grades by comparison of the responses of a group: 5 is compliant and the best of
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from hamr.config.judged import ComparedConfig
from hamr.rewards.comparative import compared_question, read_compared
from hamr.rewards.grades import graded_value
from hamr.rewards.questions import JudgedText
from hamr.types import Judgement, Question, ServiceSample

name = "policy"


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
