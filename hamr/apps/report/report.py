"""Report of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hamr.apps.report.data import STAGE_NAMES, ReportData
from hamr.apps.report.figures import LATER, SCORING, SECTIONS
from hamr.apps.report.figures_dialogues import dialogue_table, episode_table, episode_turns
from hamr.apps.report.figures_sft import sft_verdict
from hamr.data.columns import value_at
from hamr.report.html import write_page
from hamr.report.values import (
    Cell,
    Code,
    Column,
    Fold,
    Headline,
    Headlines,
    Page,
    PageSection,
    Parts,
    Prose,
    Table,
    Tag,
    format_value,
)
from hamr.telemetry.console import duration
from hamr.telemetry.glossary import BETTER, METRICS, lookup
from hamr.telemetry.record_json import action_from_dict
from hamr.telemetry.recorder import show_action

_HEADLINES = (
    ("Exact act", "exact_act", "up", "{:.1%}"),
    ("Held-out reward", "reward.total", "up", "{:.3f}"),
    ("Right kind of action", "action_accuracy", "up", "{:.1%}"),
    ("Tool call exact", "tool_exact_match", "up", "{:.1%}"),
    ("Format errors", "format_error_rate", "down", "{:.1%}"),
)


def write_report(folder: Path | str, *, live: bool = False) -> Path:
    """Draw plots/*.png and write report.html from a finished or running run folder.

    A `live` page reloads itself and, because it is rewritten every few seconds during the run, has no sections of
    `LATER` and no plots/*.png. Raises RunFolderError if it is not a run folder.
    """
    data = ReportData.read(folder)
    page = run_page(data, live=live)
    written = write_page(page, data.folder.path, live=live)
    drawn = {figure.name for figure in page.figures()}
    for figure in (figure for _, figures in SECTIONS.values() for figure in figures):
        if not live and figure.name not in drawn:  # of an earlier report
            (data.folder.plots / f"{figure.name}.png").unlink(missing_ok=True)
    return written


def run_page(data: ReportData, *, live: bool = False) -> Page:
    return Page(
        title=data.name,
        summary=verdict(data),
        facts=_facts(data),
        sections=(
            PageSection.of("", _headlines(data)),
            *(
                PageSection.of(
                    title,
                    *(figure.draw(data, png=not live) for figure in figures),
                    lead=_scoring_lead(data) if title == SCORING else lead,
                )
                for title, (lead, figures) in SECTIONS.items()
                if not (live and title in LATER)
            ),
            PageSection.of(
                "Whole dialogues",
                dialogue_table(data),
                lead="SAGE with simulated customers; each stage's own report is sage/<stage>/report.html.",
            ),
            PageSection.of(
                "Dialogues with held-out customers",
                episode_table(data),
                episode_turns(data),
                lead="Of the last evaluation, the dialogues with the lowest and the highest mean reward of a turn.",
            ),
            PageSection.of(
                "Responses to the same message by stage",
                _comparisons(data),
                lead="Responses to held-out messages; each with its total reward.",
            ),
            PageSection.of(
                "Responses and their rewards",
                _examples(data),
                lead="From the last third of the RL steps: the best, the worst, and a random selection.",
            ),
            PageSection.of(
                "The run",
                *_tables(data),
                Fold("Configuration", (Code(data.config_text),)),
                Fold("Glossary of the metrics", (_glossary(data),)),
                lead=str(data.folder.path),
            ),
        ),
    )


def verdict(data: ReportData) -> str:
    """Return the result of the run in one or two sentences, from measured values only."""
    if tuned := sft_verdict(data):
        return tuned
    stages = data.stages
    if len(stages) < 2:
        done = len(data.steps.get("rl", ()))
        return f"{done} RL steps recorded; no comparison on held-out decisions yet."
    first, last = next(iter(stages)), next(reversed(stages))
    parts = []
    phrases = {
        "exact_act": ("the share of exact acts", "{:.0%}"),
        "reward.total": ("the held-out reward", "{:.2f}"),
        "action_accuracy": ("the share of responses of the right kind", "{:.0%}"),
    }
    for key in (key for _, key, _, _ in _headline_metrics(data) if key in phrases):
        words, form = phrases[key]
        old, new = value_at(stages[first], key), value_at(stages[last], key)
        if old is not None and new is not None:
            was, now = form.format(old), form.format(new)
            verb = "rose" if new > old else "fell"
            parts.append(f"{words} stayed at {now}" if was == now else f"{words} {verb} from {was} to {now}")
    sentence = " and ".join(parts)
    n = stages[last].get("n")
    on = f" on {n} decisions" if n else ""
    return f"From {STAGE_NAMES[first]} to {STAGE_NAMES[last]}{on}, {sentence}." if parts else "No figures in common."


def _headline_metrics(data: ReportData) -> list[tuple[str, str, str, str]]:
    """Return the headline metrics. With an exact-act rule, metrics that accept any reply are excluded."""
    truth = any(value_at(figures, "exact_act") is not None for figures in data.stages.values())
    return [line for line in _HEADLINES if not (truth and line[1] == "action_accuracy")]


def _headlines(data: ReportData) -> Headlines | None:
    """Return each headline metric's value at the last stage, its change since the first, and all values."""
    items = []
    for title, key, good, form in _headline_metrics(data):
        known = [(stage, value_at(figures, key)) for stage, figures in data.stages.items()]
        values = [(stage, v) for stage, v in known if v is not None]
        if not values:
            continue
        path = tuple((STAGE_NAMES[stage], form.format(v)) for stage, v in values)
        if len(values) == 1:
            items.append(Headline(title=title, value=path[-1][1]))
            continue
        by = values[-1][1] - values[0][1]
        change = f"{by * 100:+.1f} points" if "%" in form else f"{by:+.3f}"
        change += " over the untrained model" if values[0][0] == "base" else f" since {STAGE_NAMES[values[0][0]]}"
        tone: Literal["good", "bad", "same"] = "good" if (by > 0) == (good == "up") else "bad"
        if abs(by) < 5e-4:
            change, tone = "unchanged", "same"
        items.append(Headline(title=title, value=path[-1][1], change=change, tone=tone, path=path))
    return Headlines(tuple(items)) if items else None


def _facts(data: ReportData) -> tuple[str, ...]:
    timing = data.summary.get("timing") or {}
    facts: list[str] = []
    if not sft_verdict(data):
        facts += [f"{len(data.steps.get('rl', ()))} RL steps", f"{data.responses:,} responses scored"]
    if timing:
        facts.append(f"{duration(sum(timing.values()))} in all")
    if memory := data.summary.get("memory_gb_peak"):
        facts.append(f"{memory:.1f} GB of memory at most")
    if (seed := data.summary.get("seed")) is not None:
        facts.append(f"seed {seed}")
    return tuple(facts)


def _scoring_lead(data: ReportData) -> str:
    """Return the shares of replies sent to the judge and of failed scorings, and what the audits found, in words."""
    _, escalated = data.series("router/escalated_frac")
    _, failed = data.series("reward/failed_frac")
    parts = []
    if escalated:
        parts.append(
            f"{sum(escalated) / len(escalated):.0%} of the replies were escalated to the judge (mean over the steps)"
        )
    if failed:
        share = sum(failed) / len(failed)
        parts.append("every response could be scored" if not any(failed) else f"{share:.1%} could not be scored")
    lower, upper = (data.series(f"audit/bound_{end}")[1] for end in ("lower", "upper"))
    if lower and upper:
        parts.append(
            f"inside the trust interval the reward is {lower[-1]:+.2f} to {upper[-1]:+.2f} above the auditor's "
            "(audits, 95 %)"
        )
    _, corrections = data.series("audit/correction_mean")
    _, largest = data.series("audit/correction_max")
    if corrections:
        parts.append(
            f"audits corrected it by {corrections[-1]:.2f} on average and {largest[-1]:.2f} at most in the last step"
        )
    wrong = {name: data.series(f"truth/{name}_wrong_frac")[1] for name in ("reranker", "judge", "both")}
    if all(wrong.values()):
        reranker, judge, both = (f"{shares[-1]:.1%}" for shares in wrong.values())
        parts.append(
            f"of the last replies whose truth is known, the reranker was wrong about {reranker}, the judge about "
            f"{judge}, and both about {both} (audits stand for the replies that the judge has not scored)"
        )
    return "; ".join(parts) + "." if parts else ""


def _comparisons(data: ReportData) -> Table:
    rows = []
    for c in data.comparisons:
        replies = (c.replies.get(stage) for stage in data.stages)
        responses = (
            Prose(_response_text(reply[0]), format_value(reply[1], missing="not scored")) if reply else None
            for reply in replies
        )
        rows.append((Prose(c.customer), *responses, Prose(c.reference)))
    names = ("customer", *(STAGE_NAMES[stage] for stage in data.stages), "a reference")
    return Table("", tuple(map(Column, names)), tuple(rows))


def _response_text(text: str) -> str:
    return text if text.strip() else "(blank)"


def _examples(data: ReportData) -> Table:
    columns = (
        Column(""),
        Column("step", "{}"),
        Column("customer"),
        Column("response"),
        Column("reward", "{:.2f}"),
        Column("components"),
    )
    return Table("", columns, tuple(_example(kind, row) for kind, row in data.examples()))


def _example(kind: str, row: Mapping[str, Any]) -> tuple[Cell, ...]:
    tones: Mapping[str, Literal["good", "bad"]] = {"best": "good", "worst": "bad"}
    action = action_from_dict(row["action"])
    response = _response_text(show_action(action) if action is not None else row["response"])
    reference = f"reference: {row['reference']}" if row.get("reference") else ""
    parts = {key.removeprefix("reward/"): value for key, value in row.items() if key.startswith("reward/")}
    scores = [f"{name} {row[key]:.2f}" for name, key in (("S_R", "s_r"), ("S_J", "s_j")) if row[key] is not None]
    return (
        Tag(kind, tones.get(kind, "neutral")),
        row["step"],
        Prose(row.get("customer", "")),
        Prose(response, reference),
        row["outcome"].replace("_", " ") if row["total"] is None else row["total"],
        Parts(parts, ", ".join([row["band"].replace("_", " "), *scores])),
    )


def _tables(data: ReportData) -> Iterator[Table]:
    summary = data.summary
    yield _pairs("Versions", summary.get("versions"))
    yield _pairs("Machine", summary.get("machine"))
    tuned = {
        name: "yes" if c["finetuned"] else "no"
        for name, c in (summary.get("scorers") or {}).items()
        if "finetuned" in c
    }
    yield Table.pairs("Scorers: fine-tuned", tuned)
    timing = {phase: duration(seconds) for phase, seconds in (summary.get("timing") or {}).items()}
    yield Table.pairs("Time", timing)


def _pairs(title: str, mapping: Mapping[str, Any] | None) -> Table:
    return Table.pairs(title, {key.replace("_", " "): str(value) for key, value in (mapping or {}).items()})


def _glossary(data: ReportData) -> Table:
    """Return the glossary entries for this run's metrics."""
    used = {lookup(k) for rows in data.steps.values() for row in rows for k in row}
    used |= {lookup(f"eval/{n}/{k}") for n, (_, figures) in data.evaluations.items() for k in figures}
    rows = tuple((m.pattern, Prose(m.meaning), m.unit, BETTER[m.good]) for m in METRICS if m in used)
    return Table("", tuple(map(Column, ("metric", "meaning", "unit", "better"))), rows)
