"""Checks before Ray starts."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from hamr.apps.shared import preparation
from hamr.apps.shared.preparation import (
    Codec,
    Prepared,
    check_reranker_context,
    check_room,
    fit_prompts,
    shared_bytes,
)
from hamr.config.load import load_config
from hamr.data.sage_samples import generate_samples
from hamr.data.splits import Splits
from hamr.errors import BadInput, DataError
from hamr.types import Turn


class WordCodec:
    """Prompts as long as their customer's first turn, in words."""

    def prompt(self, sample) -> tuple[int, ...]:
        return tuple(range(len(sample.history[0].content.split())))


@pytest.fixture(scope="module")
def splits() -> Splits:
    return generate_samples(load_config(["experiment=smoke"]).data.sage)


def words(splits: Splits) -> list[int]:
    return sorted(len(WordCodec().prompt(s)) for s in splits.train)


def config(room: int, *more: str):
    return load_config(
        [
            "experiment=smoke",
            f"model.max_context={room + 12}",
            "rollout.max_new_tokens=12",
            *more,
        ]
    )


def test_long_prompts_are_dropped_and_counted(splits: Splits) -> None:
    room = words(splits)[len(splits.train) // 2]
    kept, dropped = fit_prompts(splits, WordCodec(), config(room))
    assert all(len(WordCodec().prompt(s)) <= room for s in (*kept.train, *kept.test))
    assert dropped["train"] == len(splits.train) - len(kept.train) > 0
    prepared = Prepared(config=config(room), model_path=Path(), codec=WordCodec(), splits=kept, dropped=dropped)
    counts = f"rollout.max_new_tokens: {dropped['train']} of {len(splits.train)} in train, "
    assert f"model.max_context={room + 12} less {counts}" in prepared.dropped_note
    assert not replace(prepared, dropped={"train": 0}).dropped_note


def test_scenario_without_fitting_customers_is_rejected_where_prompts_are_customers(splits: Splits) -> None:
    (one, *others), room = splits.train, words(splits)[-1]
    long = replace(
        one,
        history=(Turn(role="customer", content="word " * (room + 8)),),
        meta={**one.meta, "scenario": "long_one"},
    )
    mixed = replace(splits, train=(long, *others))
    assert fit_prompts(mixed, WordCodec(), config(room))[1]["train"] == 1
    says = rf"data.train: 'long_one': each of its 1 samples needs {room + 20} tokens or more, .*={room + 12}; raise it"
    with pytest.raises(DataError, match=says):
        fit_prompts(mixed, WordCodec(), config(room, "env=sage"))


def test_reranker_with_a_shorter_context_than_the_policy_is_rejected() -> None:
    long = "model.max_context=2048"
    with pytest.raises(BadInput, match=r"pools.reranker.max_context: 1024: is below model.max_context=2048.*; raise"):
        check_reranker_context(load_config(["experiment=smoke", long]))
    check_reranker_context(load_config(["experiment=smoke", long, "pools.reranker.max_context=2048"]))
    check_reranker_context(load_config(["experiment=smoke", long, "rewards.consistency.mode=soft_judge"]))
    # Its cross-encoder does not read the dialogue.
    check_reranker_context(load_config(["experiment=own_data", "data.train=t.jsonl", long]))


@pytest.mark.parametrize("name", ["paper_hrm", "quickstart", "smollm2", "pipeline_small_rl"])
def test_shipped_experiments_have_rerankers_that_read_whole_dialogues(name: str) -> None:
    check_reranker_context(load_config([f"experiment={name}"]))


def test_split_without_fitting_prompts_is_rejected(splits: Splits) -> None:
    with pytest.raises(DataError, match="none fits"):
        fit_prompts(splits, WordCodec(), config(1))


def test_insufficient_disk_space_for_checkpoints_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """135M parameters in bfloat16: 14 bytes each, and three checkpoints exist while the third is written."""
    config = load_config(["experiment=smoke", "trainer.dtype=bfloat16", "experiment.checkpoint.keep=2"])
    free = namedtuple("usage", "free")
    monkeypatch.setattr(preparation, "describe", lambda path: {"parameters": 135e6})
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: free(free=6e9))
    check_room(config, tmp_path, tmp_path / "not" / "yet")
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: free(free=5e9))
    with pytest.raises(BadInput, match=r"experiment.run_dir.*5.0 GB free there, 5.7 GB needed.*checkpoint.keep"):
        check_room(config, tmp_path, tmp_path / "not" / "yet")
    kept = tmp_path / "resumed" / "checkpoints" / "step_8"
    kept.mkdir(parents=True)
    with (kept / "rank_0.pt").open("wb") as file:
        file.truncate(1_000_000_000)  # sparse: a size without the bytes
    check_room(config, tmp_path, tmp_path / "resumed")
    shared = {"/dev/shm": free(free=1e8)}
    monkeypatch.setattr(preparation.shutil, "disk_usage", lambda path: shared.get(str(path), free(free=1e12)))
    with pytest.raises(BadInput, match="rollout.transfer.*/dev/shm"):
        check_room(config, tmp_path, tmp_path)
    check_room(load_config(["experiment=smoke", "cluster.address=auto"]), tmp_path, tmp_path)  # it is another host's


def test_shared_memory_holds_weights_in_the_engines_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "describe", lambda path: {"parameters": 100})
    config = load_config(["experiment=smoke", "trainer.dtype=bfloat16", "model.dtype=float32"])
    assert shared_bytes(config, tmp_path) == 800


@pytest.mark.parametrize(
    "overrides", [["data.labelled_pairs=nope.jsonl"], ["rewards.rules.file=nope.yaml", "rewards.rules.weight=1"]]
)
def test_files_needed_later_are_read_before_the_run(overrides: list[str]) -> None:
    with pytest.raises(BadInput, match="nope"):
        preparation.prepare(load_config(["experiment=smoke", *overrides]))


def test_adapter_of_a_missing_layer_is_rejected() -> None:
    named = ["experiment=smoke", "trainer=lora", "trainer.lora.target_modules=[q_proj, layers.0.mlp.up_proj, qkv_proj]"]
    layers = "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    with pytest.raises(BadInput, match=f"target_modules: 'qkv_proj': is no layer of the model; name some of {layers}$"):
        preparation.prepare(load_config(named))


def test_chat_template_without_tools_is_rejected_before_the_run() -> None:
    with pytest.raises(BadInput, match="model.tools_prompt: 'template'.*does not show tools"):
        preparation.prepare(load_config(["experiment=smoke", "model.tools_prompt=template"]))


def test_prompts_are_cached_compactly() -> None:
    class Letters:
        def chat_ids(self, messages: object) -> list[int]:
            return list(range(100_000, 101_000))

    codec = Codec(tokenizer=Letters(), config=load_config(["experiment=smoke", "model.tools_prompt=compact"]))  # type: ignore[arg-type]
    sample = generate_samples(codec.config.data.sage).train[0]
    assert codec.prompt(sample) == tuple(range(100_000, 101_000))
    [kept] = codec._prompts.values()
    assert len(memoryview(kept).cast("B")) == 4 * 1000
