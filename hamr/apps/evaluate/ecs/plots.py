"""Plots of an ECS evaluation: metrics with intervals, the distribution of scores, and the agreement of judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hamr.apps.evaluate.ecs.console import NAMES
from hamr.report.plot_kit import CYCLE, HALF, INK, MUTED, axes, legend, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = 20


def headline(policies: Mapping[str, Any]) -> Figure:
    """Draw a group of bars per metric that some policy has, with a bar per policy; the whiskers are the intervals."""
    figure, ax = axes(HALF)
    names = [v for v in NAMES if any(policy["values"][v]["mean"] is not None for policy in policies.values())]
    width = 0.8 / len(policies)
    for i, ((name, policy), colour) in enumerate(zip(policies.items(), CYCLE, strict=False)):
        known = [(x, policy["values"][value]) for x, value in enumerate(names)]
        known = [(x, found) for x, found in known if found["mean"] is not None]
        at = [x + (i - (len(policies) - 1) / 2) * width for x, _ in known]
        means = [found["mean"] for _, found in known]
        below = [max(0.0, found["mean"] - found["low"]) for _, found in known]
        above = [max(0.0, found["high"] - found["mean"]) for _, found in known]
        ax.bar(at, means, width * 0.92, color=colour, label=name, yerr=[below, above], ecolor=INK, capsize=3)
    ax.set_xticks(range(len(names)), [NAMES[value] for value in names])
    ax.tick_params(axis="x", length=0, labelcolor=INK)
    ax.set_ylim(0, 1)
    legend(ax, ncols=2)
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
    legend(ax, ncols=2)
    return figure


def agreement_map(judges: Sequence[str], pairs: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw Cohen's kappa of every pair of judges; None for one judge."""
    if len(judges) < 2:
        return None
    at = {name: i for i, name in enumerate(judges)}
    kappa = np.full((len(judges), len(judges)), np.nan)
    for pair in pairs:
        i, j = (at[name] for name in pair["judges"])
        if pair["kappa"] is not None:
            kappa[i, j] = kappa[j, i] = pair["kappa"]
    figure, ax = axes((HALF[0], max(HALF[1], 0.5 * len(judges) + 1)))
    ax.imshow(kappa, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    ax.grid(False)
    ax.set_xticks(range(len(judges)), list(judges), rotation=20, ha="right")
    ax.set_yticks(range(len(judges)), list(judges))
    for i in range(len(judges)):
        for j in range(len(judges)):
            if i != j:
                said = "-" if np.isnan(kappa[i, j]) else f"{kappa[i, j]:.2f}"
                ax.text(j, i, said, ha="center", va="center", color="white" if kappa[i, j] > 0.6 else MUTED)
    return figure
