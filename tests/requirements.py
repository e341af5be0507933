"""Requirements of the project and what they require in turn, by the metadata of installed packages."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
"""Pinned apart, or not installed with the CPU build of torch (`scripts/lock.sh`)."""


def locked(name: str) -> dict[str, str]:
    """Return {package: version} of a lock file."""
    lines = [line for line in (ROOT / "locks" / name).read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def find_tool(name: str) -> str:
    """Return the path of a program of `locks/launch.txt`. Skip the test where it is not installed."""
    found = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    return found or pytest.skip(f"needs {name}: make test-launch")


def closure(
    wanted: Iterable[str], versions: Mapping[str, str], extras: Iterable[str] = ()
) -> tuple[set[str], set[str]]:
    """Follow requirements to the end.

    Returns:
        All packages that are required, and the requirements that `versions` do not meet.
    """
    found: set[str] = set()
    unmet: set[str] = set()
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [(Requirement(text), "hamr", frozenset(extras)) for text in wanted]
    while waiting:
        requirement, by, active = waiting.pop()
        marker, name = requirement.marker, canonicalize_name(requirement.name)
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *active)):
            continue
        version = versions.get(name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            unmet.add(f"{by}: {requirement.name}{requirement.specifier}, locked {version}")
        if (name, frozenset(requirement.extras)) in done:
            continue
        found |= {name} - LEFT_OUT
        done.add((name, frozenset(requirement.extras)))
        try:
            below = requires(name) or []
        except PackageNotFoundError:  # unmet, or of another platform
            continue
        waiting += [(Requirement(text), name, frozenset(requirement.extras)) for text in below]
    return found, unmet
