"""Builds the workload and the cluster of a step from a job's configuration, and from a measured run if there is one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hamr.apps.plan.costs import GPUS, answer_time, sync_time, train_time, trained_share
from hamr.apps.plan.measured import Fit, MeasuredStep, PoolTimes, RunSimulation, pool_times
from hamr.apps.plan.models import model_size, trainer_in_use
from hamr.apps.plan.overlap import Overlap
from hamr.apps.plan.simulation import Cluster, Service, Station
from hamr.apps.plan.workload import Workload, WorkSpread
from hamr.config.judged import ComparedConfig
from hamr.config.pools import PoolConfig
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.experience import whole_groups

PAIR_S = 0.01
"""Seconds of a cross-encoder or an embedding of about 20M parameters on a CPU per pair."""
USED_FRAC = 0.5
"""Mean used share of a pool's `thinking_tokens` and `answer_tokens`."""
VERDICT_TOKENS = 16
"""Tokens of a judge's verdict after its reasoning; upper bound for a reranker's answer."""


@dataclass(frozen=True, kw_only=True)
class Past:
    """A measured run: its configuration and its RL steps."""

    config: Config
    steps: tuple[MeasuredStep, ...]

    @cached_property
    def fit(self) -> Fit:
        return self.simulation.fit(self.steps)

    @cached_property
    def times(self) -> dict[str, PoolTimes]:
        return pool_times(self.steps)

    @property
    def simulation(self) -> RunSimulation:
        """Simulation of the run. The work of its stations is in seconds."""
        service = Service(fixed_s=1.0)
        pools = {
            name: Station(replicas=pool.first_replicas, slots=places(pool), service=service)
            for name, pool in self.config.pools.items()
        }
        return RunSimulation(
            cluster=Cluster(rollout=workers_station(self.config, service), pools=pools),
            first=self.config.rewards.consistency.reranker,
            overlap=overlap_of(self.config),
        )


def workers_station(config: Config, service: Service) -> Station:
    """Return the rollout workers. The dialogues of a group are placed one by one, its single decisions together."""
    return Station(
        replicas=config.rollout.workers,
        slots=config.rollout.engine.max_num_seqs,
        service=service,
        splits_groups=config.holds_dialogues,
    )


def places(pool: PoolConfig) -> int:
    """Return the number of requests that one replica processes concurrently."""
    taken = pool.max_ongoing_requests * pool.batch_size
    return min(taken, pool.engine.max_num_seqs) if pool.type == "vllm" else taken


def response_tokens(config: Config) -> float:
    return config.plan.response_tokens or config.rollout.max_new_tokens / 2


def overlap_of(config: Config) -> Overlap | None:
    """Return the overlap of steps, if groups are generated in an earlier step or in excess; None otherwise."""
    asynchrony, sampling = config.experiment.asynchrony, config.algorithm.dynamic_sampling
    age, oversample = sampling.bounds(asynchrony.max_policy_age)
    if not age and oversample <= 1:
        return None
    batch = config.experiment.prompts_per_step
    return Overlap(
        batch=batch,
        max_policy_age=age,
        oversample=oversample,
        in_flight=asynchrony.in_flight,
        concurrent=asynchrony.concurrent,
        most=whole_groups(max(sampling.max_rounds if sampling.enabled else 1, sampling.oversample), batch),
    )


def turns_of(config: Config) -> float:
    """Return the mean number of responses in a dialogue. A dialogue is planned as one long response."""
    if not config.holds_dialogues:
        return 1.0
    return config.plan.turns or max(1.0, config.rollout.max_turns / 2)


# --- the workload ----------------------------------------------------------------------------------


def build_workload(config: Config, past: Past | None) -> Workload:
    """Return the workload of a step. A run's shares replace the assumed ones, except those set explicitly."""
    plan, wanted = config.plan, config.rewards.consistency
    pools = _cascade_pools(config)
    first, second = pools
    assumed = _assumed_shares(config, *pools)
    mean = response_tokens(config) * turns_of(config)
    length, service = WorkSpread(cv=plan.spread), dict.fromkeys(config.pools, WorkSpread(cv=plan.spread))
    shares = dict(assumed)
    if past is not None:
        shares |= _observed_shares(past, *pools)
        named = set(plan.model_fields_set)
        if named & {"references", "turns"}:
            named |= {"first_questions", "second_questions"}
        shares |= {name: assumed[name] for name in named & set(assumed)}
        if not named & {"response_tokens", "turns"} and _same_policy(config, past.config):
            tokens = [float(r.tokens) for step in past.steps for r in step.responses]
            mean, length = float(np.mean(tokens)), WorkSpread(observed=tuple(tokens))
        for name, times in past.times.items():
            service[name] = WorkSpread(observed=times.service_s)
    shares["side"] = {pool: many for pool, many in shares["side"].items() if pool in config.pools}
    sampling = config.algorithm.dynamic_sampling
    if wanted.mode in ("hard_judge", "soft_judge"):
        shares["escalated_frac"] = 1.0  # the judge is asked first
    return Workload(
        prompts=config.experiment.prompts_per_step,
        samples=config.rollout.samples_per_prompt,
        first=first,
        second=second,
        max_rounds=sampling.max_rounds if sampling.enabled else 1,
        length=length,
        longest=config.rollout.max_new_tokens * (config.rollout.max_turns if config.holds_dialogues else 1) / mean,
        service=service,
        overlap=overlap_of(config),
        **shares,
    )


def _cascade_pools(config: Config) -> tuple[str | None, str | None]:
    wanted = config.rewards.consistency
    if not wanted.weight or wanted.mode == "exact":
        return None, None
    first = wanted.reranker if wanted.mode in ("hybrid", "reranker") else None
    return first, wanted.judge if wanted.mode != "reranker" else None


def _assumed_shares(config: Config, first: str | None, second: str | None) -> dict[str, Any]:
    plan, wanted, turns = config.plan, config.rewards.consistency, turns_of(config)
    judged = float(min(plan.references, wanted.judge_best_k or plan.references))
    side: dict[str, float] = {}
    for section in config.rewards.judges.values():
        # A comparing judge puts the responses of a group into one request.
        together = 1
        if isinstance(section, ComparedConfig) and section.judging == "comparative":
            together = min(config.rollout.samples_per_prompt, section.max_compared)
        side[section.pool] = side.get(section.pool, 0.0) + turns / together
    cascade = first is not None or second is not None
    return {
        "cascaded_frac": plan.cascaded_frac if cascade else 0.0,
        "first_questions": plan.references * turns,
        "second_questions": judged * turns,
        "escalated_frac": plan.escalated_frac,
        "side": side,
        "dropped_frac": plan.dropped_frac,
    }


def _observed_shares(past: Past, first: str | None, second: str | None) -> dict[str, Any]:
    """Return the shares of a run, counting only requests that reached a pool (no cached answers).

    Requests to one pool from the cascade and from a side reward are not distinguished.
    """
    responses = [r for step in past.steps for r in step.responses]
    replies = [r for r in responses if r.cascaded]
    asked: list[list[str | None]] = [[pool for pool, _, _ in r.calls] for r in replies]
    escalated = [pools for pools in asked if second in pools]
    others = [pool for r in responses for pool, _, _ in r.calls if not r.cascaded or pool not in (first, second)]
    groups = sum(len(groups) for step in past.steps for groups in step.rounds)
    return {
        "cascaded_frac": len(replies) / len(responses),
        "first_questions": sum(pools.count(first) for pools in asked) / max(1, len(replies)),
        "second_questions": sum(pools.count(second) for pools in escalated) / max(1, len(escalated)),
        "escalated_frac": len(escalated) / max(1, len(replies)),
        "side": {pool: others.count(pool) / len(responses) for pool in sorted(set(others))},
        "dropped_frac": sum(step.groups_dropped for step in past.steps) / groups,
    }


# --- the cluster -----------------------------------------------------------------------------------


def build_cluster(config: Config, workload: Workload, past: Past | None) -> Cluster:
    """Return the stations as configured.

    A part that the run had, too (same model, same engine), is as fast as measured. Any other part is as fast as a
    roofline model of `plan.gpu` predicts. Raises BadInput where neither is possible.
    """
    train_s, sync_s = _train_and_sync(config, workload, past)
    pools = {
        name: Station(
            replicas=pool.first_replicas, slots=places(pool), service=_pool_service(config, name, workload, past)
        )
        for name, pool in config.pools.items()
        if name in workload.questions()
    }
    workers = workers_station(config, _rollout_service(config, past))
    return Cluster(rollout=workers, pools=pools, train_s=train_s, sync_s=sync_s, deadline_s=config.router.deadline_s)


def scaled_out(config: Config, cluster: Cluster) -> Cluster:
    """Return the cluster with every pool at its autoscaling maximum."""
    return cluster.with_replicas(**{name: config.pools[name].most_replicas for name in cluster.pools})


def output_tokens(config: Config, name: str, workload: Workload) -> float:
    """Return the mean tokens of an answer: reasoning and a verdict for the cascade, generated text for a side
    reward."""
    pool, asked = config.pools[name], workload.questions().get(name, 0.0)
    side = workload.responses * workload.side.get(name, 0.0)
    written = USED_FRAC * pool.answer_tokens
    verdict = USED_FRAC * pool.thinking_tokens + VERDICT_TOKENS if pool.role == "judge" else 1.0
    return (side * written + (asked - side) * verdict) / asked if asked else verdict


def _pool_service(config: Config, name: str, workload: Workload, past: Past | None) -> Service:
    pool, plan = config.pools[name], config.plan
    if past is not None and name in past.config.pools:
        before, times = past.config.pools[name], past.times.get(name)
        if times is not None and (before.model, before.type, before.engine) == (pool.model, pool.type, pool.engine):
            return Service(fixed_s=times.mean_s)
    if pool.compares:
        return Service(fixed_s=0.0, each_s=PAIR_S)
    if pool.type != "vllm":
        raise BadInput(f"pools.{name}.type", pool.type, "its speed is unknown; name a run that measured it: from=<run>")
    _refuse_cpus(f"pools.{name}.engine.num_gpus", pool.engine.num_gpus)
    return answer_time(
        model_size(f"pools.{name}.model", pool.model),
        GPUS[plan.gpu],
        pool.engine.tensor_parallel_size,
        prompt_tokens=min(plan.prompt_tokens + response_tokens(config), pool.max_context),
        cached_frac=plan.prefix_hit_frac,
        output_tokens=output_tokens(config, name, workload),
    )


def _rollout_service(config: Config, past: Past | None) -> Service:
    rollout, plan = config.rollout, config.plan
    if past is not None and _same_policy(config, past.config):
        known, scale = past.fit, _length_ratio(config, past)
        return Service(fixed_s=known.rollout.fixed_s * scale, each_s=known.rollout.each_s * scale)
    _refuse_cpus("rollout.engine.num_gpus", rollout.engine.num_gpus)
    once = answer_time(
        model_size("model.path", config.model.path),
        GPUS[plan.gpu],
        rollout.engine.tensor_parallel_size,
        prompt_tokens=plan.prompt_tokens,
        # One sample of a group computes the prompt; the others read it from the prefix cache.
        cached_frac=1 - 1 / rollout.samples_per_prompt,
        output_tokens=response_tokens(config),
    )
    turns = turns_of(config)
    return Service(fixed_s=once.fixed_s * turns, each_s=once.each_s * turns)


def _length_ratio(config: Config, past: Past) -> float:
    """Return the planned length of responses over that of the run's, 1 unless it is set by name."""
    if config.plan.model_fields_set & {"response_tokens", "turns"}:
        return response_tokens(config) * turns_of(config) / past.fit.mean_tokens
    return 1.0


def _same_policy(config: Config, before: Config) -> bool:
    return (config.model.path, config.rollout.engine) == (before.model.path, before.rollout.engine)


def trained_tokens(config: Config) -> float:
    """Return the tokens of a step: every prompt once per group where the trainer shares it, else once per response.

    The dialogues of a group share only the prompt of their first turn.
    """
    groups, samples = config.experiment.prompts_per_step, config.rollout.samples_per_prompt
    later = groups * samples * (turns_of(config) - 1)
    prompts = later + (groups if trainer_in_use(config).attention == "shared_prompt" else groups * samples)
    return prompts * config.plan.prompt_tokens + (groups * samples + later) * response_tokens(config)


def _train_and_sync(config: Config, workload: Workload, past: Past | None) -> tuple[float, float]:
    trainer, plan = config.trainer, config.plan
    if past is not None:
        before, known = past.config, past.fit
        ranks = before.trainer.ranks / trainer.ranks
        alike = trainer.model_copy(update={"ranks": before.trainer.ranks, "deadline_s": before.trainer.deadline_s})
        if alike == before.trainer and config.model == before.model:
            trained, generated = past.simulation.tokens(past.steps).mean(axis=0)
            then = before.experiment.prompts_per_step * before.rollout.samples_per_prompt
            more = workload.prompts * workload.samples / then * _length_ratio(config, past)
            epochs = config.algorithm.epochs / before.algorithm.epochs
            return known.train_s(trained * more, generated * more) * ranks * epochs, known.sync_s
    _refuse_cpus("trainer.num_gpus", trainer.num_gpus)
    model = model_size("model.path", config.model.path)
    recompute = bool(trainer.gradient_checkpointing)
    trained = trained_share(trainer.lora)
    once = train_time(
        model, GPUS[plan.gpu], trainer.ranks, trained_tokens(config), recompute=recompute, trained=trained
    )
    sent = trained if config.rollout.transfer == "adapter" else 1.0
    return config.algorithm.epochs * once, sync_time(model, sent)


def _refuse_cpus(key: str, num_gpus: float) -> None:
    if not num_gpus:
        remedy = "the speed of a CPU is unknown; name a run measured on it: from=<run folder>, or use GPUs"
        raise BadInput(key, num_gpus, remedy)
