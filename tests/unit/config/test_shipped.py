"""Every shipped YAML file composes, validates and sets its values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hamr.config.load import load_config
from hamr.config.pools import BUNDLED
from hamr.config.resources import resource
from hamr.config.schema import GROUPS, Config

CONF = resource("conf")
OPTIONS = [(g, f.stem) for g in GROUPS for f in sorted((CONF / g).glob("*.yaml"))]
EXPERIMENTS = [name for group, name in OPTIONS if group == "experiment"]


def is_global(group: str, option: str) -> bool:
    """Return True for an option that sets values of other sections, too."""
    return (CONF / group / f"{option}.yaml").read_text().startswith("# @package _global_")


NEEDS = {
    ("rollout", "gpu"): ["trainer=zero3"],
    ("env", "tau2"): ["rewards.consistency.weight=0"],
    ("env", "endpoint"): ["env.command=python my_agent.py", "rewards.consistency.weight=0"],
    ("experiment", "own_data"): ["data.train=train.jsonl"],
} | {("schedule", name): ["experiment=paper_hrm"] for group, name in OPTIONS if group == "schedule"}
"""Overrides that an option requires."""


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_loads(group: str, option: str) -> None:
    config = load_config([f"{group}={option}", *NEEDS.get((group, option), [])])
    assert isinstance(config, Config)


@pytest.mark.parametrize(("group", "option"), [o for o in OPTIONS if not is_global(*o)])
def test_every_option_sets_the_values_of_its_file(group: str, option: str) -> None:
    config = load_config([f"{group}={option}", *NEEDS.get((group, option), [])])
    written = yaml.safe_load((CONF / group / f"{option}.yaml").read_text()) or {}
    got = config.model_dump(mode="json")[group]
    for dotted, value in leaves(written):
        at = got
        for part in dotted:
            at = at[part]
        # YAML 1.1 reads 1e-4 as a text; hamr's files write 1.0e-4.
        assert at == value, f"{group}.{'.'.join(dotted)}"


def leaves(tree: dict[str, object], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], object]]:
    found: list[tuple[tuple[str, ...], object]] = []
    for key, value in tree.items():
        found += leaves(value, (*path, key)) if isinstance(value, dict) else [((*path, key), value)]
    return found


@pytest.mark.parametrize("group", GROUPS)
def test_every_section_has_a_config_group(group: str) -> None:
    assert any(g == group for g, _ in OPTIONS)


@pytest.mark.parametrize("file", sorted(f for g in GROUPS for f in (CONF / g).glob("*.yaml")), ids=lambda f: f.stem)
def test_shipped_files_hold_no_interpolation_or_class_path(file: Path) -> None:
    text = file.read_text()
    assert "${" not in text
    assert "_target_" not in text


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_carry_their_name(name: str) -> None:
    assert load_config([f"experiment={name}", *NEEDS.get(("experiment", name), [])]).experiment.name == name


def test_smoke_is_small_and_short() -> None:
    config = load_config(["experiment=smoke"])
    assert {config.model.path, *(pool.model for pool in config.pools.values())} == {"tiny"}
    assert {config.model.dtype, config.trainer.dtype, *(p.dtype for p in config.pools.values())} == {"float32"}
    assert config.experiment.steps * config.experiment.prompts_per_step * config.rollout.samples_per_prompt == 8
    assert config.rollout.max_new_tokens == 12
    assert all(pool.finetune is None for pool in config.pools.values())


def test_quickstart_has_noisy_data_and_over_100_steps() -> None:
    config = load_config(["experiment=quickstart"])
    assert config.data.sage.noise > 0 and config.experiment.steps > 100


def test_quickstart_judge_and_reranker_share_no_weights() -> None:
    pools = load_config(["experiment=quickstart"]).pools
    starts = {name: (pool.model, pool.finetune and pool.finetune.start_from) for name, pool in pools.items()}
    assert starts == {"reranker": ("compact-encoder", None), "judge": ("all-minilm-l6-v2", None)}


@pytest.mark.parametrize("experiment", ["quickstart", "smollm2"])
def test_cpu_experiments_need_no_gpu_hub_or_account(experiment: str) -> None:
    config = load_config([f"experiment={experiment}"])
    assert config.trainer.num_gpus == config.rollout.engine.num_gpus == 0
    assert all(pool.engine.num_gpus == 0 and pool.type == "cross_encoder" for pool in config.pools.values())
    assert {config.model.path, *(pool.model for pool in config.pools.values())} <= set(BUNDLED)
    assert config.logging.wandb.mode == "offline"
    assert config.data.type == "sage"
    assert config.rewards.consistency.mode == "hybrid"
    assert min(config.rewards.format.weight, config.rewards.length.weight, config.rewards.rules.weight) > 0


def weights(option: str) -> dict[str, float]:
    rewards = load_config([f"rewards={option}"]).rewards
    sections = {name: getattr(rewards, name) for name in type(rewards).model_fields}
    return {name: s.weight for name, s in sections.items() if getattr(s, "weight", 0)}


def test_olamind_stages_have_the_weights_of_the_paper() -> None:
    """Section 4.2: quality alone in Stage 1. Appendix C: nine terms in Stage 2."""
    quality = {"dialogue": 1.0, "policy": 1.0, "tool": 1.0, "rubric": 1.0}
    assert weights("olamind_stage1") == quality
    form = {"format": 0.2, "length": 1.0, "rules": 1.0}
    assert weights("olamind_stage2") == quality | form | {"risk": 1.0, "hallucination": 3.0}
    rewards = load_config(["rewards=olamind_stage2"]).rewards
    assert (rewards.policy.judging, rewards.tool.judging) == ("comparative", "comparative")


def test_paper_hrm_has_the_values_of_table_5() -> None:
    config = load_config(["experiment=paper_hrm"])
    assert config.trainer.learning_rate == 5e-6
    assert config.trainer.schedule == "constant"
    assert config.trainer.weight_decay == 1e-4
    assert config.trainer.grad_clip == 1.0
    assert (config.algorithm.clip_low, config.algorithm.clip_high) == (0.2, 0.28)
    assert config.algorithm.entropy_coef == 3.5e-4
    assert config.algorithm.kl.coef == 0.0
    assert config.rollout.samples_per_prompt == 16
    assert config.rollout.temperature == 1.0
    cascade = config.rewards.consistency.cascade
    assert (cascade.tau_a, cascade.tau_b, cascade.w1, cascade.w2) == (0.68, 0.98, 0.05, 0.72)
    responses = config.experiment.prompts_per_step * config.rollout.samples_per_prompt
    assert responses // config.algorithm.minibatches == 128


@pytest.mark.parametrize(("schedule", "steps", "prompts"), [("episodes", 800, 20 * 5120), ("steps", 20, 160)])
def test_paper_hrm_has_two_readings_of_20_episodes(schedule: str, steps: int, prompts: int) -> None:
    """On the paper's 5,120 prompts. Both take 128 responses per optimiser step."""
    config = load_config(["experiment=paper_hrm", f"schedule={schedule}"])
    experiment = config.experiment.with_steps(5120)
    assert experiment.steps == steps
    assert experiment.steps * experiment.prompts_per_step == prompts
    responses = experiment.prompts_per_step * config.rollout.samples_per_prompt
    assert responses == 128 * config.algorithm.minibatches
    assert schedule != "episodes" or config == load_config(["experiment=paper_hrm"])


def test_paper_hrm_has_the_models_of_the_paper_on_gpus() -> None:
    config = load_config(["experiment=paper_hrm"])
    judge, reranker = config.pools["judge"], config.pools["reranker"]
    assert (config.model.path, reranker.model, judge.model) == ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B", "Qwen/Qwen3-32B")
    assert judge.engine.tensor_parallel_size == 4
    assert (config.trainer.zero_stage, config.trainer.backend, config.rollout.transfer) == (3, "nccl", "nccl")
    assert config.trainer.num_gpus > 0
    assert judge.deadline_s < config.router.deadline_s


def test_side_rewards_have_pools_of_their_own_with_paper_sidecars() -> None:
    paper, config = (
        load_config(["experiment=olamind_stage2", f"pools={name}"]) for name in ("paper", "paper_sidecars")
    )
    asked = config.rewards.used_pools
    own = {reward: asked[f"{reward}.pool"] for reward in ("risk", "hallucination", "rubric")}
    assert own == {reward: reward for reward in own}
    assert {asked[f"{reward}.pool"] for reward in ("dialogue", "policy", "tool")} == {"judge"}
    assert {name: config.pools[name] for name in paper.pools} == paper.pools
    assert all(config.pools[name].autoscaling is not None for name in own)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_refer_to_existing_prompts(name: str) -> None:
    for pool in load_config([f"experiment={name}", *NEEDS.get(("experiment", name), [])]).pools.values():
        assert pool.compares or resource("prompts", f"{pool.prompt}.yaml").is_file()


ARMS = {
    "sft_decision": (("decision",), "plain"),
    "sft_decision_dra": (("decision_dra",), "think_answer"),
    "sft_mix": (("decision", "patm"), "plain"),
    "sft_mix_dra": (("decision_dra", "patm_dra"), "think_answer"),
}


@pytest.mark.parametrize("arm", ARMS)
def test_sft_arms_match_table_4_and_differ_in_kinds(arm: str) -> None:
    config = load_config([f"experiment={arm}"])
    assert (config.sft.kinds, config.model.response_format) == ARMS[arm]
    assert (config.model.path, config.model.max_context) == ("Qwen/Qwen3-4B", 20000)
    assert (config.sft.batch_size, config.sft.epochs, config.sft.steps) == (256, 1, None)
    trainer = config.trainer
    assert (trainer.learning_rate, trainer.min_learning_rate, trainer.schedule) == (2e-6, 8e-7, "cosine")
    assert (trainer.warmup_frac, trainer.weight_decay, trainer.zero_stage) == (0.01, 1e-4, 3)
    same = load_config(["experiment=sft_decision"]).model_dump(exclude={"sft": {"kinds"}, "experiment": {"name"}})
    ours = config.model_dump(exclude={"sft": {"kinds"}, "experiment": {"name"}})
    same["model"].pop("response_format"), ours["model"].pop("response_format")
    assert ours == same


def test_sft_small_needs_no_gpu_hub_account_or_file() -> None:
    config = load_config(["experiment=sft_small"])
    assert (config.model.path, config.data.type, config.trainer.num_gpus) == ("smollm2-135m", "sage", 0)
    assert config.logging.wandb.mode == "offline"
    [entry] = config.sft.sets
    assert entry.path is None and entry.label == "references"
