"""Dialogues of a training step: every turn is one request to the engines, scored while the dialogue continues.

An episode function (`hamr.types.episodes`) only sees texts. The turns that are scored, recorded and trained are those
that the engines sampled; nothing is tokenised again.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, get_args

from hamr.data.actions import ResponseFormat
from hamr.data.formats import PLAIN
from hamr.protocols import GenerationRequest, Rewarder, RolloutEngine
from hamr.rewards.mix import with_turn_reward
from hamr.rollout.environments import ClassEpisode
from hamr.security.functions import (
    NUMBER,
    FunctionSource,
    LoadedFunction,
    check_signature,
    describe_error,
    describe_value,
    load_function,
    read_number,
)
from hamr.types import (
    TURN_REWARD,
    AskPolicy,
    Component,
    CustomerFaultError,
    CustomerUnavailable,
    CustomerUnavailableError,
    Episode,
    EpisodeFunction,
    EpisodeLimit,
    EpisodeOutcome,
    EpisodeResult,
    Failure,
    FaultyCustomer,
    FunctionFailed,
    FunctionTimeout,
    Messages,
    RewardRecord,
    Rollout,
    RolloutGroup,
    SampleKey,
    Scored,
    ServiceSample,
    Turn,
    derive_seed,
)

Encode = Callable[[ServiceSample | Messages, Sequence[Mapping[str, Any]]], tuple[int, ...]]
"""Encodes a decision point, or messages with tools, as a whole prompt."""
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class EpisodeRunner:
    """Implements `protocols.Dialogues` over the engines.

    `context`: maximum length of a prompt and its response in tokens. `deadline_s`: maximum duration of one dialogue. A
    dialogue that exceeds it, or whose function raises, fails: its turns have no reward and are excluded from the
    baselines of their group. `key`: the setting that failures name. `slots` bounds the dialogues at a time.
    """

    run: EpisodeFunction
    engine: RolloutEngine
    rewarder: Rewarder
    encode: Encode
    context: int
    max_turns: int
    deadline_s: float
    key: str = "rollout.episode"
    slots: AbstractAsyncContextManager[Any] = field(default_factory=nullcontext)

    async def hold(self, samples: Sequence[ServiceSample], requests: Sequence[GenerationRequest]) -> list[RolloutGroup]:
        """Hold a dialogue for every key of the requests. Those of one request have the same customer and seed."""
        pairs = list(zip(samples, requests, strict=True))
        held = await _together([self._dialogue(s, r, i) for s, r in pairs for i in range(len(r.keys))])
        groups = []
        for sample, request in pairs:
            own, held = held[: len(request.keys)], held[len(request.keys) :]
            rollouts = tuple(rollout for dialogue in own for rollout, _, _ in dialogue)
            records = tuple(with_zeros_at_limits([record for dialogue in own for _, record, _ in dialogue]))
            points = tuple(point for dialogue in own for _, _, point in dialogue)
            groups.append(RolloutGroup(sample=sample, rollouts=rollouts, records=records, points=points))
        return groups

    async def _dialogue(
        self, sample: ServiceSample, request: GenerationRequest, i: int
    ) -> list[tuple[Rollout, RewardRecord, ServiceSample]]:
        seed = derive_seed(request.seeds[0], "environment")
        episode = Episode(key=request.keys[i], sample=sample, seed=seed)
        policy = _Policy(self, sample, request, i)
        try:
            async with self.slots:
                return await self._end(episode, policy)
        finally:
            for turn in policy.turns:  # of a dialogue that is aborted
                if turn.scoring is not None:
                    turn.scoring.cancel()

    async def _end(self, episode: Episode, policy: _Policy) -> list[tuple[Rollout, RewardRecord, ServiceSample]]:
        ended: Episode | Failure
        try:
            async with asyncio.timeout(self.deadline_s) as clock:
                ended = _check_result(await self.run(episode, policy.ask), len(policy.turns))
        except EpisodeLimit as limit:
            ended = episode.end(outcome=limit.outcome)
        except CustomerFaultError as fault:
            ended = FaultyCustomer(detail=str(fault))
        except CustomerUnavailableError as away:
            ended = CustomerUnavailable(detail=str(away))
        except Exception as error:
            if isinstance(error, TimeoutError) and clock.expired():
                ended = FunctionTimeout(detail=f"{self.key}: no end after {self.deadline_s:g} s")
            else:
                ended = FunctionFailed(detail=f"{self.key}: {_describe(error, self.run)}")
        finally:
            policy.closed = True
        if policy.broken is not None:
            raise policy.broken
        scored = await _together([turn.record() for turn in policy.turns])
        if not policy.turns and isinstance(ended, Episode):
            ended = FunctionFailed(detail=f"{self.key}: no turn ({ended.outcome})")
        turns = policy.turns or [_Turn(_no_response(episode.key), "", episode.sample, None)]
        records = _with_rewards(scored or [_empty(turns[0].rollout)], ended)
        return [(turn.rollout, record, turn.point) for turn, record in zip(turns, records, strict=True)]


@dataclass(eq=False)
class _Turn:
    rollout: Rollout
    observation: str
    point: ServiceSample
    scoring: asyncio.Task[RewardRecord] | None

    async def record(self) -> RewardRecord:
        record = _empty(self.rollout) if self.scoring is None else await self.scoring
        return replace(record, observation=self.observation)


@dataclass(eq=False)
class _Policy:
    """The policy in one dialogue. `broken` is an engine's error, which ends the run even if the function catches it.

    Responses that arrive after the end of the dialogue (`closed`) are ignored.
    """

    runner: EpisodeRunner
    sample: ServiceSample
    request: GenerationRequest
    index: int
    turns: list[_Turn] = field(default_factory=list)
    broken: Exception | None = None
    asking: asyncio.Task[Any] | None = None
    """Task that waits for an answer."""
    closed: bool = False

    async def ask(
        self,
        prompt: ServiceSample | Messages,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        score: bool = True,
        point: ServiceSample | None = None,
    ) -> Rollout:
        if self.asking is not None and self.asking.cancelling():  # given up, and perhaps still aborted in the engine
            await asyncio.wait([self.asking])
        runner, turn = self.runner, len(self.turns)
        if self.closed:
            raise RuntimeError("the dialogue has ended")
        if self.asking is not None:
            raise RuntimeError("the turns of a dialogue have an order; await each answer before the next question")
        ids = runner.encode(prompt, tools)
        if turn >= runner.max_turns:
            raise EpisodeLimit("max_turns")
        if len(ids) + self.request.sampling.max_new_tokens > runner.context:
            raise EpisodeLimit("context_full")
        seed = self.request.seeds[self.index]
        request = replace(
            self.request,
            prompt_ids=ids,
            keys=(replace(self.request.keys[self.index], turn=turn),),
            seeds=(derive_seed(seed, turn) if turn else seed,),
        )
        self.asking = asyncio.current_task()
        try:
            [rollout] = [rollout async for rollout in runner.engine.generate([request])]
            assert rollout.prompt_ids == ids, "the trainer sees the prompt that the engine saw"
            assert len(rollout.token_ids) == len(rollout.logprobs), "the loss has the sampled tokens only"
        except Exception as error:
            self.broken = error
            raise
        finally:
            self.asking = None
        if self.closed:
            return rollout
        point, scoring = prompt if isinstance(prompt, ServiceSample) else point, None
        if point is not None and score:
            scoring = asyncio.create_task(runner.rewarder.score(point, rollout))
        self.turns.append(_Turn(rollout, _last_text(prompt), point or self.sample, scoring))
        return rollout


class OwnEpisode:
    """A user's episode function, in a thread with an event loop of its own: if it blocks, the run does not."""

    def __init__(self, function: LoadedFunction) -> None:
        self.function = function
        self._loop = _loop_in_a_thread()
        self._late = False
        """A dialogue has exceeded its deadline, perhaps because the function blocks the thread."""

    async def __call__(self, episode: Episode, ask: AskPolicy) -> Episode:
        run_loop, own_loop = asyncio.get_running_loop(), await self._answering_loop()

        async def ask_run(prompt: ServiceSample | Messages, **options: Any) -> Rollout:
            async def question() -> Rollout:
                return await ask(prompt, **options)

            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(question(), run_loop))

        async def call() -> Episode:
            try:
                ended: Episode = await self.function(episode, ask_run)
                return ended
            except (asyncio.CancelledError, SystemExit, KeyboardInterrupt) as error:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                # Raised by the function itself: its dialogue fails, not the run.
                raise RuntimeError(" ".join(f"{type(error).__name__} {error}".split())) from error

        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), own_loop))
        except asyncio.CancelledError:
            self._late = True
            raise

    async def _answering_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the functions: another one, in a new thread, if a function blocks that of this one."""
        loop = self._loop
        if self._late:
            answer = asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop)
            try:
                await asyncio.wait_for(asyncio.wrap_future(answer), ANSWER_S)
            except TimeoutError:
                if self._loop is loop:  # no other dialogue has replaced it meanwhile
                    self._loop = _loop_in_a_thread()
            self._late = False
        return self._loop


ANSWER_S = 5.0
"""Longest time until a loop answers that no function blocks."""


def _loop_in_a_thread() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def serve() -> None:
        while True:
            try:
                return loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # raised by a task that a function has started

    threading.Thread(target=serve, daemon=True, name="episodes").start()
    return loop


def load_episode(
    source: FunctionSource, format_of: Callable[[ServiceSample], ResponseFormat] = PLAIN.of
) -> LoadedFunction:
    """Load an episode function, or an environment class as one. Raises ConfigError if it cannot be used."""
    function = load_function(source, None)
    if inspect.isclass(function.call):
        return replace(function, call=ClassEpisode(function, format_of))
    check_signature(source, function.call, ("episode", "ask"))
    if not inspect.iscoroutinefunction(function.call):
        raise source.error(f"is not async; write `async def {source.function}(episode, ask)`, or a class with `reset`")
    return function


ENDS = tuple(outcome for outcome in get_args(EpisodeOutcome) if outcome != "failed")
"""Outcomes that a function may return. It raises to fail."""


def _check_result(ended: object, turns: int) -> Episode:
    """Return the function's result with rewards as floats. Raise ValueError unless it is an episode with finite rewards
    and a known outcome."""
    if not isinstance(ended, Episode):
        raise ValueError(f"returned {describe_value(ended)}; return episode.end(...)")
    if ended.turn_rewards and len(ended.turn_rewards) != turns:
        raise ValueError(f"returned {len(ended.turn_rewards)} turn_rewards for {turns} turns")
    if ended.outcome not in ENDS:
        raise ValueError(f"returned the outcome {describe_value(ended.outcome)}; there are {', '.join(ENDS)}")
    if not isinstance(ended.path, str):
        raise ValueError(f"returned the path {describe_value(ended.path)}; return a text")
    components = tuple(replace(c, outcome=Scored(value=_reward(c.value))) for c in ended.components)
    return replace(ended, turn_rewards=tuple(map(_reward, ended.turn_rewards)), components=components)


def _reward(value: object) -> float:
    number = read_number(value)
    if number is None:
        raise ValueError(f"returned the reward {describe_value(value)}; {NUMBER}")
    return number


def _with_rewards(records: Sequence[RewardRecord], ended: Episode | Failure) -> list[RewardRecord]:
    """Return the records of a dialogue with the rewards that its function gave, and its end in the last one."""
    if isinstance(ended, Failure):
        found = [_with_turn_reward(record, ended) for record in records]
        return [*found[:-1], replace(found[-1], episode=EpisodeResult(outcome="failed"))]
    found = list(records)
    if ended.turn_rewards:
        given = zip(records, ended.turn_rewards, strict=True)
        found = [_with_turn_reward(record, Scored(value=float(reward))) for record, reward in given]
    end = EpisodeResult(outcome=ended.outcome, components=ended.components, path=ended.path)
    return [*found[:-1], replace(found[-1], episode=end)]


def with_zeros_at_limits(records: Sequence[RewardRecord]) -> list[RewardRecord]:
    """Return the records with 0 for the rewards that a dialogue at a limit lacks and others have as a whole.

    Without them it would leave the baseline, and a policy that never ends a dialogue would lose less than one that ends
    it badly.
    """
    rewards = {
        c.name: replace(c, outcome=Scored(value=0.0)) for r in records if r.episode for c in r.episode.components
    }

    def fill(end: EpisodeResult) -> EpisodeResult:
        known = {c.name for c in end.components}
        zeros = tuple(zero for name, zero in rewards.items() if name not in known)
        if end.outcome in ("max_turns", "context_full"):
            end = replace(end, components=end.components + zeros)
        return replace(end, total=end.reward)

    return [r if r.episode is None else replace(r, episode=fill(r.episode)) for r in records]


def _with_turn_reward(record: RewardRecord, outcome: Scored | Failure) -> RewardRecord:
    return with_turn_reward(record, Component(name=TURN_REWARD, outcome=outcome, weight=1.0))


def _empty(rollout: Rollout) -> RewardRecord:
    """Return the record of a turn that the reward system does not score."""
    return RewardRecord(
        key=rollout.key,
        total=Scored(value=0.0),
        response=rollout.text,
        response_tokens=len(rollout.token_ids),
        versions=rollout.versions,
        mean_logprob=rollout.mean_logprob,
    )


def _no_response(key: SampleKey) -> Rollout:
    return Rollout(key=key, prompt_ids=(), token_ids=(), logprobs=(), text="", finish_reason="abort", versions=())


def _last_text(prompt: ServiceSample | Messages) -> str:
    if isinstance(prompt, ServiceSample):
        last: Turn | None = prompt.history[-1] if prompt.history else None
        return last.content if last else ""
    return str(prompt[-1].get("content") or "") if prompt else ""


def _describe(error: Exception, run: EpisodeFunction) -> str:
    if isinstance(run, OwnEpisode):
        return describe_error(error, run.function.source)
    return f"{type(error).__name__}: {error}"


async def _together(parts: Sequence[Awaitable[Item]]) -> list[Item]:
    """Return the results in order. If one raises, cancel the others."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
