"""Figures of the training process: the router, failures, the optimiser's health, and times.

Each function maps `ReportData` to a Figure, or to None where there is nothing to show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hamr.apps.report.data import ReportData
from hamr.report.drawing import (
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    HALF,
    INK,
    ORANGE,
    PINK,
    RED,
    WIDE,
    axes,
    legend,
    log_axis,
    percent,
    step_axis,
)
from hamr.telemetry.metrics import histogram
from hamr.telemetry.record_json import failure_kinds

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def router_bands(data: ReportData) -> Figure | None:
    bands = {
        "below": (RED, "below: judge"),
        "inside": (GREEN, "inside: reranker alone"),
        "above": (ORANGE, "above: judge"),
    }
    series = {b: dict(zip(*data.series(f"router/band/{b}_frac"), strict=True)) for b in bands}
    steps = sorted(set().union(*series.values()))
    if not steps:
        return None
    figure, ax = axes(HALF)
    heights = [[series[b].get(s, 0.0) for s in steps] for b in bands]
    ax.stackplot(
        steps, heights, colors=[c for c, _ in bands.values()], labels=[t for _, t in bands.values()], alpha=0.75, lw=0
    )
    xs, share = data.series("router/escalated_frac")
    ax.plot(xs, share, color=INK, lw=1.8, ls=(0, (4, 2)), label="asked the judge")
    ax.set_ylim(0, 1)
    ax.set_ylabel("share of replies")
    percent(ax)
    step_axis(ax)
    legend(ax)
    return figure


def s_r_histogram(data: ReportData) -> Figure | None:
    if not data.s_r:
        return None
    figure, ax = axes(HALF)
    counts, edges = histogram(data.s_r, bins=40, low=0.0, high=1.0)
    low, high = (data.option(f"rewards.consistency.cascade.{k}") for k in ("tau_a", "tau_b"))
    if low is not None and high is not None:
        ax.axvspan(low, high, color=GREEN, alpha=0.14, lw=0, label=f"trust interval {low:g} to {high:g}")
        for edge in (low, high):
            ax.axvline(edge, color=GREEN, lw=1.2)
    total = sum(counts)
    ax.bar(edges[:-1], [c / total for c in counts], width=1 / 40 * 0.9, align="edge", color=BLUE)
    ax.set_xlim(-0.01, 1.01)
    ax.set_xlabel("S_R, the reranker's score")
    ax.set_ylabel("share of scored replies")
    percent(ax)
    if low is not None:
        legend(ax)
    return figure


def outcomes(data: ReportData) -> Figure | None:
    """Draw failures only; None where nothing failed, which the report then states in words."""
    figure, ax = None, None
    kinds = [*failure_kinds(), "malformed_response"]
    bottoms: dict[int, float] = {}
    for kind, colour in zip(kinds, (*CYCLE, *CYCLE), strict=False):
        steps, shares = data.series(f"reward/outcome/{kind}")
        if not any(shares):
            continue
        if ax is None:
            figure, ax = axes(HALF)
        ax.bar(steps, shares, bottom=[bottoms.get(s, 0.0) for s in steps], color=colour, label=kind.replace("_", " "))
        for s, v in zip(steps, shares, strict=True):
            bottoms[s] = bottoms.get(s, 0.0) + v
    if ax is not None:
        ax.set_ylabel("share of responses")
        percent(ax)
        step_axis(ax)
        legend(ax)
    return figure


def entropy(data: ReportData) -> Figure | None:
    figure = lines(data, {"policy/entropy": ("entropy", BLUE)}, "nats per token")
    if figure is not None:
        figure.axes[0].set_ylim(bottom=0)
    return figure


def grad_norm(data: ReportData) -> Figure | None:
    return lines(data, {"policy/grad_norm": ("norm", BLUE)}, "norm before clipping", log=True)


def logprob_diff(data: ReportData) -> Figure | None:
    keys = {"rollout/logprob_diff/mean": ("mean", BLUE), "rollout/logprob_diff/max": ("max", RED)}
    return lines(data, keys, "|difference|, nats", log=True)


def clipping(data: ReportData) -> Figure | None:
    keys = {
        "policy/clipped": ("clipped", BLUE),
        "policy/importance_clipped": ("weight at its cap", ORANGE),
        "policy/importance_masked": ("weight 0", RED),
        "rollout/truncated_frac": ("cut off", PINK),
    }
    figure = lines(data, keys, "share")
    if figure is not None:
        percent(figure.axes[0])
    return figure


def sft_loss(data: ReportData) -> Figure | None:
    if data.option("sft.sets"):
        return None  # drawn with the validation loss
    return lines(data, {"sft/loss": ("loss", BLUE)}, "nats per token", stage="sft")


def lengths(data: ReportData) -> Figure | None:
    return lines(data, {"rollout/response_tokens/mean": ("mean length", BLUE)}, "tokens")


def step_time(data: ReportData) -> Figure | None:
    """Draw the phases on top of each other; the rest of a step outside them is `other`."""
    shown = {"rollout_score": ("generate and score", BLUE), "train": ("train", ORANGE), "sync": ("weight sync", GREEN)}
    totals = dict(zip(*data.series("timing/step/total"), strict=True))
    series = {p: dict(zip(*data.series(f"timing/step/{p}"), strict=True)) for p in shown}
    steps = sorted(set(totals).union(*series.values()))
    if not steps:
        return None
    seconds = [[series[phase].get(s, 0.0) for s in steps] for phase in shown]
    named = [sum(column) for column in zip(*seconds, strict=True)]
    other = [max(0.0, totals.get(s, n) - n) for s, n in zip(steps, named, strict=True)]
    labels, colours = ([line[i] for line in shown.values()] for i in (0, 1))
    if any(o > 0.01 * n for o, n in zip(other, named, strict=True)):
        seconds, labels, colours = [*seconds, other], [*labels, "other"], [*colours, GREY]
    figure, ax = axes(WIDE)
    # Steps as areas: a bar per step takes most of the report's time in a run of hundreds.
    edges = [edge for s in steps for edge in (s - 0.5, s + 0.5)]
    ax.stackplot(edges, [[v for v in row for _ in range(2)] for row in seconds], labels=labels, colors=colours)
    ax.set_ylabel("seconds")
    step_axis(ax)
    legend(ax)
    return figure


def lines(
    data: ReportData, keys: dict[str, tuple[str, str]], ylabel: str, *, log: bool = False, stage: str = "rl"
) -> Figure | None:
    """Draw one line per metric; keys: metric -> (label, colour)."""
    known = [(data.series(key, stage), *look) for key, look in keys.items()]
    known = [k for k in known if k[0][0]]
    if not known:
        return None
    figure, ax = axes(HALF)
    for (steps, values), label, colour in known:
        ax.plot(steps, values, color=colour, label=label, marker="o" if len(steps) < 3 else None, ms=5)
    log = log and all(v > 0 for (_, values), _, _ in known for v in values)
    if log:
        log_axis(ax)
    ax.set_ylabel(ylabel)
    step_axis(ax)
    if len(known) > 1:
        legend(ax)
    return figure
