"""The driver's side of the router, without Ray: every restarted router receives the current cascade."""

from __future__ import annotations

from typing import Any

from ray.exceptions import RayActorError

from hamr.calibration.cascade import Cascade
from hamr.config.pools import RouterConfig
from hamr.pools.router_actor import RouterClient
from hamr.types import RewardRecord, Rollout, SampleKey, Scored, ServiceSample
from tests.local_actor import LocalActor

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


RECORD = RewardRecord(
    key=ROLLOUT.key,
    total=Scored(value=1.0),
    components=(),
    action=None,
    band="none",
    response=ROLLOUT.text,
    response_tokens=1,
    versions=(),
)


class CrashingActor(LocalActor):
    """An actor that dies under its first calls, and records its calls."""

    def __init__(self, deaths: int) -> None:
        super().__init__(self.score)
        self.left = deaths

    async def score(self, *arguments: Any) -> Any:
        return RECORD

    def _start(self, stream: str, numbers: list[int], calls: bytes) -> Any:
        started = super()._start(stream, numbers, calls)
        self.left -= 1
        if self.left >= 0:
            started.close()
            raise RayActorError
        return started

    @property
    def told(self) -> list[Any]:
        return [call for calls in self.calls for call in calls]


async def test_restarted_router_receives_the_cascade_again() -> None:
    actor: Any = CrashingActor(deaths=2)
    client, cascade = RouterClient(actor, RouterConfig(deadline_s=30.0)), Cascade(0.1, 0.2, 0.3, 0.4)
    await client.score(SAMPLE, ROLLOUT, cascade=cascade)
    assert [call[2:] for call in actor.told] == [(cascade,)] * 3


async def test_request_without_a_cascade_uses_the_configured_one() -> None:
    actor: Any = CrashingActor(deaths=0)
    await RouterClient(actor, RouterConfig(deadline_s=30.0)).score(SAMPLE, ROLLOUT)
    assert actor.told[0][2:] == (None,)


async def test_unused_tokens_are_not_sent_and_mean_logprob_is_recorded() -> None:
    actor: Any = CrashingActor(deaths=0)
    record = await RouterClient(actor, RouterConfig(deadline_s=30.0)).score(SAMPLE, ROLLOUT)
    sent = actor.told[0][1]
    assert (sent.prompt_ids, sent.logprobs, sent.token_ids) == ((), (), (3,))
    assert record.mean_logprob == -0.5
