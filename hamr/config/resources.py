"""Location of the files that ship with hamr: inside an installed wheel, or next to the package in a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import hamr
from hamr.errors import ConfigError

ResourceKind = Literal["conf", "prompts"]


def roots(kind: ResourceKind) -> tuple[Path, ...]:
    """Return the folders that may contain `kind`, in order of preference.

    A wheel contains `hamr/conf` and `hamr/prompts`. A checkout (or an editable install) has them at its root.
    """
    package = Path(hamr.__file__).resolve().parent
    return package / kind, package.parent / kind


def resource(kind: ResourceKind, name: str = "") -> Path:
    """Return the existing file or folder `name`, relative to the folder of its `kind` ("" is the folder itself).

    >>> resource("prompts", "judge.en.yaml").name
    'judge.en.yaml'

    Raises ConfigError when there is none, with the names that exist.
    """
    tried = roots(kind)
    for root in tried:
        path = root / name
        if path.exists():
            return path
    existing = sorted({p.name for root in tried if root.is_dir() for p in root.iterdir() if not p.name.startswith(".")})
    choices = ", ".join(existing) if existing else f"nothing; looked in {tried[0]} and {tried[1]}"
    raise ConfigError(kind, name, f"no such file; found {choices}")
