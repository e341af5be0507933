"""Importers of public corpora, by name. Each takes the paths of its files by keyword."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hamr.data.importers import abcd_release, tau_release
from hamr.data.importers.abcd import import_abcd
from hamr.data.importers.multiwoz import import_multiwoz
from hamr.data.importers.reading import is_release
from hamr.data.importers.star import import_star
from hamr.data.importers.steps import trajectories_of
from hamr.data.importers.tau import import_tau
from hamr.data.trajectories import Trajectory, decision_points, trajectory_to_json
from hamr.types import ServiceSample


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A corpus as decision points and as whole tickets. The points of a ticket have its dialogue in their `meta`.

    `duplicates` are the ids of tickets that were excluded because an earlier one has the same content.
    """

    samples: Sequence[ServiceSample]
    trajectories: Sequence[Trajectory]
    duplicates: tuple[str, ...] = ()


def from_samples(samples: Sequence[ServiceSample]) -> Imported:
    return Imported(samples=samples, trajectories=trajectories_of(samples))


def from_trajectories(trajectories: Sequence[Trajectory]) -> Imported:
    """Return the import without duplicate dialogues. A duplicate under another id could be in both training and test
    data. Turns in `meta["not_references"]` are no decision points."""
    kept: dict[bytes, Trajectory] = {}
    duplicates = []
    for trajectory in trajectories:
        row = trajectory_to_json(trajectory)
        content = json.dumps([row[name] for name in ("ticket", "policy", "turns")], sort_keys=True)
        if kept.setdefault(hashlib.sha256(content.encode("utf-8", "replace")).digest(), trajectory) is not trajectory:
            duplicates.append(trajectory.id)
    samples = [
        sample
        for trajectory in kept.values()
        for i, sample in decision_points(trajectory)
        if i not in trajectory.meta.get("not_references", ())
    ]
    return Imported(samples=samples, trajectories=tuple(kept.values()), duplicates=tuple(duplicates))


def _star(files: Mapping[str, Path], *, group: str | None = None) -> Imported:
    return from_samples(import_star(**files, group=group))


def _abcd(files: Mapping[str, Path], *, group: str | None = None) -> Imported:
    if is_release(files["input"], ("train", "dev", "test"), files.get("policies")):
        return from_trajectories(abcd_release.read_release(files["input"], group))
    return from_samples(import_abcd(**files, group=group))


def _tau(files: Mapping[str, Path], *, group: str | None = None) -> Imported:
    if is_release(files["input"], ("timestamp", "info", "tasks", "simulations"), files.get("policies")):
        return from_trajectories(tau_release.read_release(files["input"], group))
    return from_trajectories(import_tau(**files, group=group))


def _multiwoz(files: Mapping[str, Path], *, group: str | None = None) -> Imported:
    return from_trajectories(import_multiwoz(**files, group=group))


WITH_POLICIES = ("star", "abcd", "tau2")
"""Corpora that may have a second file, with policies and tools."""
CHATS = ("messages", "sharegpt", "trl", "verl")
"""Forms of chats (`hamr.data.tickets.read_chats`), whose private values are hidden by default."""
IMPORTERS: Mapping[str, Callable[..., Imported]] = {"star": _star, "abcd": _abcd, "tau2": _tau, "multiwoz": _multiwoz}
"""Each takes the paths of its files by option, and the column whose dialogues are in one split."""
