"""report.html: a run on one self-contained page, without network access or other files."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hamr.apps.report.data import STAGE_NAMES, ReportData
from hamr.apps.report.plots import SECTIONS, Plot, draw_all
from hamr.apps.report.plots_dialogues import COLUMNS, dialogue_rows
from hamr.apps.report.plots_sft import sft_verdict
from hamr.report.page import RELOAD, write_page
from hamr.report.template import PAGE
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

_LEADS = {
    "sft": ("Supervised fine-tuning", "Loss on items not used for training, nats per token."),
    "learning": ("Did it learn?", "Reward over the RL steps; the band holds the step's responses."),
    "held_out": (
        "Before and after training",
        "Decisions not used in training, answered as set in experiment.evaluation and scored as in training.",
    ),
    "scoring": ("The reward system", ""),
    "health": ("Training health", "Early warning signals for problems with the reward."),
    "time": ("Time", ""),
}


def write_report(folder: Path | str, *, live: bool = False) -> Path:
    """Draw plots/*.png and write report.html from a finished or running run folder. A `live` page reloads itself.

    Raises RunFolderError if it is not a run folder.
    """
    data = ReportData.read(folder)
    files = draw_all(data, data.folder.plots)
    return write_page(
        data.folder.report,
        PAGE,
        reload=RELOAD if live else "",
        title=data.name,
        verdict=verdict(data),
        facts=_facts(data),
        cards=_cards(data),
        sections=_sections(data, files),
        dialogues=dialogue_rows(data),
        dialogue_columns=list(COLUMNS.values()),
        comparisons=_comparisons(data),
        comparison_stages=[STAGE_NAMES[s] for s in data.stages],
        examples=[_example(kind, row) for kind, row in data.examples()],
        folder=str(data.folder.path),
        tables=_tables(data),
        config=data.config_text,
        glossary=_glossary(data),
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
    told = {
        "exact_act": ("the share of exact acts", "{:.0%}"),
        "reward.total": ("the held-out reward", "{:.2f}"),
        "action_accuracy": ("the share of responses of the right kind", "{:.0%}"),
    }
    for key in (key for _, key, _, _ in _headlines(data) if key in told):
        words, form = told[key]
        old, new = _value(stages[first], key), _value(stages[last], key)
        if old is not None and new is not None:
            was, now = form.format(old), form.format(new)
            verb = "rose" if new > old else "fell"
            parts.append(f"{words} stayed at {now}" if was == now else f"{words} {verb} from {was} to {now}")
    sentence = " and ".join(parts)
    n = stages[last].get("n")
    on = f" on {n} decisions" if n else ""
    return f"From {STAGE_NAMES[first]} to {STAGE_NAMES[last]}{on}, {sentence}." if parts else "No figures in common."


def _value(stage: Mapping[str, Any], key: str) -> float | None:
    value: Any = stage
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _headlines(data: ReportData) -> list[tuple[str, str, str, str]]:
    """Return the headline metrics. With an exact-act rule, metrics that accept any reply are excluded."""
    truth = any(_value(figures, "exact_act") is not None for figures in data.stages.values())
    return [line for line in _HEADLINES if not (truth and line[1] == "action_accuracy")]


def _cards(data: ReportData) -> list[dict[str, Any]]:
    """Return one card per headline metric: the last stage's value, its change since the first, and the values
    between."""
    cards = []
    for title, key, good, form in _headlines(data):
        known = [(stage, _value(figures, key)) for stage, figures in data.stages.items()]
        values = [(stage, v) for stage, v in known if v is not None]
        if not values:
            continue
        change, tone = "", ""
        if len(values) > 1:
            by = values[-1][1] - values[0][1]
            change = f"{by * 100:+.1f} points" if "%" in form else f"{by:+.3f}"
            change += " over the untrained model" if values[0][0] == "base" else f" since {STAGE_NAMES[values[0][0]]}"
            change = change if abs(by) >= 5e-4 else "unchanged"
            tone = "same" if abs(by) < 5e-4 else "good" if (by > 0) == (good == "up") else "bad"
        path = [(STAGE_NAMES[s], form.format(v)) for s, v in values]
        cards.append({"title": title, "value": path[-1][1], "change": change, "tone": tone, "path": path})
    return cards


def _facts(data: ReportData) -> list[str]:
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
    return facts


def _sections(data: ReportData, files: Mapping[str, Path]) -> list[dict[str, Any]]:
    sections = []
    for key, plots in SECTIONS.items():
        title, lead = _LEADS[key]
        shown = [_figure(p, files[p.name]) for p in plots if p.name in files]
        if shown:
            sections.append({"title": title, "lead": _scoring_lead(data) if key == "scoring" else lead, "plots": shown})
    return sections


def _figure(plot: Plot, file: Path) -> dict[str, Any]:
    png = base64.b64encode(file.read_bytes()).decode()
    alt = f"Plot: {plot.title}. {plot.caption}".strip()
    return {"title": plot.title, "caption": plot.caption, "alt": alt, "png": png, "wide": plot.wide}


def _scoring_lead(data: ReportData) -> str:
    """Return the share of replies sent to the judge and the share of failed scorings, in words."""
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
    return "; ".join(parts) + "." if parts else ""


def _comparisons(data: ReportData) -> list[dict[str, Any]]:
    stages = list(data.stages)
    return [
        {
            "customer": c.customer,
            "reference": c.reference,
            "said": [
                (_response_text(c.said[s][0]), _reward(c.said[s][1])) if s in c.said else ("", "") for s in stages
            ],
        }
        for c in data.comparisons
    ]


def _response_text(text: str) -> str:
    return text if text.strip() else "(blank)"


def _reward(total: float | None) -> str:
    return "not scored" if total is None else f"{total:.2f}"


def _example(kind: str, row: Mapping[str, Any]) -> dict[str, Any]:
    action = action_from_dict(row["action"])
    parts = [(k.removeprefix("reward/"), v) for k, v in row.items() if k.startswith("reward/")]
    scores = [f"{name} {row[key]:.2f}" for name, key in (("S_R", "s_r"), ("S_J", "s_j")) if row[key] is not None]
    return {
        "kind": kind,
        "step": row["step"],
        "customer": row.get("customer", ""),
        "reference": row.get("reference", ""),
        "response": _response_text(show_action(action) if action is not None else row["response"]),
        "total": _reward(row["total"]) if row["total"] is not None else row["outcome"].replace("_", " "),
        "parts": [
            {
                "name": name,
                "value": "failed" if value is None else f"{value:.2f}",
                "width": 0 if value is None else round(min(abs(value), 1.0) * 100),
                "minus": value is not None and value < 0,
            }
            for name, value in parts
        ],
        "route": ", ".join([row["band"].replace("_", " "), *scores]),
    }


def _tables(data: ReportData) -> list[tuple[str, list[tuple[str, str]]]]:
    s = data.summary
    scorers = [
        (f"{name}, {kind.replace('_', ' ')}", _auc(value, (check.get("word_overlap_auc") or {}).get(kind)))
        for name, check in (s.get("scorers") or {}).items()
        for kind, value in (check.get("auc") or {}).items()
    ]
    tuned = [
        (name, "yes" if c["finetuned"] else "no") for name, c in (s.get("scorers") or {}).items() if "finetuned" in c
    ]
    timing = [(phase, duration(v)) for phase, v in (s.get("timing") or {}).items()]
    tables = [
        ("Versions", _pairs(s.get("versions"))),
        ("Machine", _pairs(s.get("machine"))),
        ("Scorers: AUC", scorers),
        ("Scorers: fine-tuned", tuned),
        ("Time", timing),
    ]
    return [(title, rows) for title, rows in tables if rows]


def _pairs(mapping: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    return [(key.replace("_", " "), str(value)) for key, value in (mapping or {}).items()]


def _auc(value: float | None, words: float | None) -> str:
    shown = "unknown" if value is None else f"{value:.3f}"
    return shown if words is None else f"{shown} (word overlap {words:.3f})"


def _glossary(data: ReportData) -> Sequence[dict[str, str]]:
    """Return the glossary entries for this run's metrics."""
    used = {lookup(k) for rows in data.steps.values() for row in rows for k in row}
    used |= {lookup(f"eval/{n}/{k}") for n, (_, figures) in data.evaluations.items() for k in figures}
    return [
        {"pattern": m.pattern, "meaning": m.meaning, "unit": m.unit, "better": BETTER[m.good]}
        for m in METRICS
        if m in used
    ]
