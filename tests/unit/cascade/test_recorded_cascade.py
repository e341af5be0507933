"""Every record contains the cascade that produced it and replays with it, independent of the configuration."""

import asyncio
import json

import pytest
from scripted import ScriptedPool, judged, reranked, rollout, sample

from hamr.calibration.cascade import Cascade
from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.cascade_controller import CascadeConfig
from hamr.config.rewards import ConsistencyConfig, RewardsConfig
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import Scored

REWARDS = RewardsConfig()
WIDE, NARROW = Cascade(0.3, 0.9, 0.1, 0.2), Cascade(0.6, 0.7, 0.1, 0.2)


def router(rewards=REWARDS):
    scorers = {
        "reranker": ScriptedPool("reranker", lambda _: reranked(0.5)),
        "judge": ScriptedPool("judge", lambda _: judged(1.0)),
    }
    return RewardRouter(rewards, scorers, count_tokens=len, deadline_s=5.0)


def score(*cascades, rewards=REWARDS):
    async def one_after_the_other():
        one = router(rewards)
        return [await one.score(sample("Why?"), rollout("So?"), cascade=c) for c in cascades]

    return asyncio.run(one_after_the_other())


def test_cascade_of_a_request_applies_to_that_response_only():
    wide, narrow, configured = score(WIDE, NARROW, None)
    assert (wide.total, wide.band, wide.cascade) == (Scored(value=0.5), "inside", (0.3, 0.9, 0.1, 0.2))
    assert (narrow.total.value, narrow.band) == (pytest.approx(0.1 * 0.5 + 0.9), "below")
    assert (configured.total.value, configured.cascade) == (pytest.approx(0.975), (0.68, 0.98, 0.05, 0.72))


def test_record_replays_with_its_own_cascade():
    for record in score(WIDE, NARROW):
        assert replay(record_from_json(record_to_json(record)), REWARDS) == record.total


def test_ledger_without_cascades_replays_with_the_configuration():
    [narrow] = score(NARROW)
    row = json.loads(record_to_json(narrow))
    assert row.pop("cascade") == [0.6, 0.7, 0.1, 0.2]
    old = record_from_json(json.dumps(row))
    assert old.cascade is None
    at_the_time = CascadeConfig(tau_a=0.6, tau_b=0.7, w1=0.1, w2=0.2)
    assert replay(old, RewardsConfig(consistency=ConsistencyConfig(cascade=at_the_time))) == narrow.total


@pytest.mark.parametrize("consistency", [{"mode": "reranker"}, {"mode": "soft_judge"}, {"weight": 0.0}])
def test_no_cascade_is_recorded_if_none_is_used(consistency):
    [record] = score(None, rewards=RewardsConfig(consistency=ConsistencyConfig(**consistency)))
    assert record.cascade is None
