"""Judged rewards whose value is a grade from 1 (worst) to 5 (best) (second paper, section 3.1, Appendix A.2 and G).

dialogue  Does the response read like that of a good agent? Seven traits: intent recognition, semantic understanding,
          empathy, linguistic diversity, naturalness, proactiveness, conversational flow.
policy    Does the response follow the service policy? Four dimensions: core workflow, authorization and commitment,
          script and wording, output constraints and red lines.
tool      Is the right tool called when needed, with the right parameters? Four dimensions: necessity, choice of the
          tool, tool and parameter matching, overall policy. A response without a call is graded too, because a missing
          call can be right or wrong.

The paper grades policy and tool by comparison of the responses of a group in one prompt: 5 is compliant and the best of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hamr.config.judged import Scale
from hamr.errors import MissingScore, VerdictUnparsable
from hamr.prompting.reading import GRADE, TEXT, final_object, grade, object_schema, reason
from hamr.rewards.questions import JudgedText, judge_question
from hamr.types import Judgement, Question, ServiceSample

SCHEMA = object_schema(reason=TEXT, score=GRADE)


def normalise_grade(given: int, scale: Scale) -> float:
    """Return a grade x in 1..5 as a reward in [0, 1].

    `span`: (x - 1) / 4, from 0 to 1. `share`: x / 5, from 0.2 to 1, as in the overall score of the benchmark.

    The paper states that these rewards are normalised to [0, 1], but not how (Appendix C). `span` is the default
    because only it reaches both ends. With the weights of Stage 2 the total then covers [-4, 6.2], which follows from
    the stated ranges, and a weight of 1 is worth 1 between worst and best. A malformed response, which is 0 without a
    judge, is then not below one that a judge calls unusable. Within a group the two scales differ only by the factor
    1.25.

    >>> normalise_grade(4, "span"), normalise_grade(4, "share")
    (0.75, 0.8)
    """
    if not 1 <= given <= 5:
        raise ValueError(f"{given} is not a grade from 1 to 5")
    return (given - 1) / 4 if scale == "span" else given / 5


def read_grade(text: str, component: str) -> Judgement:
    """Parse the grade of an answer that ends with {"reason", "score"}. Raise VerdictUnparsable otherwise."""
    answer = final_object(text, ("reason", "score"))
    return Judgement(component=component, grade=grade(answer["score"]), reason=reason(answer["reason"]))


def graded_value(judgement: Judgement, scale: Scale) -> float:
    """Return the value of the grade. Raise MissingScore if the judgement has none."""
    if judgement.grade is None:
        raise MissingScore(f"the judgement has no grade: {judgement}")
    return normalise_grade(judgement.grade, scale)


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
        """Parse the grade, 1 to 5. Raise VerdictUnparsable otherwise."""
        return (read_grade(text, self.name),)

    def value(self, judgement: Judgement, config: Any) -> float:
        """Return the normalised grade, in [0, 1]."""
        return graded_value(judgement, config.scale)


class ComparedReward(GradedReward):
    """Reward whose responses may be judged together."""

    def question(
        self, sample: ServiceSample, responses: Sequence[JudgedText], config: Any, attempt: int = 0
    ) -> Question:
        """Return the question: the pointwise template for one response, the comparative one for several."""
        if len(responses) == 1:
            return super().question(sample, responses, config, attempt)
        ids = _response_ids(len(responses))
        scores = object_schema(**dict.fromkeys(ids, GRADE))
        return judge_question(
            sample,
            config.prompt_compared or f"{self.name}_compared.{config.language}",
            object_schema(reason=TEXT, scores=scores),
            attempt=attempt,
            each=[{"name": name, "response": r.words, "call": r.call} for name, r in zip(ids, responses, strict=True)],
        )

    def read(self, text: str, sample: ServiceSample, count: int, config: Any) -> tuple[Judgement | None, ...]:
        """Parse one judgement per response of the prompt, in its order. None for a response that the answer omits.

        Raises:
            VerdictUnparsable: The answer does not end with {"reason", "scores"}, names an unknown response, has an
                invalid grade, or grades no response.
        """
        if count == 1:
            return super().read(text, sample, count, config)
        answer = final_object(text, ("reason", "scores"))
        scores, ids = answer["scores"], _response_ids(count)
        if not isinstance(scores, dict) or not scores or not scores.keys() <= set(ids):
            raise VerdictUnparsable(f"scores={scores!r} has to map {ids[0]}..{ids[-1]} to grades")
        why = reason(answer["reason"])
        grades = {name: grade(score) for name, score in scores.items()}
        return tuple(
            Judgement(component=self.name, grade=grades[name], reason=why, compared=count) if name in grades else None
            for name in ids
        )


def _response_ids(count: int) -> list[str]:
    """Return the names of the responses in a prompt: R1, R2, ... The form is distinct from any grade."""
    return [f"R{place + 1}" for place in range(count)]


DIALOGUE = GradedReward("dialogue")
POLICY = ComparedReward("policy")
TOOL = ComparedReward("tool")
