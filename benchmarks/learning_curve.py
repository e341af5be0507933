"""Draw the pictures of docs/images from the stored results in results/.

python benchmarks/learning_curve.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
PICTURES = Path(__file__).parents[1] / "docs" / "images"
STEPS = {"sft": 0, "rl-40": 40, "rl-80": 80, "rl-120": 120, "rl": 140}
GREY, LINE, MEAN = "#808080", "#8ab4d8", "#1f77b4"
"""Colours that are legible on white and on black."""
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "hamr", "font.size": 10, "font.family": "sans-serif"}
STYLE |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY)
"""Settings of matplotlib. The text stays text, so that the file is small."""


def curves(results: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return {seed: held-out exact act after SFT and after 40, 80, ... RL steps}."""
    seeds = results["arms"]["rl"]["seeds"]
    return {seed: [points[stage]["exact_act"] for stage in STEPS] for seed, points in seeds.items()}


def draw_learning(results: Mapping[str, Any], path: Path) -> None:
    """Draw one line per seed and their mean, and the level that SFT alone reaches in the same time."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 3), layout="constrained")
        axes = figure.subplots()
        steps, lines = list(STEPS.values()), curves(results)
        for values in lines.values():
            axes.plot(steps, values, color=LINE, linewidth=1)
        mean = [sum(at) / len(at) for at in zip(*lines.values(), strict=True)]
        axes.plot(steps, mean, color=MEAN, linewidth=2.5, marker="o", markersize=4)
        axes.annotate(f"mean of {len(lines)} seeds", (80, mean[2]), xytext=(84, mean[2] - 0.12), color=MEAN)
        ends = [points["sft"]["exact_act"] for points in results["arms"]["sft"]["seeds"].values()]
        level = sum(ends) / len(ends)
        axes.axhline(level, color=GREY, linewidth=1, linestyle="--")
        axes.annotate("SFT alone, equal time", (140, level), xytext=(108, level - 0.07), color=GREY)
        axes.set_xlabel("RL steps after the SFT warm-up")
        axes.set_ylabel("held-out exact act")
        plain(axes)
        save(figure, path)


def draw_arms(results: Mapping[str, Any], path: Path) -> None:
    """Draw the gain of each arm with its interval, and a point for each seed."""
    found = results["arms"]
    arms = list(found)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6, 0.3 * len(arms) + 0.8), layout="constrained")
        axes = figure.subplots()
        for place, arm in enumerate(arms):
            own = found[arm]
            axes.plot([own["gain"]["low"], own["gain"]["high"]], [place, place], color=MEAN, linewidth=2)
            axes.plot(own["gain"]["mean"], place, "o", color=MEAN, markersize=6)
            gains = [end - own["curve"]["base"] for end in own["seeds"].values()]
            axes.plot(gains, [place] * len(gains), "|", color=GREY, markersize=9)
        axes.axvline(0, color=GREY, linewidth=1)
        axes.set_yticks(range(len(arms)), arms)
        axes.invert_yaxis()
        axes.grid(axis="x", color=GREY, alpha=0.25)
        axes.set_xlabel("gain in held-out exact act over the SFT warm-up")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        save(figure, path)


def draw_duel(results: Mapping[str, Any], path: Path) -> None:
    """Draw exact act against samples and against seconds, one line per seed."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7, 3), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for side, color in (("hamr", "#1f77b4"), ("trl", "#d98b1f")):
            for number, run in enumerate(results["sides"][side].values()):
                steps = [int(step) for step in run["exact_act"]]
                label = {"hamr": "hamr", "trl": "TRL"}[side] if number == 0 else None
                samples = [results["responses_per_step"] * step for step in steps]
                left.plot(samples, list(run["exact_act"].values()), color=color, linewidth=1.2, label=label)
                right.plot(list(run["seconds"].values()), list(run["exact_act"].values()), color=color, linewidth=1.2)
        left.set_xlabel("responses sampled")
        left.set_ylabel("held-out exact act")
        right.set_xlabel("seconds in steps")
        left.legend(frameon=False, loc="lower right")
        for axes in (left, right):
            plain(axes)
        save(figure, path)


def plain(axes: Axes) -> None:
    """Set the axis of exact act, a grid, and no frame."""
    axes.set_ylim(0, 0.8)
    axes.grid(color=GREY, alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})


DRAWN = {
    "learning": ("learning_rule", draw_learning),
    "learning_algorithms": ("learning_algorithms", draw_arms),
    "learning_ages": ("learning_ages", draw_arms),
    "learning_duel": ("learning_duel", draw_duel),
}
"""Picture -> file of results/, and the function that draws it."""


def read_results(name: str) -> dict[str, Any]:
    """Return a file of results/."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def draw_picture(name: str, folder: Path = PICTURES) -> None:
    """Draw a picture from its stored results."""
    results, draw = DRAWN[name]
    draw(read_results(results), folder / f"{name}.svg")


if __name__ == "__main__":
    for picture in DRAWN:
        draw_picture(picture)
    print(f"wrote {', '.join(DRAWN)} to {PICTURES}")
