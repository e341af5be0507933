"""Command line of whole runs."""

from __future__ import annotations

import sys


def hamr(*args: str, **settings: object) -> list[str]:
    """Return the command line of `hamr`; settings are given in a dictionary because of the dots in their names."""
    return [sys.executable, "-m", "hamr", *args, *(f"{key}={value}" for key, value in settings.items())]
