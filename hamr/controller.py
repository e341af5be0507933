"""RL training loop: collect, score, filter, estimate advantages, train, sync.

A step waits for its own groups (`collect`), or takes groups that were generated and scored during the steps before it
(`take`, with `experience`).

A group is the N responses to one prompt, or N dialogues with one customer. A response is a dialogue of one turn: both
have records, advantages per turn, and one training sequence per turn.

The controller imports neither Ray, torch nor vLLM. It depends only on the protocols in `hamr.protocols`, so the same
code runs on a cluster and, with scripted fakes, in a unit test.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace

from hamr.algorithms.batch import BatchBuilder
from hamr.algorithms.group_outcomes import group_metrics, has_failures, outcome, redrawn_length, right_share
from hamr.cascade.audited_rewards import share_audits
from hamr.cascade.rescoring import PAUSED, Settled, settle
from hamr.config.algorithm import AlgorithmConfig
from hamr.config.experiment import ExperimentConfig
from hamr.config.schema import RolloutConfig
from hamr.data.stream import PromptStream
from hamr.experience import Draw, Experience, whole_groups
from hamr.protocols import (
    Dialogues,
    GenerationRequest,
    Metrics,
    PromptEncoder,
    Recorder,
    Rewarder,
    RolloutEngine,
    Trainer,
    WeightSync,
)
from hamr.telemetry.metrics import reduce_stats
from hamr.types import (
    Failure,
    RewardRecord,
    Rollout,
    RolloutGroup,
    SampleKey,
    ServiceSample,
    Stale,
    derive_seed,
)

TOO_OLD = "older than the bound on the policy's age (experiment.asynchrony) when a step could train on it"
SURPLUS = "not needed: algorithm.dynamic_sampling.oversample started more groups than the step trains on"


@dataclass
class Clock:
    """Wall time of each phase of a step, in seconds."""

    seconds: dict[str, float] = field(default_factory=dict)

    def lap(self, phase: str, since: float) -> float:
        now = time.perf_counter()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - since
        return now


@dataclass
class Controller:
    """RL training loop. `version` is the policy version that the rollout engines hold."""

    run: str
    experiment: ExperimentConfig
    rollout: RolloutConfig
    encode: PromptEncoder
    engine: RolloutEngine
    rewarder: Rewarder
    trainer: Trainer
    weights: WeightSync
    recorder: Recorder
    batches: BatchBuilder
    version: int = 0
    mark: Callable[[ServiceSample], str] = lambda sample: ""
    """Returns the text that ends a sample's answer if further text may follow it, else ""."""
    dialogues: Dialogues | None = None
    """Holds the dialogues of a step. None: every prompt is a single decision."""
    note: Callable[[str], None] = lambda line: None
    """Prints a status line for the user, e.g. what the run is waiting for."""
    experience: Experience | None = None
    """Keeps groups in flight during training. None: every step collects its own."""
    pause: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Pauses generation while the engines load new weights. By default responses continue under the new weights."""
    collecting: bool = field(default=False, init=False)
    """True while the step can be repeated without side effects, i.e. before any optimiser update."""
    recorded: set[SampleKey] = field(default_factory=set, init=False)
    """Keys of the responses that the latest step recorded."""

    @property
    def algorithm(self) -> AlgorithmConfig:
        """Settings of the algorithm, those of `batches`."""
        return self.batches.algorithm

    async def step(self, step: int, prompts: PromptStream) -> Metrics:
        """Run one training step: collect, estimate, train, sync. Return the step's metrics."""
        clock, start = Clock(), time.perf_counter()
        self.collecting = True
        try:
            groups, collected = await (self.take if self.experience else self.collect)(step, prompts)
        finally:
            self.collecting = False
        if self.experience and step == self.experiment.steps:
            await self.experience.close()
        lap = clock.lap("rollout_score", start)
        batch = self.batches.build(groups)
        advantages = [s.advantage for group in batch.groups for s in group.sequences]
        described = reduce_stats("policy/advantage", advantages, ("min", "p10", "p50", "p90", "max"))
        trained = {**described, **await self.trainer.train(batch)} if batch.groups else {}
        lap = clock.lap("train", lap)
        async with self.pause():
            self.version += 1
            synced = await self.weights.sync(self.version)
        if self.experience and step < self.experiment.steps:
            self.experience.release()
        clock.lap("sync", lap)
        clock.lap("total", start)
        timing = {f"timing/step/{phase}": seconds for phase, seconds in clock.seconds.items()}
        pace = {"rollout/responses_per_s": collected["rollout/responses"] / clock.seconds["total"]}
        return {**collected, **trained, **synced, **timing, **pace}

    async def collect(self, step: int, prompts: PromptStream) -> tuple[list[RolloutGroup], Metrics]:
        """Collect groups of scored responses for one step.

        Samples further prompts until the batch is full of groups that carry signal (DAPO's dynamic sampling), or until
        `max_rounds` is reached. In the latter case the batch is smaller.
        """
        wanted, sampling = self.experiment.prompts_per_step, self.algorithm.dynamic_sampling
        kept: list[RolloutGroup] = []
        seen: list[RolloutGroup] = []
        attempts: Counter[str] = Counter()
        paused: Counter[str] = Counter()
        rounds = 0
        while len(kept) < wanted and rounds < (sampling.max_rounds if sampling.enabled else 1):
            rounds += 1
            groups = await self.draw_groups(step, prompts.take(wanted - len(kept)), attempts)
            groups = await self.sample_more(step, groups, attempts)
            settled = await self.settle(step, groups, seen, paused[PAUSED])
            paused.update(settled.metrics)
            seen += settled.groups
            kept += self.batches.trainable(settled.groups)
        self.learn_order(prompts, seen)
        self.record(step, seen)
        return kept, {**self.describe(seen, kept, rounds), **paused}

    async def take(self, step: int, prompts: PromptStream) -> tuple[list[RolloutGroup], Metrics]:
        """Take the oldest groups that `experience` has ready, and wait only if there are too few.

        A group that has become too old is recorded as such and replaced. The batch is smaller if the step has taken as
        many groups as `max_rounds` rounds have, besides those dropped before it, without enough signal.
        """
        assert self.experience is not None, "called with one"
        wanted, sampling = self.experiment.prompts_per_step, self.algorithm.dynamic_sampling
        limit = whole_groups(max(sampling.max_rounds if sampling.enabled else 1, sampling.oversample), wanted)
        kept: list[RolloutGroup] = []
        stale: list[RolloutGroup] = []
        surplus: list[RolloutGroup] = []
        scored = self.experience.take_dropped()
        flow: Counter[str] = Counter()
        lengths: Metrics = {}
        ended = 0
        while len(kept) < wanted and ended < limit:
            ready, dropped, counted = await self.experience.take(step, wanted - len(kept), limit - ended)
            stale += [group for group in ready if self.is_stale(group)]
            fresh = [group for group in ready if not self.is_stale(group)]
            scored += dropped
            settled = await self.settle(step, fresh, scored, flow[PAUSED])
            scored += settled.groups
            chosen = self.batches.trainable(settled.groups)
            self.experience.reject(len(ready) - len(chosen))
            kept += chosen
            ended += counted + len(fresh)
            flow.update(settled.metrics)
        self.learn_order(prompts, scored)
        flow["rollout/stale_groups"] = len(stale)
        if not self.experience.max_policy_age:
            surplus, flow["rollout/aborted_groups"] = self.experience.abort()
            flow["rollout/surplus_groups"] = len(surplus)
            lengths = redrawn_length([*scored, *stale, *surplus], self.experience.redrawn)
        flow["rollout/groups_in_flight"] = self.experience.in_flight
        unused = [*(_as_stale(group, TOO_OLD) for group in stale), *(_as_stale(group, SURPLUS) for group in surplus)]
        self.record(step, [*scored, *unused])
        found = self.describe([*scored, *stale, *surplus], kept, rounds=1)
        found["rollout/groups_dropped"] -= len(unused)
        return kept, {**found, **flow, **lengths}

    def record(self, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Write the records of the step's groups."""
        records = [record for group in groups for record in group.records]
        self.recorded = {record.key for record in records}
        self.recorder.records(step, records)

    def learn_order(self, prompts: PromptStream, groups: Sequence[RolloutGroup]) -> None:
        """Tell the stream the share of right responses to each prompt."""
        for group in groups:
            share = right_share(group)
            if share is not None:
                prompts.learn(group.sample, share)

    async def settle(
        self, step: int, groups: Sequence[RolloutGroup], before: Sequence[RolloutGroup], paused: float
    ) -> Settled:
        """Score failed responses again until few enough are left, those of the step's groups `before` included. Then
        copies of an audited reply take its reward. The step has paused for `paused` seconds before."""
        unscored = self.experiment.unscored
        settled = await settle(groups, self.rewarder, unscored, step=step, note=self.note, before=before, paused=paused)
        return replace(settled, groups=[share_audits(group) for group in settled.groups])

    async def produce(self, draw: Draw) -> RolloutGroup:
        """Generate and score the group of one draw. Copies of an audited reply take its reward."""
        attempts = Counter({draw.sample.id: draw.attempt})
        groups = await self.draw_groups(draw.step, [draw.sample], attempts)
        [group] = await self.sample_more(draw.step, groups, attempts)
        return share_audits(group)

    def may_train(self, group: RolloutGroup) -> bool:
        """Return whether a scored group can be trained on, or could once its failed responses are scored again."""
        return has_failures(group) or bool(self.batches.trainable([group]))

    def is_stale(self, group: RolloutGroup) -> bool:
        """Return whether a token of the group was sampled more than `max_policy_age` versions ago."""
        oldest = min((span.version for r in group.rollouts for span in r.versions), default=self.version)
        return self.experience is not None and self.version - oldest > self.experience.max_policy_age

    async def sample_more(
        self, step: int, groups: Sequence[RolloutGroup], attempts: Counter[str]
    ) -> list[RolloutGroup]:
        """Add `algorithm.all_wrong.more_samples` responses to each group whose responses are all scored and wrong."""
        more = self.algorithm.all_wrong.more_samples
        wrong = [g for g in groups if more and outcome(g) == "all_wrong" and not has_failures(g)]
        if not wrong:
            return list(groups)
        further = await self.draw_groups(step, [g.sample for g in wrong], attempts, n=more)
        joined = {
            id(old): replace(old, rollouts=old.rollouts + new.rollouts, records=old.records + new.records)
            for old, new in zip(wrong, further, strict=True)
        }
        return [joined.get(id(group), group) for group in groups]

    async def draw_groups(
        self, step: int, samples: Sequence[ServiceSample], attempts: Counter[str], n: int | None = None
    ) -> list[RolloutGroup]:
        """Generate and score a group per sample. `attempts` counts the step's draws of each prompt."""
        requests = []
        for sample in samples:
            requests.append(self.request(step, sample, attempts[sample.id], n))
            attempts[sample.id] += 1
        return await self.score_groups(samples, requests)

    async def score_groups(
        self, samples: Sequence[ServiceSample], requests: Sequence[GenerationRequest]
    ) -> list[RolloutGroup]:
        """Generate and score N responses per prompt, or hold N dialogues with each customer and score their turns."""
        if self.dialogues is not None:
            return await self.dialogues.hold(samples, requests)
        return await score_responses(self.engine, self.rewarder, samples, requests)

    def request(self, step: int, sample: ServiceSample, attempt: int = 0, n: int | None = None) -> GenerationRequest:
        """Build a group's generation request.

        Seeds follow from the key and the run's seed, so a resumed run draws the same responses. `attempt` distinguishes
        repeated draws of one prompt within a step.
        """
        n = n or self.rollout.samples_per_prompt
        keys = tuple(SampleKey(run=self.run, step=step, prompt=sample.id, sample=i, attempt=attempt) for i in range(n))
        return GenerationRequest(
            prompt_ids=self.encode(sample),
            keys=keys,
            seeds=tuple(derive_seed(self.experiment.seed, step, sample.id, attempt, i) for i in range(n)),
            sampling=self.rollout.sampling(mark=self.mark(sample)),
        )

    def describe(self, seen: Sequence[RolloutGroup], kept: Sequence[RolloutGroup], rounds: int) -> dict[str, float]:
        """Return metrics of the step's responses."""
        # A dialogue that failed before its first turn has a placeholder without a prompt.
        rollouts = [r for group in seen for r in group.rollouts if r.prompt_ids]
        tokens = [len(r.token_ids) for r in rollouts]
        spans = [span for group in kept for r in group.rollouts for span in r.versions]
        ages = [(self.version - span.version, span.end - span.start) for span in spans]
        return {
            "rollout/prompts": len(seen),
            "rollout/responses": len(rollouts),
            "rollout/rounds": rounds,
            "rollout/groups_dropped": len(seen) - len(kept),
            "rollout/tokens": sum(tokens),
            "rollout/response_tokens/mean": sum(tokens) / max(1, len(tokens)),
            "rollout/truncated_frac": sum(r.is_truncated for r in rollouts) / max(1, len(rollouts)),
            "rollout/policy_age/mean": sum(age * n for age, n in ages) / max(1, sum(n for _, n in ages)),
            "rollout/policy_age/max": max((age for age, _ in ages), default=0),
            **group_metrics(seen),
            **reduce_stats(
                "groups/kept_reward", [r for g in kept for r in self.batches.rewards(g) if r is not None], ("mean",)
            ),
        }


async def score_responses(
    engine: RolloutEngine, rewarder: Rewarder, samples: Sequence[ServiceSample], requests: Sequence[GenerationRequest]
) -> list[RolloutGroup]:
    """Generate the responses to each sample and score each as soon as it ends, while the others are generated."""
    by_key = {
        key: (sample, len(request.keys))
        for sample, request in zip(samples, requests, strict=True)
        for key in request.keys
    }
    rollouts: dict[SampleKey, Rollout] = {}
    scoring: dict[SampleKey, asyncio.Task[RewardRecord]] = {}
    try:
        async for rollout in engine.generate(requests):
            sample, siblings = by_key[rollout.key]
            rollouts[rollout.key] = rollout = replace(rollout, siblings=siblings)
            scoring[rollout.key] = asyncio.create_task(rewarder.score(sample, rollout))
        await asyncio.gather(*scoring.values())
    finally:
        for task in scoring.values():
            task.cancel()
    return [
        RolloutGroup(
            sample=sample,
            rollouts=tuple(rollouts[key] for key in request.keys),
            records=tuple(scoring[key].result() for key in request.keys),
        )
        for sample, request in zip(samples, requests, strict=True)
    ]


def _as_stale(group: RolloutGroup, detail: str) -> RolloutGroup:
    """Return the group with every scored response as a typed failure."""
    stale = Stale(detail=detail)
    records = (r if isinstance(r.total, Failure) else replace(r, total=stale) for r in group.records)
    return replace(group, records=tuple(records))
