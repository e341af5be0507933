"""Prometheus names of the glossary's metrics: one gauge per pattern, with its placeholders as labels.

`router/queue_s/<pool>/<stat>` becomes `hamr_router_queue_s` with the labels pool and stat. Ray adds the prefix `ray_`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from hamr.telemetry.glossary import Metric, lookup, pattern_regex

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
    labels = _labels(metric)
    words = re.sub(r"<\w+>", "", metric.pattern)
    name = "_".join(part for part in re.split(r"[^A-Za-z0-9]+", words) if part)
    return Gauge(name=f"hamr_{name}", labels=(*COMMON, *labels), meaning=metric.meaning)


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
