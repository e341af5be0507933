"""Shared compositions of the unit tests equal Hydra's, independent of changes in other tests."""

from __future__ import annotations

from pathlib import Path

from hamr.config import load
from hamr.config.resources import resource

CONF = resource("conf")
SMOKE = ["experiment=smoke"]


def test_shared_composition_is_not_affected_by_its_users() -> None:
    fresh = load._compose.__wrapped__(SMOKE, [CONF])  # type: ignore[attr-defined]
    values, choices = load._compose(SMOKE, [CONF])
    assert (values, choices) == fresh
    values["experiment"].clear()
    choices.clear()
    assert load._compose(SMOKE, [CONF]) == fresh


def test_custom_folder_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    for seed in (1, 2):
        file.write_text(f"# @package _global_\nexperiment:\n  seed: {seed}\n")
        assert load.load_config(["experiment=mine"], tmp_path).experiment.seed == seed
