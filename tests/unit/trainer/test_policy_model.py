"""Computing the prompt once per group equals the padded batch: log-probabilities, entropies and gradients."""

from __future__ import annotations

import dataclasses
import logging
import random
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hamr.algorithms.losses import policy_loss  # noqa: E402
from hamr.algorithms.packing import MOST_LEVELS, Layout, pack, padding_reason, tokens  # noqa: E402
from hamr.config.section import LoraConfig  # noqa: E402
from hamr.errors import ConfigError  # noqa: E402
from hamr.trainer import policy_attention, policy_head  # noqa: E402
from hamr.trainer.policy_batch import build_batch  # noqa: E402
from hamr.trainer.policy_head import token_logprobs  # noqa: E402
from hamr.trainer.policy_model import load_policy  # noqa: E402
from hamr.types import TrainGroup, TrainSequence  # noqa: E402

VOCABULARY = 97
SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)


def saved(folder: Path, kind: str, **changes: Any) -> Path:
    """A random model of `kind` whose every weight, norms and biases too, is far from its initial value."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**{**SIZES, "num_key_value_heads": 2, "head_dim": 8, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "qwen3": saved(folder / "qwen3", "Qwen3", tie_word_embeddings=True),
        "llama": saved(folder / "llama", "Llama", tie_word_embeddings=False),
        "qwen2": saved(folder / "qwen2", "Qwen2", num_key_value_heads=4),
    }


def random_groups(shape: list[tuple[int, list[int]]], seed: int = 0) -> list[TrainGroup]:
    """Groups of (prompt length, completion lengths)."""
    rng = random.Random(seed)

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(n))

    def sequence(n: int) -> TrainSequence:
        return TrainSequence(
            token_ids=ids(n),
            advantage=rng.gauss(0, 1),
            old_logprobs=tuple(rng.gauss(-4, 1) for _ in range(n)),
            mask=tuple(rng.random() < 0.8 for _ in range(n)),
        )

    return [TrainGroup(prompt_ids=ids(p), sequences=tuple(map(sequence, lengths))) for p, lengths in shape]


SHAPES = {
    "unequal lengths": [(7, [3, 1, 5, 2]), (4, [6, 2])],
    "equal lengths": [(9, [4, 4, 4])],
    "one sequence a group": [(5, [6]), (1, [1]), (3, [2])],
    "completions of one token": [(6, [1, 1, 1]), (2, [1, 4])],
}


def run(path: Path, layout: Layout, groups: list[TrainGroup], **options: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Log-probabilities, entropies and gradients of one policy loss in float32."""
    model = load_policy(path, dtype=torch.float32, layout=layout, temperature=0.7, **options).train()
    assert model.layout == layout
    [[microbatch]] = pack(groups, budget=10**6, layout=layout)
    batch = build_batch(groups, microbatch, layout)
    logprobs, entropies = model(batch)
    policy_loss(
        logprobs, batch.behaviour_N, batch.advantages_N, batch.mask_N, entropies=entropies, entropy_coef=0.1
    ).loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return logprobs.detach(), entropies.detach(), gradients


def assert_equal(ours: tuple[Any, Any, dict[str, Any]], oracle: tuple[Any, Any, dict[str, Any]]) -> None:
    torch.testing.assert_close(ours[0], oracle[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(ours[1], oracle[1], atol=1e-5, rtol=0)
    assert ours[2].keys() == oracle[2].keys()
    for name, gradient in oracle[2].items():
        scale = max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(ours[2][name], gradient, atol=1e-5 * scale, rtol=0, msg=name)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen2"])
@pytest.mark.parametrize("layout", ["shared_prompt", "packed"])
def test_layouts_agree_with_the_padded_batch(models: dict[str, Path], kind: str, layout: Layout, shape: str) -> None:
    groups = random_groups(SHAPES[shape])
    assert_equal(run(models[kind], layout, groups), run(models[kind], "padded", groups))


@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen2"])
def test_shared_prompt_prefix_does_not_change_the_result(models: dict[str, Path], kind: str) -> None:
    policies = [g.prompt_ids for g in random_groups([(48, [1]), (32, [1])], seed=1)]
    groups = [
        dataclasses.replace(group, prompt_ids=(policies[i] if i < 2 else ()) + group.prompt_ids)
        for i, group in zip((0, 2, 1, 0, 1, 0), random_groups(2 * [*SHAPES["unequal lengths"], (3, [2])]), strict=True)
    ]
    [[microbatch]] = pack(groups, budget=10**6)
    rows = build_batch(groups, microbatch, "shared_prompt").blocks[-1].own.stop
    apart = sum(tokens(g, range(len(g.sequences)), "shared_prompt") for g in groups) - sum(
        len(g.sequences) for g in groups
    )
    assert apart - rows == 2 * 48 + 32
    assert_equal(run(models[kind], "shared_prompt", groups), run(models[kind], "padded", groups))


def dialogues(turns: int) -> list[TrainGroup]:
    """Groups of the turns of two dialogues with one beginning; each prompt continues that of the turn before."""
    pieces = [g.prompt_ids for g in random_groups([(20, [1])] * (1 + 2 * turns), seed=2)]
    prompts = [sum(pieces[1 + d * turns : 2 + d * turns + i], pieces[0]) for d in (0, 1) for i in range(turns)]
    lengths = [[5, 3], [4], [2, 2, 1], [6]]
    groups = random_groups([(1, lengths[i % 4]) for i in range(len(prompts))], seed=3)
    return [dataclasses.replace(g, prompt_ids=p) for g, p in zip(groups, prompts, strict=True)]


@pytest.mark.parametrize("turns", [3, 9])
def test_turns_share_the_prompts_of_earlier_turns(models: dict[str, Path], turns: int) -> None:
    groups = dialogues(turns)
    [[microbatch]] = pack(groups, budget=10**6)
    row = build_batch(groups, microbatch, "shared_prompt")
    assert row.blocks is not None
    assert max(len(b.prefix) for b in row.blocks) == min(turns, MOST_LEVELS) + 1
    assert_equal(run(models["qwen3"], "shared_prompt", groups), run(models["qwen3"], "padded", groups))


def test_padded_batch_equals_transformers_per_sequence(models: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(models["llama"], dtype=torch.float32)
    groups = random_groups(SHAPES["unequal lengths"])
    expected = []
    for group in groups:
        for s in group.sequences:
            logits = plain(torch.tensor([group.prompt_ids + s.token_ids])).logits[0, len(group.prompt_ids) - 1 : -1]
            expected.append(torch.log_softmax(logits / 0.7, -1)[range(len(s.token_ids)), list(s.token_ids)])
    torch.testing.assert_close(run(models["llama"], "padded", groups)[0], torch.cat(expected), atol=1e-5, rtol=0)


def test_library_kernel_equals_the_dense_one(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    groups = random_groups(SHAPES["unequal lengths"])
    dense = run(models["llama"], "shared_prompt", groups)
    monkeypatch.setattr(policy_attention, "DENSE_SCORES", 0)
    assert_equal(run(models["llama"], "shared_prompt", groups), dense)


@pytest.mark.parametrize("recompute", [True, "offload"])
def test_gradient_checkpointing_does_not_change_the_result(models: dict[str, Path], recompute: Any) -> None:
    groups = random_groups(SHAPES["unequal lengths"])
    assert_equal(
        run(models["qwen3"], "shared_prompt", groups, gradient_checkpointing=recompute),
        run(models["qwen3"], "shared_prompt", groups),
    )


def test_adapter_is_trainable_and_can_be_disabled(models: dict[str, Path]) -> None:
    groups = random_groups(SHAPES["unequal lengths"])
    lora = LoraConfig(rank=2, target_modules=("q_proj", "up_proj"))
    model = load_policy(models["qwen3"], dtype=torch.float32, layout="shared_prompt", temperature=0.7, lora=lora)
    trainable = {name.split(".")[-3] for name, p in model.named_parameters() if p.requires_grad}
    assert trainable == {"lora_A", "lora_B"}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    [[microbatch]] = pack(groups, budget=10**6)
    batch = build_batch(groups, microbatch, model.layout)
    base, _, _ = run(models["qwen3"], "padded", groups)
    assert (model(batch)[0] - base).abs().max() > 1e-2
    with model.without_adapter():
        torch.testing.assert_close(model(batch)[0], base, atol=1e-5, rtol=0)


def test_sliding_windows_fall_back_to_padding_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path / "mistral", "Mistral", sliding_window=4)
    with caplog.at_level(logging.WARNING):
        model = load_policy(path, dtype=torch.float32, layout="shared_prompt")
    assert model.layout == "padded"
    assert [r.levelname for r in caplog.records if "trainer.attention" in r.message] == ["WARNING"]


@pytest.mark.parametrize(
    ("kind", "keys", "padded"),
    [
        ("Qwen2", {"use_sliding_window": False, "sliding_window": 131072}, False),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}, True),
        (
            "Qwen2",
            {"use_sliding_window": True, "sliding_window": 4, "num_hidden_layers": 2, "max_window_layers": 2},
            False,
        ),
        ("Mistral", {"sliding_window": 4}, True),
        ("Mistral", {"sliding_window": None}, False),
        ("Gemma2", {"sliding_window": 4}, True),
        ("Llama", {"attention_dropout": 0.1}, True),
    ],
)
def test_layout_is_read_from_attributes_as_from_the_file(
    tmp_path: Path, kind: str, keys: dict[str, Any], padded: bool
) -> None:
    """`hamr plan` has the file only. Older files lack what transformers derives from other keys."""
    config = getattr(transformers, f"{kind}Config")(**keys)
    assert bool(padding_reason(config)) == padded
    assert bool(padding_reason(types.SimpleNamespace(**config.to_dict()))) == padded
    assert bool(padding_reason(types.SimpleNamespace(**keys))) == padded


def test_head_with_more_than_one_layer_is_rejected(tmp_path: Path) -> None:
    path = saved(tmp_path / "gemma", "Gemma2", final_logit_softcapping=30.0)
    with pytest.raises(ConfigError, match="final_logit_softcapping"):
        load_policy(path, dtype=torch.float32, layout="shared_prompt")


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("Qwen3Moe", {"num_experts": 4}),
        ("Mixtral", {"num_local_experts": 4}),
        ("DeepseekV3", {"n_routed_experts": 4}),
        ("Llama4", {"text_config": {"num_local_experts": 4}}),
        ("Qwen3VLMoe", {"text_config": {"num_experts": 4}}),
        ("Dbrx", {"ffn_config": {"moe_num_experts": 4}}),
    ],
)
def test_mixture_of_experts_is_refused_by_name(tmp_path: Path, kind: str, keys: dict[str, Any]) -> None:
    """Before its weights are read: the folder has none. transformers has several names for the number."""
    getattr(transformers, f"{kind}Config")(**keys).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"it is a mixture of experts \(\w+_experts=4\), .*; use a dense model"):
        load_policy(tmp_path, dtype=torch.float32, layout="shared_prompt")


def test_empty_micro_batch_gives_zero_gradients_for_every_weight(models: dict[str, Path]) -> None:
    model = load_policy(models["llama"], dtype=torch.float32, layout="shared_prompt")
    batch = build_batch([], (), "shared_prompt")
    logprobs, entropies = model(batch)
    terms = policy_loss(logprobs, None, batch.advantages_N, batch.mask_N, normaliser=1.0, entropies=entropies)
    terms.loss.backward()
    assert terms.sums["tokens"].item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(
    ("sequence", "said"),
    [
        (TrainSequence(token_ids=()), "0 tokens"),
        (TrainSequence(token_ids=(1, 2), old_logprobs=(-1.0,)), "old_logprobs has 1"),
        (TrainSequence(token_ids=(1, 2), mask=(True,)), "mask has 1"),
    ],
)
def test_malformed_sequences_are_rejected(sequence: TrainSequence, said: str) -> None:
    groups = [TrainGroup(prompt_ids=(1,), sequences=(sequence,))]
    with pytest.raises(ValueError, match=said):
        build_batch(groups, pack(groups, budget=10)[0][0], "shared_prompt")


# --- the head alone ---


def head_inputs(rows: int = 6) -> tuple[Any, Any, Any, Any]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(rows, 5, generator=generator, dtype=torch.float64).float().requires_grad_()
    weight = torch.randn(11, 5, generator=generator).requires_grad_()
    bias = torch.randn(11, generator=generator).requires_grad_()
    return hidden, weight, bias, torch.randint(11, (rows,), generator=generator)


def plain_head(hidden: Any, weight: Any, bias: Any, targets: Any, temperature: float) -> tuple[Any, Any]:
    distribution = torch.log_softmax((hidden @ weight.t() + bias) / temperature, -1)
    return distribution.gather(1, targets[:, None])[:, 0], -(distribution.exp() * distribution).sum(-1)


@pytest.mark.parametrize("keep_bytes", [1 << 30, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_head_agrees_with_log_softmax_and_its_gradients(
    monkeypatch: pytest.MonkeyPatch, keep_bytes: int, temperature: float
) -> None:
    """Stored or recomputed in blocks of two rows, the numbers are the same."""
    monkeypatch.setattr(policy_head, "KEEP_BYTES", keep_bytes)
    monkeypatch.setattr(policy_head, "_CACHED_FLOATS", 22)
    hidden, weight, bias, targets = head_inputs()
    results = []
    for head in (token_logprobs, plain_head):
        logprobs, entropies = head(hidden, weight, bias, targets, temperature)
        loss = (logprobs * torch.arange(6)).sum() + (entropies * torch.arange(6, 12)).sum()
        results.append((logprobs, entropies, *torch.autograd.grad(loss, (hidden, weight, bias))))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)


def test_weight_gradient_of_many_blocks_keeps_small_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bfloat16 sum of 256 blocks would be off by several per cent."""
    torch.manual_seed(0)
    hidden, targets = torch.rand(4096, 4).bfloat16() + 0.5, torch.randint(8, (4096,))
    weight = torch.randn(8, 4).bfloat16().requires_grad_()
    monkeypatch.setattr(policy_head, "KEEP_BYTES", 16 * 8 * 2)
    token_logprobs(hidden, weight, None, targets)[0].sum().backward()
    exact = weight.detach().double().requires_grad_()
    torch.log_softmax(hidden.double() @ exact.t(), -1).gather(1, targets[:, None]).sum().backward()
    assert exact.grad is not None and weight.grad is not None
    assert (weight.grad - exact.grad).norm() < 0.01 * exact.grad.norm()


def test_two_class_head_matches_hand_computed_values() -> None:
    """Logits 0 and ln 3: p = (1/4, 3/4)."""
    hidden = torch.tensor([[1.0]])
    weight = torch.tensor([[0.0], [1.0986123]])
    logprobs, entropies = token_logprobs(hidden, weight, None, torch.tensor([1]))
    assert logprobs.item() == pytest.approx(-0.287682, abs=1e-6)
    assert entropies.item() == pytest.approx(0.562335, abs=1e-6)


def test_empty_head_input_stays_differentiable() -> None:
    hidden, weight, bias, targets = head_inputs(rows=0)
    logprobs, entropies = token_logprobs(hidden, weight, bias, targets)
    (logprobs.sum() + entropies.sum()).backward()
    assert not weight.grad.any()
