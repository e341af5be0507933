"""Where a run's figures go beside its own files: W&B, TensorBoard, MLflow, Prometheus, behind one logger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from hamr.types import RewardRecord

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Gets what goes into metrics.jsonl, under the same names. What it cannot show it leaves out."""

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None: ...

    def records(self, step: int, records: Sequence[RewardRecord]) -> None: ...

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def close(self, *, failed: bool = False) -> None: ...


class FiguresOnly:
    """A sink for numbers: records and sampled responses stay in the run folder."""

    def records(self, step: int, records: Sequence[RewardRecord]) -> None:
        del step, records

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        del step, rows


class Sinks:
    """Several as one. One that raises is left alone from then on: it costs a run that record and nothing else."""

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
                log.warning("%s gets nothing more of this run (%s: %s)", name, type(error).__name__, error)


def shown_as(stage: str, name: str) -> str:
    """A name for sinks that know no stages. RL's figures keep theirs, and so do evaluations', which say their stage.

    >>> shown_as("rl", "timing/train/optimizer"), shown_as("sft", "sft/loss"), shown_as("sft", "timing/train/optimizer")
    ('timing/train/optimizer', 'sft/loss', 'sft/timing/train/optimizer')
    """
    own = stage == "rl" or stage.startswith("eval-") or name.startswith(f"{stage}/")
    return name if own else f"{stage}/{name}"
