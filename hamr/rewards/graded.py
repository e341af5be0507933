"""Judged rewards whose value is a grade from 1 to 5 (second paper, section 3.1, Appendix A.2 and G).

dialogue  Does the response read like that of a good agent? Seven traits: intent recognition, semantic understanding,
          empathy, linguistic diversity, naturalness, proactiveness, conversational flow.
policy    Does the response follow the service policy? Four dimensions: core workflow, authorization and commitment,
          script and wording, output constraints and red lines.
tool      Is the right tool called when needed, with the right parameters? Four dimensions: necessity, choice of the
          tool, tool and parameter matching, overall policy. A response without a call is graded too, because a missing
          call can be right or wrong.

The paper grades policy and tool by comparison of the responses of a group: 5 is compliant and the best of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hamr.rewards.comparative import compared_question, read_compared
from hamr.rewards.grades import SCHEMA, graded_value, read_grade
from hamr.rewards.questions import JudgedText, judge_question
from hamr.types import Judgement, Question, ServiceSample


@dataclass(frozen=True)
class GradedReward:
    """Reward whose responses are judged alone: `dialogue`, and the user's own `rewards.judged.<name>`."""

    name: str

    def absent(self, sample: ServiceSample, config: Any) -> str | None:
        """Return None: every sample has something to grade."""
        return None

    def question(
        self, sample: ServiceSample, responses: Sequence[JudgedText], config: Any, attempt: int = 0
    ) -> Question:
        """Return the question about one response."""
        (response,) = responses
        prompt = config.prompt or f"{self.name}.{config.language}"
        return judge_question(sample, prompt, SCHEMA, attempt=attempt, response=response)

    def read(self, text: str, sample: ServiceSample, count: int, config: Any) -> tuple[Judgement | None, ...]:
        """Parse the grade, 1 to 5. None: the answer has none."""
        return (read_grade(text, self.name),)

    def value(self, judgement: Judgement, config: Any) -> float:
        """Return the normalised grade, in [0, 1]."""
        return graded_value(judgement, config.scale)


class ComparedReward(GradedReward):
    """Reward whose responses may be judged together."""

    def question(
        self, sample: ServiceSample, responses: Sequence[JudgedText], config: Any, attempt: int = 0
    ) -> Question:
        """Return the question about the responses of a group, in one prompt."""
        return compared_question(self.name, sample, responses, config, attempt)

    def read(self, text: str, sample: ServiceSample, count: int, config: Any) -> tuple[Judgement | None, ...]:
        """Parse a grade for each response, 1 to 5. None: the answer has none for it."""
        return read_compared(text, self.name, count)


DIALOGUE = GradedReward("dialogue")
POLICY = ComparedReward("policy")
TOOL = ComparedReward("tool")
