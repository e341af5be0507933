"""Dialogues of a step on scripted engines, without Ray and models."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hamr.algorithms.advantages import group_advantages
from hamr.algorithms.credit import episode_rewards, turn_advantages
from hamr.apps.shared.own_functions import check_own_functions
from hamr.cascade.replay import replay, replay_episode
from hamr.config.algorithm import AlgorithmConfig, DynamicSamplingConfig
from hamr.config.faults import UnscoredConfig
from hamr.config.load import load_config
from hamr.config.rewards import RewardsConfig
from hamr.config.schema import EnvConfig
from hamr.controller import Controller
from hamr.data.stream import PromptStream
from hamr.errors import ConfigError, EngineDied, TooManyUnscored
from hamr.protocols import GenerationRequest
from hamr.rollout.episodes import EpisodeRunner, OwnEpisode, load_episode
from hamr.security.functions import FunctionSource
from hamr.telemetry.glossary import check_names
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import episode_metrics
from hamr.types import (
    Component,
    CustomerFaultError,
    CustomerUnavailableError,
    EpisodeFunction,
    EpisodeLimit,
    FaultyCustomer,
    FunctionFailed,
    FunctionTimeout,
    JudgeUnavailable,
    RewardRecord,
    Rollout,
    Scored,
    ServiceSample,
    Turn,
    VersionSpan,
    derive_seed,
)
from tests.docs_pages import DOCS, commands, save_files
from tests.factories import build_controller, sample

HOOKS = DOCS / "reference" / "hooks.md"


class Engine:
    """Answers every request with tokens that depend on its seed, so that no two turns are alike."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.requests: list[GenerationRequest] = []
        self.fails_at = fails_at

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        for request in requests:
            self.requests.append(request)
            if len(self.requests) == self.fails_at:
                raise EngineDied("worker 0 died")
            for key, seed in zip(request.keys, request.seeds, strict=True):
                await asyncio.sleep(0)
                yield Rollout(
                    key=key,
                    prompt_ids=request.prompt_ids,
                    token_ids=(seed % 50, 7, 2),
                    logprobs=(-0.1, -0.2, -0.3),
                    text=f"{key.sample}.{key.turn}",
                    finish_reason="stop",
                    versions=(VersionSpan(version=3, start=0, end=3),),
                    seed=seed,
                )


class Scorer:
    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        component = Component(name="consistency", outcome=Scored(value=0.5), weight=1.0)
        return RewardRecord(key=rollout.key, total=Scored(value=0.5), components=(component,), action=None, band="none")


def encode(prompt, tools):
    texts = [t.content for t in prompt.history] if isinstance(prompt, ServiceSample) else [m["content"] for m in prompt]
    return tuple(ord(letter) for text in texts for letter in text)


def runner(run: EpisodeFunction, engine: Engine | None = None, **settings) -> EpisodeRunner:
    known = {"context": 200, "max_turns": 4, "deadline_s": 5.0, **settings}
    return EpisodeRunner(run=run, engine=engine or Engine(), rewarder=Scorer(), encode=encode, **known)


def controller(dialogues: EpisodeRunner, *, n: int = 3, prompts: int = 1, **algorithm) -> Controller:
    return build_controller(
        dialogues.engine,
        dialogues.rewarder,
        n=n,
        prompts=prompts,
        algorithm=AlgorithmConfig(**algorithm),
        dialogues=dialogues,
    )


async def counting(episode, ask):
    """Two turns, and a third one for the second dialogue."""
    said = [{"role": "user", "content": f"seed {episode.seed}"}]
    turns = 3 if episode.key.sample == 1 else 2
    for number in range(turns):
        answer = await ask(said)
        said += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": f"go on {number}"}]
    rewards = [float(episode.key.sample)] * turns
    return episode.end(turn_rewards=rewards, completion=float(episode.key.sample == 1), path="p")


async def hold(run: EpisodeFunction, **settings):
    own = controller(runner(run, **settings))
    (group,) = await own.score_groups([sample(0)], [own.request(0, sample(0))])
    return own, group


async def test_turns_are_sequences_of_their_own_with_the_sampled_tokens() -> None:
    own = controller(runner(counting))
    await own.step(0, PromptStream([sample(0)], seed=0))
    (batch,) = own.trainer.batches
    requests = {request.keys[0]: request for request in own.engine.requests}
    assert len(requests) == 7
    sampled = {(request.prompt_ids, request.seeds[0] % 50) for request in requests.values()}
    trained = {(g.prompt_ids, s.token_ids[0]) for g in batch.groups for s in g.sequences}
    assert trained == sampled, "what the engine got and sampled, and nothing else"
    assert all(s.old_logprobs == (-0.1, -0.2, -0.3) and not s.mask for g in batch.groups for s in g.sequences)
    assert len(batch.groups[0].sequences) == 3, "all first turns share their prompt"
    assert batch.tokens == 7 * 3


async def test_dialogues_of_a_group_have_one_customer_and_their_own_samples() -> None:
    own, group = await hold(counting)
    first = [r for r in own.engine.requests if r.keys[0].turn == 0]
    assert len({r.prompt_ids for r in first}) == 1 and len({r.seeds for r in own.engine.requests}) == 7
    again, _ = await hold(counting)
    assert [r.seeds for r in again.engine.requests] == [r.seeds for r in own.engine.requests]
    assert {r.prompt_ids for r in again.engine.requests} == {r.prompt_ids for r in own.engine.requests}
    other = again.request(1, sample(0))
    (later,) = await again.dialogues.hold([sample(0)], [other])
    assert later.rollouts[0].prompt_ids != group.rollouts[0].prompt_ids, "another step has another customer"


async def test_each_turn_has_its_reward_and_the_last_the_end(tmp_path: Path) -> None:
    _, group = await hold(counting)
    assert [(r.key.sample, r.key.turn) for r in group.records] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
    ]
    assert [r.total.value for r in group.records] == [0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    ends = [r.episode for r in group.records]
    assert [e.reward for e in ends if e] == [0.0, 1.0, 0.0] and ends[4].path == "p" and ends[3] is None
    assert group.records[1].observation == "go on 0" and group.records[1].response == "0.1"
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.add(group.records) == 7
        assert list(ledger.rows()) == list(group.records)
        assert ledger.query("SELECT turn, sample FROM records WHERE sample = 1") == [(0, 1), (1, 1), (2, 1)]


async def test_replay_gives_the_recorded_rewards() -> None:
    for run in (counting, raising):
        _, group = await hold(run)
        assert [replay(r, RewardsConfig()) for r in group.records] == [r.total for r in group.records]


async def test_replay_gives_the_reward_of_a_dialogue_under_the_weights() -> None:
    _, group = await hold(counting)
    ends = [r.episode for r in group.records if r.episode is not None]
    assert [replay_episode(end, EnvConfig()) for end in ends] == [end.total for end in ends] == [0.0, 1.0, 0.0]
    assert [replay_episode(end, EnvConfig(type="sage", completion=0.25)) for end in ends] == [0.0, 0.25, 0.0]


async def test_metrics_of_a_step_describe_its_dialogues() -> None:
    _, group = await hold(counting)
    _, failed = await hold(raising)
    found = episode_metrics([*group.records, *failed.records])
    assert found["episodes/failed_frac"] == pytest.approx(1 / 6) and found["episodes/ended_frac"] == pytest.approx(
        5 / 6
    )
    assert found["episodes/turns/max"] == 3 and found["episodes/turns/mean"] == pytest.approx(9 / 5)
    assert found["episodes/component/completion"] == pytest.approx(1 / 3) == found["episodes/completion_by_path/p"]
    assert episode_metrics([replace(r, episode=None) for r in group.records]) == {}
    check_names(found, strict=True)


async def test_advantages_differ_by_turn() -> None:
    own, group = await hold(counting)
    own.batches = replace(own.batches, algorithm=AlgorithmConfig(normalize_std=False))
    ((advantages, _),) = own.batches.advantages([group])
    completion = [-1 / 3, 2 / 3, -1 / 3]
    # Turn rewards 0, 1, 2 in the first two turns; the third turn has no other to compare with.
    wanted = [-1 + completion[0]] * 2 + [completion[1]] * 2 + [completion[1]] + [1 + completion[2]] * 2
    assert advantages == pytest.approx(wanted)
    own.batches = replace(own.batches, algorithm=AlgorithmConfig(normalize_std=False, credit="outcome"))
    ((advantages, _),) = own.batches.advantages([group])
    assert advantages == pytest.approx([completion[0]] * 2 + [completion[1]] * 3 + [completion[2]] * 2)


async def test_group_with_equal_outcomes_has_signal_in_its_turns_alone() -> None:
    async def run(episode, ask):
        await ask([{"role": "user", "content": "hi"}])
        return episode.end(turn_rewards=[float(episode.key.sample)], completion=1.0)

    own, group = await hold(run)
    assert own.batches.has_signal(group)
    own.batches = replace(own.batches, algorithm=AlgorithmConfig(credit="outcome"))
    assert not own.batches.has_signal(group)


async def test_decision_points_are_scored_by_the_reward_system() -> None:
    async def run(episode, ask):
        said = replace(episode.sample, history=(Turn(role="customer", content="hello"),))
        await ask(said)
        return episode.end()

    _, group = await hold(run)
    assert [r.total.value for r in group.records] == [0.5] * 3
    assert group.records[0].observation == "hello" and group.records[0].episode.reward is None


# --- limits and failures -----------------------------------------------------------------------


async def endless(episode, ask):
    said = [{"role": "user", "content": "hi"}]
    while True:
        answer = await ask(said)
        said += [{"role": "assistant", "content": answer.text * 10}]


@pytest.mark.parametrize(("settings", "outcome"), [({}, "max_turns"), ({"context": 70}, "context_full")])
async def test_limit_ends_a_dialogue_and_keeps_its_turns(settings, outcome) -> None:
    _, group = await hold(endless, **settings)
    ends = [r.episode.outcome for r in group.records if r.episode]
    assert ends == [outcome] * 3 and len(group.records) == (12 if outcome == "max_turns" else 9)
    assert all(isinstance(r.total, Scored) for r in group.records)


async def test_episode_may_reward_a_dialogue_that_reached_a_limit() -> None:
    async def run(episode, ask):
        try:
            return await endless(episode, ask)
        except EpisodeLimit as limit:
            return episode.end(outcome=limit.outcome, completion=0.0)

    _, group = await hold(run)
    assert [r.episode.reward for r in group.records if r.episode] == [0.0] * 3


async def test_dialogue_at_a_limit_stays_in_the_baseline_with_the_outcome_zero() -> None:
    async def run(episode, ask):
        if episode.key.sample == 0:
            await endless(episode, ask)
        await ask([{"role": "user", "content": "hi"}])
        return episode.end(completion=float(episode.key.sample - 1))

    own, group = await hold(run)
    ends = [r.episode for r in group.records if r.episode]
    assert [(e.outcome, e.reward) for e in ends] == [("max_turns", 0.0), ("ended", 0.0), ("ended", 1.0)]
    sequences = [s for g in own.batches.build([group]).groups for s in g.sequences]
    assert len(sequences) == 6 and sum(s.advantage < 0 for s in sequences) == 5, "looping costs as much as failing"


async def raising(episode, ask):
    await ask([{"role": "user", "content": "hi"}])
    if episode.key.sample == 0:
        raise KeyError("order")
    return episode.end(turn_rewards=[float(episode.key.sample)])


async def test_failed_dialogue_is_typed_and_leaves_the_baseline() -> None:
    own, group = await hold(raising)
    failed = group.records[0]
    assert isinstance(failed.total, FunctionFailed) and "KeyError: 'order'" in failed.total.detail
    assert failed.episode.outcome == "failed"
    batch = own.batches.build([group])
    assert [s.advantage for g in batch.groups for s in g.sequences] == pytest.approx([-1.0, 1.0], abs=1e-4)


async def test_dialogue_that_fails_before_its_first_turn_is_recorded() -> None:
    async def run(episode, ask):
        raise ValueError("no customer")

    own, group = await hold(run)
    assert [r.key.sample for r in group.records] == [0, 1, 2]
    assert own.batches.build([group]).groups == ()
    assert own.describe([group], [], 1)["rollout/responses"] == 0


async def test_faulty_customer_is_a_typed_failure_and_leaves_the_baseline(tmp_path: Path) -> None:
    async def run(episode, ask):
        await ask([{"role": "user", "content": "hi"}])
        if episode.key.sample == 0:
            raise CustomerFaultError("left_role")
        return episode.end(turn_rewards=[float(episode.key.sample)])

    own, group = await hold(run)
    assert group.records[0].total == FaultyCustomer(detail="left_role")
    assert [s.advantage for g in own.batches.build([group]).groups for s in g.sequences] == pytest.approx(
        [-1, 1], abs=1e-4
    )
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.add(group.records)
        assert list(ledger.rows()) == list(group.records)


async def test_dialogue_that_takes_too_long_is_a_timeout() -> None:
    async def run(episode, ask):
        await ask([{"role": "user", "content": "hi"}])
        await asyncio.sleep(60)

    _, group = await hold(run, deadline_s=0.05)
    assert all(isinstance(r.total, FunctionTimeout) for r in group.records)


async def test_aborted_dialogue_leaves_no_scoring_behind() -> None:
    scorings = []

    class SlowScorer(Scorer):
        async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
            scorings.append(asyncio.current_task())
            await asyncio.sleep(60)
            raise AssertionError

    async def run(episode, ask):
        await ask(episode.sample)
        await asyncio.sleep(60)

    own = controller(replace(runner(run), rewarder=SlowScorer()))
    holding = asyncio.create_task(own.score_groups([sample(0)], [own.request(0, sample(0))]))
    while len(scorings) < 3:
        await asyncio.sleep(0)
    holding.cancel()
    await asyncio.wait([holding, *scorings], timeout=1)
    assert all(task.cancelled() for task in scorings)


async def test_dialogues_of_one_customer_in_several_steps_are_counted_apart() -> None:
    _, group = await hold(ask_twice)
    records = [replace(r, response_tokens=5, key=replace(r.key, step=step)) for step in (0, 1) for r in group.records]
    assert episode_metrics(records)["episodes/tokens/mean"] == 10


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (lambda e: None, "returned None"),
        (lambda e: e.end(turn_rewards=[1.0, 1.0]), "2 turn_rewards for 1 turns"),
        (lambda e: e.end(completion=float("nan")), "nan"),
        (lambda e: e.end(turn_rewards=["good"]), "'good'"),
        (lambda e: e.end(outcome=1.0), "the outcome 1.0 (float); there are ended, max_turns, context_full"),
        (lambda e: e.end(outcome="failed"), "the outcome 'failed'"),
        (lambda e: e.end(path=3), "the path 3 (int); return a text"),
    ],
)
async def test_value_that_is_no_episode_is_a_failure_with_its_reason(returned, why) -> None:
    async def run(episode, ask):
        await ask([{"role": "user", "content": "hi"}])
        return returned(episode)

    _, group = await hold(run)
    assert all(isinstance(r.total, FunctionFailed) and why in r.total.detail for r in group.records)


async def test_dead_engine_ends_the_run_even_if_the_function_catches_it() -> None:
    async def run(episode, ask):
        try:
            await ask([{"role": "user", "content": "hi"}])
        except Exception:
            return episode.end(completion=1.0)

    own = controller(runner(run, Engine(fails_at=2)))
    with pytest.raises(EngineDied):
        await own.step(0, PromptStream([sample(0)], seed=0))


async def test_tokens_that_the_policy_was_not_asked_for_end_the_run() -> None:
    class OtherPrompt(Engine):
        async def generate(self, requests):
            async for rollout in super().generate(requests):
                yield replace(rollout, prompt_ids=(1, 2))

    with pytest.raises(AssertionError, match="the prompt that the engine saw"):
        await controller(runner(counting, OtherPrompt())).step(0, PromptStream([sample(0)], seed=0))


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (
            ValueError("no customer"),
            "function_failed 3; e.g. rollout.episode: ValueError: no customer.* after 0 s .*Correct the dialogues",
        ),
        (CustomerUnavailableError("env.simulator: timeout"), "customer_unavailable 3; e.g. env.sim.*Restore the pools"),
    ],
)
async def test_run_stops_if_too_many_dialogues_fail(error: Exception, what: str) -> None:
    async def run(episode, ask):
        raise error

    own = controller(runner(run))
    own.experiment = own.experiment.model_copy(
        update={"unscored": own.experiment.unscored.model_copy(update={"max_frac": 0.5})}
    )
    with pytest.raises(TooManyUnscored, match=what):
        await own.step(0, PromptStream([sample(0)], seed=0))


async def test_run_stops_for_its_pools_if_the_customers_do_not_answer() -> None:
    async def run(episode, ask):
        raise CustomerUnavailableError("user: timeout: 30 s")

    own = controller(runner(run))
    own.experiment = own.experiment.model_copy(
        update={"unscored": own.experiment.unscored.model_copy(update={"max_frac": 0.5})}
    )
    with pytest.raises(TooManyUnscored, match=r"customer_unavailable 3; e.g. user: timeout.*Restore the pools"):
        await own.step(0, PromptStream([sample(0)], seed=0))


async def ask_twice(episode, ask):
    for text in ("hello", "again"):
        await ask(replace(episode.sample, history=(Turn(role="customer", content=text),)))
    return episode.end(turn_rewards=[1.0, 2.0], completion=1.0)


class AbsentScorer(Scorer):
    """Cannot score the first `failures` responses."""

    def __init__(self, failures: int) -> None:
        self.failures, self.points = failures, list[str]()

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        self.points.append(sample.history[0].content)
        record = await super().score(sample, rollout)
        if len(self.points) > self.failures:
            return record
        away = Component(name="consistency", outcome=JudgeUnavailable(detail="away"), weight=1.0)
        return replace(record, total=away.outcome, components=(away,))


def hasty(own: Controller, scorer: Scorer) -> Controller:
    own.dialogues, own.rewarder = replace(own.dialogues, rewarder=scorer), scorer
    unscored = UnscoredConfig(max_frac=0.5, first_s=0.001, longest_s=0.001, wait_s=0.2)
    own.experiment = own.experiment.model_copy(update={"unscored": unscored})
    return own


async def test_turns_without_score_are_scored_again_at_their_own_decision_point() -> None:
    scorer = AbsentScorer(failures=5)
    own = hasty(controller(runner(ask_twice), dynamic_sampling=DynamicSamplingConfig(enabled=False)), scorer)
    metrics = await own.step(0, PromptStream([sample(0)], seed=0))
    assert metrics["rollout/rescored"] == 5 and len(own.engine.requests) == 6, "no dialogue is held again"
    assert sorted(scorer.points[6:]) == sorted(scorer.points[:5])
    assert [r.total.value for r in own.recorder.kept] == [1.5, 2.5] * 3, "with the turn's own reward"
    assert [r.observation for r in own.recorder.kept] == ["hello", "again"] * 3
    assert [r.episode.reward for r in own.recorder.kept if r.episode] == [1.0] * 3


async def test_run_stops_after_the_wait_if_turns_stay_without_score() -> None:
    scorer = AbsentScorer(failures=10**6)
    own = hasty(controller(runner(ask_twice)), scorer)
    with pytest.raises(TooManyUnscored, match=r"judge_unavailable 6; e.g. away.*Restore the pools"):
        await own.step(0, PromptStream([sample(0)], seed=0))
    assert len(scorer.points) > 6


# --- the user's own function -------------------------------------------------------------------


def own_function(folder: Path, body: str):
    file = folder / "mine.py"
    file.write_text(body)
    source = FunctionSource(key="rollout.episode.path", path=f"{file}:run").with_text()
    return load_episode(source)


async def test_own_function_that_blocks_does_not_block_the_run(tmp_path: Path) -> None:
    body = """
import time

async def run(episode, ask):
    answer = await ask([{"role": "user", "content": "hi"}])
    time.sleep(0.4)
    return episode.end(turn_rewards=[1.0])
"""
    own = controller(runner(OwnEpisode(own_function(tmp_path, body)), deadline_s=30), n=2)
    held = asyncio.create_task(own.score_groups([sample(0)], [own.request(0, sample(0))]))
    turns = 0
    while not held.done():
        await asyncio.sleep(0.01)
        turns += 1
    (group,) = await held
    assert turns > 5, "the event loop of the run kept turning"
    assert [r.total.value for r in group.records] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("raise SystemExit('bye')", "SystemExit bye"),
        ("raise asyncio.CancelledError", "CancelledError"),
        ("helper = asyncio.create_task(asyncio.sleep(9)); helper.cancel(); await helper", "CancelledError"),
    ],
)
async def test_function_that_ends_itself_fails_its_dialogue_alone(tmp_path: Path, ends: str, told: str) -> None:
    body = f"""
import asyncio

async def run(episode, ask):
    await ask([{{"role": "user", "content": "hi"}}])
    if episode.key.sample == 0:
        {ends}
    return episode.end(turn_rewards=[1.0])
"""
    own = controller(runner(OwnEpisode(own_function(tmp_path, body)), deadline_s=30), n=2)
    for _ in range(2):
        (group,) = await own.score_groups([sample(0)], [own.request(0, sample(0))])
        failed, other = (r.total for r in group.records)
        assert isinstance(failed, FunctionFailed) and told in failed.detail
        assert other == Scored(value=1.0)


async def test_own_function_may_give_up_a_question_and_ask_again(tmp_path: Path) -> None:
    """The engine takes a moment to abort the first one."""
    body = """
import asyncio

async def run(episode, ask):
    try:
        await asyncio.wait_for(ask([{"role": "user", "content": "long"}]), 0.05)
    except TimeoutError:
        await ask([{"role": "user", "content": "short"}])
    return episode.end(turn_rewards=[1.0])
"""

    class SlowAtFirst(Engine):
        async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
            if len(self.requests) < 2:
                self.requests.extend(requests)
                try:
                    await asyncio.sleep(30)
                finally:
                    await asyncio.sleep(0.1)
            async for rollout in super().generate(requests):
                yield rollout

    own = controller(runner(OwnEpisode(own_function(tmp_path, body)), SlowAtFirst(), deadline_s=30), n=2)
    (group,) = await own.score_groups([sample(0)], [own.request(0, sample(0))])
    assert [r.total for r in group.records] == [Scored(value=1.0)] * 2


async def test_exit_in_a_task_of_a_function_does_not_stop_later_dialogues(tmp_path: Path) -> None:
    body = """
import asyncio, sys

async def leave():
    sys.exit(3)

async def run(episode, ask):
    await ask([{"role": "user", "content": "hi"}])
    asyncio.create_task(leave())
    await asyncio.sleep(0.05)
    return episode.end(turn_rewards=[1.0])
"""
    own = controller(runner(OwnEpisode(own_function(tmp_path, body)), deadline_s=30), n=2)
    for _ in range(2):
        (group,) = await own.score_groups([sample(0)], [own.request(0, sample(0))])
        assert [r.total for r in group.records] == [Scored(value=1.0)] * 2


async def test_function_that_hangs_does_not_stop_later_dialogues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hamr.rollout.episodes.ANSWER_S", 0.2)
    body = """
import time

async def run(episode, ask):
    await ask([{"role": "user", "content": "hi"}])
    if episode.sample.id == "s0":
        time.sleep(8)
    return episode.end(turn_rewards=[1.0])
"""
    own = controller(runner(OwnEpisode(own_function(tmp_path, body)), deadline_s=1), n=2)
    (hung,) = await own.score_groups([sample(0)], [own.request(0, sample(0))])
    (later,) = await own.score_groups([sample(1)], [own.request(0, sample(1))])
    assert all(isinstance(r.total, FunctionTimeout) for r in hung.records)
    assert [r.total for r in later.records] == [Scored(value=1.0)] * 2


async def test_dialogue_that_has_ended_asks_no_engine() -> None:
    """A function that catches everything goes on after its deadline."""
    caught: list[BaseException] = []
    ended = asyncio.Event()

    async def run(episode, ask):
        async def stubborn():
            await ended.wait()
            try:
                await ask([{"role": "user", "content": "again"}])
            except RuntimeError as error:
                caught.append(error)

        tasks.append(asyncio.create_task(stubborn()))
        await ask([{"role": "user", "content": "hi"}])
        return episode.end(turn_rewards=[1.0])

    tasks: list[asyncio.Task[None]] = []
    own, _ = await hold(run)
    ended.set()
    await asyncio.gather(*tasks)
    assert len(own.engine.requests) == len(caught) == 3
    assert str(caught[0]) == "the dialogue has ended"


async def test_run_stops_if_most_dialogues_fail_before_their_first_turn() -> None:
    """Each of them is one response of many."""

    async def run(episode, ask):
        if episode.key.sample:
            raise ValueError("no customer")
        for _ in range(4):
            await ask([{"role": "user", "content": "hi"}])
        return episode.end(turn_rewards=[1.0] * 4)

    own = controller(runner(run))
    own.experiment = own.experiment.model_copy(
        update={"unscored": own.experiment.unscored.model_copy(update={"max_frac": 0.5})}
    )
    with pytest.raises(TooManyUnscored, match="2 of 6 responses have no reward .*, and 2 of 3 dialogues failed"):
        await own.step(0, PromptStream([sample(0)], seed=0))


async def test_turn_without_a_reward_is_not_compared_with_others() -> None:
    """A dialogue at a limit loses the turn rewards that its function has collected."""

    async def run(episode, ask):
        turns = 2 + 9 * episode.key.sample
        for _ in range(turns):
            await ask([{"role": "user", "content": "hi"}])
        return episode.end(turn_rewards=[1.0] * turns)

    _, group = await hold(run, max_turns=2)
    credited = episode_rewards(group.records, [r.total.value for r in group.records])
    assert [e.turns for e in credited] == [(1.0, 1.0), (0.0, 0.0), (0.0, 0.0)]
    assert turn_advantages(credited, "turn_normalised", group_advantages) == [0.0] * 6


async def test_failure_of_an_own_function_names_its_line(tmp_path: Path) -> None:
    own = controller(runner(OwnEpisode(own_function(tmp_path, "async def run(episode, ask):\n    return 1 / 0\n"))))
    (group,) = await own.score_groups([sample(0)], [own.request(0, sample(0))])
    assert "division by zero" in group.records[0].total.detail and "line 2" in group.records[0].total.detail


async def test_documented_function_holds_dialogues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_files(HOOKS, tmp_path)
    [command] = [command for command in commands(HOOKS) if "my_episode.py" in command]
    config = check_own_functions(load_config(shlex.split(command)[2:]))
    assert config.holds_dialogues and config.rollout.episode is not None
    source = FunctionSource.of_config("rollout.episode", config.rollout.episode)
    own = controller(runner(OwnEpisode(load_episode(source)), deadline_s=30), n=8)
    (group,) = await own.score_groups([sample(0)], [own.request(0, sample(0))])
    number = derive_seed(own.request(0, sample(0)).seeds[0], "environment") % 10
    ends = [r for r in group.records if r.episode]
    assert len(ends) == 8 and all(r.episode.reward == float(str(number) in r.response) for r in ends)
    assert {r.observation for r in group.records if r.key.turn} == {f"No, it is {('even', 'odd')[number % 2]}."}


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rewards.normalise=gdpo", "rewards.normalise='gdpo' compares responses"),
        ("algorithm.all_wrong.reference=true", "algorithm.all_wrong.reference=True compares"),
        ("algorithm.all_wrong.more_samples=2", "algorithm.all_wrong.more_samples=2 compares"),
        ("env=sage", "env.type='sage' but rollout.episode.path='my.py:run'"),
    ],
)
def test_settings_that_compare_responses_are_refused(override: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_config(["experiment=smoke", "rollout.episode.path=my.py:run", override])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["rewards.consistency.audit.by=rules", "rewards.consistency.audit_frac=0.1"], "audit.by='rules' but rollout"),
        (
            ["scorers.on_alarm=refit", "scorers.check_every=9"],
            "scorers.refit.labels='rule' but rollout.episode.path='my.py:run'",
        ),
    ],
)
def test_rule_for_exact_acts_is_refused(overrides: list[str], says: str) -> None:
    """The turns have no expected act."""
    with pytest.raises(ConfigError, match=says):
        load_config(["experiment=smoke", "rollout.episode.path=my.py:run", *overrides])
    load_config(["experiment=smoke", "env=sage", *overrides])


def test_own_function_has_to_be_async(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not async; write `async def run"):
        own_function(tmp_path, "def run(episode, ask):\n    return episode\n")
