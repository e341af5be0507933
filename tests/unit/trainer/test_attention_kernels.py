"""FlexAttention and torch's flash-attention give the attention of the padded batch; both run on the CPU here.

torch's two operators for sequences of different lengths have no CPU code: dense functions stand in for it.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch._dynamo.testing import CompileCounter  # noqa: E402

from hamr.algorithms.packing import pack  # noqa: E402
from hamr.config.schema import TrainerConfig, choose_kernel  # noqa: E402
from hamr.errors import ConfigError  # noqa: E402
from hamr.trainer import deepspeed_engine, policy_flex  # noqa: E402
from hamr.trainer.deepspeed_engine import uses_liger  # noqa: E402
from hamr.trainer.policy_attention import shared_prompt_attention  # noqa: E402
from hamr.trainer.policy_batch import _Row, build_batch  # noqa: E402
from hamr.trainer.policy_blocks import block  # noqa: E402
from hamr.trainer.policy_model import load_policy  # noqa: E402
from tests.unit.trainer.test_policy_model import (  # noqa: E402
    SHAPES,
    assert_equal,
    dialogues,
    random_groups,
    run,
    saved,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "qwen3", "Qwen3", tie_word_embeddings=True)


def scores(q: Any, k: Any, ends_q: Any, ends_k: Any, scale: float, causal: bool) -> tuple[Any, Any, Any]:
    """Scores of all queries and keys [H, N, M], -inf outside the sequences, and the keys repeated for query heads."""
    repeats = q.shape[1] // k.shape[1]
    seen = torch.zeros(len(q), len(k), dtype=torch.bool)
    ends = [x.tolist() for x in (ends_q, ends_k)]
    bounds = zip(ends[0], ends[0][1:], ends[1], ends[1][1:], strict=False)
    for q0, q1, k0, k1 in bounds:
        inside = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
        seen[q0:q1, k0:k1] = inside.tril(k1 - k0 - (q1 - q0)) if causal else inside
    keys = k.repeat_interleave(repeats, dim=1)
    found = torch.einsum("nhd,mhd->hnm", q, keys) * scale
    return found.masked_fill(~seen, -torch.inf), keys, repeats


def forward(
    q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any, longest_q: int, longest_k: int, dropout: float, causal: bool,
    debug: bool, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    assert (longest_q, longest_k, dropout) == (int(ends_q.diff().max()), int(ends_k.diff().max()), 0.0)
    assert scale is not None
    found, _, repeats = scores(q.float(), k.float(), ends_q, ends_k, scale, causal)
    out = torch.einsum("hnm,mhd->nhd", found.softmax(-1), v.float().repeat_interleave(repeats, dim=1)).to(q.dtype)
    empty = torch.empty(0)
    return out, found.logsumexp(-1), empty, empty.clone(), empty.clone()


def backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, ends_q: Any, ends_k: Any, longest_q: int, longest_k: int,
    dropout: float, causal: bool, state: Any, unused: Any, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    """As the kernel does: probabilities from the given log-sum-exp, their gradients from the given output."""
    assert scale is not None
    dtype = q.dtype
    dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
    found, keys, repeats = scores(q, k, ends_q, ends_k, scale, causal)
    probabilities = (found - lse[..., None]).exp()
    values = v.repeat_interleave(repeats, dim=1)
    of_output = (dout * out).sum(-1).T[..., None]
    of_scores = probabilities * (torch.einsum("nhd,mhd->hnm", dout, values) - of_output) * scale
    dq = torch.einsum("hnm,mhd->nhd", of_scores, keys)
    dk = torch.einsum("hnm,nhd->mhd", of_scores, q).unflatten(1, (-1, repeats)).sum(2)
    dv = torch.einsum("hnm,nhd->mhd", probabilities, dout).unflatten(1, (-1, repeats)).sum(2)
    return tuple(x.to(dtype) for x in (dq, dk, dv))


@pytest.fixture
def flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses the backward pass of FlexAttention on a CPU, although its dense computation has one."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)


@contextmanager
def flash_on_cpu(backward: Any = backward) -> Iterator[None]:
    """Give torch's operators these implementations for tensors on the CPU."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", forward, "CPU")
    library.impl("_flash_attention_backward", backward, "CPU")
    yield
    library._destroy()


@pytest.fixture
def flash() -> Iterator[None]:
    with flash_on_cpu():
        yield


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", ["flex", "flash"])
def test_kernels_agree_with_the_padded_batch(model: Path, flex: None, flash: None, kernel: str, shape: str) -> None:
    groups = random_groups(SHAPES[shape])
    assert_equal(run(model, "shared_prompt", groups, kernel=kernel), run(model, "padded", groups))


@pytest.mark.parametrize("kernel", ["flex", "flash"])
def test_kernels_follow_prefixes_of_two_parts(model: Path, flex: None, flash: None, kernel: str) -> None:
    [(policy, _)] = [(g.prompt_ids, g) for g in random_groups([(48, [1])], seed=1)]
    groups = [
        dataclasses.replace(g, prompt_ids=policy + g.prompt_ids) for g in random_groups(SHAPES["unequal lengths"])
    ]
    [[microbatch]] = pack(groups, budget=10**6)
    assert max(len(b.prefix) for b in build_batch(groups, microbatch, "shared_prompt").blocks) == 2
    assert_equal(run(model, "shared_prompt", groups, kernel=kernel), run(model, "padded", groups))


@pytest.mark.parametrize("kernel", ["flex", "flash"])
def test_kernels_follow_prefixes_of_many_turns(model: Path, flex: None, flash: None, kernel: str) -> None:
    groups = dialogues(4)
    assert_equal(run(model, "shared_prompt", groups, kernel=kernel), run(model, "padded", groups))


@pytest.mark.deep
def test_flex_is_compiled_once_with_and_once_without_gradients(monkeypatch: pytest.MonkeyPatch, flex: None) -> None:
    """Another row must not be compiled anew: at torch's limit it would compute the full matrix of scores."""
    counter = CompileCounter()
    monkeypatch.setattr(policy_flex, "COMPILED_ON", ("cpu",))
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", torch._dynamo.config.recompile_limit)
    policy_flex._compile.cache_clear()
    chain = (block((), 0, (100,)), block([(0, 100)], 100, (50,)), block([(0, 100), (100, 150)], 150, (40,)))
    # The first row has two blocks of 128 tokens, as many as heads and parts of a prefix.
    turns = (*chain, block([(0, 100), (100, 150), (150, 190)], 190, (30,)))
    for tokens, blocks in ((256, chain), (512, chain[:2]), (384, chain[:1]), (256, turns), (512, turns)):
        for gradients in (False, True):
            q = torch.randn(1, 4, tokens, 8, requires_grad=gradients)
            kv = torch.randn(1, 2, tokens, 8, requires_grad=gradients)
            with torch.set_grad_enabled(gradients):
                policy_flex.attend(q, kv, kv, policy_flex.block_mask(blocks, tokens, "cpu"), 0.25)
    policy_flex._compile.cache_clear()
    assert counter.frame_count == 6, "the mask, and attention with and without gradients, for two parts and for more"


@pytest.mark.parametrize(("tokens", "row"), [(1, 256), (128, 256), (257, 384), (4096, 4096)])
def test_rows_on_gpus_have_whole_blocks_of_flex_attention(tokens: int, row: int) -> None:
    short = _Row("cuda")
    short.add((), [(7,) * tokens])
    columns = short.columns([])
    assert columns["input_ids_BT"].shape == columns["position_ids_BT"].shape == (1, row)  # type: ignore[attr-defined]


@pytest.mark.parametrize("keyword", ["s_aux", "softcap", "sliding_window", "of_another_version"])
def test_keywords_that_may_change_attention_are_refused(keyword: str) -> None:
    x = torch.zeros(1, 2, 3, 4)
    row = types.SimpleNamespace()
    with pytest.raises(TypeError, match=f"uses {keyword}; set trainer.attention=padded"):
        shared_prompt_attention(torch.nn.Identity(), x, x, x, None, hamr_row=row, **{keyword: 4})  # type: ignore[arg-type]


def test_attention_to_later_tokens_is_refused() -> None:
    x: Any = torch.zeros(1, 2, 3, 4)
    with pytest.raises(TypeError, match="uses is_causal=False; set trainer.attention=padded"):
        shared_prompt_attention(x, x, x, x, None, hamr_row=types.SimpleNamespace(), is_causal=False)  # type: ignore[arg-type]


def test_kernel_is_chosen_by_device() -> None:
    assert choose_kernel("auto", "cuda") == "flex"
    assert choose_kernel("auto", "cpu") == "sdpa"
    assert choose_kernel("sdpa", "cuda") == "sdpa"
    assert TrainerConfig(backend="nccl", num_gpus=1).kernel == "flex"
    assert TrainerConfig(backend="nccl", num_gpus=1, attention="padded").kernel == "sdpa"


@pytest.fixture
def liger(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the calls of Liger, whose kernels need a GPU. It knows models of type qwen3."""
    calls: list[dict[str, Any]] = []
    module = types.ModuleType("liger_kernel.transformers")
    module.monkey_patch = types.SimpleNamespace(  # type: ignore[attr-defined]
        MODEL_TYPE_TO_APPLY_LIGER_FN={"qwen3": None},
        _apply_liger_kernel_to_instance=lambda model, **options: calls.append(options),
    )
    monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", module)
    return calls


def test_liger_leaves_head_and_loss_to_hamr(model: Path, liger: list[dict[str, Any]]) -> None:
    policy = load_policy(model, dtype=torch.float32, layout="shared_prompt", liger=True)
    assert policy.liger
    assert liger == [{"cross_entropy": False, "fused_linear_cross_entropy": False}]


def test_model_unknown_to_liger_keeps_its_code(
    tmp_path: Path, liger: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    llama = saved(tmp_path / "llama", "Llama", tie_word_embeddings=True)
    assert not load_policy(llama, dtype=torch.float32, layout="shared_prompt", liger=True).liger
    assert not liger
    assert "does not know models of type llama" in caplog.text


@pytest.mark.parametrize(
    ("wanted", "backend", "installed", "used"),
    [
        ("auto", "nccl", True, True), ("auto", "nccl", False, False), ("auto", "gloo", True, False),
        (True, "nccl", True, True), (False, "nccl", True, False),
    ],
)  # fmt: skip
def test_liger_is_used_on_gpus_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, wanted: Any, backend: Any, installed: bool, used: bool
) -> None:
    monkeypatch.setattr(deepspeed_engine, "find_spec", lambda name: object() if installed else None)
    gpus = float(backend == "nccl")
    assert uses_liger(TrainerConfig(backend=backend, num_gpus=gpus, use_liger_kernel=wanted)) is used


def test_missing_liger_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed_engine, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'hamr\[cuda\]', or set trainer.use_liger_kernel=auto"):
        uses_liger(TrainerConfig(backend="nccl", num_gpus=1, use_liger_kernel=True))
