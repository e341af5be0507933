"""The driver's side of the router, without Ray: what is in force is said again to every successor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ray.exceptions import RayActorError

from hamr.actors.router import RouterClient
from hamr.actors.router_calls import packed, unpacked
from hamr.config.pools import RouterConfig
from hamr.routing.cascade import Cascade
from hamr.types import Rollout, SampleKey, ServiceSample

SAMPLE = ServiceSample(id="s", ticket={}, policy="", tools=(), history=(), references=())
ROLLOUT = Rollout(
    key=SampleKey(run="r", step=1, prompt="s", sample=0),
    prompt_ids=(1, 2),
    token_ids=(3,),
    logprobs=(-0.5,),
    text="So?",
    finish_reason="stop",
    versions=(),
)


class Dying:
    """An actor that dies under its first calls; the one that Ray puts in its place answers with what it was told."""

    def __init__(self, deaths: int) -> None:
        self.left, self.told = deaths, []
        self.score_many = self

    def options(self, **how: Any) -> Any:
        assert how == {"num_returns": "streaming"}
        return self

    async def remote(self, packed_calls: bytes) -> Any:
        calls = unpacked(packed_calls)
        self.told += calls
        self.left -= 1
        if self.left >= 0:
            raise RayActorError
        yield _value(packed(list(enumerate(calls))))


async def _value(value: Any) -> Any:
    return value


async def test_a_restarted_router_is_told_the_cascade_again() -> None:
    actor: Any = Dying(deaths=2)
    client, cascade = RouterClient(actor, RouterConfig(deadline_s=30.0)), Cascade(0.1, 0.2, 0.3, 0.4)
    answer: Any = await client.score(SAMPLE, ROLLOUT, cascade=cascade, group_aware=False)
    assert answer == (SAMPLE, replace(ROLLOUT, prompt_ids=(), logprobs=()), cascade, False)
    assert actor.told == [answer] * 3


async def test_without_a_cascade_the_configured_one_counts() -> None:
    actor: Any = Dying(deaths=0)
    answer: Any = await RouterClient(actor, RouterConfig(deadline_s=30.0)).score(SAMPLE, ROLLOUT)
    assert answer[2:] == (None, True)
