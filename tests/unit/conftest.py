"""What only unit tests share: one Hydra composition for each set of overrides."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hamr.config import load

COMPOSER = Path(__file__).parent / "config"  # these test the composing itself
COMPOSE = load._compose
COMPOSED: dict[tuple[str, ...], Any] = {}


@functools.wraps(COMPOSE)
def compose_once(overrides: list[str], roots: Sequence[Path]) -> Any:
    """The shipped groups don't change while tests run; a user's own folder (a second root) may, and isn't kept."""
    if len(roots) > 1:
        return COMPOSE(overrides, roots)
    key = (str(roots[0]), *overrides)
    if key not in COMPOSED:
        COMPOSED[key] = COMPOSE(overrides, roots)
    return copy.deepcopy(COMPOSED[key])


@pytest.fixture(autouse=True)
def shared_compositions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra takes a tenth of a second for what many tests ask again; reading and validating stay each test's own."""
    if COMPOSER not in request.path.parents:
        monkeypatch.setattr(load, "_compose", compose_once)
