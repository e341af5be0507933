"""Dialogues of the policy in training about the tasks of tau2-bench (`env=tau2`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from hamr.bench.tau2.dialogue import ParticipantFailed, Tau2Dialogue
from hamr.bench.tau2.scripted import CaseCustomer
from hamr.bench.tau2.tasks import package_version, samples
from hamr.config.benchmarks import Tau2Config
from hamr.config.schema import EnvConfig
from hamr.data.actions import ResponseFormat, answer_of
from hamr.data.customer_audit import other_language, out_of_role
from hamr.data.splits import Splits
from hamr.protocols import Ask
from hamr.types import (
    TRANSIENT,
    Answer,
    AskPolicy,
    Component,
    CustomerFaultError,
    CustomerUnavailableError,
    Episode,
    EpisodeLimit,
    EpisodeOutcome,
    Question,
    Scored,
    ServiceSample,
)


@dataclass(frozen=True, kw_only=True)
class Tau2Environment:
    """Episode function of `env=tau2`. `customer`: the pool that plays the customers, with its retries; None for the
    scripted one."""

    config: EnvConfig
    format_of: Callable[[ServiceSample], ResponseFormat]
    customer: Ask | None = None

    async def __call__(self, episode: Episode, ask: AskPolicy) -> Episode:
        """Hold one dialogue. Its outcome is the reward of the package's evaluator; a limit makes it 0.

        Raises:
            CustomerFaultError: A message of the pool is out of role, in another language, or cannot be used.
            CustomerUnavailableError: The pool does not answer.
        """

        async def act(point: ServiceSample) -> Answer:
            reply = answer_of((await ask(point, score=False)).text, self.format_of(point))
            return Answer(text=reply if isinstance(reply, str) else "")

        outcome: EpisodeOutcome = "ended"
        dialogue = await asyncio.to_thread(Tau2Dialogue, episode.sample, Tau2Config(user_temperature=1.0), episode.seed)
        try:
            found = await dialogue.run(
                act, _audit_messages(self.customer) if self.customer else CaseCustomer(episode.sample)
            )
        except EpisodeLimit as limit:
            outcome, found = limit.outcome, await dialogue.finish("max_steps")
        except ParticipantFailed as failure:
            transient = failure.answer.failure in TRANSIENT
            raise (CustomerUnavailableError if transient else CustomerFaultError)(str(failure)) from None
        reward = Component(name="completion", outcome=Scored(value=found.reward), weight=self.config.completion)
        return replace(episode.end(outcome=outcome, path=self.config.domain), components=(reward,))


def _audit_messages(customer: Ask) -> Ask:
    """Return a customer whose first message with a fault raises CustomerFaultError."""
    count = 0

    async def ask(question: Question) -> Answer:
        nonlocal count
        answer = await customer(question)
        if answer.failure or answer.tool_calls or not answer.text:
            return answer
        count += 1
        faults = {"left_role": out_of_role(answer.text), "other_language": other_language(answer.text, "en")}
        for kind, detail in faults.items():
            if detail is not None:
                raise CustomerFaultError(f"{kind} at message {count}: {detail}")
        return answer

    return ask


def tau2_splits(config: EnvConfig) -> Splits:
    """Return the tasks of the domain: those of the package's train split, and of its test split."""
    package_version("env.type")
    return Splits(train=samples(config.domain, "train"), validation=(), test=samples(config.domain, "test"))
