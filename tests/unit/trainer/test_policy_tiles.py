"""Tiled attention equals plain attention of each segment after its own copy of the prefix."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from hamr.trainer.policy_blocks import Block, block  # noqa: E402
from hamr.trainer.policy_tiles import TILE_COST, TiledAttention, join, tiling  # noqa: E402

WIDTH = 4


@st.composite
def rows(draw: st.DrawFn) -> tuple[tuple[Block, ...], int]:
    """A row as a batch makes it: common beginnings, prompts behind them, completions behind those; and its length."""
    blocks: list[Block] = []
    end = 0

    def add(prefix: tuple[tuple[int, int], ...], lengths: list[int]) -> list[tuple[int, int]]:
        nonlocal end
        blocks.append(block(prefix, end, lengths))
        spans = []
        for length in lengths:
            spans.append((end, end + length))
            end += length
        return spans

    lengths = st.lists(st.integers(1, 9), min_size=1, max_size=3)
    for _ in range(draw(st.integers(1, 2))):
        [root] = add((), [draw(st.integers(1, 20))])
        for prompt in add((root,), draw(lengths)):
            add((root, prompt), draw(lengths))
    return tuple(blocks), end + draw(st.integers(0, 5))


def plain(q, k, v, blocks, scale):  # type: ignore[no-untyped-def]
    """[H, T, D] queries, [K, T, D] keys and values -> [T, H, D], one stretch at a time; filling gets zeros."""
    repeat = q.shape[0] // k.shape[0]
    out = q.new_zeros(q.shape[1], q.shape[0], q.shape[2])
    for b in blocks:
        start = b.start
        before = [i for span in b.prefix for i in range(*span)]
        for length in b.lengths:
            seen = before + list(range(start, start + length))
            keys, values = (x[:, seen].repeat_interleave(repeat, 0) for x in (k, v))
            scores = q[:, start : start + length] @ keys.transpose(1, 2) * scale
            hidden = ~torch.ones(length, len(seen), dtype=torch.bool).tril(len(before))
            weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
            out[start : start + length] = (weights @ values).transpose(0, 1)
            start += length
    return out


@pytest.mark.slow
@given(rows(), st.sampled_from([(1, 1), (4, 2), (3, 3), (6, 2)]), st.integers(0, 999))
def test_tiled_attention_equals_plain_attention(row, heads, seed) -> None:  # type: ignore[no-untyped-def]
    (blocks, tokens), (query_heads, key_heads) = row, heads
    torch.manual_seed(seed)
    shapes = [(query_heads, tokens, WIDTH), (key_heads, tokens, WIDTH), (key_heads, tokens, WIDTH)]
    given_ = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    plan = tiling(blocks, tokens, query_heads, key_heads, torch.float64)
    out = TiledAttention.apply(*given_, plan, 0.3)
    expected = plain(*given_, blocks, 0.3)
    torch.testing.assert_close(out, expected)
    wanted = torch.randn_like(out)
    found = torch.autograd.grad(out, given_, wanted)
    torch.testing.assert_close(found, torch.autograd.grad(expected, given_, wanted))


def test_key_gradients_are_accumulated_in_float32() -> None:
    """64 segments of one token: a running sum in bfloat16 would stop growing."""
    blocks = (block((), 0, [1]), block(((0, 1),), 1, [1] * 64))
    torch.manual_seed(0)
    q, k, v = (torch.zeros(1, 65, WIDTH, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    out = TiledAttention.apply(q, k, v, tiling(blocks, 65, 1, 1, torch.bfloat16), 1.0)
    out.backward(torch.full_like(out, 1.0 + 2**-7))
    # Equal scores: half of each stretch's gradient, and all of its own.
    assert v.grad[0, 0].tolist() == pytest.approx([33 * (1.0 + 2**-7)] * WIDTH, rel=2**-8)


def test_blocks_are_merged_if_padding_is_cheaper_than_a_tile() -> None:
    alike = [block(((0, 32),), 32 + 64 * i, [16] * 4) for i in range(3)]
    assert join(alike) == [tuple(alike)]
    apart = [block((), 0, [16]), block((), 16, [int(TILE_COST**0.5) * 2] * 3)]
    assert sorted(map(len, join(apart))) == [1, 1]


def test_all_layers_share_the_same_tables() -> None:
    blocks = (block((), 0, [3, 2]),)
    assert tiling(blocks, 5, 2, 1, torch.float32) is tiling(blocks, 5, 2, 1, torch.float32)
