"""Report of a pipeline or a multirun: outputs of each stage, metrics across stages, and times."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.apps.evaluate.ecs.report import NAMES
from hamr.apps.pipeline.data import PipelineData, StageFacts, ecs_scores, item_counts, sft_losses
from hamr.data.columns import value_at
from hamr.report.drawing import BLUE, GREEN, ORANGE, WIDE, axes, draw, legend
from hamr.report.html import write_page
from hamr.report.values import Cell, Code, Column, Fold, Interval, Link, Page, PageSection, Prose, Table
from hamr.telemetry.console import duration

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
    return write_page(pipeline_page(PipelineData.read(folder)), folder)


def pipeline_page(data: PipelineData) -> Page:
    kind, seconds = _kind(data), sum(stage.attempts.seconds for stage in data.stages)
    return Page(
        title=data.name,
        summary=verdict(data),
        facts=(f"{len(data.stages)} {kind}s", f"{duration(seconds)} in all"),
        sections=(
            PageSection.of(f"{kind.title()}s", _stages(data), lead="Each is a separate command with its own folder."),
            PageSection.of(
                f"Held-out figures across {kind}s",
                _points(data),
                lead=f"{kind.title()}s that train by reward: the policy at the start and at the end. Rewards of "
                f"{kind}s with other weights are not one scale; the shares are.",
            ),
            PageSection.of(
                "By order of thought and answer",
                _forms(data),
                lead="Tokens and seconds go to the end of the answer: in post-CoT the rationale follows it.",
            ),
            PageSection.of(
                "Agreement with acceptable replies (ECS)",
                _ecs(data),
                lead="Means over samples with 95 % bootstrap intervals, by the judges of each stage.",
            ),
            PageSection.of(
                f"Supervised {kind}s",
                _losses(data),
                lead="Loss on items that were not trained on, nats per token.",
            ),
            PageSection.of(
                "Data",
                *(
                    Table.pairs(f"{stage.name}: {rows} rows written", {what: str(n) for what, n in counts.items()})
                    for stage in data.stages
                    for rows, counts in item_counts(stage)
                ),
                lead="Items that the recipes kept, and dropped by each check.",
            ),
            PageSection.of(
                "Plots",
                draw("held_out", f"Held-out figures across {kind}s", partial(_across, data), wide=True),
            ),
            PageSection.of(
                "Commands",
                *(
                    Fold(f"{stage.number}. {stage.name}", (Code(shlex.join(["hamr", *stage.attempts.command])),))
                    for stage in data.stages
                    if stage.attempts.command
                ),
                lead=str(data.folder),
            ),
        ),
    )


def verdict(data: PipelineData) -> str:
    """Return the progress and the change in policy quality, from measured values only."""
    done = sum(stage.attempts.state == "finished" for stage in data.stages)
    text = f"{done} of {len(data.stages)} {_kind(data)}s finished."
    unfinished = next((s for s in data.stages if s.attempts.state in ("failed", "stopped", "begun")), None)
    if unfinished is not None:
        state = unfinished.attempts.state
        text += f" {unfinished.name} {'is not finished' if state == 'begun' else state}."
    known = [
        (point, value) for point in data.points if (value := value_at(point.figures, "action_accuracy")) is not None
    ]
    if data.independent:
        ends = {point.stage: value for point, value in known if point.when == "rl"}
        best = max(ends, key=lambda name: ends[name], default=None)
        return (
            text if best is None else f"{text} {best} ends with the highest share of right actions, {ends[best]:.0%}."
        )
    if len(known) > 1:
        (first, old), (last, new) = known[0], known[-1]
        text += (
            f" The share of right actions went from {old:.0%} where {first.stage} began to {new:.0%} where "
            f"{last.stage} ended."
        )
    return text


def _kind(data: PipelineData) -> str:
    return "run" if data.independent else "stage"


def _stages(data: PipelineData) -> Table:
    names = (_kind(data), "command", "takes", "state", "time", "produced")
    rows = tuple(_stage(stage) for stage in data.stages)
    return Table("", (Column("", "{}"), *map(Column, names)), rows)


def _stage(stage: StageFacts) -> tuple[Cell, ...]:
    has_page = (stage.folder / "report.html").is_file()
    attempts = stage.attempts
    return (
        stage.number,
        Link(stage.name, f"{stage.folder.name}/report.html") if has_page else stage.name,
        stage.job,
        ", ".join(stage.takes),
        attempts.state + (f" ({attempts.attempts} times)" if attempts.attempts > 1 else ""),
        duration(attempts.seconds) if attempts.seconds else "",
        Prose(stage.produced),
    )


def _points(data: PipelineData) -> Table:
    rows = tuple(
        (
            point.stage,
            WHEN.get(point.when, point.when),
            point.figures.get("n"),
            *(value_at(point.figures, key) for key, _ in FIGURES.values()),
        )
        for point in data.points
    )
    figures = (Column(name, form) for name, (_, form) in FIGURES.items())
    return Table("", (Column(_kind(data)), Column("policy"), Column("n", "{}"), *figures), rows)


def _forms(data: PipelineData) -> Table:
    """Return the metrics by prompt format where prompts ask for thoughts before or after the answer."""
    forms = {
        "n": ("n", "{:.0f}"),
        "right action": ("action_accuracy", "{:.1%}"),
        "reward": ("reward", "{:.3f}"),
        "tokens to the answer's end": ("answer_tokens", "{:.1f}"),
        "seconds": ("answer_s", "{:.2f}"),
    }
    rows = tuple(
        (
            point.stage,
            WHEN.get(point.when, point.when),
            form.replace("_cot", "-CoT"),
            *(own.get(key) for key, _ in forms.values()),
        )
        for point in data.points
        for form, own in (point.figures.get("by_format") or {}).items()
    )
    columns = (Column(name, form) for name, (_, form) in forms.items())
    return Table("", (Column(_kind(data)), Column("policy"), Column("prompt"), *columns), rows)


def _ecs(data: PipelineData) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (stage.name, policy, *(Interval.of(values[name]) for name in NAMES))
        for stage in data.stages
        for policy, values in ecs_scores(stage)
    )
    scores = (Column(name, "{:.3f}") for name in NAMES.values())
    return Table("", (Column(_kind(data)), Column("policy"), *scores), rows)


def _losses(data: PipelineData) -> Table:
    rows = tuple((stage.name, *loss) for stage in data.stages for loss in sft_losses(stage))
    losses = (Column("before", "{:.3f}"), Column("after", "{:.3f}"))
    return Table("", (Column(_kind(data)), Column("set"), Column("items", "{:,}"), *losses), rows)


def _across(data: PipelineData) -> Figure | None:
    if len(data.points) < 2:
        return None
    figure, ax = axes(WIDE)
    for name, colour in LINES.items():
        values = [
            (at, value)
            for at, point in enumerate(data.points)
            if (value := value_at(point.figures, FIGURES[name][0])) is not None
        ]
        if values:
            places, heights = zip(*values, strict=True)
            # Independent runs are not a sequence.
            line = "none" if data.independent else "-"
            ax.plot(places, heights, color=colour, label=name, marker="o", ms=5, linestyle=line)
    ax.set_xticks(range(len(data.points)), [f"{p.stage}\n{WHEN.get(p.when, p.when)}" for p in data.points])
    legend(ax)
    return figure
