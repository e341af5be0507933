"""Trackio sink: configuration and metrics in a local database, which `trackio show` displays."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hamr.security.redaction import redact
from hamr.telemetry.sinks import FiguresOnly, finite_metrics


class TrackioSink(FiguresOnly):
    """One Trackio run per run folder; a resumed run continues it.

    TRACKIO_DIR sets the folder of the database; the default is `<run folder>/trackio`. Trackio reads the variable when
    it is imported, so a process has one folder.
    """

    def __init__(
        self, folder: Path, *, project: str, name: str, config: Mapping[str, Any], system_metrics: bool = False
    ) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(folder / "trackio"))
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):  # it prints several lines
            self._run = trackio.init(
                project=redact(project),
                name=redact(name),
                config=redact(dict(config)),
                resume="allow",
                embed=False,
                auto_log_gpu=system_metrics,
                auto_log_cpu=system_metrics,
            )

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        self._run.log(finite_metrics(stage, values), step=step)

    def close(self, *, failed: bool = False) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()
