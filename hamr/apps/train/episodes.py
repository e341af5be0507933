"""Dialogues of RL: the runner that holds them with the engines, and their evaluation with held-out customers."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from hamr.algorithms.group_outcomes import has_reward
from hamr.apps.shared.dialogue_checks import customer_scenarios
from hamr.apps.shared.preparation import Prepared
from hamr.bench.sage.episodes import SageEnvironment
from hamr.bench.sage.pool_customers import PoolCustomers
from hamr.bench.tau2.episodes import Tau2Environment
from hamr.cascade.audit import DebiasedRewards, debiased_metrics
from hamr.cascade.cached_pool import CachedPool
from hamr.cascade.retry import patient
from hamr.config.benchmarks import Tau2Config
from hamr.config.custom import EpisodeFunctionConfig
from hamr.config.schema import Config
from hamr.errors import TooManyUnscored
from hamr.protocols import Ask, GenerationRequest, Rewarder, RolloutEngine, SamplingConfig
from hamr.rewards.truth import ExactAct
from hamr.rollout.episodes import EpisodeRunner, OwnEpisode, load_episode, with_zeros_at_limits
from hamr.rollout.harness import HarnessEpisode
from hamr.security.functions import FunctionSource
from hamr.telemetry.metrics import episode_metrics, total_rewards
from hamr.types import (
    Answer,
    Component,
    EpisodeFunction,
    Failure,
    FunctionFailed,
    FunctionTimeout,
    Question,
    RewardRecord,
    RolloutGroup,
    SampleKey,
    Scored,
    ServiceSample,
)

EXACT_ACT = "exact_act"
"""Figure, and component of a turn, of the exact act with held-out customers."""


def episode_runner(
    prepared: Prepared, engine: RolloutEngine, rewarder: Rewarder, pools: Mapping[str, Ask]
) -> EpisodeRunner:
    """Return the runner of the configured dialogues. Raises ConfigError for an unusable function."""
    config, formats = prepared.config, prepared.codec.formats
    rollout, deadline_s = config.rollout, config.rollout.deadline_s * config.rollout.max_turns
    more: dict[str, Any] = {}
    run: EpisodeFunction
    if rollout.episode is not None:
        source = FunctionSource.of_config("rollout.episode", rollout.episode)
        run, deadline_s = OwnEpisode(load_episode(source, formats.of)), rollout.episode.deadline_s
    elif config.env.command is not None:
        run = HarnessEpisode(config.env.command, config.serve, scored=config.rewards.has_weight)
        deadline_s = config.env.command.deadline_s
        more = {"key": "env.command", "slots": asyncio.Semaphore(config.env.command.processes)}
    elif config.env.type == "tau2":
        pool = pools.get(config.env.simulator)
        customer = None if pool is None else patient(pool, Tau2Config())
        run = Tau2Environment(config=config.env, format_of=formats.of, customer=customer)
    else:
        run = SageEnvironment(
            config=config.env,
            scenarios=customer_scenarios(config),
            max_turns=rollout.max_turns,
            format_of=formats.of,
            pool=pool_customers(config, pools),
        )
    return EpisodeRunner(
        run=run,
        engine=engine,
        rewarder=rewarder,
        encode=prepared.codec.turn,
        context=config.model.max_context,
        max_turns=rollout.max_turns,
        deadline_s=deadline_s,
        **more,
    )


def pool_customers(config: Config, pools: Mapping[str, Ask]) -> PoolCustomers | None:
    """Return the customers of the pools `env.simulator` and `env.reader`; None if the template speaks for them."""
    reader, options = config.env.reader, config.experiment.sage
    if reader is None:
        return None

    def share_answers(ask: Ask) -> Ask:
        """Return an `Ask` that the dialogues of a group share: each distinct question is sent once."""
        deadline_s = config.rollout.deadline_s
        cached = CachedPool(ask, deadline_s=deadline_s)

        async def ask_once(question: Question) -> Answer:
            reply = await cached.ask(question, until=asyncio.get_running_loop().time() + deadline_s)
            return reply.answer

        return ask_once

    write = share_answers(patient(pools[config.env.simulator], options))
    return PoolCustomers(write=write, read=share_answers(pools[reader]), options=options)


def unscored_note(config: Config) -> str:
    """Return a line about configured rewards that score no turn of the dialogues, or not all. Empty: there are none."""
    names = ", ".join(f"rewards.{key}" for key in config.rewards.weight_keys)
    if names and config.env.type == "tau2":
        return f"env=tau2: the evaluator of tau2-bench is the only reward; not used: {names}"
    if names and config.rollout.episode is not None and config.rollout.episode.is_class:
        return f"rollout.episode: get_reward of the class is the only reward; not used: {names}"
    if names and config.rollout.episode is not None:
        return f"rollout.episode: only turns asked with a sample or `point=` are scored by {names}"
    return ""


def customer_seed(sample: ServiceSample) -> int:
    """Return the seed of the dialogue with a held-out customer."""
    return zlib.crc32(f"{sample.id}/dialogue".encode()) & 0x7FFFFFFF


def has_failed(dialogue: RolloutGroup) -> bool:
    """Return whether a dialogue, held once for its sample, failed as a whole."""
    end = dialogue.records[-1].episode
    return end is not None and end.outcome == "failed"


def check_dialogues_held(records: Sequence[RewardRecord], stage: str, own: EpisodeFunctionConfig | None = None) -> None:
    """Raise TooManyUnscored if all dialogues of an evaluation have failed: those of training would too. `own`: the
    user's function that holds them."""
    failures = [r.total for r in records if r.episode is not None and r.episode.outcome == "failed"]
    if failures and len(failures) == sum(r.episode is not None for r in records):
        kinds = ", ".join(sorted({failure.kind for failure in failures}))
        detail = next((f.detail for f in failures if isinstance(f, Failure) and f.detail), "no detail")
        remedy = "Correct the dialogues or restore the pools, then resume the run"
        if own is not None and any(isinstance(f, FunctionFailed | FunctionTimeout) for f in failures):
            remedy = f"Correct the function {own.path} and start a new run; a resumed one keeps it as it is"
        raise TooManyUnscored(
            f"evaluation {stage}: all {len(failures)} dialogues failed ({kinds}; e.g. {detail}). {remedy}"
        )


async def evaluate_customers(
    runner: EpisodeRunner,
    samples: Sequence[ServiceSample],
    *,
    run: str,
    stage: str,
    step: int,
    sampling: SamplingConfig,
    truth: ExactAct | None = None,
) -> tuple[dict[str, float], list[RewardRecord]]:
    """Hold one dialogue with each held-out customer. Return `eval/<stage>/episodes/*`, and the records of the turns.

    The seeds depend on the customer alone, so every stage of every run meets the same ones. Failed dialogues count for
    `failed_frac` and `ended_frac` only. With `truth`, each record says whether the turn is exact at its own decision
    point, as a component without weight.
    """
    requests = [
        GenerationRequest(
            prompt_ids=(),
            keys=(SampleKey(run=f"{run}/eval-{stage}/dialogues", step=step, prompt=sample.id, sample=0),),
            seeds=(customer_seed(sample),),
            sampling=sampling,
        )
        for sample in samples
    ]
    groups = await runner.hold(samples, requests)
    records = with_zeros_at_limits([record for group in groups for record in group.records])
    held = [group for group in groups if not has_failed(group)]
    exact: list[float] = []
    if truth is not None:
        points = [None if has_failed(group) else point for group in groups for point in group.points]
        for i, (record, point) in enumerate(zip(records, points, strict=True)):
            if point is not None:
                exact.append(float(truth.is_exact(record.action, point)))
                known = Component(name=EXACT_ACT, outcome=Scored(value=exact[-1]), weight=0.0)
                records[i] = replace(record, components=(*record.components, known))
    found = episode_metrics(records)
    figures = {
        "n": float(len(samples)),
        "turns": fmean([float(len(group.records)) for group in held] or [0.0]),
        "ended_frac": found["episodes/ended_frac"],
        "failed_frac": found["episodes/failed_frac"],
    }
    if any(map(has_reward, records)):
        if rewards := total_rewards(records):
            figures["turn_reward"] = fmean(rewards)
        figures |= debiased_metrics(DebiasedRewards.of(records).estimates())
    if "episodes/reward/mean" in found:
        figures["reward"] = found["episodes/reward/mean"]
    if exact:
        figures[EXACT_ACT] = fmean(exact)
    for name in found:
        if name.startswith(("episodes/component/", "episodes/completion_by_path/")):
            figures[name.removeprefix("episodes/").removeprefix("component/")] = found[name]
    return {f"eval/{stage}/episodes/{name}": value for name, value in figures.items()}, records
