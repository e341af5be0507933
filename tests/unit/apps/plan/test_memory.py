"""The shipped configurations for GPUs fit the hardware that they name."""

from __future__ import annotations

import math
import re

import pytest

from hamr.apps.plan.build import build_workload, output_tokens, places, response_tokens
from hamr.apps.plan.costs import GIB, GPUS, RESTING_GIB, TRANSFER_GIB, Memory, engine_memory, rank_memory
from hamr.apps.plan.models import model_size
from hamr.cluster.placement import check_placement
from hamr.config.load import load_config
from tests.docs_pages import DOCS
from tests.unit.cluster.test_placement import node

HARDWARE = {
    "gpu_24gb": [node("a", 8, 1)],
    "gpu_80gb": [node("a", 16, 1)],
    "gpu_node": [node("a", 64, 8)],
    "gpu_two_nodes": [node("a", 64, 8), node("b", 64, 8)],
}


def memory_of(*overrides: str) -> dict[str, Memory]:
    """Return the memory of a rank and of engines that have all concurrent requests in their cache."""
    config = load_config(list(overrides))
    workload, gpu, rollout = build_workload(config, None), GPUS[config.plan.gpu], config.rollout
    engines = {
        f"pools.{name}": (
            pool.model,
            pool.engine,
            places(pool),
            min(
                config.plan.prompt_tokens + response_tokens(config) + output_tokens(config, name, workload),
                pool.max_context,
            ),
        )
        for name, pool in config.pools.items()
    }
    held = min(rollout.engine.max_num_seqs, math.ceil(workload.rounds[0] * workload.samples / rollout.workers))
    tokens = config.plan.prompt_tokens + response_tokens(config)
    engines["rollout.workers"] = (config.model.path, rollout.engine, held, tokens)
    found = {
        part: engine_memory(
            model_size(part, model), gpu, engine.tensor_parallel_size, sequences=sequences, tokens=tokens,
            utilisation=engine.gpu_memory_utilization,
        )
        for part, (model, engine, sequences, tokens) in engines.items()
        if engine.num_gpus
    }  # fmt: skip
    return found | rank_memory(config, model_size("model.path", config.model.path))


@pytest.mark.parametrize("name", HARDWARE)
def test_configuration_fits_its_hardware(name: str) -> None:
    config = load_config([f"experiment={name}"])
    check_placement(config, HARDWARE[name])
    parts = memory_of(f"experiment={name}")
    assert all(memory.fits for memory in parts.values()), {part: m for part, m in parts.items() if not m.fits}
    if config.rollout.colocated:
        # The sleeping side keeps its context; the other one must not count on the whole GPU.
        assert parts["trainer.ranks"].have_gib + RESTING_GIB <= 80


@pytest.mark.parametrize("name", HARDWARE)
def test_page_shows_the_memory_that_the_plan_computes(name: str) -> None:
    page = (DOCS / "how-to" / "gpus.md").read_text()
    [row] = re.findall(rf"^\| `{name}` \|.*\|$", page, re.MULTILINE)
    shown = [cell.strip() for cell in row.strip("|").split("|")[-2:]]
    parts = memory_of(f"experiment={name}")
    assert shown == [
        f"{parts[part].total_gib:.0f} of {parts[part].have_gib:.0f}" for part in ("trainer.ranks", "rollout.workers")
    ]


def test_memory_of_a_step_follows_the_settings_of_the_trainer() -> None:
    base, parameters = "experiment=gpu_80gb", 4.02e9
    step = memory_of(base)["trainer.ranks"]
    assert step.weights_gib == pytest.approx(parameters * (2 + 4) / GIB), "stage 2 sums gradients on the GPU"
    host = memory_of(base)["trainer.ranks, on the host"]
    assert host.total_gib == pytest.approx(parameters * 18 / GIB)
    shared = memory_of(base, "trainer.ranks=4", "rollout.workers=4")["trainer.ranks, on the host"]
    assert shared.have_gib == host.have_gib / 4, "four ranks of one node"
    whole = memory_of(base, "trainer.offload_optimizer=false")["trainer.ranks"]
    assert whole.weights_gib == pytest.approx(parameters * (2 + 4 + 12) / GIB)
    assert memory_of(base, "trainer.gradient_checkpointing=offload")["trainer.ranks"].cache_gib < step.cache_gib / 30
    adapter = memory_of(base, "trainer.offload_optimizer=false", "trainer.lora={rank: 32}")["trainer.ranks"]
    assert adapter.weights_gib == pytest.approx(parameters * (2 + 0.02 * 16) / GIB)
    node = memory_of("experiment=gpu_node", "algorithm.kl.coef=0.001")["trainer.ranks"]
    assert node.weights_gib == pytest.approx(parameters * 20 / 4 / GIB)


@pytest.mark.parametrize(
    ("overrides", "bytes_each"),
    [
        (["experiment=gpu_80gb"], 2),
        (["experiment=gpu_80gb", "trainer.zero_stage=0", "trainer.offload_optimizer=false"], 4),
        (["experiment=gpu_node"], 2 / 4),
        (["experiment=gpu_node", "algorithm.kl.measure=true"], 4 / 4),
    ],
)
def test_rank_beside_a_generating_engine_keeps_its_weights_and_reference(
    overrides: list[str], bytes_each: float
) -> None:
    resting = memory_of(*overrides)["trainer.ranks, while engines generate"]
    assert resting.weights_gib == pytest.approx(4.02e9 * bytes_each / GIB)


def test_rank_beside_an_engine_has_room_for_the_buffer_of_cuda_ipc() -> None:
    part, base = "trainer.ranks, while engines generate", "experiment=gpu_80gb"
    over_ipc, by_file = memory_of(base, "rollout.transfer=ipc"), memory_of(base, "rollout.transfer=shared_memory")
    assert over_ipc[part].other_gib == by_file[part].other_gib + TRANSFER_GIB
