"""Properties of the jobs that pipeline stages run: their model, their results, and stand-ins for these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hamr.apps.jobs import find, load
from hamr.apps.shared.commands import Command
from hamr.config.overrides import CONFIG_DIR_FLAG, quote
from hamr.config.schema import GROUPS

_PLAIN = re.compile(r"[\w./~+<>-]+")


def kind_of(job: str, args: Sequence[str]) -> type[Command]:
    """Return the model of a job's command. Raises BadInput where the arguments choose none."""
    return load(find([*job.split(), *args])[0])


def is_run(kind: type[Command]) -> bool:
    """Return whether the job writes a run folder, from which it can be resumed."""
    return kind.target == "experiment.run_dir"


def target_arg(kind: type[Command], folder: Path) -> str:
    """Return the argument that makes the job write into the folder of its stage."""
    path = str(folder / kind.writes)
    return f"{kind.target}={in_override(path) if is_run(kind) else path}"


def in_override(path: str) -> str:
    """Return a path as the value of an override, quoted if it has special characters."""
    return path if _PLAIN.fullmatch(path) else quote(path)


POLICY = "checkpoints"
"""Folder of a run's policies; the newest one is known when the run has ended."""


def policy_of(folder: Path) -> Path | None:
    """Return the policy of a run's newest checkpoint."""
    found = {
        int(m[1]): p
        for p in (folder / POLICY).glob("step_*/policy")
        if (m := re.fullmatch(r"step_(\d+)", p.parent.name))
    }
    return found[max(found)] if found else None


def stand_in(kind: type[Command], folder: Path) -> None:
    """Create empty placeholders for the job's outputs, so that the arguments of later stages can be checked."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in kind.outputs.items():
        if name == "policy":
            (folder / POLICY / "step_0" / "policy").mkdir(parents=True)
        elif path.endswith(".yaml"):
            (folder / path).parent.mkdir()
            (folder / path).write_text("consistency: {mode: hybrid}\n")
        elif path != ".":
            (folder / path).touch()


def takes_override(key: str) -> bool:
    """Return whether an argument is a configuration override rather than one of a job's own options."""
    return key.lstrip("+~").split(".")[0] in GROUPS or key.startswith(CONFIG_DIR_FLAG)
