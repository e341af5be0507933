"""Trainer groups of one and two ranks on the bundled model `tiny`, in float32: batching and sharding do not change the
step.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from hamr.config.algorithm import AlgorithmConfig, KlConfig
from hamr.config.schema import LoraConfig, ModelConfig, TrainerConfig
from hamr.errors import BadInput, EngineDied, RunFolderError, TrainingDiverged
from hamr.models.weights import weight_file
from hamr.trainer.actors import TrainerGroup
from hamr.types import TrainBatch, TrainGroup, TrainSequence

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

CONFIG = TrainerConfig(dtype="float32", learning_rate=3e-3, tokens_per_microbatch=4096, deadline_s=300)
MODEL = ModelConfig(path="tiny", dtype="float32")
ALGORITHM = AlgorithmConfig(kl=KlConfig(coef=0.05), epochs=2, minibatches=2)
TIMES = ("timing/",)


def make_batch(seed: int = 0, advantage: float | None = None) -> TrainBatch:
    rng = random.Random(seed)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(300) for _ in range(n))

    def sequence(n: int) -> TrainSequence:
        weight = rng.gauss(0, 1) if advantage is None else advantage
        return TrainSequence(token_ids=ids(n), advantage=weight, old_logprobs=(-8.0,) * n)

    shape = ((12, (5, 3, 7)), (4, (6,)), (9, (4, 4)), (3, (1, 8)))
    return TrainBatch(groups=tuple(TrainGroup(prompt_ids=ids(p), sequences=tuple(map(sequence, c))) for p, c in shape))


BATCH = make_batch()


def started(
    tiny: Path, config: TrainerConfig, algorithm: AlgorithmConfig = ALGORITHM, asynchronous: bool = False
) -> TrainerGroup:
    settings: dict[str, Any] = dict(total_steps=20, seed=3, temperature=0.8, asynchronous=asynchronous)
    return asyncio.run(TrainerGroup.start(config, algorithm, MODEL, tiny, **settings))


def reset(group: TrainerGroup, path: Path, config: TrainerConfig) -> None:
    asyncio.run(group.reset(path, config=config, total_steps=20))


def train(group: TrainerGroup, batch: TrainBatch = BATCH) -> dict[str, float]:
    """One batch; metrics without wall times."""
    metrics = asyncio.run(group.train(batch))
    return {k: v for k, v in metrics.items() if not k.startswith(TIMES)}


def logprobs(group: TrainerGroup) -> list[float]:
    return [x for g in asyncio.run(group.logprobs(BATCH.groups)) for sequence in g for x in sequence]


@pytest.fixture(scope="module")
def one(local_ray: None, tiny: Path) -> Iterator[TrainerGroup]:
    group = started(tiny, CONFIG)
    yield group
    asyncio.run(group.shutdown())


@pytest.fixture(scope="module")
def two(local_ray: None, tiny: Path) -> Iterator[TrainerGroup]:
    group = started(tiny, CONFIG.model_copy(update={"ranks": 2}), asynchronous=True)
    yield group
    asyncio.run(group.shutdown())


@contextmanager
def other_algorithm(group: TrainerGroup, algorithm: AlgorithmConfig) -> Iterator[None]:
    """Give a running world of one rank another algorithm. A world of its own costs ten seconds."""
    [rank] = group._actors
    ray.get(rank.call.remote("__setattr__", "algorithm", algorithm))
    try:
        yield
    finally:
        ray.get(rank.call.remote("__setattr__", "algorithm", ALGORITHM))


@pytest.fixture(scope="module")
def expected(one: TrainerGroup, tiny: Path) -> tuple[list[dict[str, float]], list[float]]:
    """Two batches (eight optimiser steps) in one rank and one micro-batch per step, and where they led.

    Adam turns rounding of tiny gradients into steps of full size, hence tolerances above the rounding itself."""
    reset(one, tiny, CONFIG)
    return [train(one), train(one, make_batch(1))], logprobs(one)


def assert_same_course(group: TrainerGroup, expected: tuple[list[dict[str, float]], list[float]]) -> None:
    for batch, metrics in zip((BATCH, make_batch(1)), expected[0], strict=True):
        ours = train(group, batch)
        assert ours.keys() == metrics.keys()
        for name, value in metrics.items():
            # Quantiles are averaged over micro-batches and ranks, and layouts differ on purpose.
            if not name.startswith(("policy/importance_ratio/", "policy/shared_prompt", "policy/padded")):
                assert ours[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    assert logprobs(group) == pytest.approx(expected[1], abs=2e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens_per_microbatch": 20},
        {"tokens_per_microbatch": 30, "attention": "packed"},
        {"attention": "padded"},
        {"zero_stage": 0, "tokens_per_microbatch": 20},
        {"zero_stage": 1},
        {"zero_stage": 3, "tokens_per_microbatch": 20},
        {"offload_optimizer": True},
        {"offload_optimizer": True, "zero_stage": 3, "gradient_checkpointing": "offload"},
    ],
    ids=str,
)
def test_step_of_one_rank_does_not_depend_on_micro_batches(
    one: TrainerGroup, tiny: Path, expected: Any, changes: dict[str, Any]
) -> None:
    reset(one, tiny, CONFIG.model_copy(update=changes))
    assert_same_course(one, expected)


def test_offloaded_optimiser_takes_the_same_steps_in_bfloat16(one: TrainerGroup, tiny: Path) -> None:
    """Gradients of several micro-batches are summed in float32."""
    norms = []
    for offload in (False, True):
        changes = {"dtype": "bfloat16", "tokens_per_microbatch": 20, "offload_optimizer": offload}
        reset(one, tiny, CONFIG.model_copy(update=changes))
        norms.append([train(one)["policy/grad_norm"], train(one, make_batch(1))["policy/grad_norm"]])
    assert norms[1] == pytest.approx(norms[0], rel=0.02)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_ranks_take_the_same_steps(two: TrainerGroup, tiny: Path, expected: Any, stage: int) -> None:
    reset(two, tiny, CONFIG.model_copy(update={"ranks": 2, "zero_stage": stage, "tokens_per_microbatch": 20}))
    assert_same_course(two, expected)


def test_rank_without_work_participates_in_the_step(two: TrainerGroup, one: TrainerGroup, tiny: Path) -> None:
    single = TrainBatch(groups=(TrainGroup(prompt_ids=(1, 2), sequences=BATCH.groups[0].sequences[:1]),))
    results = []
    for group, ranks in ((one, 1), (two, 2)):
        reset(group, tiny, CONFIG.model_copy(update={"ranks": ranks, "zero_stage": 3}))
        results.append(train(group, single))
    assert results[1] == pytest.approx(results[0], rel=1e-4, abs=1e-5)


def test_the_second_step_on_a_batch_is_clipped_against_the_first(one: TrainerGroup, tiny: Path) -> None:
    reset(one, tiny, CONFIG)
    metrics = train(one)
    assert metrics["policy/ratio"] != 1.0
    assert metrics["policy/approx_kl"] > 0
    assert metrics["policy/kl_to_reference"] > 0


def test_minibatches_of_one_pass_move_the_ratio_until_the_clip_acts(one: TrainerGroup, tiny: Path) -> None:
    """One optimiser step per batch starts where the responses were sampled: its ratio is 1."""
    for count, moved in ((1, False), (4, True)):
        with other_algorithm(one, AlgorithmConfig(minibatches=count, clip_low=1e-4, clip_high=1e-4)):
            reset(one, tiny, CONFIG)
            metrics = train(one)
        assert (abs(metrics["policy/ratio"] - 1) > 1e-4, metrics["policy/clipped"] > 0) == (moved, moved)


# --- checkpoints ---


def staged(stage: int) -> TrainerConfig:
    changes = {"ranks": 2, "zero_stage": stage, "schedule": "cosine", "warmup_frac": 0.5, "tokens_per_microbatch": 30}
    return CONFIG.model_copy(update=changes)


@pytest.mark.parametrize("stage", [2, 3])
def test_resumed_trainer_group_continues_exactly(two: TrainerGroup, tiny: Path, tmp_path: Path, stage: int) -> None:
    """In the same processes; test_sft resumes in others."""
    reset(two, tiny, staged(stage))
    train(two)
    asyncio.run(two.save(tmp_path))
    after = [train(two, make_batch(s)) for s in (1, 2)], logprobs(two)
    reset(two, tiny, staged(stage))
    asyncio.run(two.load(tmp_path))
    assert ([train(two, make_batch(s)) for s in (1, 2)], logprobs(two)) == after


@pytest.mark.parametrize("stage", [2, 3])
def test_copy_written_during_a_step_equals_a_checkpoint(
    two: TrainerGroup, tiny: Path, tmp_path: Path, stage: int
) -> None:
    reset(two, tiny, staged(stage))
    now, later, gone = (tmp_path / name for name in ("now", "later", "gone"))

    async def copy_and_train() -> None:
        await two.save(now)
        write = await two.copy_state(later)
        assert not list(later.rglob("*.safetensors"))
        await two.train(BATCH)
        await asyncio.gather(two.train(make_batch(1)), write())
        write = await two.copy_state(gone)
        shutil.rmtree(gone)
        with pytest.raises(FileNotFoundError):
            await write()

    asyncio.run(copy_and_train())
    files = {str(path.relative_to(now)): path.read_bytes() for path in now.rglob("*") if path.is_file()}
    assert {"policy/model.safetensors", "reference/model.safetensors", "trainer/rank_1.pt"} < files.keys()
    assert {str(path.relative_to(later)): path.read_bytes() for path in later.rglob("*") if path.is_file()} == files


ADAPTER = LoraConfig(rank=4)
BFLOAT16_STAGE_1 = {"ranks": 2, "zero_stage": 1, "dtype": "bfloat16"}
SPREAD = {"embedding_rate": 0.5, "weight_decay": 0.1}
"""Parameter groups with settings of their own."""


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param({"ranks": 2, "zero_stage": 3}, {"ranks": 1, "zero_stage": 2}, marks=pytest.mark.deep),
        ({"ranks": 1, "zero_stage": 1}, {"ranks": 2, "zero_stage": 3}),
        pytest.param({"ranks": 2, "zero_stage": 2}, {"ranks": 1, "zero_stage": 3}, marks=pytest.mark.deep),
        pytest.param({"ranks": 2, "zero_stage": 0}, {"ranks": 1, "zero_stage": 0}, marks=pytest.mark.deep),
        pytest.param(
            {"ranks": 2, "zero_stage": 3, "lora": ADAPTER}, {"ranks": 1, "zero_stage": 2, "lora": ADAPTER},
            marks=pytest.mark.deep,
        ),
        pytest.param(
            BFLOAT16_STAGE_1, {"ranks": 1, "zero_stage": 3, "dtype": "bfloat16"},
            marks=pytest.mark.deep,
        ),
        # DeepSpeed has another class of optimiser for one of the two.
        pytest.param(BFLOAT16_STAGE_1, BFLOAT16_STAGE_1 | {"offload_optimizer": True}, marks=pytest.mark.deep),
        pytest.param(BFLOAT16_STAGE_1 | {"offload_optimizer": True}, BFLOAT16_STAGE_1, marks=pytest.mark.deep),
    ],
    ids=lambda changes: "-".join(str(value) for value in changes.values() if isinstance(value, int | str)),
)  # fmt: skip
def test_resume_with_other_ranks_or_another_stage_continues(
    one: TrainerGroup, two: TrainerGroup, tiny: Path, tmp_path: Path, written: dict[str, Any], read: dict[str, Any]
) -> None:
    """Weights, moments and step count are those of the run that was not stopped."""
    groups = {1: one, 2: two}
    before, after = groups[written["ranks"]], groups[read["ranks"]]
    config = CONFIG.model_copy(update=SPREAD)
    reset(before, tiny, config.model_copy(update=written))
    train(before)
    asyncio.run(before.save(tmp_path))
    unbroken = train(before, make_batch(1)), logprobs(before)
    reset(after, tiny, config.model_copy(update=read))
    asyncio.run(after.load(tmp_path))
    tolerance = 0.05 if "dtype" in written else 2e-3
    assert train(after, make_batch(1))["policy/loss"] == pytest.approx(
        unbroken[0]["policy/loss"], rel=tolerance, abs=tolerance
    )
    assert logprobs(after) == pytest.approx(unbroken[1], abs=tolerance)


def test_checkpoint_before_the_first_step_continues_on_other_ranks(
    one: TrainerGroup, two: TrainerGroup, tiny: Path, tmp_path: Path
) -> None:
    """DeepSpeed creates the moments with the first step."""
    reset(two, tiny, CONFIG.model_copy(update=SPREAD | {"ranks": 2, "zero_stage": 2}))
    asyncio.run(two.save(tmp_path))
    unbroken = train(two)["policy/loss"], logprobs(two)
    for stage in (2, 3):
        reset(one, tiny, CONFIG.model_copy(update=SPREAD | {"ranks": 1, "zero_stage": stage}))
        asyncio.run(one.load(tmp_path))
        assert train(one)["policy/loss"] == pytest.approx(unbroken[0], rel=2e-3, abs=2e-3)
        assert logprobs(one) == pytest.approx(unbroken[1], abs=2e-3)


def test_reference_is_the_start_of_the_stage_after_a_resume(one: TrainerGroup, tiny: Path, tmp_path: Path) -> None:
    """RL starts from a warmed-up model and its run is resumed from the plain one: the KL must refer to the former."""
    reset(one, tiny, CONFIG)
    train(one)
    asyncio.run(one.save(tmp_path / "warm"))
    reset(one, tmp_path / "warm" / "policy", CONFIG)
    asyncio.run(one.save(tmp_path / "rl"))
    before = train(one)
    reset(one, tiny, CONFIG)
    asyncio.run(one.load(tmp_path / "rl"))
    assert train(one) == before


def test_checkpoint_of_other_settings_names_the_remedy(one: TrainerGroup, tiny: Path, tmp_path: Path) -> None:
    reset(one, tiny, CONFIG)
    asyncio.run(one.save(tmp_path))
    reset(one, tiny, CONFIG.model_copy(update={"zero_stage": 0}))
    with pytest.raises(RunFolderError, match=r"set trainer\.zero_stage=2"):
        asyncio.run(one.load(tmp_path))
    with pytest.raises(RunFolderError, match="no trainer state"):
        asyncio.run(one.load(tmp_path / "policy"))


@pytest.mark.deep
def test_zero_3_frees_the_models_of_the_stage_before(one: TrainerGroup, tiny: Path, tmp_path: Path) -> None:
    def living(actor: Any) -> int:
        import gc

        from hamr.trainer.policy_model import PolicyModel

        gc.collect()
        return sum(isinstance(found, PolicyModel) for found in gc.get_objects())

    [rank] = one._actors
    counts = []  # of policies and references, those of earlier tests included
    for _ in range(3):
        reset(one, tiny, CONFIG.model_copy(update={"zero_stage": 3}))
        train(one)
        counts.append(ray.get(rank.__ray_call__.remote(living)))
    asyncio.run(one.save(tmp_path))
    asyncio.run(one.load(tmp_path))
    counts.append(ray.get(rank.__ray_call__.remote(living)))
    assert max(counts[1:]) <= counts[0]


# --- weights ---


def load_into_transformers(tiny: Path, file: Path) -> Any:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    tensors = load_file(file)
    assert set(tensors) == set(model.state_dict())
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    model.load_state_dict(tensors)
    return model


def plain_logprobs(model: Any) -> list[float]:
    import torch

    found: list[float] = []
    with torch.no_grad():
        for g in BATCH.groups:
            for s in g.sequences:
                logits = model(torch.tensor([g.prompt_ids + s.token_ids])).logits[0, len(g.prompt_ids) - 1 : -1]
                rows = torch.log_softmax(logits, -1)
                found += [rows[i, t].item() for i, t in enumerate(s.token_ids)]
    return found


@pytest.mark.parametrize(
    ("stage", "lora"),
    [
        (2, None),
        pytest.param(3, LoraConfig(rank=4), marks=pytest.mark.deep),
        pytest.param(0, None, marks=pytest.mark.deep),
        pytest.param(3, None, marks=pytest.mark.deep),
        pytest.param(0, LoraConfig(rank=4), marks=pytest.mark.deep),
        pytest.param(2, LoraConfig(rank=4), marks=pytest.mark.deep),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "lora" if value else "full",
)
def test_written_weights_equal_the_trained_policy(
    two: TrainerGroup, tiny: Path, tmp_path: Path, stage: int, lora: LoraConfig | None
) -> None:
    """All names of the plain model, including the tied head, gathered and merged; the checkpoint's policy is equal."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reset(two, tiny, CONFIG.model_copy(update={"ranks": 2, "zero_stage": stage, "lora": lora, "learning_rate": 1e-2}))
    untrained = logprobs(two)
    train(two)
    trained = logprobs(two)
    assert max(abs(a - b) for a, b in zip(trained, untrained, strict=True)) > 0.05
    asyncio.run(two.write_weights(tmp_path / "weights.safetensors"))
    assert plain_logprobs(load_into_transformers(tiny, tmp_path / "weights.safetensors")) == pytest.approx(
        trained, abs=1e-4
    )
    asyncio.run(two.save(tmp_path / "saved"))
    policy = AutoModelForCausalLM.from_pretrained(tmp_path / "saved" / "policy", dtype=torch.float32)
    assert plain_logprobs(policy) == pytest.approx(trained, abs=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path / "saved" / "policy").chat_template
    if lora is not None:
        from peft import PeftModel

        base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
        adapted = PeftModel.from_pretrained(base, tmp_path / "saved" / "policy" / "adapter")
        assert plain_logprobs(adapted) == pytest.approx(trained, abs=1e-4)


def test_shared_weights_are_written_and_removed_by_rank_0(one: TrainerGroup, tiny: Path, tmp_path: Path) -> None:
    """The write follows a sweep; a host with insufficient shared memory is rejected."""
    reset(one, tiny, CONFIG)
    prefix = weight_file(tmp_path, "").name.partition(str(os.getpid()))[0]
    dead = tmp_path / f"{prefix}999999999-ab.safetensors"
    dead.write_text("w")
    with pytest.raises(BadInput, match=r"rollout\.transfer"):
        asyncio.run(one.share_weights(tmp_path, 10**18))
    path = asyncio.run(one.share_weights(tmp_path, 0))
    assert path.name.startswith(f"{prefix}{one.pids[0]}-")
    assert not dead.exists()
    asyncio.run(one.write_weights(path))
    assert path.is_file()
    asyncio.run(one.remove_weights())
    asyncio.run(one.remove_weights())
    assert not list(tmp_path.iterdir())


def test_an_adapter_survives_a_checkpoint(one: TrainerGroup, tiny: Path, tmp_path: Path) -> None:
    """Also one that follows the adapter of an earlier stage, which the resumed stage exports with its own."""
    from hamr.trainer.adapters import read_adapter

    config = CONFIG.model_copy(update={"lora": LoraConfig(rank=4)})
    reset(one, tiny, config)
    train(one)
    asyncio.run(one.save_policy(tmp_path / "warm_up"))
    reset(one, tmp_path / "warm_up" / "policy", config)
    train(one)
    asyncio.run(one.save(tmp_path / "saved"))
    sent = asyncio.run(one.adapter_files())
    assert sent == {file.name: file.read_bytes() for file in (tmp_path / "saved" / "policy" / "adapter").iterdir()}
    before = train(one), logprobs(one)
    reset(one, tiny, config)
    asyncio.run(one.load(tmp_path / "saved"))
    asyncio.run(one.save_policy(tmp_path / "again"))
    saved, again = (read_adapter(tmp_path / name / "policy" / "adapter") for name in ("saved", "again"))
    assert saved is not None and again is not None
    assert saved.rank == again.rank == 8
    assert all(a.equal(b) for name in saved.pairs for a, b in zip(saved.pairs[name], again.pairs[name], strict=True))
    assert (train(one), logprobs(one)) == before


# --- supervised, bfloat16 ---


@pytest.mark.deep
@pytest.mark.parametrize("stage", range(4))
def test_bfloat16_training_memorises_a_text(one: TrainerGroup, tiny: Path, stage: int) -> None:
    """Small updates must not be lost: they are in the float32 master weights and gradient sums."""
    reset(one, tiny, CONFIG.model_copy(update={"dtype": "bfloat16", "zero_stage": stage, "tokens_per_microbatch": 20}))
    batch = TrainBatch(groups=BATCH.groups, loss="sft")
    losses = [train(one, batch)["sft/loss"] for _ in range(12)]
    assert losses[-1] < 0.7 * losses[0]
    assert all(b < a for a, b in itertools.pairwise(losses))


def test_embeddings_may_have_a_separate_learning_rate(one: TrainerGroup, tiny: Path, tmp_path: Path) -> None:
    """Also after a checkpoint, whose optimiser state has an additional parameter group."""
    import torch
    from safetensors.torch import load_file

    reset(one, tiny, CONFIG.model_copy(update={"embedding_rate": 0.0, "weight_decay": 0.0}))
    train(one)
    asyncio.run(one.save(tmp_path / "first"))
    asyncio.run(one.load(tmp_path / "first"))
    train(one)
    asyncio.run(one.save(tmp_path / "second"))
    before = load_file(tiny / "model.safetensors")
    after = load_file(tmp_path / "second/policy/model.safetensors")
    moved = {name for name, tensor in after.items() if not torch.equal(tensor.float(), before[name].float())}
    assert "model.embed_tokens.weight" not in moved and len(moved) > 10


@pytest.mark.parametrize("budget", [20, 4096])
def test_supervised_loss_averages_over_tokens_or_sequences(one: TrainerGroup, tiny: Path, budget: int) -> None:
    """Compared with the log-probabilities of the same weights at temperature 1; that of the rollouts is 0.8."""
    reset(one, tiny, CONFIG.model_copy(update={"tokens_per_microbatch": budget}))
    sequences = [s for g in asyncio.run(one.logprobs(BATCH.groups)) for s in g]
    tokens = [x for s in sequences for x in s]
    expected = {
        "token_mean": -sum(tokens) / len(tokens),
        "sequence_mean": -sum(sum(s) / len(s) for s in sequences) / len(sequences),
    }
    assert abs(expected["token_mean"] - expected["sequence_mean"]) > 1e-3
    for aggregation, loss in expected.items():
        reset(one, tiny, CONFIG.model_copy(update={"tokens_per_microbatch": budget}))
        batch = TrainBatch(groups=BATCH.groups, loss="sft", aggregation=aggregation)
        assert train(one, batch)["sft/loss"] == pytest.approx(loss, abs=1e-4)


# --- errors ---


@pytest.mark.parametrize(
    ("dtype", "stage"),
    [
        ("float32", 0),
        pytest.param("float32", 3, marks=pytest.mark.deep),
        pytest.param("bfloat16", 2, marks=pytest.mark.deep),
        pytest.param("bfloat16", 1, marks=pytest.mark.deep),
        pytest.param("float32", 1, marks=pytest.mark.deep),
        pytest.param("float32", 2, marks=pytest.mark.deep),
        pytest.param("bfloat16", 0, marks=pytest.mark.deep),
        pytest.param("bfloat16", 3, marks=pytest.mark.deep),
    ],
)
def test_non_finite_gradients_are_skipped_counted_and_finally_fatal(
    two: TrainerGroup, tiny: Path, stage: int, dtype: str
) -> None:
    changes = {"ranks": 2, "zero_stage": stage, "dtype": dtype, "max_bad_steps": 5, "tokens_per_microbatch": 20}
    reset(two, tiny, CONFIG.model_copy(update=changes))
    train(two)
    before = logprobs(two)
    metrics = train(two, make_batch(0, advantage=float("nan")))
    assert metrics["policy/skipped_steps"] == 4
    assert "policy/grad_norm" not in metrics
    assert logprobs(two) == before
    assert train(two)["policy/skipped_steps"] == 4
    assert logprobs(two) != before
    assert train(two, make_batch(0, advantage=float("nan")))["policy/skipped_steps"] == 8
    with pytest.raises(TrainingDiverged, match="5 consecutive optimiser steps"):
        train(two, make_batch(0, advantage=float("nan")))


@pytest.mark.parametrize(
    "changes",
    [
        {"zero_stage": 2},
        pytest.param({"zero_stage": 0}, marks=pytest.mark.deep),
        pytest.param({"zero_stage": 3, "dtype": "bfloat16"}, marks=pytest.mark.deep),
    ],
    ids=str,
)
def test_states_on_the_host_return_for_the_next_step_and_the_checkpoint(
    one: TrainerGroup, tiny: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = CONFIG.model_copy(update=changes)
    reset(one, tiny, config)
    expected = [train(one), train(one, make_batch(1))], logprobs(one)
    reset(one, tiny, config)
    asyncio.run(one.offload_states())
    asyncio.run(one.offload_states())
    first = train(one)
    asyncio.run(one.offload_states())
    asyncio.run(one.save(tmp_path))
    asyncio.run(one.offload_states())
    logprobs(one)
    assert ([first, train(one, make_batch(1))], logprobs(one)) == expected
    reset(one, tiny, config)
    asyncio.run(one.load(tmp_path))
    assert train(one, make_batch(1)) == expected[0][1]


def test_kl_to_reference_is_measured_without_a_penalty(one: TrainerGroup, tiny: Path) -> None:
    with other_algorithm(one, AlgorithmConfig(kl=KlConfig(coef=0.0, measure=True))):
        reset(one, tiny, CONFIG)
        first, later = train(one), train(one)
    assert first["policy/kl_to_reference"] == pytest.approx(0.0, abs=1e-6)
    assert later["policy/kl_to_reference"] > 1e-6
    assert 0 < first["policy/update_ratio"] < 1


def test_sequence_without_old_logprobs_is_trained(one: TrainerGroup, tiny: Path) -> None:
    reset(one, tiny, CONFIG)
    group = BATCH.groups[0]
    reference = replace(group.sequences[0], old_logprobs=(), advantage=2.0)
    batch = replace(BATCH, groups=(replace(group, sequences=(*group.sequences[1:], reference)),))
    before = logprobs(one)
    assert math.isfinite(train(one, batch)["policy/loss"])
    assert logprobs(one) != before


def test_empty_batch_is_rejected_and_the_group_stays_usable(one: TrainerGroup, tiny: Path) -> None:
    reset(one, tiny, CONFIG)
    with pytest.raises(ValueError, match="at least one group"):
        train(one, TrainBatch(groups=()))
    train(one)


def test_ranks_and_backend_cannot_change_in_a_running_group(one: TrainerGroup, tiny: Path) -> None:
    with pytest.raises(ValueError, match=r"trainer\.ranks"):
        reset(one, tiny, CONFIG.model_copy(update={"ranks": 2}))


def test_no_files_are_left_in_shared_memory(two: TrainerGroup) -> None:
    assert not list(Path("/dev/shm").glob("deepspeed_allreduce_buffer*"))


async def test_shut_down_group_raises_engine_died(local_ray: None) -> None:
    group = TrainerGroup(CONFIG, MODEL, [])
    await group.shutdown()
    with pytest.raises(EngineDied, match="shut down"):
        await group.train(BATCH)


def test_dead_rank_is_named(one: TrainerGroup, tiny: Path) -> None:
    """This test ends `one`, so it is the last one that uses it."""
    reset(one, tiny, CONFIG)
    os.kill(one.pids[0], signal.SIGKILL)
    with pytest.raises(EngineDied, match="rank 0 died"):
        train(one)


def test_hanging_rank_is_killed_after_the_deadline(two: TrainerGroup, tiny: Path, tmp_path: Path) -> None:
    """The file of rank 0 is removed even though all ranks are dead. This test ends `two`, so it is the last one that
    uses it.
    """
    group = two
    reset(group, tiny, CONFIG.model_copy(update={"ranks": 2}))
    path = asyncio.run(group.share_weights(tmp_path, 0))
    path.write_text("w")
    try:
        os.kill(group.pids[1], signal.SIGSTOP)
        group.config = group.config.model_copy(update={"deadline_s": 3.0})
        with pytest.raises(EngineDied, match="did not answer in 3 s"):
            train(group)
    finally:
        asyncio.run(group.shutdown())
    asyncio.run(group.remove_weights())
    assert not path.exists()
