"""The side rewards that a judge gives, each in its file, listed here. Pure: what to ask, how to read, what it is worth.

A reward is a module with the functions of `JudgedReward`. The router puts its questions, asks again what cannot be
read, and turns what fails into a typed outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hamr.config.judged import ComparedConfig, JudgedRewards
from hamr.errors import ConfigError, DataError
from hamr.rewards import dialogue, hallucination, policy, risk, rubric_reward, tool
from hamr.rewards.questions import Said
from hamr.rewards.written import WrittenPrompt
from hamr.types import Judgement, Question, ServiceSample


class JudgedReward(Protocol):
    """`config` is always the reward's own section."""

    @property
    def name(self) -> str:
        """Of the component and of its section in `rewards`."""
        ...

    def absent(self, sample: ServiceSample, config: Any) -> str | None:
        """Why there is nothing to judge in this sample; None if there is."""
        ...

    def question(self, sample: ServiceSample, responses: Sequence[Said], config: Any, attempt: int = 0) -> Question:
        """One question about these responses: one, or several where the reward compares."""
        ...

    def read(self, text: str, sample: ServiceSample, count: int, config: Any) -> tuple[Judgement | None, ...]:
        """A judgement per response of the question, None for one that was left out. Raises VerdictUnparsable."""
        ...

    def value(self, judgement: Judgement, config: Any) -> float:
        """What a judgement is worth, before the weight. Raises MissingScore where it lacks what `config` needs."""
        ...


class Veto(JudgedReward, Protocol):
    """A reward that can spare the costlier judges a response."""

    def vetoes(self, judgement: Judgement) -> bool: ...


VETOES: Mapping[str, Veto] = {"risk": risk, "hallucination": hallucination}
JUDGED: Mapping[str, JudgedReward] = {
    "dialogue": dialogue,
    "policy": policy,
    "tool": tool,
    "rubric": rubric_reward,
    **VETOES,
}


def check_prompts(rewards: JudgedRewards) -> None:
    """Tries every template that the judged rewards with a weight ask by. Raises ConfigError for one that cannot be
    read, wants a variable that no question has, or does not show the response."""
    for name, section in rewards.judged.items():
        compares = isinstance(section, ComparedConfig) and section.judging == "comparative"
        for count in (1, 2) if compares else (1,):
            responses = [Said(words=f"response {i} on trial", call=f"call {i} on trial") for i in range(count)]
            question = JUDGED[name].question(_TRIAL, responses, section)
            try:
                messages = WrittenPrompt.load(question.prompt).render(question.variables, question.each)
            except DataError as error:
                remedy = f"its template has a variable that this reward does not give; {error.remedy}"
                raise ConfigError(f"rewards.{name}.prompt", question.prompt, remedy) from error
            for part in ("words", "call"):
                if not all(getattr(response, part) in messages[1]["content"] for response in responses):
                    variable = "response" if part == "words" else part
                    remedy = f"its template does not show {{{{ {variable} }}}}; add it"
                    raise ConfigError(f"rewards.{name}.prompt", question.prompt, remedy)


_TRIAL = ServiceSample(
    id="trial",
    ticket={},
    policy="",
    tools=(),
    history=(),
    references=(),
    privileged={"rubric": [{"title": "Is kind", "description": "Greets.", "weight": 1}]},
)
