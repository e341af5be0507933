"""report.html of an OlaBench evaluation: one self-contained page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.apps.evaluate.olabench import plots
from hamr.apps.evaluate.olabench.console import GRADES, GROUPS
from hamr.apps.evaluate.olabench.template import PAGE
from hamr.report.plot_kit import STYLE as PLOT_STYLE
from hamr.report.template import STYLE
from hamr.security.redaction import redact_text
from hamr.telemetry.run_folder import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 12
"""Number of responses shown per policy."""
Shown = tuple[str, str]
"""A formatted value and its interval."""


def write_olabench_report(folder: Path, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Path:
    """Draw plots/*.png and write report.html into the folder of an evaluation."""
    import matplotlib
    from jinja2 import Environment

    with matplotlib.rc_context(PLOT_STYLE):
        shown = list(_plots(folder, metrics))
    html = (
        Environment(autoescape=True)
        .from_string(PAGE)
        .render(
            style=STYLE,
            folder=str(folder),
            verdict=verdict(metrics),
            facts=_facts(metrics),
            policies=[_policy(name, groups) for name, groups in metrics["policies"].items()],
            plots=shown,
            grading=[_grading(file, judges) for file, judges in metrics["grading"].items()],
            judges=[_judge(name, judge) for name, judge in metrics["judges"].items()],
            lowest=[_lowest(name, rows) for name in metrics["policies"]],
        )
    )
    write_atomic(folder / "report.html", redact_text(html))
    return folder / "report.html"


def verdict(metrics: Mapping[str, Any]) -> str:
    """Return the result of the evaluation in one or two sentences, from measured values only."""
    said = []
    for name, groups in metrics["policies"].items():
        found = groups["all"]["overall"]
        if found["mean"] is None:
            said.append(f"{name} has no overall score: not all of its five terms could be measured.")
        else:
            said.append(f"{name} scores {found['mean']:.1f} of 100 on {groups['all']['items']} items.")
    for file, judges in metrics["grading"].items():
        shares = [f"{name} {100 * j['accuracy']['mean']:.0f} %" for name, j in judges.items() if _has_judgements(j)]
        if shares:
            said.append(f"Right verdicts on {Path(file).name}: {', '.join(shares)}.")
    return " ".join(said)


def _has_judgements(judge: Mapping[str, Any]) -> bool:
    return "accuracy" in judge and judge["accuracy"]["mean"] is not None


def _facts(metrics: Mapping[str, Any]) -> list[str]:
    judgements = sum(judge["asked"] - sum(judge["missing"].values()) for judge in metrics["judges"].values())
    cot = {"none": "answers alone", "pre": "thinking first", "post": "answer first, stopped at its end"}
    return [
        f"{len(metrics['policies'])} policies",
        f"{judgements:,} judgements",
        cot[metrics["options"]["cot"]],
        f"judges by {metrics['options']['judged']}",
    ]


def _policy(name: str, groups: Mapping[str, Any]) -> dict[str, Any]:
    order = [*(g for g in GROUPS if g in groups), *(g for g in groups if g not in GROUPS)]
    rows, latency = [], []
    for group in order:
        found, took, counts = groups[group], groups[group]["latency"], groups[group]["responses"]
        figures = [_format_estimate(found["grades"][grade]) for grade in GRADES]
        figures += [_format_estimate(found[rate]["rate"], "{:.1f}", 100) for rate in ("risk", "hallucination")]
        rows.append(
            {
                "group": group,
                "items": found["items"],
                "figures": [*figures, _format_estimate(found["overall"], "{:.2f}")],
            }
        )
        seconds = [_format_estimate(took["seconds"]), (_number(took["median_s"]), ""), (_number(took["p95_s"]), "")]
        tokens = [_format_estimate(took[key], "{:.0f}") for key in ("response_tokens", "cot_tokens")]
        told = [counts[key] for key in ("given", "malformed", "cut_off", "failed")]
        latency.append({"group": group, "figures": [*seconds, *tokens], "counts": told})
    return {"name": name, "rows": rows, "latency": latency}


def _grading(file: str, judges: Mapping[str, Any]) -> dict[str, Any]:
    types, agreement = [], []
    for name, judge in judges.items():
        for kind, entry in ({"any": judge["any"], **judge["types"]} if "any" in judge else {}).items():
            precision = entry["precision"]
            types.append(
                {
                    "judge": name,
                    "kind": kind.replace("_", " "),
                    "precision": _share(precision) if precision else ("-", ""),
                    "given": precision["n"] if precision else "",
                    "recall": _share(entry["recall"]),
                    "known": entry["recall"]["n"],
                }
            )
        counts = {"asked": judge["asked"], "missing": judge["missing"]}
        if "accuracy" in judge:
            exact = _share(judge["exact"]) if "exact" in judge else ("-", "")
            agreement.append({"judge": name, "figures": [_share(judge["accuracy"]), exact, ("-", "")], **counts})
        for part in (p for p in ("grades", "good") if p in judge):
            rho = judge[part]["spearman"]
            figures = [_share(judge[part]["accuracy"]), ("-", ""), _format_estimate({**rho, "mean": rho["rho"]})]
            agreement.append({"judge": f"{name} ({part})", "figures": figures, **counts})
    return {"file": file, "types": types, "agreement": agreement}


def _judge(name: str, judge: Mapping[str, Any]) -> dict[str, Any]:
    missing = ", ".join(f"{why.removeprefix('judge_')} {count}" for why, count in judge["missing"].items())
    return {"name": name, **judge, "prompts": ", ".join(judge["prompts"]), "missing": missing or "none"}


def _lowest(policy: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the policy's responses with the most faults found by judges."""

    def fault_order(row: Mapping[str, Any]) -> tuple[bool, int]:
        said = row["judgements"].values()
        labels = [label for judgement in said for label in judgement["labels"] if label != "none"]
        return not labels, min((j["grade"] for j in said if j["grade"] is not None), default=5)

    mine = [row for row in rows if row["policy"] == policy and row["judgements"]]
    shown = []
    for row in sorted(mine, key=fault_order)[:_SHOWN]:
        judgements = row["judgements"]
        verdicts = [f"{name}: {j['grade'] or ', '.join(j['labels']) or 'none'}" for name, j in judgements.items()]
        reason = " · ".join(j["reason"] for j in judgements.values() if j["reason"])
        shown.append({"id": row["id"], "response": row["response"], "verdicts": "; ".join(verdicts), "reason": reason})
    return {"policy": policy, "rows": shown}


def _share(estimate: Mapping[str, Any]) -> Shown:
    return _format_estimate(estimate, "{:.1f}", 100)


def _format_estimate(estimate: Mapping[str, Any], form: str = "{:.2f}", scale: float = 1.0) -> Shown:
    if estimate["mean"] is None:
        return "-", ""
    if estimate["low"] is None:
        return form.format(scale * estimate["mean"]), ""
    low, high = (form.format(scale * estimate[end]) for end in ("low", "high"))
    return form.format(scale * estimate["mean"]), f"{low} to {high}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _plots(folder: Path, metrics: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    policies = metrics["policies"]
    drawn: list[tuple[str, str, Figure | None]] = []
    if policies:
        drawn = [
            ("figures", "The five terms of the overall score", plots.headline(policies)),
            ("kinds", "Overall score by scenario kind", plots.by_kind(policies)),
            ("types", "Types of risk and hallucination", plots.types(policies)),
        ]
    for number, (file, judges) in enumerate(metrics["grading"].items(), start=1):
        drawn.append((f"judges_{number}", f"Judges on {Path(file).name}", plots.detection(judges)))
    for name, title, figure in drawn:
        if figure is None:
            continue
        path = folder / "plots" / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        path.write_bytes(picture.getvalue())
        yield {"title": title, "png": base64.b64encode(picture.getvalue()).decode()}
