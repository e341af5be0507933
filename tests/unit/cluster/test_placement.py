"""Placement of a run on the nodes of a cluster, computed without Ray, and one-line errors for what does not fit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.cluster.placement import Node, check_placement, describe_placement, matches, place, plan_lines
from hamr.cluster.resource_requests import ResourceRequest, demands, learners, ray_options, replica_resources
from hamr.config.schema import Config
from hamr.errors import CapacityError


def config(**sections: object) -> Config:
    """Trainer and rollout worker 0.5 CPU each, router 0.1, two pools of 0.5 by default."""
    return Config.model_validate({"data": {"type": "sage"}} | sections)


def judge(**section: object) -> dict[str, object]:
    return {
        "judge": {"role": "judge", "prompt": "judge.en"} | section,
        "reranker": {"role": "reranker", "prompt": "reranker.en"},
    }


def node(name: str, cpus: float, gpus: float = 0.0, labels: Mapping[str, str] | None = None, **more: float) -> Node:
    return Node(name=name, resources={"CPU": cpus, **({"GPU": gpus} if gpus else {}), **more}, labels=labels or {})


def want(
    name: str, count: int, strategy: str = "spread", per_node: int | None = None, **resources: float
) -> ResourceRequest:
    return ResourceRequest(
        key=name,
        section=name,
        count=count,
        resources=resources,
        strategy=strategy,
        per_node=per_node,  # type: ignore[arg-type]
    )


def test_pools_spread_and_trainers_pack() -> None:
    nodes = [node(name, 4) for name in "abc"]
    spread, packed = place([want("pool", 4, CPU=1.0), want("ranks", 4, "pack", CPU=1.0)], nodes)
    assert sorted(spread.placed.values()) == [1, 1, 2]
    assert len(packed.placed) == 2, "no node has four left, so two are as few as can be"


def test_gpu_requests_are_placed_first_and_others_avoid_gpu_nodes() -> None:
    nodes = [node("gpu", 8, 8), node("cpu", 8)]
    small, large = place([want("pool", 8, CPU=1.0), want("judge", 2, CPU=4.0, GPU=4.0)], nodes)
    assert large.placed == {"gpu": 2}
    assert small.placed == {"cpu": 8}


def test_fractional_units_share_a_gpu_and_whole_ones_need_one_node() -> None:
    nodes = [node("a", 8, 1), node("b", 8, 1)]
    halves, whole = place([want("half", 2, "pack", GPU=0.5), want("whole", 1, GPU=1.0)], nodes)
    assert [row.missing for row in (halves, whole)] == [0, 0]
    [double] = place([want("double", 1, GPU=2.0)], nodes)
    assert double.missing == 1


def test_replicas_per_node_are_limited() -> None:
    [row] = place([want("pool", 5, per_node=2, CPU=0.1)], [node("a", 8), node("b", 8)])
    assert (row.placed, row.missing) == ({"a": 2, "b": 2}, 1)


@given(
    counts=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0, 3.0])), min_size=1, max_size=4),
    sizes=st.lists(st.integers(0, 8), min_size=1, max_size=4),
    strategy=st.sampled_from(["spread", "pack", "strict_pack"]),
)
def test_placement_never_exceeds_node_resources(
    counts: list[tuple[int, float]], sizes: list[int], strategy: str
) -> None:
    nodes = [node(f"n{i}", size) for i, size in enumerate(sizes)]
    rows = place([want(f"d{i}", n, strategy, CPU=cpu) for i, (n, cpu) in enumerate(counts)], nodes)
    for each in nodes:
        taken = sum(row.placed.get(each.name, 0) * row.demand.resources["CPU"] for row in rows)
        assert taken <= each.resources["CPU"] + 1e-9
    for row in rows:
        assert 0 <= row.missing <= row.demand.count
        assert strategy != "strict_pack" or len(row.placed) <= 1


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5), count=st.integers(1, 12), cpu=st.integers(1, 4))
def test_equal_units_are_placed_iff_enough_gaps_exist(sizes: list[int], count: int, cpu: int) -> None:
    [row] = place([want("d", count, CPU=float(cpu))], [node(f"n{i}", size) for i, size in enumerate(sizes)])
    assert row.missing == max(0, count - sum(size // cpu for size in sizes))


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [("a", True), ("b", False), ("!a", False), ("!b", True), ("in(x, a)", True), ("!in(x,a)", False), ("!in(x)", True)],
)
def test_label_selectors_match_those_of_ray(wanted: str, fits: bool) -> None:
    assert matches({"zone": "a"}, {"zone": wanted}) is fits


def test_node_without_the_label_matches_only_negation() -> None:
    assert not matches({}, {"zone": "a"})
    assert matches({}, {"zone": "!a"})


# --- refusing ----------------------------------------------------------------------------------


def test_unit_larger_than_every_node_is_reported() -> None:
    asked = config(pools=judge(engine={"num_gpus": 4, "tensor_parallel_size": 4}))
    with pytest.raises(CapacityError) as refused:
        check_placement(asked, [node("a", 8, 2), node("b", 8, 2)])
    assert refused.value.where == "pools.judge.engine.num_gpus"
    assert refused.value.value == 4
    assert "no node has that much GPU free (at most 2); lower it to 2 or less" in str(refused.value)
    assert refused.value.exit_code == 2


def test_missing_custom_resource_is_reported() -> None:
    asked = config(pools=judge(engine={"custom_resources": {"big_disk": 1}}))
    with pytest.raises(CapacityError, match=r"pools\.judge\.engine\.custom_resources\.big_disk: 1\.0: no node"):
        check_placement(asked, [node("a", 8)])
    rows = check_placement(asked, [node("a", 1.6), node("b", 1, big_disk=1)])
    [row] = [r for r in rows if "judge" in r.demand.key]
    assert row.placed == {"b": 1}


def test_unknown_labels_are_reported_with_existing_values() -> None:
    asked = config(pools=judge(engine={"node_labels": {"zone": "west"}}))
    with pytest.raises(CapacityError, match=r"pools\.judge\.engine\.node_labels: .*values of these keys: zone=east"):
        check_placement(asked, [node("a", 8, labels={"zone": "east", "other": "1"})])


def test_total_over_capacity_is_rejected_as_on_one_machine() -> None:
    with pytest.raises(CapacityError, match=r"pools\.judge\.replicas: 12: 12 x 0\.5 CPU of the 7\.6"):
        check_placement(config(pools=judge(replicas=12)), [node("a", 2), node("b", 2)])


def test_fragmented_capacity_is_rejected() -> None:
    """4.9 CPUs suffice in total for 1.6 + 2 x 1.5, but only one gap of 1.5 exists."""
    asked = config(pools=judge(replicas=2, engine={"num_cpus": 1.5}))
    with pytest.raises(CapacityError) as refused:
        check_placement(asked, [node("a", 2.9), node("b", 1), node("c", 1)])
    assert (refused.value.where, refused.value.value) == ("pools.judge.replicas", 2)
    assert "1 of them fit with the rest; each needs 1.5 CPU on one node" in str(refused.value)
    assert "lower it to 1 or less" in str(refused.value)
    check_placement(asked, [node("a", 1.6), node("b", 1.5), node("c", 1.5)])


def test_shared_memory_transfer_places_trainers_with_engines() -> None:
    asked = config(trainer={"ranks": 2, "num_cpus": 1.0}, rollout={"workers": 2, "engine": {"num_cpus": 1.0}})
    [together] = learners(asked)
    assert together.bundles() == [{"CPU": 1.0}] * 4
    with pytest.raises(CapacityError, match=r"rollout\.transfer: 'shared_memory': .*4 CPU have to be free on one"):
        check_placement(asked, [node("a", 3), node("b", 3)])
    check_placement(asked, [node("a", 4), node("b", 2)])


def test_nccl_transfer_may_separate_trainers_and_engines() -> None:
    gpu = {"num_cpus": 0, "num_gpus": 1}
    asked = config(
        trainer={"ranks": 2, "backend": "nccl", **gpu}, rollout={"workers": 2, "transfer": "nccl", "engine": gpu}
    )
    ranks, workers, *_ = check_placement(asked, [node("a", 4, 2), node("b", 4, 2)])
    assert len(ranks.placed) == 1, "packed"
    assert len(workers.placed) == 1, "the node that is left"


def test_colocated_rank_and_engine_share_one_bundle() -> None:
    asked = config(
        trainer={"ranks": 2, "num_cpus": 1, "num_gpus": 0.4, "backend": "nccl"},
        rollout={"workers": 2, "colocated": True, "engine": {"num_cpus": 1, "num_gpus": 0.6}},
    )
    [together] = learners(asked)
    assert together.bundles() == [{"CPU": 2.0, "GPU": 1.0}] * 2
    check_placement(asked, [node("a", 8, 2)])
    with pytest.raises(CapacityError, match="GPU"):
        check_placement(asked, [node("a", 8, 1)])


HALF = {"num_gpus": 0.5, "backend": "nccl"}


@pytest.mark.parametrize(
    ("trainer", "rollout", "says"),
    [
        ({}, {"colocated": True}, "set shares with a sum of at most 1"),
        ({"num_gpus": 0.6}, {"colocated": True, "engine": {"num_gpus": 0.6}}, "set shares with a sum of at most 1"),
        (HALF | {"ranks": 2}, {"colocated": True, "engine": {"num_gpus": 0.5}}, "make them equal"),
        ({"num_gpus": 0.5}, {"colocated": True, "engine": {"num_gpus": 0.5}}, "computes on a CPU"),
        ({}, {"transfer": "nccl", "engine": {"num_gpus": 1}}, "whose weights are on a CPU"),
        (
            HALF,
            {"colocated": True, "transfer": "nccl", "engine": {"num_gpus": 0.5}},
            "NCCL cannot have two ranks on one GPU",
        ),
        ({}, {"transfer": "ipc"}, "rank and engine on one GPU"),
        ({"offload_optimizer": True, "zero_stage": 0}, {}, r"set trainer\.zero_stage=1"),
        ({"attention_kernel": "flash"}, {}, r"set backend='nccl', or attention_kernel='auto'"),
        ({"use_liger_kernel": True}, {}, r"set backend='nccl', or use_liger_kernel='auto'"),
        (HALF | {"attention_kernel": "flash", "dtype": "float32"}, {}, "set dtype='bfloat16', or"),
        ({"attention_kernel": "flex"}, {}, r"no backward pass on CPUs: set backend='nccl', or attention_kernel='auto'"),
        (HALF | {"attention_kernel": "flex", "attention": "padded"}, {}, "set attention='shared_prompt', or"),
        ({"node_labels": {"z": "a"}}, {"engine": {"node_labels": {"z": "b"}}}, "give both the same"),
        ({"num_gpus": 1.5}, {}, "round it"),
        ({"custom_resources": {"GPU": 1}}, {}, "set num_gpus"),
        ({}, {"engine": {"tensor_parallel_size": 4, "num_gpus": 1}}, "set num_gpus=4"),
        ({}, {"engine": {"tensor_parallel_size": 4}}, "set num_gpus=4"),
        ({}, {"engine": {"num_gpus": 2}}, "one shard uses one GPU: set num_gpus=1"),
        ({"num_gpus": 1}, {}, "reserve and not use; set backend='nccl'"),
        ({"schedule": "cosine", "learning_rate": 1e-5, "min_learning_rate": 1e-4}, {}, "lower the minimum"),
    ],
)
def test_contradictions_name_the_remedy(trainer: dict, rollout: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        config(trainer=trainer, rollout=rollout)


@pytest.mark.parametrize(
    "trainer",
    [
        {},
        {"attention": "padded"},
        {"attention": "padded", "attention_kernel": "sdpa"},
        HALF | {"attention_kernel": "flex", "dtype": "float32"},
        HALF | {"attention_kernel": "flash", "attention": "packed", "dtype": "bfloat16"},
    ],
    ids=str,
)
def test_attention_kernel_of_the_layout_and_device_is_accepted(trainer: dict) -> None:
    config(trainer=trainer)


@pytest.mark.parametrize(
    ("changed", "remedy"),
    [
        ({"experiment": {"asynchrony": {"max_policy_age": 1}}}, "set it to 0"),
        ({"algorithm": {"dynamic_sampling": {"oversample": 1.7, "surplus": "keep"}}}, "set it to abort"),
    ],
)
def test_colocated_engines_refuse_generation_during_training(changed: dict, remedy: str) -> None:
    given = {"trainer": HALF, "rollout": {"colocated": True, "engine": {"num_gpus": 0.5}}}
    with pytest.raises(ValueError, match=f"sleeps during training: {remedy}"):
        config(**given, **changed)


def test_elastic_cluster_lists_unplaced_units() -> None:
    asked = config(pools=judge(replicas=6), cluster={"elastic": True})
    lines = describe_placement(asked, [node("a", 3)])
    assert any("pools.judge" in line and "not placed" in line for line in lines)
    with pytest.raises(CapacityError):
        describe_placement(config(pools=judge(replicas=6)), [node("a", 3)])


def test_plan_is_rendered_as_a_table() -> None:
    nodes = [node("a", 2), node("b", 1)]
    lines = plan_lines(check_placement(config(pools=judge(replicas=2)), nodes), nodes)
    assert lines[0].startswith("plan: 2 nodes; free after it: a: ")
    assert len(lines) == 5
    assert any(line.split()[:5] == ["pools.judge", "2", "x", "0.5", "CPU"] for line in lines)


def test_resources_become_ray_options() -> None:
    assert ray_options({"CPU": 0.5, "GPU": 1.0, "disk": 2.0}) == {
        "num_cpus": 0.5, "num_gpus": 1.0, "resources": {"disk": 2.0},
    }  # fmt: skip
    assert ray_options({}) == {"num_cpus": 0.0, "num_gpus": 0.0}
    [pool] = [d for d in demands(config(pools=judge(max_replicas_per_node=2))) if "judge" in d.key]
    assert pool.per_node == 2
    remote = config(pools=judge(type="openai", model="m", endpoint="http://h/v1", engine={"num_gpus": 1}))
    assert replica_resources(remote.pools["judge"]) == {"CPU": 0.1}
