"""Components of the user's own reward functions. Pure: the functions are callables, whose processes are elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hamr.cascade.group_judge import GroupAnswers, GroupJudge, GroupKey
from hamr.config.custom import CustomRewardConfig
from hamr.errors import ConfigError
from hamr.rewards.custom import FunctionOutcome
from hamr.types import Component, FunctionTimeout, SampleKey, ServiceSample

CallFunction = Callable[[ServiceSample, Sequence[str]], Awaitable[Sequence[FunctionOutcome]]]
"""(sample, responses) -> an outcome per response. There is one response unless the function is batched."""


@dataclass(frozen=True)
class _Member:
    """A response of a group. A batched function also gets equal responses, so the number distinguishes them."""

    number: int
    text: str


class CustomRewardScorer:
    """Calls the functions with a weight. Each batched one waits for the responses of a group."""

    def __init__(
        self,
        sections: Mapping[str, CustomRewardConfig],
        functions: Mapping[str, CallFunction],
        *,
        group_wait_s: float,
    ) -> None:
        """Raise ConfigError if a function is missing."""
        self._sections = {name: section for name, section in sections.items() if section.weight}
        self._functions = functions
        for name, section in self._sections.items():
            if name not in functions:
                raise ConfigError(f"rewards.custom.{name}.path", section.path, "nothing runs this function")
        self._late = {
            name: FunctionTimeout(detail=f"{name} ({section.path}) was not done before the response's deadline")
            for name, section in self._sections.items()
        }
        self._groups = {
            name: GroupJudge(partial(self._batch, name), wait_s=group_wait_s, most=sys.maxsize, late=self._late[name])
            for name, section in self._sections.items()
            if section.batch
        }

    async def score(
        self, sample: ServiceSample, key: SampleKey, siblings: int, text: str, until: float
    ) -> tuple[Component, ...]:
        """Return a component per function, in the order of the configuration. `until` is in event loop time."""
        outcomes = await asyncio.gather(
            *(self._one(name, sample, key, siblings, text, until) for name in self._sections)
        )
        return tuple(
            Component(name=name, outcome=outcome, weight=section.weight)
            for (name, section), outcome in zip(self._sections.items(), outcomes, strict=True)
        )

    async def close(self) -> None:
        """Cancel the groups that wait for responses."""
        for group in self._groups.values():
            await group.close()

    async def _one(
        self, name: str, sample: ServiceSample, key: SampleKey, siblings: int, text: str, until: float
    ) -> FunctionOutcome:
        if name in self._groups:
            member = _Member(key.sample, text)
            return (await self._groups[name].judge(sample, key, siblings, member, until)).result
        try:
            async with asyncio.timeout_at(until):
                (outcome,) = await self._functions[name](sample, [text])
                return outcome
        except TimeoutError:
            return self._late[name]

    async def _batch(
        self, name: str, sample: ServiceSample, group: GroupKey, members: Sequence[_Member], until: float
    ) -> GroupAnswers[FunctionOutcome]:
        outcomes = await self._functions[name](sample, [member.text for member in members])
        return GroupAnswers(results=tuple(outcomes))
