"""Figures of an ECS evaluation: metrics with intervals, and the distribution of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hamr.report.drawing import CYCLE, HALF, Bar, axes, grouped_bars, legend, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 20


def score_bars(policies: Mapping[str, Any], names: Mapping[str, str]) -> Figure:
    """Draw a group of bars per metric that some policy has, with a bar per policy; the whiskers are the intervals."""

    def bar(value: Mapping[str, Any]) -> Bar | None:
        return None if value["mean"] is None else (value["mean"], value["low"], value["high"])

    known = [key for key in names if any(policy["values"][key]["mean"] is not None for policy in policies.values())]
    bars = {name: {names[key]: bar(policy["values"][key]) for key in known} for name, policy in policies.items()}
    figure, ax = grouped_bars(HALF, bars)
    ax.set_ylim(0, 1)
    return figure


def distribution(items: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw the distribution of the responses' Multi-ECS; None where no response has one."""
    by_policy: dict[str, list[float]] = {}
    for item in items:
        if item["multi"] is not None:
            by_policy.setdefault(item["policy"], []).append(item["multi"])
    if not by_policy:
        return None
    figure, ax = axes(HALF)
    weights = [np.full(len(values), 1 / len(values)) for values in by_policy.values()]
    edges, colours = [i / _BINS for i in range(_BINS + 1)], list(CYCLE[: len(by_policy)])
    ax.hist(list(by_policy.values()), edges, weights=weights, color=colours, label=list(by_policy))
    percent(ax)
    ax.set_xlabel("Multi-ECS of a response")
    ax.set_ylabel("responses")
    legend(ax)
    return figure
