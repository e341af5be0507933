"""Plots of an OlaBench evaluation: the five terms, scenario kinds, types, and judges against known labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hamr.report.plot_kit import CYCLE, HALF, INK, axes, legend, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = {"dialogue": "dialogue", "policy": "policy", "tool": "tools", "risk": "no risk", "hallucination": "true"}


def headline(policies: Mapping[str, Any]) -> Figure | None:
    """Draw the five terms of the overall score, each in [0, 1], with a bar per policy; None where there is no score."""
    bars = {name: {SHARES[term]: _term(groups["all"], term) for term in SHARES} for name, groups in policies.items()}
    if not any(value for terms in bars.values() for value in terms.values()):
        return None
    figure, ax = axes(HALF)
    _bars(ax, bars)
    ax.set_ylim(0, 1)
    return figure


def by_kind(policies: Mapping[str, Any]) -> Figure | None:
    """Draw the overall score of each scenario kind; None where no kind has one."""
    kinds = ("rag", "workflow", "agent")
    bars = {
        name: {kind: _estimate(groups[kind]["overall"], 1.0) if kind in groups else None for kind in kinds}
        for name, groups in policies.items()
    }
    if not any(value for scores in bars.values() for value in scores.values()):
        return None
    figure, ax = axes(HALF)
    _bars(ax, bars)
    ax.set_ylim(0, 100)
    return figure


def types(policies: Mapping[str, Any]) -> Figure | None:
    """Draw the shares of the types of risk and hallucination; None where nothing was judged."""
    bars = {
        name: {
            kind: _estimate(estimate, 1.0)
            for rate in ("risk", "hallucination")
            for kind, estimate in groups["all"][rate]["types"].items()
        }
        for name, groups in policies.items()
    }
    if not any(value for shares in bars.values() for value in shares.values()):
        return None
    figure, ax = axes(HALF)
    _bars(ax, bars, slanted=True)
    percent(ax)
    ax.set_ylim(bottom=0)
    return figure


def detection(judges: Mapping[str, Any]) -> Figure | None:
    """Draw precision and recall on all known labels, by judge; None where no type is known."""
    bars: dict[str, dict[str, Any]] = {"precision": {}, "recall": {}}
    for judge in (j for j in judges.values() if "any" in j):
        for kind, entry in judge["types"].items():
            for side in bars:
                bars[side][kind.replace("_", " ")] = _estimate(entry[side], 1.0) if entry[side] else None
    if not bars["recall"]:
        return None
    figure, ax = axes(HALF)
    _bars(ax, bars, slanted=True)
    percent(ax)
    ax.set_ylim(0, 1)
    return figure


Bar = tuple[float, float, float]
"""A height and the bounds of its interval."""


def _term(group: Mapping[str, Any], term: str) -> Bar | None:
    if term in group["grades"]:
        return _estimate(group["grades"][term], 0.2)
    found = _estimate(group[term]["rate"], 1.0)
    return None if found is None else (1 - found[0], 1 - found[2], 1 - found[1])


def _estimate(estimate: Mapping[str, Any], scale: float) -> Bar | None:
    if estimate["mean"] is None:
        return None
    return scale * estimate["mean"], scale * estimate["low"], scale * estimate["high"]


def _bars(ax: Axes, series: Mapping[str, Mapping[str, Bar | None]], *, slanted: bool = False) -> None:
    names = list(dict.fromkeys(name for heights in series.values() for name in heights))
    width = 0.8 / len(series)
    for i, (label, heights) in enumerate(series.items()):
        known = [(x, bar) for x, name in enumerate(names) if (bar := heights.get(name)) is not None]
        at = [x + (i - (len(series) - 1) / 2) * width for x, _ in known]
        below, above = [max(0.0, m - low) for _, (m, low, _) in known], [max(0.0, h - m) for _, (m, _, h) in known]
        means, colour = [m for _, (m, _, _) in known], CYCLE[i % len(CYCLE)]
        ax.bar(at, means, width * 0.92, label=label, color=colour, yerr=[below, above], ecolor=INK, capsize=3)
    ax.set_xticks(range(len(names)), names)
    if slanted:
        for name in ax.get_xticklabels():
            name.set(rotation=28, ha="right")
    ax.tick_params(axis="x", length=0, labelcolor=INK)
    legend(ax, ncols=2)
