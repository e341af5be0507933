"""Evaluations of a run around its stages, with scripted actors instead of Ray's."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.apps.scorer.pair_check import word_overlap
from hamr.apps.shared.preemption import Preemption
from hamr.apps.train import run as train
from hamr.apps.train import stages
from hamr.apps.train.reply_checks import Counted, check_scorers
from hamr.apps.train.scorer_refit import ScoredReply
from hamr.apps.train.stages import Run, enter_rl, measure, warm_up
from hamr.calibration.cascade import Cascade
from hamr.config.load import dump_config, load_config
from hamr.data.splits import Splits
from hamr.errors import BadInput, Preempted
from hamr.experience import Experience
from hamr.telemetry.console import Console
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.run_folder import RunFolder
from hamr.trainer.checkpoints import Checkpoint, Checkpoints
from hamr.types import (
    Answer,
    Component,
    JudgeUnavailable,
    Question,
    Reference,
    Reply,
    RewardRecord,
    Rollout,
    SampleKey,
    Scored,
    ServiceSample,
    ToolCall,
    VersionSpan,
)


def sample(name: str, *actions: Reply | ToolCall) -> ServiceSample:
    references = tuple(Reference(action=action) for action in actions)
    return ServiceSample(id=name, ticket={}, policy="", tools=(), history=(), references=references)


class Pool:
    """Likes short replies."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    async def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return Answer(score=1 / len(question.variables["statement_b"]))


class Overlap(Pool):
    """Counts shared words."""

    async def ask(self, question: Question) -> Answer:
        return Answer(score=word_overlap(question.variables["statement_a"], question.variables["statement_b"]))


class Constant(Pool):
    """Gives every reply the same score."""

    async def ask(self, question: Question) -> Answer:
        return Answer(score=0.5)


LANGUAGE_MODEL = ["pools.reranker.model=smollm2-135m"]


def a_run(test: Sequence[ServiceSample], folder: Path, pool: Pool, *overrides: str) -> Run:
    config = load_config(["experiment=smoke", *overrides])
    splits = Splits(train=(), validation=(), test=tuple(test))
    prepared: Any = SimpleNamespace(config=config, splits=splits, truth=None, clusters=None)
    nothing: Any = None
    return Run(
        prepared=prepared,
        world=SimpleNamespace(pools={"reranker": pool}),  # type: ignore[arg-type]
        recorder=nothing,
        checkpoints=SimpleNamespace(folder=folder / "checkpoints"),  # type: ignore[arg-type]
        console=Console(enabled=False),
        run_id="r",
        preemption=Preemption(),
        refit=SimpleNamespace(state=list),  # type: ignore[arg-type]
    )


ONE_REPLY = [sample(name, Reply(content=f"Reply number {name}.")) for name in "abc"]
CALLS_ALONE = [sample(name, ToolCall(name="look")) for name in "abc"]


async def test_data_without_replies_have_no_scorer_check(tmp_path: Path) -> None:
    pool = Pool()
    run = a_run(CALLS_ALONE, tmp_path, pool)
    await run.scorers.at_start()
    assert run.scorers.checks == {"reranker": {}} and not pool.asked


async def test_samples_with_one_reference_are_checked_on_easy_pairs(tmp_path: Path) -> None:
    run = a_run(ONE_REPLY, tmp_path, Overlap(), *LANGUAGE_MODEL)
    await run.scorers.at_start()
    check = run.scorers.checks["reranker"]["easy"]
    assert check.auc == 1.0 and check.n == 2 * len(ONE_REPLY)


async def test_a_scorer_at_chance_stops_the_run_unless_accepted(tmp_path: Path) -> None:
    """The bundled random-weight model is exempt: it serves to try out the system."""
    with pytest.raises(BadInput, match=r"pools.reranker.model: 'smollm2-135m'.*accept_chance=true"):
        await a_run(ONE_REPLY, tmp_path, Constant(), *LANGUAGE_MODEL).scorers.at_start()
    for accepted in ([*LANGUAGE_MODEL, "scorers.accept_chance=true"], []):
        run = a_run(ONE_REPLY, tmp_path, Constant(), *accepted)
        await run.scorers.at_start()
        assert run.scorers.checks["reranker"]["easy"].is_at_chance


async def test_labelled_pairs_are_checked_if_the_data_has_no_pairs(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(
        '{"content_A": "Yes.", "content_B": "Sure.", "label": "consistent"}\n'
        '{"content_A": "Yes.", "content_B": "By no means.", "label": "inconsistent"}\n'
    )
    pool = Pool()
    run = a_run(CALLS_ALONE, tmp_path, pool, f"data.labelled_pairs={pairs}")
    await run.scorers.at_start()
    assert run.scorers.checks["reranker"].keys() == {"labelled_pairs"} and len(pool.asked) == 2
    assert run.scorers.checks["reranker"]["labelled_pairs"].auc == 1.0


@pytest.mark.parametrize(("env", "known"), [("env=sage", True), ("env=my.py:run", False)])
async def test_rule_for_exact_acts_skips_own_dialogues(tmp_path: Path, monkeypatch, env: str, known: bool) -> None:
    """Only the user's function knows the expected act of a later turn."""
    given: list[Any] = []

    async def held_out(*args: Any, **settings: Any) -> SimpleNamespace:
        return SimpleNamespace(metrics=lambda stage: {}, records=(), as_dict=dict)

    async def customers(*args: Any, truth: Any, **settings: Any) -> tuple[dict[str, float], list[RewardRecord]]:
        given.append(truth)
        return {}, []

    monkeypatch.setattr(stages, "evaluate_held_out", held_out)
    monkeypatch.setattr(stages, "evaluate_customers", customers)
    run: Any = a_run(ONE_REPLY, tmp_path, Pool(), env)
    run.prepared.truth, run.prepared.codec = "rule", SimpleNamespace(prompt=None, formats=None)
    run.world.workers = run.episodes = run.router = None
    run.recorder = SimpleNamespace(evaluation=lambda *figures: None)
    await run.evaluate("rl", 1)
    assert given == ["rule" if known else None]


@pytest.mark.parametrize(("steps", "measured"), [(0, ["base"]), (2, ["base", "rl"])])
async def test_run_without_steps_is_evaluated_once(
    steps: int, measured: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, int]] = []
    run = a_run(ONE_REPLY, tmp_path, Pool(), f"experiment.steps={steps}", "experiment.sft.steps=0")

    async def evaluate(stage: str, step: int) -> str:
        found.append((stage, step))
        return "figures"

    async def rl_stage(run: Run, newest: object) -> None:
        """Takes its steps elsewhere."""

    run.prepared.splits = Splits(train=tuple(ONE_REPLY), validation=(), test=())  # type: ignore[misc]
    monkeypatch.setattr(run, "evaluate", evaluate)
    monkeypatch.setattr(train, "rl_stage", rl_stage)
    await train.run_stages(run, None)
    assert [stage for stage, _ in found] == measured


async def test_schedule_length_equals_the_number_of_optimiser_steps(tmp_path: Path) -> None:
    overrides = ("experiment.steps=5", "algorithm.epochs=2", "algorithm.minibatches=4")
    run = a_run(ONE_REPLY, tmp_path, Pool(), *overrides)
    asked: list[int] = []

    async def reset(policy: Path, *, config: object, total_steps: int) -> None:
        asked.append(total_steps)

    async def save(step: int, write: object, state: object) -> SimpleNamespace:
        return SimpleNamespace(step=step, path=tmp_path)

    run.prepared.splits = Splits(train=tuple(ONE_REPLY), validation=(), test=())  # type: ignore[misc]
    run.world.trainers = SimpleNamespace(save_policy=None)  # type: ignore[assignment]
    run.world.learner = SimpleNamespace(reset=reset)  # type: ignore[assignment,misc]
    run.checkpoints.save = save  # type: ignore[assignment]
    await enter_rl(run, None)
    assert asked == [5 * 2 * 4]


async def test_intermediate_evaluations_run_once_when_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stopped before its evaluation repeats it on resumption; one that a checkpoint contains is not
    repeated.
    """
    dialogues = ["experiment.sage.scenarios=[online_shopping]", "experiment.sage.every=3"]
    run = a_run(ONE_REPLY, tmp_path, Pool(), "experiment.steps=6", "experiment.eval_every=2", *dialogues)
    found: list[str] = []

    async def evaluate(stage: str, step: int) -> None:
        found.append(stage)
        run.evaluations[stage] = {}

    async def simulate(run: Run, stage: str, step: int) -> None:
        found.append(f"dialogues of {stage}")
        run.dialogues[stage] = {}

    async def unless_asked(work: Any) -> Any:
        return await work

    monkeypatch.setattr(run, "evaluate", evaluate)
    monkeypatch.setattr(stages, "simulate", simulate)
    run.preemption = SimpleNamespace(unless_asked=unless_asked)  # type: ignore[assignment]
    for step in (0, 1, 2, 2, 3, 4, 5, 6):
        await measure(run, step)
    assert found == ["rl-2", "dialogues of rl-3", "rl-4"]


class WarmUpTrainers:
    """Takes steps, noting the batches; `stop_after` of them it asks the run to end. Its checkpoints hold nothing."""

    def __init__(self, run: Run, stop_after: int = -1, stalls: bool = False) -> None:
        self.run, self.stop_after, self.stalls = run, stop_after, stalls
        self.batches: list[Any] = []
        self.loaded: list[Path] = []

    async def train(self, batch: Any) -> dict[str, float]:
        self.batches.append(batch)
        if len(self.batches) == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60 if self.stalls else 0.01)
        return {"sft/loss": 1.0}

    async def save(self, folder: Path) -> None:
        (folder / "weights").write_text(str(len(self.batches)))

    async def load(self, folder: Path) -> None:
        self.loaded.append(folder)


def a_warm_up(tmp_path: Path, **trainers: Any) -> tuple[Run, WarmUpTrainers]:
    samples = tuple(sample(str(i), *(Reply(content=f"{i} {word}") for word in "abcd")) for i in range(7))
    run = a_run(ONE_REPLY, tmp_path, Pool(), "experiment.sft.steps=6", "experiment.sft.samples_per_step=3")
    learner = WarmUpTrainers(run, **trainers)
    run.prepared.splits = Splits(train=samples, validation=(), test=())  # type: ignore[misc]
    run.prepared.codec = SimpleNamespace(prompt=lambda s: (int(s.id),), answer=lambda a: tuple(a.content.encode()))  # type: ignore[misc]
    run.world.learner, run.world.alone = learner, nullcontext  # type: ignore[assignment,misc,method-assign]
    run.recorder = SimpleNamespace(begin=lambda *a: None, metrics=lambda *a: None)  # type: ignore[assignment]
    run.checkpoints = Checkpoints(tmp_path / "checkpoints")

    async def evaluate(stage: str, step: int) -> str:
        run.evaluations[stage] = {"after": len(learner.batches)}
        return "figures"

    async def sync(version: int) -> None:
        """The engines are not here."""

    run.evaluate = evaluate  # type: ignore[method-assign,assignment]
    run.world.weights = SimpleNamespace(sync=sync)  # type: ignore[misc,assignment]
    return run, learner


async def test_engines_sleep_once_over_a_warm_up_and_then_get_its_weights(tmp_path: Path) -> None:
    run, learner = a_warm_up(tmp_path)
    log: list[object] = []

    @asynccontextmanager
    async def alone() -> AsyncIterator[None]:
        log.append("sleep")
        yield
        log.append(len(learner.batches))

    async def sync(version: int) -> None:
        log.append("weights")

    run.world.alone, run.world.weights = alone, SimpleNamespace(sync=sync)  # type: ignore[method-assign,assignment,misc]
    await warm_up(run)
    assert log == ["sleep", 6, "weights"]


async def test_replies_scored_during_a_check_are_those_of_the_next_check() -> None:
    first, second = ScoredReply(None, "first", 1.0), ScoredReply(None, "second", 1.0)
    a, b = (SampleKey(run="r", step=step, prompt="p", sample=0) for step in (1, 2))
    replies, checked = {a: first}, []

    async def of_replies(found: Sequence[ScoredReply]) -> dict[str, float]:
        replies[b] = second
        checked.append(list(found))
        return {}

    config = SimpleNamespace(scorers=SimpleNamespace(check_every=1, on_alarm="note"))
    run = SimpleNamespace(checked=0, config=config, scorers=SimpleNamespace(of_replies=of_replies))
    await check_scorers(run, 1, replies, None)
    assert (checked, replies, run.checked_ahead) == ([[first]], {b: second}, set())


async def test_reply_that_is_scored_again_counts_once() -> None:
    key = SampleKey(run="r", step=1, prompt="p", sample=0)

    class Rewarder:
        outcomes = iter((JudgeUnavailable(detail="away"), Scored(value=0.7)))

        async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
            part = Component(name="consistency", outcome=next(self.outcomes), weight=1.0)
            return RewardRecord(key=key, total=part.outcome, components=(part,), action=Reply(content="Bye!"))

    counted = Counted(Rewarder(), Console(enabled=False), 1)
    for _ in range(2):
        await counted.score(None, None)
    assert list(counted.replies.values()) == [ScoredReply(None, "Bye!", 0.7)]


@pytest.mark.parametrize("usable", [True, False])
async def test_replies_that_the_scorers_before_a_refit_scored_are_not_checked(usable: bool) -> None:
    refits: list[int] = []
    a, ahead, late = (SampleKey(run="r", step=step, prompt="p", sample=0) for step in (1, 2, 3))
    replies = {a: ScoredReply(None, "first", 1.0), ahead: ScoredReply(None, "ahead", 1.0)}

    async def of_replies(found: Sequence[ScoredReply]) -> dict[str, float]:
        return {"alarm/scorers_fooled": 1.0}

    async def refit(step: int, checked: Sequence[ScoredReply], hold: object) -> None:
        assert [reply.text for reply in checked] == ["first", "ahead"]
        replies[late] = ScoredReply(None, "second", 1.0)
        refits.extend([step] * usable)

    forgotten = []
    scorers = SimpleNamespace(check_every=1, on_alarm="refit")
    run = SimpleNamespace(
        config=SimpleNamespace(scorers=scorers, experiment=SimpleNamespace(steps=9)), experience=None,
        scorers=SimpleNamespace(of_replies=of_replies), refit=SimpleNamespace(run=refit, steps=refits), checked=0,
        recorder=SimpleNamespace(scorers_changed=lambda: forgotten.append("windows")),
    )  # fmt: skip
    rewarder = SimpleNamespace(scorers_changed=lambda: forgotten.append("evidence"))
    assert (await check_scorers(run, 1, replies, rewarder))["scorers/refits"] == float(usable)
    assert ([reply.text for reply in replies.values()], forgotten) == (
        ([], ["evidence", "windows"]) if usable else (["second"], [])
    )
    assert run.checked_ahead == ({ahead, late} if usable else {ahead}), "a resumed run leaves them out"


async def test_resumed_warm_up_uses_the_batches_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, unbroken = a_warm_up(tmp_path / "whole")
    await warm_up(whole)
    run, first = a_warm_up(tmp_path / "cut", stop_after=2)
    with (
        run.preemption.watching(),
        run.preemption.patiently(),
        pytest.raises(
            Preempted, match=r"SIGTERM in the warm-up, step 2 of 6 is kept; continue with: hamr train resume="
        ),
    ):
        await warm_up(run)
    resumed, second = a_warm_up(tmp_path / "cut")
    await warm_up(resumed)
    assert len(second.loaded) == 1
    assert first.batches + second.batches == unbroken.batches
    assert resumed.evaluations == {"base": {"after": 0}, "sft": {"after": 4}}


async def test_status_of_a_run_stopped_at_its_start_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start_run_actors(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)

    monkeypatch.setattr(train, "start_run_actors", start_run_actors)
    config = load_config(["experiment=smoke", "logging.wandb.mode=disabled"])
    none = Splits(train=(), validation=(), test=())
    prepared: Any = SimpleNamespace(config=config, splits=none, truth=None)
    starting: Any = SimpleNamespace(hand_over=lambda: None)
    with RunFolder.create(tmp_path / "run", dump_config(config)) as folder, pytest.raises(Preempted) as ended:
        await asyncio.create_task(train.train(prepared, {}, folder, Console(enabled=False), starting))
    status = LiveStatus.read(tmp_path / "run")
    assert status is not None and (status.state, status.detail) == ("preempted", str(ended.value))
    assert status.detail.startswith("stopped by SIGTERM; continue with: hamr train resume=")


async def test_hanging_step_is_dropped_and_the_kept_step_is_named(tmp_path: Path) -> None:
    run, _ = a_warm_up(tmp_path, stop_after=3, stalls=True)
    run.preemption.grace_s = 0.05

    async def stop() -> None:
        with run.preemption.watching(), run.preemption.patiently():
            try:
                await warm_up(run)
            except asyncio.CancelledError:
                raise await train.dropped_error(run) from None

    with pytest.raises(Preempted) as ended:
        await asyncio.create_task(stop())
    assert str(ended.value) == (
        "stopped by SIGTERM: step 3 of the warm-up was not finished and saved within "
        "experiment.checkpoint.grace_s=0.05 s and is dropped, no earlier step was kept; "
        f"continue with: hamr train resume={tmp_path}"
    )
    assert not any((tmp_path / "checkpoints").glob("**/step_*"))


async def test_run_writes_checkpoints_later_except_at_its_end(tmp_path: Path) -> None:
    options = ("experiment.checkpoint.asynchronous=true", "experiment.steps=3")
    run, log = a_run(ONE_REPLY, tmp_path, Pool(), *options), []
    run.checkpoints, may_write = Checkpoints(tmp_path / "checkpoints"), asyncio.Event()

    async def save(folder: Path) -> None:
        log.append("save")

    async def copy_state(folder: Path) -> Any:
        log.append("copy")
        return may_write.wait

    run.world.learner = SimpleNamespace(save=save, copy_state=copy_state)  # type: ignore[misc,assignment]
    await run.save(1, {"at": 1})
    assert run.checkpoints.all() == [] and run.waited["timing/step/checkpoint"] > 0
    asyncio.get_running_loop().call_later(0.02, may_write.set)
    with pytest.raises(Preempted, match="step 1 of 3 is kept"):
        await stages.leave(run, 1, {"at": 1})
    await run.save(2, {"at": 2})
    await run.save(3, {"at": 3})
    assert [kept.step for kept in run.checkpoints.all()] == [3, 2]
    assert log == ["copy", "copy", "save"]


class Cluster:
    """Engines, trainers, scorers and recorder of an RL stage. A response takes a few turns of the event loop, more for
    every third prompt, and its reward is the number of its sample."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.metrics: list[dict[str, float]] = []
        self.states: list[dict[str, Any]] = []
        self.recorded: list[RewardRecord] = []
        self.checked: list[int] = []
        self.experience: Experience | None = None
        self.version, self.running, self.saved_beside, self.open = 0, 0, 0, asyncio.Event()
        self.stop_at: int | None = None
        self.asked = asyncio.Event()
        self.open.set()

    async def generate(self, requests: Sequence[Any]) -> AsyncIterator[Rollout]:
        for request in requests:
            await self.open.wait()
            if self.version == self.stop_at:
                self.asked.set()
            self.running += 1
            try:
                for key in request.keys:
                    for _ in range(40 if int(key.prompt) % 3 == 0 else 2):
                        await asyncio.sleep(0)
                    span = VersionSpan(version=self.version, start=0, end=2)
                    yield Rollout(
                        key=key, prompt_ids=(1,), token_ids=(1, 2), logprobs=(-1.0, -1.0), text="",
                        finish_reason="stop", versions=(span,),
                    )  # fmt: skip
            finally:
                self.running -= 1

    @asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        self.log.append("pause")
        self.open.clear()
        while self.running:
            await asyncio.sleep(0)
        yield
        self.open.set()

    async def score(self, sample: ServiceSample, rollout: Rollout, *, cascade: Cascade | None = None) -> RewardRecord:
        reward = Scored(value=float(rollout.key.sample % 2))
        component = Component(name="consistency", outcome=reward, weight=1.0)
        return RewardRecord(
            key=rollout.key, total=reward, components=(component,), action=Reply(content="a"), band="inside", s_r=0.8,
            cascade=cascade.parameters if cascade else None,
        )  # fmt: skip

    async def reset(self, *_: Any, **__: Any) -> None: ...

    async def train(self, batch: Any) -> dict[str, float]:
        for _ in range(10):
            await asyncio.sleep(0)
        return {}

    async def sync(self, version: int) -> dict[str, float]:
        self.log.append(f"sync beside {self.running}")
        self.version = version
        return {}

    async def load(self, *_: Any) -> None: ...

    async def save(self, step: int, write: Any, state: dict[str, Any]) -> Any:
        self.states.append(state)
        self.saved_beside = self.running
        return SimpleNamespace(step=step, path=Path())

    async def settle(self, wait: bool = True) -> None: ...

    def newest(self) -> None: ...


async def rl(
    tmp_path: Path, *overrides: str, earlier: Cluster | None = None, kept: int = 2, stop_at: int | None = None
) -> Cluster:
    """Run four RL steps of two groups, or resume such a run after the step `kept` of it. A stop is asked for during the
    generation with the weights of version `stop_at`."""
    steps = ("experiment.steps=4", "experiment.checkpoint.every=1", "rollout.samples_per_prompt=4")
    run, cluster = a_run((), tmp_path, Pool(), *steps, "scorers.check_every=0", *overrides), Cluster()
    some: Any = cluster
    train = tuple(sample(str(i), Reply(content="a")) for i in range(12))
    run.prepared.splits = Splits(train=train, validation=(), test=())  # type: ignore[misc]
    run.prepared.model_path = tmp_path  # type: ignore[misc]
    formats = SimpleNamespace(mark=lambda s: "")
    run.prepared.codec = SimpleNamespace(prompt=lambda s: (1,), answer=lambda a: (1,), formats=formats)  # type: ignore[misc]
    run.world = SimpleNamespace(  # type: ignore[assignment]
        workers=some, learner=some, trainers=SimpleNamespace(save_policy=None), weights=some, pools={},
        router=SimpleNamespace(score=cluster.score, metrics=no_metrics),
    )  # fmt: skip
    run.recorder = SimpleNamespace(  # type: ignore[assignment]
        begin=lambda *_: None,
        metrics=lambda step, values: cluster.metrics.append(values),
        records=lambda step, records: cluster.recorded.extend(records),
        rewind=lambda *_: None,
        records_since=lambda _, step: [r for r in cluster.recorded if r.key.step >= step],
    )

    async def of_replies(replies: Sequence[ScoredReply]) -> dict[str, float]:
        cluster.checked.append(len(replies))
        return {}

    run.scorers = SimpleNamespace(of_replies=of_replies)  # type: ignore[assignment]
    some.folder, run.checkpoints = tmp_path / "checkpoints", some
    newest = None
    if earlier is not None:
        cluster.recorded += [r for r in earlier.recorded if r.key.step <= kept]
        newest = Checkpoint(step=kept, path=tmp_path, state=earlier.states[kept])
        run.refit = SimpleNamespace(state=list, restore=cluster.reset, steps=[])  # type: ignore[assignment]
    cluster.stop_at, cluster.asked = stop_at, run.preemption.asked
    with pytest.raises(Preempted) if stop_at is not None else nullcontext():
        await asyncio.wait_for(stages.rl_stage(run, newest), 20)
    cluster.experience = run.experience
    return cluster


async def no_metrics() -> dict[str, float]:
    return {}


async def test_stopped_run_is_saved_after_its_groups_in_flight_ended(tmp_path: Path) -> None:
    """Engines that share their GPU with the trainer sleep during the save."""
    cluster = await rl(tmp_path, "algorithm.dynamic_sampling.oversample=2", stop_at=2)
    assert (len(cluster.metrics), cluster.saved_beside) == (2, 0)


async def test_evaluation_with_stopped_dialogues_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(
        ONE_REPLY, tmp_path, Pool(), "experiment.sage.scenarios=[telecom_package]", "experiment.sage.stages=[sft]"
    )
    result = SimpleNamespace(metrics=lambda stage: {}, records=(), as_dict=dict)

    async def evaluate(*_: Any, **__: Any) -> Any:
        return result

    async def stopped(*_: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(stages, "evaluate_held_out", evaluate)
    monkeypatch.setattr(stages, "simulate", stopped)
    run.recorder = SimpleNamespace(evaluation=lambda *_: None)  # type: ignore[assignment]
    run.world.workers, run.world.router = None, None  # type: ignore[assignment]
    run.prepared.codec = SimpleNamespace(prompt=None, formats=None)  # type: ignore[misc,assignment]
    with pytest.raises(asyncio.CancelledError):
        await run.evaluate("sft", 0)
    assert run.evaluations == {}


async def test_resumed_run_checks_the_scorers_on_all_replies_since_the_last_check(tmp_path: Path) -> None:
    every = "scorers.check_every=3"
    whole = await rl(tmp_path, every)
    assert whole.checked == [3 * 2 * 4]
    assert (await rl(tmp_path, every, earlier=whole)).checked == [3 * 2 * 4]
    whole.states[3]["checked"] = 0  # the stop cancelled the check
    assert (await rl(tmp_path, every, earlier=whole, kept=3)).checked == [4 * 2 * 4]
    whole.states[3]["checked"] = 3
    assert (await rl(tmp_path, every, earlier=whole, kept=3)).checked == []
    ahead = [asdict(record.key) for record in whole.recorded if record.key.step == 1]
    whole.states[2] |= {"checked_ahead": ahead[:5]}
    assert (await rl(tmp_path, every, earlier=whole)).checked == [3 * 2 * 4 - 5]


async def test_weights_are_loaded_beside_responses_or_between_them(tmp_path: Path) -> None:
    age = "experiment.asynchrony.max_policy_age=2"
    budget = "rewards.consistency.budget.judge_frac=0.5"
    in_flight = await rl(tmp_path, age, budget)
    assert "pause" not in in_flight.log and in_flight.log[0] != "sync beside 0"
    between = await rl(tmp_path, age, "experiment.asynchrony.in_flight=false")
    assert between.log == ["pause", "sync beside 0"] * 4
    for cluster in (in_flight, between):
        assert max(m["rollout/policy_age/max"] for m in cluster.metrics) > 0
    counted = [len(state["cascade"]["seen"]) for state in in_flight.states]
    assert counted == [0, 8, 16, 24, 32], "the replies of groups in flight do not count before they are recorded"
    assert [len(state["unfinished"]) for state in in_flight.states[1:]] == [6, 4, 2, 0]


async def test_synchronous_run_without_a_surplus_keeps_no_groups_in_flight(tmp_path: Path) -> None:
    off = ("experiment.asynchrony.max_policy_age=0", "algorithm.dynamic_sampling.oversample=1")
    synchronous = await rl(tmp_path, *off, "algorithm.dynamic_sampling.surplus=abort")
    assert synchronous.experience is None and len(synchronous.recorded) >= 4 * 2 * 4
    assert not any("unfinished" in state for state in synchronous.states)
    assert (await rl(tmp_path, "experiment.asynchrony.max_policy_age=1")).experience is not None


@pytest.mark.parametrize("surplus", ["abort", "keep"])
async def test_surplus_of_a_step_is_aborted_or_kept(surplus: str, tmp_path: Path) -> None:
    oversampling = ("algorithm.dynamic_sampling.oversample=2", f"algorithm.dynamic_sampling.surplus={surplus}")
    cluster = await rl(tmp_path, *oversampling)
    ages, aborted = (
        [m.get(name) for m in cluster.metrics] for name in ("rollout/policy_age/max", "rollout/aborted_groups")
    )
    assert (max(ages), any(aborted)) == ((0, True) if surplus == "abort" else (1, False))
    assert len({r.key for r in cluster.recorded}) == len(cluster.recorded) >= 4 * 2 * 4
    assert all(r.total.ok for r in cluster.recorded) or surplus == "abort"


async def test_a_dropped_rl_step_leaves_the_newest_checkpoint(tmp_path: Path) -> None:
    run, trainers = a_warm_up(tmp_path)
    await run.checkpoints.save(4, trainers.save, {})
    run.doing = "step 6"
    assert "step 6 was not finished" in str(await train.dropped_error(run))
    assert "step 4 of 2 is kept" in str(await train.dropped_error(run))
