"""Micro-batches: each sequence exactly once, within the budget, with equal counts on every rank."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hamr.algorithms.packing import (
    PREFIX_BLOCK,
    Layout,
    Microbatch,
    pack,
    shared_prefixes,
    split_minibatches,
    tokens,
)
from hamr.trainer.policy_batch import build_batch
from hamr.types import TrainGroup, TrainSequence


def group(prompt: int, *lengths: int) -> TrainGroup:
    sequences = tuple(TrainSequence(token_ids=tuple(range(n))) for n in lengths)
    return TrainGroup(prompt_ids=tuple(range(prompt)), sequences=sequences)


def sequences_of(plan: tuple[tuple[Microbatch, ...], ...]) -> Counter[tuple[int, int]]:
    return Counter((p.group, s) for rank in plan for microbatch in rank for p in microbatch for s in p.sequences)


groups_strategy = st.lists(
    st.builds(lambda p, n: group(p, *n), st.integers(1, 40), st.lists(st.integers(1, 30), min_size=1, max_size=7)),
    max_size=8,
)
layouts = st.sampled_from(["shared_prompt", "packed", "padded"])


@given(groups_strategy, st.integers(1, 120), st.integers(1, 4), layouts)
def test_plan_has_each_sequence_once_and_equal_micro_batches_per_rank(
    groups: list[TrainGroup], budget: int, ranks: int, layout: Layout
) -> None:
    plan = pack(groups, budget=budget, ranks=ranks, layout=layout)
    wanted = Counter((g, s) for g, group in enumerate(groups) for s in range(len(group.sequences)))
    assert sequences_of(plan) == wanted
    assert len(plan) == ranks
    assert len({len(rank) for rank in plan}) == 1


@given(groups_strategy, st.integers(1, 120), st.integers(1, 4), layouts)
@example([group(30, 30), group(10, 10), group(10, 10)], 120, 1, "padded")
def test_only_a_single_sequence_may_exceed_the_budget(
    groups: list[TrainGroup], budget: int, ranks: int, layout: Layout
) -> None:
    for rank in pack(groups, budget=budget, ranks=ranks, layout=layout):
        for microbatch in rank:
            if (count := sum(len(p.sequences) for p in microbatch)) > 1:
                batch = build_batch(groups, microbatch, layout)
                computed = batch.input_ids_BT.numel() if layout == "padded" else batch.blocks[-1].own.stop
                assert computed + count <= budget  # a completion's last token is not an input


def test_shared_prompt_prefix_counts_once() -> None:
    groups = [group(100, 5), group(90, 5), group(80, 5)]  # 64 tokens in common, and 80 of the first two
    [rank] = pack(groups, budget=64 + 16 + (20 + 10 + 16) + 15)
    assert len(rank) == 1
    assert len(pack(groups, budget=64 + 16 + (20 + 10 + 16) + 14)[0]) == 2


def test_equal_prompts_do_not_share_their_last_block() -> None:
    same = tuple(range(48))
    [prefix] = shared_prefixes([same, same, same])
    assert (prefix.begin, prefix.end, prefix.members) == (0, 32, (0, 1, 2))


def test_turns_of_a_dialogue_share_what_came_before() -> None:
    prompts = [tuple(range(20 * turn)) for turn in range(1, 6)]
    found = shared_prefixes(prompts)
    assert [(p.parent, p.begin, p.end) for p in found] == [(None, 0, 16), (0, 16, 32), (1, 32, 48), (2, 48, 64)]
    assert [p.members for p in found] == [(0, 1, 2, 3, 4), (1, 2, 3, 4), (2, 3, 4), (3, 4)]


prompts_strategy = st.lists(
    st.builds(lambda root, own: tuple(range(root)) + tuple(own), st.sampled_from([0, 5, 16, 30]),
              st.lists(st.integers(0, 1), min_size=1, max_size=70)), max_size=12,
)  # fmt: skip


@given(prompts_strategy)
def test_members_of_a_shared_prefix_have_equal_tokens(prompts: list[tuple[int, ...]]) -> None:
    tree = shared_prefixes(prompts)
    for prefix in tree:
        assert len({prompts[i][: prefix.end] for i in prefix.members}) == 1
        assert len(prefix.members) > 1
        assert all(len(prompts[i]) > prefix.end for i in prefix.members)
        assert prefix.begin == (0 if prefix.parent is None else tree[prefix.parent].end)
        assert prefix.end % PREFIX_BLOCK == 0 < prefix.end - prefix.begin


def computed(prompts: list[tuple[int, ...]]) -> int:
    shared = shared_prefixes(prompts)
    return sum(map(len, prompts)) - sum((p.end - p.begin) * (len(p.members) - 1) for p in shared)


@given(prompts_strategy)
def test_sharing_computes_each_block_of_tokens_once(prompts: list[tuple[int, ...]]) -> None:
    blocks = [{p[:end] for end in range(PREFIX_BLOCK, len(p), PREFIX_BLOCK)} for p in prompts]
    everything = sum(len(p) - PREFIX_BLOCK * len(own) for p, own in zip(prompts, blocks, strict=True))
    assert computed(prompts) == everything + PREFIX_BLOCK * len(set().union(*blocks))


def test_group_token_cost_depends_on_the_layout() -> None:
    g = group(10, 3, 5)
    assert [tokens(g, (0, 1), layout) for layout in ("shared_prompt", "packed", "padded")] == [18, 28, 30]


def test_groups_that_fit_share_a_micro_batch() -> None:
    assert len(pack([group(10, 5, 5), group(10, 5, 5)], budget=40)[0]) == 1


def test_group_over_budget_is_split_and_repeats_its_prompt() -> None:
    [rank] = pack([group(10, 5, 5, 5, 5)], budget=20)
    assert [p.sequences for microbatch in rank for p in microbatch] == [(0, 1), (2, 3)]


def test_single_group_is_split_across_idle_ranks() -> None:
    plan = pack([group(10, 5, 5, 5, 5)], budget=100, ranks=2)
    assert [[p.sequences for p in microbatch] for rank in plan for microbatch in rank] == [[(0, 1)], [(2, 3)]]


def test_a_rank_without_work_gets_an_empty_micro_batch() -> None:
    plan = pack([group(10, 5)], budget=100, ranks=2)
    assert sorted(len(microbatch) for rank in plan for microbatch in rank) == [0, 1]


def test_load_is_balanced_across_ranks() -> None:
    groups = [group(10, n) for n in (50, 40, 30, 20)]
    loads = [sum(tokens(groups[p.group], p.sequences, "shared_prompt") for m in r for p in m)
             for r in pack(groups, budget=200, ranks=2)]  # fmt: skip
    assert loads == [90, 90]


def test_empty_batch_gives_empty_plans() -> None:
    assert pack([], budget=10, ranks=2) == ((), ())


@given(groups_strategy, st.integers(1, 6))
def test_minibatches_keep_order_and_differ_in_size_by_at_most_one(groups: list[TrainGroup], count: int) -> None:
    parts = split_minibatches(groups, count)
    flat = [(g.prompt_ids, s) for part in parts for g in part for s in g.sequences]
    assert flat == [(g.prompt_ids, s) for g in groups for s in g.sequences]
    sizes = [sum(len(g.sequences) for g in part) for part in parts]
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(parts) == min(count, len(flat))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_group_that_fits_one_minibatch_is_not_split(count: int) -> None:
    parts = split_minibatches([group(3, 1, 1), group(4, 2, 2), group(5, 3, 3), group(6, 4, 4)], count)
    assert [len(part) for part in parts] == [4 // count] * count
