"""Registry of the side rewards from judges. Pure functions: build the question, parse the answer, value it.

A reward is a module or an object with the functions of `JudgedReward`. The router sends its questions, retries
unparseable answers, and turns failures into typed outcomes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hamr.config.judged import ComparedConfig, JudgedRewards
from hamr.config.rewards import RewardsConfig
from hamr.errors import ConfigError, DataError
from hamr.rewards import hallucination, risk, rubric_reward
from hamr.rewards.graded import DIALOGUE, POLICY, TOOL, GradedReward
from hamr.rewards.questions import JudgedText
from hamr.rewards.rules import load_rules
from hamr.rewards.written import WrittenPrompt
from hamr.types import Judgement, Question, ServiceSample


class JudgedReward(Protocol):
    """Interface of a judged reward. `config` is always the section of the reward."""

    @property
    def name(self) -> str:
        """Name of the component and of its section in `rewards`."""
        ...

    def absent(self, sample: ServiceSample, config: Any) -> str | None:
        """Return the reason if the sample has nothing to judge, else None."""
        ...

    def question(
        self, sample: ServiceSample, responses: Sequence[JudgedText], config: Any, attempt: int = 0
    ) -> Question:
        """Return one question about these responses: one response, or several if the reward compares."""
        ...

    def read(self, text: str, sample: ServiceSample, count: int, config: Any) -> tuple[Judgement | None, ...]:
        """Parse one judgement per response of the question, None for an omitted one. Raise VerdictUnparsable."""
        ...

    def value(self, judgement: Judgement, config: Any) -> float:
        """Return the value of a judgement before the weight. Raise MissingScore if it lacks what `config` needs."""
        ...


class Veto(JudgedReward, Protocol):
    """A reward that can veto a response, so that the remaining judges are not called."""

    def vetoes(self, judgement: Judgement) -> bool: ...


VETOES: Mapping[str, Veto] = {"risk": risk, "hallucination": hallucination}
JUDGED: Mapping[str, JudgedReward] = {
    "dialogue": DIALOGUE,
    "policy": POLICY,
    "tool": TOOL,
    "rubric": rubric_reward,
    **VETOES,
}
"""Shipped judged rewards."""


def find_judged(name: str) -> JudgedReward:
    """Return the shipped reward of this name, or that of a section `rewards.judged.<name>`."""
    return JUDGED.get(name) or GradedReward(name)


def check_reward_files(rewards: RewardsConfig) -> None:
    """Check the prompts and the rule file of all rewards with a weight. Raise ConfigError."""
    check_prompts(rewards)
    if rewards.rules.weight:
        load_rules(rewards.rules.file)


def check_prompts(rewards: JudgedRewards) -> None:
    """Check the templates of all judged rewards with a weight.

    Raises:
        ConfigError: A template cannot be read, has an unknown variable, or does not show the response.
    """
    for name, section in rewards.judges.items():
        compares = isinstance(section, ComparedConfig) and section.judging == "comparative"
        for count in (1, 2) if compares else (1,):
            key = f"rewards.{rewards.key(name)}.{'prompt' if count == 1 else 'prompt_compared'}"
            responses = [JudgedText(words=f"response {i} on trial", call=f"call {i} on trial") for i in range(count)]
            question = find_judged(name).question(_TRIAL, responses, section)
            try:
                messages = WrittenPrompt.load(question.prompt).render(question.variables, question.each)
            except ConfigError as error:
                where = key if error.where == "prompt" else error.where
                raise ConfigError(where, error.value, error.remedy) from error
            except DataError as error:
                remedy = f"its template has a variable that this reward does not give; {error.remedy}"
                raise ConfigError(key, question.prompt, remedy) from error
            for part in ("words", "call"):
                if not all(getattr(response, part) in messages[1]["content"] for response in responses):
                    variable = "response" if part == "words" else part
                    remedy = f"its template does not show {{{{ {variable} }}}}; add it"
                    raise ConfigError(key, question.prompt, remedy)


_TRIAL = ServiceSample(
    id="trial",
    ticket={},
    policy="",
    tools=(),
    history=(),
    references=(),
    privileged={"rubric": [{"title": "Is kind", "description": "Greets.", "weight": 1}]},
)
