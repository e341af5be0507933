"""Evaluation of dialogues with held-out customers, on a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from hamr.apps.train.episodes import check_dialogues_held, evaluate_customers
from hamr.bench.sage.episodes import SageEnvironment
from hamr.config.custom import EpisodeFunctionConfig
from hamr.config.schema import EnvConfig
from hamr.data.actions import parse_action, render_action
from hamr.errors import TooManyUnscored
from hamr.protocols import SamplingConfig
from hamr.rewards.truth import ExactAct
from hamr.rollout.episodes import EpisodeRunner
from hamr.telemetry.glossary import check_names
from hamr.types import CustomerUnavailableError, JudgeUnavailable, RewardRecord, Rollout, ServiceSample
from tests.factories import sample
from tests.unit.bench.sage.test_sage_episodes import SCENARIOS, samples
from tests.unit.rollout.test_episodes import Engine, Scorer, runner


class Alternating(Engine):
    """Answers the even customers right, and says hello to the others."""

    def __init__(self, customers: list[str]) -> None:
        super().__init__()
        self.right, self.asked = set(customers[::2]), {}

    def encode(self, sample: ServiceSample, tools) -> tuple[int, ...]:
        ids = (len(self.asked),)
        self.asked[ids] = render_action(sample.references[0].action) if sample.id in self.right else "Hello."
        return ids

    async def generate(self, requests) -> AsyncIterator[Rollout]:
        async for rollout in super().generate(requests):
            yield replace(rollout, text=self.asked[rollout.prompt_ids])


async def test_held_out_dialogues_at_a_limit_count_as_not_completed() -> None:
    async def run(episode, ask):
        while True:
            await ask([{"role": "user", "content": "hi"}])
            if episode.sample.id == "s0":
                return episode.end(completion=1.0)

    found, _ = await evaluate_customers(
        runner(run), [sample(0), sample(1)], run="r", stage="rl", step=3, sampling=SamplingConfig(max_new_tokens=8)
    )
    assert found["eval/rl/episodes/completion"] == 0.5


async def test_failed_dialogues_do_not_count_as_wrong() -> None:
    async def run(episode, ask):
        if episode.sample.id == "s0":
            raise CustomerUnavailableError("user: timeout")
        await ask(episode.sample)
        await ask(episode.sample)
        return episode.end(completion=1.0)

    class Known:
        def is_exact(self, action, point) -> bool:
            return True

    found, records = await evaluate_customers(
        runner(run), [sample(0), sample(1)], run="r", stage="rl", step=3,
        sampling=SamplingConfig(max_new_tokens=8), truth=Known(),
    )  # fmt: skip
    assert found["eval/rl/episodes/failed_frac"] == 0.5
    assert (found["eval/rl/episodes/exact_act"], found["eval/rl/episodes/turns"]) == (1.0, 2.0)
    check_dialogues_held(records, "rl")
    with pytest.raises(TooManyUnscored, match="all 1 dialogues failed .customer_unavailable; e.g. user"):
        check_dialogues_held(records[:1], "base")


async def test_failing_function_of_the_users_own_needs_a_new_run() -> None:
    async def run(episode, ask):
        raise ValueError if episode.sample.id == "s0" else CustomerUnavailableError("user: timeout")

    how = {"run": "r", "stage": "base", "step": 0, "sampling": SamplingConfig(max_new_tokens=8)}
    own = EpisodeFunctionConfig(path="mine.py:Parcels")
    for sample_, function, remedy in (
        (sample(0), own, "Correct the function mine.py:Parcels and start a new run"),
        (sample(0), None, "Correct the dialogues or restore the pools, then resume the run"),
        (sample(1), own, "restore the pools, then resume the run"),
    ):
        _, records = await evaluate_customers(runner(run), [sample_], **how)
        with pytest.raises(TooManyUnscored, match=remedy):
            check_dialogues_held(records, "base", function)


async def test_unscored_turns_have_no_mean_reward() -> None:
    async def run(episode, ask):
        await ask(episode.sample)
        return episode.end(completion=1.0)

    class Down(Scorer):
        async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
            record, failure = await super().score(sample, rollout), JudgeUnavailable(detail="down")
            return replace(record, total=failure, components=(replace(record.components[0], outcome=failure),))

    dialogues = replace(runner(run), rewarder=Down())
    how = {"run": "r", "stage": "rl", "step": 3, "sampling": SamplingConfig(max_new_tokens=8)}
    found, _ = await evaluate_customers(dialogues, [sample(0)], **how)
    assert found["eval/rl/episodes/completion"] == 1.0 and "eval/rl/episodes/turn_reward" not in found


class Reader(Scorer):
    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        return replace(await super().score(sample, rollout), action=parse_action(rollout.text, "plain"))


async def test_completion_is_measured_with_held_out_customers() -> None:
    tools = [s for s in samples() if s.privileged["case"]["action"] == "ChangeOrder"][:4]
    engine = Alternating([s.id for s in tools])
    environment = SageEnvironment(
        config=EnvConfig(type="sage"), scenarios=SCENARIOS, max_turns=10, format_of=lambda s: "plain"
    )
    held_out = EpisodeRunner(
        run=environment, engine=engine, rewarder=Reader(), encode=engine.encode, context=64, max_turns=10, deadline_s=60
    )
    found, records = await evaluate_customers(
        held_out,
        tools,
        run="r",
        stage="rl",
        step=3,
        sampling=SamplingConfig(max_new_tokens=8),
        truth=ExactAct.of(samples()),
    )
    check_names(found, strict=True)
    assert found["eval/rl/episodes/completion"] == 0.5 and found["eval/rl/episodes/n"] == 4
    assert found["eval/rl/episodes/turns"] >= 1 and found["eval/rl/episodes/extra_turns"] == 0.0
    assert found["eval/rl/episodes/ended_frac"] == 1.0 and found["eval/rl/episodes/turn_reward"] == 0.5
    assert any(k.startswith("eval/rl/episodes/completion_by_path/telecom_package_stage1") for k in found)
    exact = [component.value for record in records for component in record.components if component.name == "exact_act"]
    assert 0.0 < found["eval/rl/episodes/exact_act"] == sum(exact) / len(records) < 1.0
    assert {record.key.run for record in records} == {"r/eval-rl/dialogues"}
