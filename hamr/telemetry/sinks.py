"""Metric sinks in addition to the run's own files: W&B, TensorBoard, MLflow, Prometheus, behind one logger."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from hamr.errors import BadInput
from hamr.security.redaction import redact_text
from hamr.types import RewardRecord

log = logging.getLogger(__name__)


LIBRARIES = {"tensorboard": ">=2.18", "mlflow": ">=2.20", "trackio": ">=0.43"}
"""Sink -> its version, for those whose library of the same name is an extra."""


def check_library(sink: str) -> None:
    """Raise BadInput if the library of a sink is not installed."""
    if sink in LIBRARIES and find_spec(sink) is None:
        raise BadInput("logging.sinks", sink, f"is not installed; pip install '{sink}{LIBRARIES[sink]}'")


class Sink:
    """Receives the content of metrics.jsonl, under the same names."""

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        """Show the metrics of a step, or of an evaluation as the stage `eval-<name>`."""
        raise NotImplementedError

    def records(self, step: int, records: Sequence[RewardRecord]) -> None:
        """Show the records of a step. By default they stay in the run folder."""

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show sampled responses. By default they stay in the run folder."""

    def close(self, *, failed: bool = False) -> None:
        """End the record of the run. By default nothing is left to do."""


class Sinks(Sink):
    """Several sinks as one. A sink that raises gets no further calls, so its error costs the run only that sink."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._sinks = dict(sinks)

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        self._each(lambda sink: sink.metrics(step, stage, values))

    def records(self, step: int, records: Sequence[RewardRecord]) -> None:
        self._each(lambda sink: sink.records(step, records))

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        self._each(lambda sink: sink.samples(step, rows))

    def close(self, *, failed: bool = False) -> None:
        self._each(lambda sink: sink.close(failed=failed))
        self._sinks.clear()

    def _each(self, call: Callable[[Sink], None]) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                call(sink)
            except Exception as error:
                del self._sinks[name]
                reason = redact_text(f"{type(error).__name__}: {error}")
                log.warning("sink %s disabled for the rest of this run (%s)", name, reason)


def finite_metrics(stage: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return the finite metrics under their names for sinks without stages."""
    return {shown_as(stage, name): value for name, value in values.items() if math.isfinite(value)}


def shown_as(stage: str, name: str) -> str:
    """Return a metric's name for sinks without stages. RL metrics and evaluations keep theirs.

    >>> shown_as("rl", "timing/train/optimizer"), shown_as("sft", "sft/loss"), shown_as("sft", "timing/train/optimizer")
    ('timing/train/optimizer', 'sft/loss', 'sft/timing/train/optimizer')
    """
    own = stage == "rl" or stage.startswith("eval-") or name.startswith(f"{stage}/")
    return name if own else f"{stage}/{name}"
