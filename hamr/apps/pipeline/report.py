"""report.html of a pipeline or a multirun: outputs of each stage, metrics across stages, and times."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.apps.pipeline.data import LearningPoint, PipelineData, StageFacts
from hamr.apps.pipeline.template import PAGE
from hamr.report.plot_kit import BLUE, GREEN, GREY, ORANGE, WIDE, axes, legend
from hamr.report.plot_kit import STYLE as PLOT_STYLE
from hamr.report.template import STYLE
from hamr.security.redaction import redact_text
from hamr.telemetry.console import duration
from hamr.telemetry.run_folder import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHEN = {"base": "enters", "sft": "after its warm-up", "rl": "leaves"}
FIGURES = {
    "held-out reward": ("reward.total", "{:.3f}"),
    "exact act": ("exact_act", "{:.1%}"),
    "right action": ("action_accuracy", "{:.1%}"),
    "tool call exact": ("tool_exact_match", "{:.1%}"),
    "format errors": ("format_error_rate", "{:.1%}"),
    "not scored": ("failed_frac", "{:.1%}"),
}
LINES = {"held-out reward": BLUE, "right action": GREEN, "tool call exact": ORANGE}


def write_pipeline_report(folder: Path) -> Path:
    """Write report.html from the current outputs of the stages."""
    import matplotlib
    from jinja2 import Environment

    data = PipelineData.read(folder)
    with matplotlib.rc_context(PLOT_STYLE):
        plots = list(_plots(data))
    page = Environment(autoescape=True).from_string(PAGE)
    html = page.render(
        style=STYLE,
        name=data.name,
        kind=_kind(data),
        folder=str(folder),
        verdict=verdict(data),
        facts=_facts(data),
        stages=[_stage(stage) for stage in data.stages],
        figures=list(FIGURES),
        points=[_row(point) for point in data.points],
        forms=list(_forms(data)),
        losses=[
            (loss.stage, loss.name, f"{loss.trained:,}", _number(loss.before), _number(loss.after))
            for loss in data.losses
        ],
        data=data.data,
        plots=plots,
    )
    write_atomic(folder / "report.html", redact_text(html))
    return folder / "report.html"


def verdict(data: PipelineData) -> str:
    """Return the progress and the change in policy quality, from measured values only."""
    done = sum(stage.attempts.state == "finished" for stage in data.stages)
    said = f"{done} of {len(data.stages)} {_kind(data)}s finished."
    unfinished = next((s for s in data.stages if s.attempts.state in ("failed", "stopped", "begun")), None)
    if unfinished is not None:
        state = unfinished.attempts.state
        said += f" {unfinished.name} {'is not finished' if state == 'begun' else state}."
    known = [(point, value) for point in data.points if (value := _value(point, "action_accuracy")) is not None]
    if data.independent:
        ends = {point.stage: value for point, value in known if point.when == "rl"}
        best = max(ends, key=lambda name: ends[name], default=None)
        return (
            said if best is None else f"{said} {best} ends with the highest share of right actions, {ends[best]:.0%}."
        )
    if len(known) > 1:
        (first, old), (last, new) = known[0], known[-1]
        said += (
            f" The share of right actions went from {old:.0%} where {first.stage} began to {new:.0%} where "
            f"{last.stage} ended."
        )
    return said


def _facts(data: PipelineData) -> list[str]:
    seconds = sum(stage.attempts.seconds for stage in data.stages)
    return [f"{len(data.stages)} {_kind(data)}s", f"{duration(seconds)} in all"]


def _kind(data: PipelineData) -> str:
    return "run" if data.independent else "stage"


def _stage(stage: StageFacts) -> dict[str, Any]:
    page = stage.folder / "report.html"
    return {
        "number": stage.number,
        "name": stage.name,
        "job": stage.job,
        "takes": ", ".join(stage.takes),
        "state": stage.attempts.state + (f" ({stage.attempts.attempts} times)" if stage.attempts.attempts > 1 else ""),
        "time": duration(stage.attempts.seconds) if stage.attempts.seconds else "",
        "produced": stage.produced,
        "link": f"{stage.folder.name}/report.html" if page.is_file() else "",
        "command": " ".join(["hamr", *stage.attempts.command]) if stage.attempts.command else "",
    }


def _row(point: LearningPoint) -> dict[str, Any]:
    values = [(_value(point, key), form) for key, form in FIGURES.values()]
    return {
        "stage": point.stage,
        "when": WHEN.get(point.when, point.when),
        "n": point.figures.get("n", ""),
        "values": ["-" if value is None else form.format(value) for value, form in values],
    }


def _forms(data: PipelineData) -> Iterator[tuple[str, ...]]:
    """Yield the metrics by prompt format where prompts ask for thoughts before or after the answer."""
    for point in data.points:
        for form, own in (point.figures.get("by_format") or {}).items():
            accuracy, reward = own.get("action_accuracy"), own.get("reward")
            yield (
                point.stage,
                WHEN.get(point.when, point.when),
                form.replace("_cot", "-CoT"),
                f"{own['n']:.0f}",
                "-" if accuracy is None else f"{accuracy:.1%}",
                _number(reward),
                _number(own.get("answer_tokens"), "{:.1f}"),
                _number(own.get("answer_s"), "{:.2f}"),
            )


def _value(point: LearningPoint, key: str) -> float | None:
    value: Any = point.figures
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _number(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)


def _plots(data: PipelineData) -> Iterator[dict[str, str]]:
    kind = _kind(data)
    drawn = {f"Held-out figures across {kind}s": _across(data), f"Time per {kind}": _times(data)}
    for title, figure in drawn.items():
        if figure is not None:
            picture = io.BytesIO()
            figure.savefig(picture, format="png")
            yield {"title": title, "png": base64.b64encode(picture.getvalue()).decode()}


def _across(data: PipelineData) -> Figure | None:
    if len(data.points) < 2:
        return None
    figure, ax = axes(WIDE)
    for name, colour in LINES.items():
        values = [
            (at, value)
            for at, point in enumerate(data.points)
            if (value := _value(point, FIGURES[name][0])) is not None
        ]
        if values:
            places, heights = zip(*values, strict=True)
            # Independent runs are not a sequence.
            line = "none" if data.independent else "-"
            ax.plot(places, heights, color=colour, label=name, marker="o", ms=5, linestyle=line)
    ax.set_xticks(range(len(data.points)), [f"{p.stage}\n{WHEN.get(p.when, p.when)}" for p in data.points])
    legend(ax)
    return figure


def _times(data: PipelineData) -> Figure | None:
    known = [stage for stage in data.stages if stage.attempts.seconds]
    if not known:
        return None
    figure, ax = axes(WIDE)
    minutes = [stage.attempts.seconds / 60 for stage in known]
    bars = ax.barh([stage.name for stage in known], minutes, color=[BLUE if s.job == "train" else GREY for s in known])
    ax.bar_label(bars, [duration(60 * m) for m in minutes], padding=3, fontsize=9)
    ax.invert_yaxis()
    ax.set_xlabel("minutes")
    ax.grid(False)
    return figure
