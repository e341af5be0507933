"""Prometheus sink: a run's metrics as Ray gauges, which every node exports.

One gauge per pattern of the glossary, with its placeholders as labels: `router/queue_s/<pool>/<stat>` becomes
`hamr_router_queue_s` with the labels pool and stat. Ray adds the prefix `ray_`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hamr.telemetry.glossary import Metric, lookup, pattern_regex
from hamr.telemetry.sinks import Sink

COMMON = ("run", "stage")
"""Labels of every gauge."""


@dataclass(frozen=True, kw_only=True)
class Gauge:
    name: str
    labels: tuple[str, ...]
    meaning: str


@cache
def gauge_of(metric: Metric) -> Gauge:
    """Return a pattern's gauge. For a placeholder within a word the rest of the word stays.

    Example: `router/band/<band>_frac` becomes hamr_router_band_frac.
    """
    words = re.sub(r"<\w+>", "", metric.pattern)
    name = "_".join(part for part in re.split(r"[^A-Za-z0-9]+", words) if part)
    return Gauge(name=f"hamr_{name}", labels=(*COMMON, *_labels(metric)), meaning=metric.meaning)


def reading(name: str) -> tuple[Gauge, Mapping[str, str]] | None:
    """Return the gauge of a metric and the values of its placeholders; None if the glossary lacks the name."""
    metric = lookup(name)
    if metric is None:
        return None
    match = pattern_regex(metric.pattern).fullmatch(name)
    assert match is not None
    return gauge_of(metric), dict(zip(_labels(metric), match.groups(), strict=True))


def _labels(metric: Metric) -> tuple[str, ...]:
    """Return the names of the placeholders. An evaluation's `stage` is the common label of every gauge."""
    found = re.findall(r"<(\w+)>", metric.pattern)
    return tuple("evaluation" if label == "stage" else label for label in found)


class PrometheusSink(Sink):
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
            self._gauge(gauge).set(value, tags={"run": self._run, "stage": stage, **labels})

    def close(self, *, failed: bool = False) -> None:
        self._gauges.clear()

    def _gauge(self, gauge: Gauge) -> Any:
        if gauge.name not in self._gauges:
            if self._make is None:
                from ray.util import metrics

                self._make = metrics.Gauge
            self._gauges[gauge.name] = self._make(gauge.name, description=gauge.meaning, tag_keys=gauge.labels)
        return self._gauges[gauge.name]
