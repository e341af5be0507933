"""Custom reward functions in the router: components, groups, failures and replay."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import rollout, sample

from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.custom import CustomRewardConfig
from hamr.config.rewards import ConsistencyConfig, FormatConfig, RewardsConfig
from hamr.errors import ConfigError, DataError
from hamr.telemetry.metrics import reward_metrics
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import Failure, FunctionFailed, FunctionTimeout, RewardRecord, Scored, ServiceSample

MALFORMED = '<tool_call>{"name": '


def config(weight: float = 0.5, **sections: Any) -> RewardsConfig:
    custom = {"politeness": CustomRewardConfig(path="my.py:politeness", weight=weight, **sections)}
    return RewardsConfig(consistency=ConsistencyConfig(weight=0.0), format=FormatConfig(weight=1.0), custom=custom)


class Function:
    """Returns the outcomes of its script by response, the length where it has none; keeps what it was called with."""

    def __init__(self, **script: Any) -> None:
        self.script, self.calls = script, []  # type: ignore[var-annotated]

    async def __call__(self, given: ServiceSample, responses: Sequence[str]) -> list[Scored | Failure]:
        self.calls.append(list(responses))
        await asyncio.sleep(1000 if "stuck" in responses else 0)
        return [self.script.get(response, Scored(value=float(len(response)))) for response in responses]


def router(function: Function, rewards: RewardsConfig, deadline_s: float = 60.0, **times: float) -> RewardRouter:
    return RewardRouter(rewards, {}, {"politeness": function}, count_tokens=len, deadline_s=deadline_s, **times)


def own(record: RewardRecord) -> Any:
    return next(c for c in record.components if c.name == "politeness")


@given(st.floats(-5, 5), st.floats(0.1, 3))
def test_function_component_replays_from_its_recorded_value(value: float, weight: float) -> None:
    rewards = config(weight)
    function = Function(Why=Scored(value=value))
    record = asyncio.run(router(function, rewards).score(sample("Who?"), rollout("Why")))
    assert (own(record).outcome, own(record).weight) == (Scored(value=value), weight)
    assert record.total == Scored(value=1.0 + weight * value) == replay(record, rewards)
    assert record_from_json(record_to_json(record)) == record
    doubled = replay(record, config(2 * weight))
    assert doubled == Scored(value=1.0 + 2 * weight * value)
    assert reward_metrics([record])["reward/politeness/mean"] == value


@pytest.mark.parametrize("failure", [FunctionFailed(detail="returned None"), FunctionTimeout(detail="late")])
async def test_a_failure_fails_the_whole_reward_and_is_never_zero(failure: Failure) -> None:
    rewards = config()
    record = await router(Function(Why=failure), rewards).score(sample("Who?"), rollout("Why"))
    assert record.total == failure == replay(record, rewards) and own(record).value is None
    assert record_from_json(record_to_json(record)) == record
    assert reward_metrics([record])[f"reward/outcome/{failure.kind}"] == 1.0


async def test_without_a_weight_a_function_is_not_called() -> None:
    function = Function()
    record = await router(function, config(0.0)).score(sample("Who?"), rollout("Why"))
    assert function.calls == [] and [c.name for c in record.components] == ["format", "length", "rules"]


async def test_function_without_a_pool_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="rewards.custom.politeness.path"):
        RewardRouter(config(), {}, count_tokens=len, deadline_s=5.0)


async def test_a_malformed_response_is_scored_too() -> None:
    function = Function()
    record = await router(function, config()).score(sample("Who?"), rollout(MALFORMED))
    assert function.calls == [[MALFORMED]] and own(record).value == len(MALFORMED)


async def test_the_deadline_of_the_response_ends_the_wait() -> None:
    for batch in (False, True):
        scoring = router(Function(), config(batch=batch), deadline_s=0.05)
        record = await scoring.score(sample("Who?"), rollout("stuck"))
        assert isinstance(record.total, FunctionTimeout)
        assert record.total.detail.startswith("politeness (my.py:politeness) was not done before")
        await scoring.close()


async def test_a_batched_function_gets_the_group_with_equal_responses_in_order() -> None:
    function = Function(bb=FunctionFailed(detail="no"))
    scoring = router(function, config(batch=True))
    texts = ["bb", "a", "a", MALFORMED]
    rollouts = [replace(rollout(text, number), siblings=4) for number, text in enumerate(texts)]
    records = await asyncio.gather(*(scoring.score(sample("Who?"), one) for one in rollouts))
    assert function.calls == [texts]
    assert [own(record).value for record in records] == [None, 1.0, 1.0, float(len(MALFORMED))]


async def test_batched_function_does_not_wait_beyond_the_deadline() -> None:
    function = Function()
    scoring = router(function, config(batch=True), deadline_s=60.0, group_wait_s=0.05)
    record = await scoring.score(sample("Who?"), replace(rollout("a"), siblings=2))
    assert function.calls == [["a"]] and own(record).value == 1.0


async def test_record_of_an_unconfigured_reward_cannot_be_replayed() -> None:
    record = await router(Function(), config()).score(sample("Who?"), rollout("Why"))
    with pytest.raises(DataError, match="politeness.*the configuration has only .*'consistency'"):
        replay(record, RewardsConfig())
