"""Prometheus sink: a run's metrics as Ray gauges, which every node exports."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from hamr.telemetry.prometheus import reading
from hamr.telemetry.sinks import FiguresOnly


class PrometheusSink(FiguresOnly):
    """Prometheus sink. Needs a running Ray at the first metric. A gauge keeps its last value while this process lives.

    Args:
        gauge: Creates a gauge from (name, description, tag_keys). Ray's by default; tests pass their own.
    """

    def __init__(self, run: str, *, gauge: Callable[..., Any] | None = None) -> None:
        self._run, self._make = run, gauge
        self._gauges: dict[str, Any] = {}

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        for name, value in {**values, "progress/step": float(step)}.items():
            known = reading(name)
            if known is None or not math.isfinite(value):
                continue
            gauge, labels = known
            tags = {"run": self._run, "stage": stage, **labels}
            self._gauge(gauge.name, gauge.meaning, gauge.labels).set(value, tags=tags)

    def close(self, *, failed: bool = False) -> None:
        self._gauges.clear()

    def _gauge(self, name: str, meaning: str, labels: tuple[str, ...]) -> Any:
        if name not in self._gauges:
            if self._make is None:
                from ray.util.metrics import Gauge

                self._make = Gauge
            self._gauges[name] = self._make(name, description=meaning, tag_keys=labels)
        return self._gauges[name]
