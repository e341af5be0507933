"""Draw docs/images/learning.svg, the learning curve of the quickstart, from results/learning.json.

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

RESULTS = Path(__file__).parent / "results" / "learning.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "learning.svg"
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


def draw(results: Mapping[str, Any], path: Path) -> None:
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
        if control := results["arms"].get("sft"):
            ends = [points["sft"]["exact_act"] for points in control["seeds"].values()]
            level = sum(ends) / len(ends)
            axes.axhline(level, color=GREY, linewidth=1, linestyle="--")
            axes.annotate("SFT alone, same time", (140, level), xytext=(98, level - 0.07), color=GREY)
        axes.set_xlabel("RL steps after the supervised warm-up")
        axes.set_ylabel("held-out exact act")
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


def main() -> None:
    draw(json.loads(RESULTS.read_text()), PICTURE)
    print(f"wrote {PICTURE}")


if __name__ == "__main__":
    main()
