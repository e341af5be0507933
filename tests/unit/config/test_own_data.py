"""Own data are named, and what contradicts them is refused in one line."""

from __future__ import annotations

import pytest

from hamr.config.load import load_config
from hamr.errors import ConfigError

OPENAI = ["experiment=smoke", "pools.judge.type=openai", "pools.judge.model=m"]


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_config(overrides)
    return str(refused.value)


def test_own_data_without_data_is_refused() -> None:
    said = refusal("experiment=own_data")
    assert "type='jsonl' but train=null; give data=FOLDER (with a train.jsonl), data=FILE.jsonl or data.train" in said


@pytest.mark.parametrize(
    ("override", "kind"),
    [("data=sage", "sage"), ("data.train=t.jsonl", "jsonl"), ("data.importer.path=my.py:read", "importer")],
)
def test_own_data_accepts_every_source(override: str, kind: str) -> None:
    assert load_config(["experiment=own_data", override]).data.type == kind


@pytest.mark.parametrize("key", ["train", "validation", "test"])
def test_files_with_generated_dialogues_are_refused(key: str) -> None:
    said = refusal("experiment=smoke", f"data.{key}=mine.jsonl")
    assert f"type='sage' but {key}='mine.jsonl', and data=sage generates all splits; remove it" in said


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("127.0.0.1:8001/v1", "127.0.0.1:8001/v1"),
        ("ftp://host/v1", "ftp://host/v1"),
        ("http:///v1", "http:///v1"),
        ("user:secret@host/v1?key=secret", "host/v1"),
    ],
)
def test_endpoint_without_a_scheme_is_refused(endpoint: str, shown: str) -> None:
    said = refusal(*OPENAI, f"pools.judge.endpoint='{endpoint}'")
    assert f"endpoint='{shown}' does not begin with http:// or https://; write http://HOST:PORT/v1" in said
    assert "secret" not in said


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:8001/v1", "https://judge.example/v1"])
def test_endpoint_with_a_scheme_is_accepted(endpoint: str) -> None:
    assert load_config([*OPENAI, f"pools.judge.endpoint={endpoint}"]).pools["judge"].endpoint == endpoint
