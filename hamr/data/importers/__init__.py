"""Importers of public corpora, by name. One takes its files' paths by keyword and gives samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hamr.data.importers.star import import_star
from hamr.types import ServiceSample


@dataclass(frozen=True, kw_only=True)
class Importer:
    """`files` are the names of the paths that `run` takes; `help` says what they hold."""

    run: Callable[..., list[ServiceSample]]
    files: Mapping[str, str]

    def __call__(self, files: Mapping[str, Path]) -> list[ServiceSample]:
        return self.run(**files)


IMPORTERS: Mapping[str, Importer] = {
    "star": Importer(
        run=import_star,
        files={"input": "JSONL of decision points", "policies": "JSON of the tasks' procedures and tools"},
    ),
}
