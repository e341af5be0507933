"""Shared by the unit tests: one compute thread per process, one Hydra composition for each set of overrides."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

# Set before numpy and torch are imported. `make test` runs a process per core: with as many threads in each, the BLAS
# threads spin while they wait for each other, which multiplies the CPU time on a busy machine.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from hamr.config import load  # noqa: E402
from hamr.telemetry.glossary import STRICT_ENV  # noqa: E402

COMPOSER = Path(__file__).parent / "config" / "test_load.py"  # it tests the composing itself
COMPOSE = load._compose
COMPOSED: dict[tuple[str, ...], Any] = {}


@functools.wraps(COMPOSE)
def compose_once(overrides: list[str], roots: Sequence[Path]) -> Any:
    """Compose once per set of overrides. A user's own folder (a second root) may change, so it is not cached."""
    if len(roots) > 1:
        return COMPOSE(overrides, roots)
    key = (str(roots[0]), *overrides)
    if key not in COMPOSED:
        COMPOSED[key] = COMPOSE(overrides, roots)
    return copy.deepcopy(COMPOSED[key])


@pytest.fixture(autouse=True)
def strict_metric_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT_ENV, "1")


@pytest.fixture(autouse=True)
def shared_compositions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share compositions between tests, which Hydra takes a twentieth of a second for; validation is never shared."""
    if request.path != COMPOSER:
        monkeypatch.setattr(load, "_compose", compose_once)
