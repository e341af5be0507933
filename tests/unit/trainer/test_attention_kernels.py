"""FlexAttention and flash-attn's kernels give the attention of the padded batch; both run on the CPU here.

flash-attn has no CPU code: dense functions with the signatures of its two stand in for it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch._dynamo.testing import CompileCounter  # noqa: E402

from hamr.algorithms.packing import pack  # noqa: E402
from hamr.config.schema import TrainerConfig, choose_kernel  # noqa: E402
from hamr.errors import ConfigError  # noqa: E402
from hamr.trainer import policy_flex  # noqa: E402
from hamr.trainer.policy_attention import shared_prompt_attention  # noqa: E402
from hamr.trainer.policy_batch import _Row, build_batch  # noqa: E402
from hamr.trainer.policy_blocks import block  # noqa: E402
from hamr.trainer.policy_model import load_policy  # noqa: E402
from tests.unit.trainer.test_policy_model import SHAPES, assert_equal, random_groups, run, saved  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "qwen3", "Qwen3", tie_word_embeddings=True)


def scores(
    q: Any, k: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, softmax_scale: float, causal: bool
) -> tuple[Any, Any, Any]:
    """Scores of all queries and keys [H, N, M], -inf outside the sequences, and the keys repeated for query heads."""
    repeats = q.shape[1] // k.shape[1]
    seen = torch.zeros(len(q), len(k), dtype=torch.bool)
    ends = [x.tolist() for x in (cu_seqlens_q, cu_seqlens_k)]
    bounds = zip(ends[0], ends[0][1:], ends[1], ends[1][1:], strict=False)
    for q0, q1, k0, k1 in bounds:
        inside = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
        seen[q0:q1, k0:k1] = inside.tril(k1 - k0 - (q1 - q0)) if causal else inside
    keys = k.repeat_interleave(repeats, dim=1)
    found = torch.einsum("nhd,mhd->hnm", q, keys) * softmax_scale
    return found.masked_fill(~seen, -torch.inf), keys, repeats


def forward(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1, window_size_right: int = -1,
    softcap: float = 0.0, alibi_slopes: Any = None, return_softmax: bool = False, block_table: Any = None,
    leftpad_k: Any = None, seqused_k: Any = None, zero_tensors: bool = False,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    assert max_seqlen_q == int(cu_seqlens_q.diff().max()) and max_seqlen_k == int(cu_seqlens_k.diff().max())
    found, _, repeats = scores(q.float(), k.float(), cu_seqlens_q, cu_seqlens_k, softmax_scale, causal)
    out = torch.einsum("hnm,mhd->nhd", found.softmax(-1), v.float().repeat_interleave(repeats, dim=1)).to(q.dtype)
    return out, found.logsumexp(-1), None, None


def backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, softmax_lse: Any, dq: Any, dk: Any, dv: Any, cu_seqlens_q: Any,
    cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool,
    window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Any, deterministic: bool,
    rng_state: Any = None, zero_tensors: bool = False,
) -> None:  # fmt: skip
    """As the kernel does: probabilities from the given log-sum-exp, their gradients from the given output."""
    dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
    found, keys, repeats = scores(q, k, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal)
    probabilities = (found - softmax_lse[..., None]).exp()
    values = v.repeat_interleave(repeats, dim=1)
    of_output = (dout * out).sum(-1).T[..., None]
    of_scores = probabilities * (torch.einsum("nhd,mhd->hnm", dout, values) - of_output) * softmax_scale
    dq.copy_(torch.einsum("hnm,mhd->nhd", of_scores, keys))
    dk.copy_(torch.einsum("hnm,nhd->mhd", of_scores, q).unflatten(1, (-1, repeats)).sum(2))
    dv.copy_(torch.einsum("hnm,nhd->mhd", probabilities, dout).unflatten(1, (-1, repeats)).sum(2))


@pytest.fixture
def flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses the backward pass of FlexAttention on a CPU, although its dense computation has one."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> None:
    install_flash(monkeypatch)


def install_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("flash_attn.flash_attn_interface")
    module._flash_attn_varlen_forward, module._flash_attn_varlen_backward = forward, backward  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", module)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kernel", ["flex", "flash"])
def test_kernels_agree_with_the_padded_batch(model: Path, flex: None, flash: None, kernel: str, shape: str) -> None:
    groups = random_groups(SHAPES[shape])
    assert_equal(run(model, "shared_prompt", groups, kernel=kernel), run(model, "padded", groups))


@pytest.mark.parametrize("kernel", ["flex", "flash"])
def test_kernels_follow_prefixes_of_two_parts(model: Path, flex: None, flash: None, kernel: str) -> None:
    [(policy, _)] = [(g.prompt_ids, g) for g in random_groups([(40, [1])], seed=1)]
    groups = [
        dataclasses.replace(g, prompt_ids=policy + g.prompt_ids) for g in random_groups(SHAPES["unequal lengths"])
    ]
    [[microbatch]] = pack(groups, budget=10**6)
    assert max(len(b.prefix) for b in build_batch(groups, microbatch, "shared_prompt").blocks) == 2
    assert_equal(run(model, "shared_prompt", groups, kernel=kernel), run(model, "padded", groups))


@pytest.mark.slow
def test_flex_is_compiled_once_with_and_once_without_gradients(monkeypatch: pytest.MonkeyPatch, flex: None) -> None:
    """Another row must not be compiled anew: at torch's limit it would compute the full matrix of scores."""
    counter = CompileCounter()
    monkeypatch.setattr(policy_flex, "COMPILED_ON", ("cpu",))
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=counter))
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", torch._dynamo.config.recompile_limit)
    policy_flex._compile.cache_clear()
    chain = (block((), 0, (100,)), block([(0, 100)], 100, (50,)), block([(0, 100), (100, 150)], 150, (40,)))
    # The first row has two blocks of 128 tokens, as many as heads and parts of a prefix.
    for tokens, blocks in ((256, chain), (512, chain[:2]), (384, chain[:1])):
        for gradients in (False, True):
            q = torch.randn(1, 4, tokens, 8, requires_grad=gradients)
            kv = torch.randn(1, 2, tokens, 8, requires_grad=gradients)
            with torch.set_grad_enabled(gradients):
                policy_flex.attend(q, kv, kv, policy_flex.block_mask(blocks, tokens, "cpu"), 0.25)
    policy_flex._compile.cache_clear()
    assert counter.frame_count == 3, "the mask, and attention with and without gradients"


@pytest.mark.parametrize(("tokens", "row"), [(1, 256), (128, 256), (257, 384), (4096, 4096)])
def test_rows_on_gpus_have_whole_blocks_of_flex_attention(tokens: int, row: int) -> None:
    short = _Row("cuda")
    short.add((), [(7,) * tokens])
    columns = short.columns([])
    assert columns["input_ids_BT"].shape == columns["position_ids_BT"].shape == (1, row)  # type: ignore[attr-defined]


def test_missing_flash_attn_is_one_line_with_the_remedy(model: Path) -> None:
    if "flash_attn" in sys.modules:
        pytest.skip("flash-attn is installed")
    with pytest.raises(ConfigError, match=r"pip install 'hamr\[flash\]', or set trainer.attention_kernel=flex"):
        load_policy(model, dtype=torch.bfloat16, layout="shared_prompt", kernel="flash")


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


def parameters_of(function: Any) -> set[str]:
    """Return the names of the parameters, also of a custom operator, whose call takes any."""
    return set(inspect.signature(getattr(function, "_init_fn", function)).parameters)


def test_parameters_of_a_custom_operator_are_those_of_its_function() -> None:
    """flash-attn registers its functions as operators."""

    @torch.library.custom_op("hamr_test::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    assert parameters_of(scaled) == {"x", "factor"}


def test_signatures_are_those_that_the_kernels_are_called_with() -> None:
    """The installed library, where there is one, takes what is passed."""
    library = pytest.importorskip("flash_attn.flash_attn_interface")
    for name, ours in (("_flash_attn_varlen_forward", forward), ("_flash_attn_varlen_backward", backward)):
        assert set(inspect.signature(ours).parameters) <= parameters_of(getattr(library, name))


def test_kernel_is_chosen_by_device() -> None:
    assert choose_kernel("auto", "cuda") == "flex"
    assert choose_kernel("auto", "cpu") == "sdpa"
    assert choose_kernel("sdpa", "cuda") == "sdpa"
    assert TrainerConfig(backend="nccl", num_gpus=1).kernel == "flex"
    assert TrainerConfig(backend="nccl", num_gpus=1, attention="padded").kernel == "sdpa"
