"""Importers of public corpora and common formats, by name. Each takes the paths of its files by keyword."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hamr.data.importers import abcd_release, tau_release
from hamr.data.importers.abcd import import_abcd
from hamr.data.importers.messages import import_messages
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
    data."""
    kept: dict[bytes, Trajectory] = {}
    duplicates = []
    for trajectory in trajectories:
        row = trajectory_to_json(trajectory)
        content = json.dumps([row[name] for name in ("ticket", "policy", "turns")], sort_keys=True)
        if kept.setdefault(hashlib.sha256(content.encode("utf-8", "replace")).digest(), trajectory) is not trajectory:
            duplicates.append(trajectory.id)
    samples = [sample for trajectory in kept.values() for _, sample in decision_points(trajectory)]
    return Imported(samples=samples, trajectories=tuple(kept.values()), duplicates=tuple(duplicates))


@dataclass(frozen=True, kw_only=True)
class Importer:
    """`files` maps the path arguments of `run` to descriptions.

    `private`: the dialogues are of real people, so private values are hidden by default.
    """

    run: Callable[..., Imported]
    files: Mapping[str, str]
    private: bool = False

    def __call__(self, files: Mapping[str, Path], *, group: str | None = None) -> Imported:
        """Return the content of the files. `group` names the column whose dialogues are in one split."""
        return self.run(**files, group=group)


def _import_abcd(*, input: Path, policies: Path | None = None, group: str | None = None) -> Imported:
    if is_release(input, ("train", "dev", "test"), policies):
        return from_trajectories(abcd_release.read_release(input, group))
    return from_samples(import_abcd(input=input, policies=policies, group=group))


def _import_tau(*, input: Path, policies: Path | None = None, group: str | None = None) -> Imported:
    if is_release(input, ("timestamp", "info", "tasks", "simulations"), policies):
        return from_trajectories(tau_release.read_release(input, group))
    return from_trajectories(import_tau(input=input, policies=policies, group=group))


_CHATS = Importer(
    run=lambda **given: from_trajectories(import_messages(**given)),
    files={"input": "JSONL, JSON or Parquet of chats, or the folder of a data set"},
    private=True,
)
_POLICIES = "JSON of policies and tools; with lines of decision points or conversations"

IMPORTERS: Mapping[str, Importer] = {
    "star": Importer(
        run=lambda **given: from_samples(import_star(**given)),
        files={"input": "folder of the repository, or JSONL of decision points", "policies": _POLICIES},
    ),
    "abcd": Importer(
        run=_import_abcd,
        files={"input": "abcd_v1.1.json(.gz) or its folder, or JSONL of decision points", "policies": _POLICIES},
    ),
    "tau2": Importer(
        run=_import_tau,
        files={"input": "results of simulations, folder of a domain, or JSONL of conversations", "policies": _POLICIES},
    ),
    "multiwoz": Importer(
        run=lambda **given: from_trajectories(import_multiwoz(**given)),
        files={"input": "dialogues_*.json, data.json, or their folder"},
    ),
    "messages": _CHATS,
    "sharegpt": _CHATS,
    "trl": _CHATS,
    "verl": _CHATS,
}
