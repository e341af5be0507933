"""Contradictions between sections of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hamr.config.cascade_controller import check_cascade_controller
from hamr.config.pools import BUNDLED
from hamr.config.sage import SCRIPTED
from hamr.config.section import MOST_SAMPLES

if TYPE_CHECKING:
    from hamr.config.schema import Config

MAX_ADAPTER_RANK = 256
"""vLLM serves ranks up to 512, and the adapters of warm-up and RL are joined."""
KEEP_PROBABILITIES = {
    "ignore_eos", "output_text_buffer_length", "skip_reading_prefix_cache", "skip_special_tokens",
    "spaces_between_special_tokens", "stop_token_ids", "stream_interval",
}  # fmt: skip
"""Parameters of vLLM's sampling that leave the probabilities of tokens as they are."""
WITHOUT_EFFECT = (
    ("top_k", 0), ("top_k", -1), ("min_p", 0), ("min_tokens", 0), ("presence_penalty", 0), ("frequency_penalty", 0),
    ("repetition_penalty", 1),
)  # fmt: skip
"""Values of other parameters that do so too."""


def check_consistent(c: Config) -> None:
    """Raise ValueError for contradictions between sections. Each message has both values and the correction."""
    for name, pool in c.pools.items():
        start = pool.finetune.start_from if pool.finetune else None
        tuning = c.pools[start].finetune if start in c.pools else None
        if start is not None and (tuning is None or tuning.start_from is not None):
            possible = sorted(n for n, p in c.pools.items() if p.finetune and p.finetune.start_from is None)
            raise ValueError(
                f"pools.{name}.finetune.start_from={start!r} is not a pool that is fine-tuned from its own model; "
                f"use one of {possible} or null"
            )
        if start is not None and c.pools[start].type != pool.type:
            why = ", another kind of model; start from a pool of the same type, or set start_from=null"
            raise c.clash(f"pools.{name}.type", f"pools.{start}.type", why)
        if pool.type == "openai" and pool.model in BUNDLED:
            why = f", a bundled model, which no endpoint serves; set pools.{name}.model=NAME, as the endpoint calls it"
            raise c.clash(f"pools.{name}.type", f"pools.{name}.model", why)
    _check_scorers(c)
    _check_formats(c)
    _check_judges(c)
    _check_dialogues(c)
    _check_episodes(c)
    check_cascade_controller(c)
    _check_some_weight(c)
    _check_normalisation(c)
    _check_algorithm(c)
    _check_places(c)
    if c.rollout.max_new_tokens >= c.model.max_context:
        raise ValueError(
            f"rollout.max_new_tokens={c.rollout.max_new_tokens} leaves no room for a prompt in "
            f"model.max_context={c.model.max_context}; lower the first or raise the second"
        )
    _check_schedules(c)
    _check_sampling(c)
    _check_transfer(c)
    _check_attention(c)


def _check_scorers(c: Config) -> None:
    """Check that the consistency reward has the pools of its mode."""
    for role, name in c.rewards.scorers.items():
        key = f"rewards.consistency.{role}"
        if name not in c.pools:
            raise ValueError(f"{key}={name!r} but pools has only {sorted(c.pools)}; add the pool or rename it")
        if c.pools[name].role != role:
            raise c.clash(key, f"pools.{name}.role", f"; point it at a pool with role {role!r}")
        if c.rewards.consistency.fallback == "wait":
            _check_patience(c, "rewards.consistency", name)
    if c.scorers.on_alarm == "refit" and not c.scorers.check_every:
        why = ", so that the scorers are never checked and refitted in a run; set check_every, e.g. to 40"
        raise c.clash("scorers.on_alarm", "scorers.check_every", why)


def _check_sampling(c: Config) -> None:
    a, age = c.algorithm, c.experiment.asynchrony.max_policy_age
    oversample = "algorithm.dynamic_sampling.oversample"
    if a.dynamic_sampling.oversample > 1 and (age or not a.dynamic_sampling.enabled):
        cause = "experiment.asynchrony.max_policy_age" if age else "algorithm.dynamic_sampling.enabled"
        raise c.clash(oversample, cause, "; a step then needs no surplus: set oversample=1")
    if a.dynamic_sampling.surplus == "keep" and a.dynamic_sampling.oversample <= 1:
        why = ", which has no surplus; raise it, e.g. to 1.7"
        raise c.clash("algorithm.dynamic_sampling.surplus", oversample, why)
    if a.overlong.enabled and a.overlong.cache >= c.rollout.max_new_tokens:
        raise ValueError(
            f"algorithm.overlong.cache={a.overlong.cache} is not below "
            f"rollout.max_new_tokens={c.rollout.max_new_tokens}; lower the cache"
        )
    prompts, each = c.experiment.prompts_per_step, c.rollout.samples_per_prompt
    if prompts * each > MOST_SAMPLES:
        why = f"; that is more than {MOST_SAMPLES:,} responses in a step: lower one of them"
        raise c.clash("experiment.prompts_per_step", "rollout.samples_per_prompt", why)
    if prompts * each % a.minibatches:
        raise ValueError(
            f"algorithm.minibatches={a.minibatches} does not divide {prompts} x {each} responses; change one of them"
        )


def _check_transfer(c: Config) -> None:
    """Check that the weights can take the configured way from the trainers to the engines."""
    how, lora = c.rollout.transfer, c.trainer.lora
    if how == "nccl" and not c.rollout.engine.num_gpus:
        raise c.clash("rollout.transfer", "rollout.engine.num_gpus", "; use transfer='shared_memory' on CPUs")
    if how == "adapter" and lora is None:
        why = " trains all weights; set trainer.lora, or another transfer"
        raise c.clash("rollout.transfer", "trainer.lora", why)
    if how == "adapter" and lora is not None and lora.rank > MAX_ADAPTER_RANK:
        why = f" is above {MAX_ADAPTER_RANK}, half of the largest rank that vLLM serves; lower it or set another"
        raise c.clash("rollout.transfer", "trainer.lora.rank", f"{why} transfer")
    if how == "nccl" and c.trainer.backend != "nccl":
        why = ", whose weights are on a CPU; use trainer.backend='nccl' or transfer='shared_memory'"
        raise c.clash("rollout.transfer", "trainer.backend", why)
    if c.trainer.backend == "nccl" and not c.trainer.num_gpus:
        raise c.clash("trainer.backend", "trainer.num_gpus", "; use backend='gloo' on CPUs")
    if c.trainer.backend == "gloo" and c.trainer.num_gpus:
        raise c.clash("trainer.backend", "trainer.num_gpus", ", which it would reserve and not use; set backend='nccl'")


_KERNEL_NEEDS = {
    "flex": ({"backend": "nccl"}, "FlexAttention has no backward pass on CPUs"),
    "flash": ({"backend": "nccl", "dtype": "bfloat16"}, "flash-attention computes on GPUs in 16 bits"),
}


def _check_attention(c: Config) -> None:
    """Check that the kernels can run, and that the layout uses that of attention."""
    needs, reason = _KERNEL_NEEDS.get(c.trainer.attention_kernel, ({}, ""))
    for key, wanted in needs.items():
        if getattr(c.trainer, key) != wanted:
            why = f"; {reason}: set {key}={wanted!r}, or attention_kernel='auto'"
            raise c.clash("trainer.attention_kernel", f"trainer.{key}", why)
    if c.trainer.use_liger_kernel is True and c.trainer.backend != "nccl":
        why = "; its kernels need a GPU: set backend='nccl', or use_liger_kernel='auto'"
        raise c.clash("trainer.use_liger_kernel", "trainer.backend", why)
    if needs and c.trainer.attention == "padded":
        why = ", which has torch's attention; set attention='shared_prompt', or attention_kernel='auto'"
        raise c.clash("trainer.attention_kernel", "trainer.attention", why)


def _check_schedules(c: Config) -> None:
    """Check that a cosine schedule decreases from its peak to its minimum."""
    lowest = c.trainer.min_learning_rate
    warm_up = c.experiment.sft if c.experiment.sft.steps else None
    for key, section in (("trainer", c.trainer), ("experiment.sft", warm_up)):
        if section and section.schedule == "cosine" and lowest > section.learning_rate:
            raise ValueError(
                f"trainer.min_learning_rate={lowest:g} is above {key}.learning_rate={section.learning_rate:g} and "
                f"{key}.schedule='cosine' decreases to the minimum; lower the minimum or use schedule='constant'"
            )


def _check_formats(c: Config) -> None:
    """Check settings that depend on the order in which a response is written."""
    if c.model.response_format == "hybrid" and c.experiment.sft.steps:
        why = (
            "; the warm-up trains on references, which have no rationale: set it to 0 and start from a checkpoint of "
            "`hamr sft` (model.path)"
        )
        raise c.clash("model.response_format", "experiment.sft.steps", why)
    if c.model.response_format == "hybrid" and c.algorithm.all_wrong.reference:
        why = ", where each prompt asks for its own order: set reference=false, or another response_format"
        raise c.clash("algorithm.all_wrong.reference", "model.response_format", why)
    if c.experiment.evaluation.stop_at_answer and c.model.response_format not in ("answer_think", "hybrid"):
        why = ", where no text follows the answer: use 'answer_think' or 'hybrid'"
        raise c.clash("experiment.evaluation.stop_at_answer", "model.response_format", why)


def _check_places(c: Config) -> None:
    """Check that the placements of trainers and engines on the same node agree."""
    together = c.rollout.colocated or c.rollout.transfer == "shared_memory"
    mine, theirs = c.trainer.node_labels, c.rollout.engine.node_labels
    for key in sorted(set(mine) & set(theirs)) if together else ():
        if mine[key] != theirs[key]:
            raise ValueError(
                f"trainer.node_labels.{key}={mine[key]!r} but rollout.engine.node_labels.{key}={theirs[key]!r}, and "
                "they pass weights through one node's memory; give both the same"
            )
    if c.trainer.offload_optimizer and not c.trainer.zero_stage:
        why = ", whose optimiser updates the weights where they are; set trainer.zero_stage=1, or higher"
        raise c.clash("trainer.offload_optimizer", "trainer.zero_stage", why)
    if not c.rollout.colocated:
        if c.rollout.transfer == "ipc":
            why = "; CUDA IPC needs rank and engine on one GPU: use transfer='nccl'"
            raise c.clash("rollout.transfer", "rollout.colocated", why)
        return
    age, surplus = c.experiment.asynchrony.max_policy_age, c.algorithm.dynamic_sampling.surplus
    for key, value, allowed in (
        ("experiment.asynchrony.max_policy_age", age, 0),
        ("algorithm.dynamic_sampling.surplus", surplus, "abort"),
    ):
        if value != allowed:
            why = (
                "; an engine that shares its GPU with a rank sleeps during training: set it to "
                f"{allowed}, or give the engines GPUs of their own"
            )
            raise c.clash("rollout.colocated", key, why)
    engine = c.rollout.engine
    if not (0 < engine.num_gpus < 1 and 0 < c.trainer.num_gpus < 1 and engine.num_gpus + c.trainer.num_gpus <= 1):
        why = (
            f" and trainer.num_gpus={c.trainer.num_gpus:g}; an engine and a rank share one GPU: set shares with a sum "
            "of at most 1"
        )
        raise c.clash("rollout.colocated", "rollout.engine.num_gpus", why)
    if c.trainer.backend != "nccl":
        why = " computes on a CPU; use trainer.backend='nccl'"
        raise c.clash("rollout.colocated", "trainer.backend", why)
    if c.rollout.workers != c.trainer.ranks:
        why = f" and trainer.ranks={c.trainer.ranks}; every engine shares a GPU with one rank: make them equal"
        raise c.clash("rollout.colocated", "rollout.workers", why)
    if c.rollout.transfer == "nccl":
        why = "; NCCL cannot have two ranks on one GPU: use transfer='ipc', or 'shared_memory' on one node"
        raise c.clash("rollout.colocated", "rollout.transfer", why)


def _check_judges(c: Config) -> None:
    """Check that every judged reward has a pool that can generate text, and the rubric's reranker one that scores."""
    reranker = c.rewards.rubric.reranker
    if c.rewards.rubric.weight and reranker is not None:
        role = c.pools[reranker].role if reranker in c.pools else None
        if role != "reranker":
            found = f"pools.{reranker}.role={role!r}" if role else f"pools has only {sorted(c.pools)}"
            raise ValueError(f"rewards.rubric.reranker={reranker!r} but {found}; name a pool with role 'reranker'")
    for reward, section in c.rewards.judges.items():
        key = f"rewards.{c.rewards.key(reward)}.pool"
        if section.pool not in c.pools:
            raise ValueError(f"{key}={section.pool!r} but pools has only {sorted(c.pools)}; add the pool or rename it")
        if c.pools[section.pool].role == "reranker":
            raise c.clash(key, f"pools.{section.pool}.role", "; point it at a pool with role 'judge' or 'grader'")
        if c.pools[section.pool].compares:
            why = ", which compares two texts and cannot generate text; point it at a pool with a language model"
            raise c.clash(key, f"pools.{section.pool}.type", why)
        if c.rewards.fallback == "wait":
            _check_patience(c, "rewards", section.pool)


def _check_patience(c: Config, section: str, pool: str) -> None:
    """Check that `fallback: wait` leaves enough time to retry an unavailable pool."""
    if c.pools[pool].deadline_s >= c.router.deadline_s:
        raise ValueError(
            f"{section}.fallback='wait' but pools.{pool}.deadline_s={c.pools[pool].deadline_s:g} is not below "
            f"router.deadline_s={c.router.deadline_s:g}, so there would be no time for a retry; lower the first or "
            "raise the second"
        )


def _check_dialogues(c: Config) -> None:
    """Check that the participants of dialogues during training are pools that can generate text."""
    for key, name in c.dialogue_pools.items():
        pool = c.pools.get(name)
        if pool is None:
            raise ValueError(
                f"{key}={name!r} but pools has only {sorted(c.pools)}; "
                "add the pool, rename it, or use a script (scripted:...)"
            )
        if pool.role == "reranker" or pool.finetune or pool.compares:
            raise ValueError(
                f"{key}={name!r} but pools.{name} gives verdicts and cannot generate text; "
                "point it at an untrained pool with role 'judge' or 'grader'"
            )
    if c.experiment.sage.scenarios and c.model.response_format != "plain":
        why = "; SAGE's answers are plain: set response_format='plain' or scenarios=[]"
        raise c.clash("experiment.sage.scenarios", "model.response_format", why)


def _check_episodes(c: Config) -> None:
    """Check that nothing needs the responses to one prompt where prompts become dialogues."""
    if c.env.command is not None and c.env.type != "endpoint":
        raise c.clash("env.command.path", "env.type", "; set env=endpoint")
    if c.env.levels and c.env.type != "sage":
        raise c.clash("env.levels", "env.type", ", whose customers have no levels; set env=sage")
    if not c.holds_dialogues:
        return
    if c.env.type == "endpoint":
        _check_harness(c)
    scripted = c.env.simulator.startswith(SCRIPTED)
    if c.env.type in ("sage", "tau2") and scripted and c.env.simulator != f"{SCRIPTED}case":
        raise ValueError(f"env.simulator={c.env.simulator!r} is not a script; name a pool, or use {SCRIPTED}case")
    if c.env.type == "tau2" and (keys := c.rewards.pool_keys):
        why = ", which asks pools, and tau2-bench's evaluator alone rewards its dialogues; set it to 0"
        raise c.clash("env.type", f"rewards.{keys[0]}.weight", why)
    if c.env.type == "sage" and scripted == (c.env.reader is not None):
        why = ", whose messages need no reader; remove it" if scripted else "; name a pool that reads what it writes"
        raise c.clash("env.simulator", "env.reader", why)
    if c.env.type != "decision" and c.rollout.episode is not None:
        why = "; a prompt has one dialogue: set env=decision, or remove the function"
        raise c.clash("env.type", "rollout.episode.path", why)
    if c.rollout.episode is not None:
        _check_no_rule(c)
    settings = {
        "rewards.normalise": (c.rewards.normalise, "sum"),
        "algorithm.all_wrong.reference": (c.algorithm.all_wrong.reference, False),
        "algorithm.all_wrong.more_samples": (c.algorithm.all_wrong.more_samples, 0),
        **{f"rewards.custom.{name}.batch": (s.batch, False) for name, s in c.rewards.custom.items() if s.weight},
        **{
            f"rewards.{c.rewards.key(name)}.judging": (getattr(s, "judging", "single"), "single")
            for name, s in c.rewards.judges.items()
        },
    }
    for key, (value, allowed) in settings.items():
        if value != allowed:
            raise ValueError(
                f"{key}={value!r} compares responses to one prompt, but the turns of dialogues have different ones; "
                f"set it to {allowed!r}, or train on single decisions"
            )


def _check_no_rule(c: Config) -> None:
    """Check that nothing needs the expected act of a turn, which only the user's own function knows."""
    why = ", and the turns of its dialogues have no expected act for the rule: "
    if c.rewards.consistency.audit.by == "rules":
        raise c.clash("rewards.consistency.audit.by", "rollout.episode.path", f"{why}use judge, ensemble or file")
    if c.scorers.on_alarm == "refit" and c.scorers.refit.labels == "rule":
        raise c.clash("scorers.refit.labels", "rollout.episode.path", f"{why}use judge, or a file of labelled pairs")


def _check_harness(c: Config) -> None:
    if c.env.command is None:
        raise c.clash("env.type", "env.command", "; set the harness: env.command='python my_agent.py'")
    if c.model.response_format != "plain":
        why = ", which the messages of a harness do not ask for; set response_format='plain'"
        raise c.clash("env.type", "model.response_format", why)
    compared = ("consistency", "sage_logic", *(() if c.rewards.length.reference_length else ("length",)))
    for key in compared:
        if getattr(c.rewards, key).weight:
            why = ", which compares with references, and the turns of a harness have none; set it to 0"
            why += ", or set rewards.length.reference_length" if key == "length" else ""
            raise c.clash("env.type", f"rewards.{key}.weight", why)


def _check_algorithm(c: Config) -> None:
    a = c.algorithm
    if a.dual_clip is not None and a.objective != "clip":
        why = "; it bounds the clipped objective: set objective='clip' or dual_clip=null"
        raise c.clash("algorithm.dual_clip", "algorithm.objective", why)
    if a.dual_clip is not None and a.dual_clip <= 1 + a.clip_high:
        raise ValueError(
            f"algorithm.dual_clip={a.dual_clip:g} is not above 1 + algorithm.clip_high={1 + a.clip_high:g}; raise it"
        )
    if a.dual_clip is not None and a.loss is not None:
        raise c.clash("algorithm.dual_clip", "algorithm.loss.path", " replaces the objective that it bounds; drop one")
    if a.kl.coef and a.kl.estimator == "k1":
        why = ", whose expected gradient is 0, so that it penalises nothing: set estimator to k2 or k3, or coef=0"
        raise c.clash("algorithm.kl.coef", "algorithm.kl.estimator", why)
    if a.loss is not None and a.objective != "clip":
        raise c.clash("algorithm.objective", "algorithm.loss.path", " replaces it; drop one")
    extra = c.rollout.sampling_extra.items()
    changing = [k for k, v in extra if v is not None and k not in KEEP_PROBABILITIES and (k, v) not in WITHOUT_EFFECT]
    if a.importance.level == "sequence" and (c.rollout.top_p < 1 or changing):
        key, remedy = ("sampling_extra", f"remove {', '.join(changing)}") if changing else ("top_p", "set top_p=1")
        why = (
            "; the engine's log-probabilities are then those of a changed distribution, and differences add up over a "
            f"response: {remedy} or set level='geometric'"
        )
        raise c.clash("algorithm.importance.level", f"rollout.{key}", why)


def _check_normalisation(c: Config) -> None:
    if c.rewards.normalise != "gdpo":
        return
    if c.algorithm.advantage != "group":
        why = "; GDPO normalises each component within the group: set advantage='group' or normalise='sum'"
        raise c.clash("rewards.normalise", "algorithm.advantage", why)
    if not c.algorithm.normalize_std:
        why = "; it divides by the standard deviation of each component: set normalize_std=true or normalise='sum'"
        raise c.clash("rewards.normalise", "algorithm.normalize_std", why)
    if c.algorithm.all_wrong.reference:
        why = "; a reference has no value for most components: set reference=false or normalise='sum'"
        raise c.clash("rewards.normalise", "algorithm.all_wrong.reference", why)


def _check_some_weight(c: Config) -> None:
    """Check that at least one reward has a weight. Otherwise every reward is 0, and no group has a signal.

    Dialogues of the user's own and those of tau2-bench have rewards of their own.
    """
    if c.rollout.episode is not None or c.env.type in ("tau2", "endpoint"):
        return
    if not c.rewards.has_weight:
        raise ValueError(
            f"rewards.consistency.weight={c.rewards.consistency.weight:g}, and no other reward has a weight: every "
            "reward would be 0; give at least one a weight above 0"
        )
