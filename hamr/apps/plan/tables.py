"""Output of `hamr plan`: every number with its derivation."""

from __future__ import annotations

from hamr.apps.plan.build import Past, output_tokens, overlap_of, response_tokens, scaled_out, turns_of
from hamr.apps.plan.costs import GPUS, Memory, at_least, engine_memory, gpus_needed, rank_memory
from hamr.apps.plan.measured import mean_errors
from hamr.apps.plan.models import model_size, trainer_in_use
from hamr.apps.plan.simulation import ROLLOUT, Cluster, Simulated
from hamr.apps.plan.sizing import MOST_REPLICAS, SLACK, Study
from hamr.apps.plan.workload import Workload
from hamr.config.pools import EngineConfig
from hamr.config.schema import Config
from hamr.report.values import Cell, Column, PageBlock, Paragraph, Table, number_columns


def title(config: Config, workload: Workload, past: Past | None) -> Paragraph:
    rounds = " + ".join(str(groups) for groups in workload.rounds)
    what = f"dialogues of {turns_of(config):g} responses" if config.holds_dialogues else "responses"
    trainer = trainer_in_use(config)
    lines = [
        f"hamr plan: {config.experiment.name}",
        f"a step: {workload.responses} {what} = ({rounds} groups) x {workload.samples}; "
        f"{workload.cascaded_frac:.0%} for the cascade, {workload.escalated_frac:.0%} of these for the judge",
        f"training: layout {trainer.attention}, attention kernel {trainer.kernel}",
    ]
    if workload.overlap is not None:
        doing = "generated, scored or trained on during it" if workload.overlap.max_policy_age else "started for it"
        lines.append(f"at most {workload.overlap.limit} groups are {doing}")
    if past is None:
        lines.append(f"times: assumed, roofline model of {config.plan.gpu}; the section plan lists all assumptions")
    else:
        name = past.config.experiment.name
        lines.append(f"times: measured in {len(past.steps)} steps of {name} for the parts in common")
    return Paragraph("\n".join(lines))


def sizes(config: Config, study: Study, needed: Cluster) -> list[PageBlock]:
    """Return the replicas and GPUs of every part, followed by the derivation of each number."""
    rows: list[tuple[Cell, ...]] = []
    reasons, total_now, total_needed = [], 0.0, 0.0

    def row(key: str, now: int, needed: int | None, each: float, why: str | list[str]) -> None:
        nonlocal total_now, total_needed
        then = now if needed is None else needed
        rows.append((key, now, "unchanged" if needed is None else needed, each, each * now, each * then))
        reasons.extend([f"  {key}: {why}"] if isinstance(why, str) else why)
        total_now, total_needed = total_now + each * now, total_needed + each * then

    prompt, mean, workload = config.plan.prompt_tokens, response_tokens(config), study.workload
    for name, station in needed.pools.items():
        pool, questions = config.pools[name], workload.questions()[name]
        tokens = prompt + mean + output_tokens(config, name, workload)
        at_once = min(station.slots, at_least(questions / station.replicas))
        each, why = _engine_gpus(config, f"pools.{name}.model", pool.model, pool.engine, tokens, at_once)
        service_s = station.service.seconds(station.slots)
        busy = f"{questions:.0f} questions x {service_s:.2f} s, {station.slots} at a time"
        keep_up = f"{study.busy(name):.1f} replicas to keep up with the rollouts"
        row(f"pools.{name}", pool.first_replicas, station.replicas, each, f"{busy}: {keep_up}; {why}")
    rollout, trainer = config.rollout, config.trainer
    at_once = min(rollout.engine.max_num_seqs, at_least(workload.rounds[0] * workload.samples / rollout.workers))
    each, why = _engine_gpus(config, "model.path", config.model.path, rollout.engine, prompt + mean, at_once)
    row("rollout.workers", rollout.workers, None, each, why)
    row("trainer.ranks", trainer.ranks, None, trainer.num_gpus, _trainer_reasons(config))
    rows.append(("all", "", "", "", total_now, total_needed))
    columns = number_columns("{:g}", "now", "needed", "GPUs each", "GPUs now", "GPUs needed")
    return [Table("", (Column(""), *columns), tuple(rows)), Paragraph("\n".join(reasons))]


def parts(config: Config, study: Study, ideal: Simulated, needed: Cluster) -> Table:
    """Return the step times in seconds for pools as configured, scaled to their maximum, as needed, and unlimited."""
    played = {"pools as configured": study.play(study.cluster)}
    most = scaled_out(config, study.cluster)
    if most != study.cluster:
        played["scaled to their maximum"] = study.play(most)
    played |= {"as needed": study.play(needed), "without limit": ideal}
    before = ("rollouts", "waiting for rewards") if study.workload.overlap is None else ("waiting for groups",)
    rows: list[tuple[Cell, ...]] = []
    for label, p in played.items():
        late = f"{p.late:g} (> {config.router.deadline_s:g} s)"
        waits = (p.rollout_s, p.tail_s)[: len(before)]
        rows.append((label, p.step_s, *waits, study.cluster.train_s, p.sync_s, late))
    seconds = number_columns("{:.1f}", "step", *before, "training", "sync")
    return Table("", (Column("seconds of a step"), *seconds, Column("late responses", "{}")), tuple(rows))


def stations(study: Study, needed: Cluster) -> Table:
    """Return load and queues, with the pools as configured and as needed."""
    rows: list[tuple[Cell, ...]] = []
    played = {"": (study.cluster, study.play(study.cluster)), ", as needed": (needed, study.play(needed))}
    for name in (ROLLOUT, *study.cluster.pools):
        for label, (cluster, step) in played.items():
            if name == ROLLOUT and label:
                continue
            station = cluster.rollout if name == ROLLOUT else cluster.pools[name]
            usage = step.stations[name]
            rows.append((f"{name}{label}", station.replicas, usage.utilisation, usage.queue_p50, usage.queue_p99))
    load = (Column("replicas", "{}"), Column("utilisation", "{:.0%}"))
    return Table("", (Column(""), *load, *number_columns("{:.2f}", "queue p50 s", "queue p99 s")), tuple(rows))


def critical(config: Config, study: Study, ideal: Simulated, needed: Cluster) -> Paragraph:
    """Return the bottlenecks of a configured step, and whether the goal can be met."""
    saved = sorted(study.savings(study.cluster).items(), key=lambda item: -item[1])
    what = {ROLLOUT: "twice the rollout workers", "training": "instantaneous training", "sync": "instantaneous sync"}
    savings = [f"{what.get(n, f'unlimited pools.{n}')} {s:.1f} s" for n, s in saved if s > 0.05]
    lines = [f"time saved in the configured step by: {'; '.join(savings) or 'nothing saves a tenth of a second'}"]
    late = study.play(study.cluster).late
    if late:
        sizes = (study.cluster, scaled_out(config, study.cluster), needed)
        as_it_is, at_most, enough = (f"{study.slowest_s(cluster):.0f} s" for cluster in sizes)
        lines.append(
            f"{late:.0f} of {study.workload.responses} rewards would time out at router.deadline_s="
            f"{config.router.deadline_s:g}: the slowest takes {as_it_is}, {at_most} with maximum pools, "
            f"{enough} with as many as needed"
        )
    wanted, step = config.plan.step_s, ideal.step_s
    if ideal.tail_s > 0.05:
        lines.append(
            f"{ideal.tail_s:.1f} s of waiting remain with any number of replicas: the time of the last answers"
        )
    if wanted is not None and step > wanted:
        lines.append(f"plan.step_s={wanted:g} cannot be met: with unlimited pools a step takes {step:.1f} s")
    if study.play(needed).step_s > max(wanted or 0.0, step * (1 + SLACK)):
        lines.append(f"{MOST_REPLICAS} replicas of a pool are too few; raise the slots of each replica")
    return Paragraph("\n".join(lines))


def comparison(past: Past) -> list[PageBlock]:
    """Return predicted and measured times of the run's own steps."""
    blocks = [
        Paragraph(
            f"pools.{name} in the run: {len(times.service_s)} questions, {times.mean_s:.2f} s of service, queue p50 "
            f"{times.queue_quantile(0.5):.2f} s, p99 {times.queue_quantile(0.99):.2f} s"
        )
        for name, times in past.times.items()
    ]
    try:
        made = past.simulation.compare(past.steps)
    except ValueError as error:
        return [*blocks, Paragraph(f"no comparison with the run: {error}")]
    doing = "waiting for groups" if overlap_of(past.config) else "generating and scoring"
    names = (f"{doing}: predicted", "measured", "whole step: predicted", "measured")
    rows: list[tuple[Cell, ...]] = []
    for p in made:
        seconds = (p.predicted_score_s, p.measured_score_s, p.predicted_s, p.measured_s)
        rows.append((p.step, *seconds, "fitted to" if p.fitted else "predicted"))
    table = Table("", (Column("step", "{}"), *number_columns("{:.1f}", *names), Column("")), tuple(rows))
    (score, whole), (score_seen, whole_seen) = (mean_errors(made, fitted=fitted) for fitted in (False, True))
    return [
        *blocks,
        table,
        Paragraph(
            f"mean error on predicted steps: {score:.0%} of {doing}, {whole:.0%} of the whole step "
            f"(on fitted steps: {score_seen:.0%}, {whole_seen:.0%})"
        ),
    ]


# --- derivations -----------------------------------------------------------------------------------


def _engine_gpus(
    config: Config, key: str, name: str, engine: EngineConfig, tokens: float, sequences: int
) -> tuple[float, str]:
    """Return (GPUs of one replica, derivation). 0 on CPUs. A fraction of a GPU is taken as configured."""
    if not engine.num_gpus:
        return 0.0, f"{engine.num_cpus:g} CPUs each"
    gpu, model, width = GPUS[config.plan.gpu], model_size(key, name), engine.tensor_parallel_size
    fewest = gpus_needed(model, gpu, sequences=sequences, tokens=tokens, utilisation=engine.gpu_memory_utilization)
    memory = engine_memory(
        model, gpu, width, sequences=sequences, tokens=tokens, utilisation=engine.gpu_memory_utilization
    )
    each = max(engine.num_gpus, float(width)) if engine.num_gpus >= 1 else engine.num_gpus
    text = f"per GPU {_memory(memory, f'{sequences} x {tokens:.0f} tokens')}"
    if fewest is None:
        return each, f"{text}: does not fit a node's 8 GPUs; lower max_num_seqs or max_ongoing_requests"
    if not memory.fits:
        return each, f"{text}: the cache does not hold all concurrently; tensor_parallel_size={fewest} would"
    return each, text if fewest == width else f"{text}: {fewest} would hold it"


def _trainer_reasons(config: Config) -> list[str]:
    """Return the derivation of a rank's memory: in a step, next to an engine on its GPU that generates, on the host."""
    trainer = config.trainer
    if not trainer.num_gpus:
        return [f"  trainer.ranks: {trainer.num_cpus:g} CPUs each"]
    remedy = "does not fit; more ranks, a higher zero_stage, offload_optimizer=true or an adapter (trainer=lora)"
    reasons = []
    for part, memory in rank_memory(config, model_size("model.path", config.model.path)).items():
        where = "per rank" if part.endswith("on the host") else "per GPU"
        text = f"  {part}: ZeRO-{trainer.zero_stage}, {where} {_memory(memory, 'activations')}"
        reasons.append(text if memory.fits else f"{text}: {remedy}")
    return reasons


def _memory(memory: Memory, cache: str) -> str:
    return (
        f"{memory.weights_gib:.1f} GiB weights + {memory.cache_gib:.1f} {cache} + {memory.other_gib:.0f} other "
        f"= {memory.total_gib:.0f} of {memory.have_gib:.0f}"
    )
