"""Figures of an OlaBench evaluation: the five terms and the scenario kinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hamr.report.drawing import HALF, Bar, grouped_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = {"dialogue": "dialogue", "policy": "policy", "tool": "tools", "risk": "no risk", "hallucination": "true"}
Bars = Mapping[str, Mapping[str, Bar | None]]


def terms(policies: Mapping[str, Any]) -> Figure | None:
    """Draw the five terms of the overall score, each in [0, 1], with a bar per policy."""
    bars = {name: {SHARES[term]: _term(groups["all"], term) for term in SHARES} for name, groups in policies.items()}
    return _draw_bars(bars, top=1)


def by_kind(policies: Mapping[str, Any]) -> Figure | None:
    """Draw the overall score of each scenario kind."""
    kinds = ("rag", "workflow", "agent")
    bars = {
        name: {kind: _bar(groups[kind]["overall"], 1.0) if kind in groups else None for kind in kinds}
        for name, groups in policies.items()
    }
    return _draw_bars(bars, top=100)


def _draw_bars(bars: Bars, top: float) -> Figure | None:
    """Draw the bars; None where there is none."""
    if not any(value is not None for values in bars.values() for value in values.values()):
        return None
    figure, ax = grouped_bars(HALF, bars)
    ax.set_ylim(0, top)
    return figure


def _term(group: Mapping[str, Any], term: str) -> Bar | None:
    if term in group["grades"]:
        return _bar(group["grades"][term], 0.2)
    found = _bar(group[term]["rate"], 1.0)
    return None if found is None else (1 - found[0], 1 - found[2], 1 - found[1])


def _bar(estimate: Mapping[str, Any], scale: float) -> tuple[float, float, float] | None:
    if estimate["mean"] is None:
        return None
    return scale * estimate["mean"], scale * estimate["low"], scale * estimate["high"]
