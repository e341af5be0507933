"""A judged dimension of the user's own: a prompt file, whose answer ends with a grade from 1 to 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hamr.config.judged import OwnJudgedConfig
from hamr.rewards.grades import SCHEMA, graded_value, read_grade
from hamr.rewards.questions import JudgedText, judge_question
from hamr.types import Judgement, Question, ServiceSample


@dataclass(frozen=True)
class OwnJudgedReward:
    """Judged reward of the section `rewards.judged.<name>`. Each response is judged alone."""

    name: str

    def absent(self, sample: ServiceSample, config: OwnJudgedConfig) -> str | None:
        return None

    def question(
        self, sample: ServiceSample, responses: Sequence[JudgedText], config: OwnJudgedConfig, attempt: int = 0
    ) -> Question:
        (response,) = responses
        return judge_question(sample, config.prompt, SCHEMA, attempt=attempt, response=response)

    def read(
        self, text: str, sample: ServiceSample, count: int, config: OwnJudgedConfig
    ) -> tuple[Judgement | None, ...]:
        return (read_grade(text, self.name),)

    def value(self, judgement: Judgement, config: OwnJudgedConfig) -> float:
        """Return the normalised grade, in [0, 1]."""
        return graded_value(judgement, config.scale)
