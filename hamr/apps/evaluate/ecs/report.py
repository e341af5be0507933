"""report.html of an ECS evaluation: one self-contained page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.apps.evaluate.ecs import plots
from hamr.apps.evaluate.ecs.console import NAMES, number
from hamr.apps.evaluate.ecs.template import PAGE
from hamr.report.page import picture, write_page
from hamr.report.plot_kit import STYLE as PLOT_STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 8
"""Number of responses shown per policy."""


def write_ecs_report(folder: Path, metrics: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Path:
    """Draw plots/*.png and write report.html into the folder of an evaluation."""
    import matplotlib

    with matplotlib.rc_context(PLOT_STYLE):
        shown = list(_plots(folder, metrics, items))
    return write_page(
        folder / "report.html",
        PAGE,
        title="ECS",
        heading="Ensemble-Consistency Score",
        folder=str(folder),
        verdict=verdict(metrics),
        facts=_facts(metrics),
        names=list(NAMES.values()),
        policies=[_policy(name, policy) for name, policy in metrics["policies"].items()],
        comparison=_comparison(metrics["comparison"]),
        plots=shown,
        judges=[_judge(name, judge) for name, judge in metrics["judges"].items()],
        pairs=[(*p["judges"], p["n"], number(p["same"]), number(p["kappa"])) for p in metrics["between_judges"]],
        people=_people(metrics["people"]),
        lowest=[_lowest(name, items) for name in metrics["policies"]],
    )


def verdict(metrics: Mapping[str, Any]) -> str:
    """Return the result of the evaluation in one or two sentences, from measured values only."""
    name, policy = next(iter(metrics["policies"].items()))
    multi = policy["values"]["multi_ecs"]
    if multi["mean"] is None:
        return f"{name}: no response could be scored; the table of judges says why."
    said = f"{name} reaches a Multi-ECS of {multi['mean']:.3f} on {multi['n']} samples."
    found = metrics["comparison"]
    if found is None or found["multi_ecs"]["p_value"] is None:
        return said
    by, p = found["multi_ecs"]["difference"]["mean"], found["multi_ecs"]["p_value"]
    if by == 0:
        return f"{said} {found['b']} reaches the same."
    chance = "" if p < 0.05 else ", which may be chance"
    return f"{said} That is {abs(by):.3f} {'above' if by > 0 else 'below'} {found['b']} (p = {p:.4f}){chance}."


def _facts(metrics: Mapping[str, Any]) -> list[str]:
    responses = sum(policy["responses"] for policy in metrics["policies"].values())
    votes = sum(judge["asked"] - sum(judge["missing"].values()) for judge in metrics["judges"].values())
    return [
        f"{responses:,} responses",
        f"{len(metrics['judges'])} judges",
        f"{votes:,} votes",
        f"{metrics['options']['scores']} scores",
    ]


def _policy(name: str, policy: Mapping[str, Any]) -> dict[str, Any]:
    kinds = policy["kinds"]
    return {
        "name": name,
        "values": [_with_interval(policy["values"][value]) for value in NAMES],
        "counts": [policy["samples"], policy["responses"], policy["unscored"], policy["unlogged"]],
        "kinds": [kinds.get(kind, 0) for kind in ("reply", "tool_call", "type_mismatch", "malformed")],
        "missing": f"{policy['missing']} of {policy['asked']}",
    }


def _comparison(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    rows = [
        {
            "name": name,
            "difference": _with_interval(found[value]["difference"], "{:+.3f}"),
            "p": number(found[value]["p_value"], "{:.4f}"),
            "counts": [found[value][key] for key in ("wins", "ties", "losses", "left_out")],
        }
        for value, name in NAMES.items()
    ]
    return {"a": found["a"], "b": found["b"], "rows": rows}


def _judge(name: str, judge: Mapping[str, Any]) -> dict[str, Any]:
    levels = judge["levels"]
    return {
        "name": name,
        "model": judge["model"],
        "prompt": judge["prompt"],
        "asked": judge["asked"],
        "missing": ", ".join(f"{why} {count}" for why, count in judge["missing"].items()) or "none",
        "levels": [levels.get(said, 0) for said in ("yes", "part", "no")],
        "mean": number(judge["mean"]),
    }


def _people(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    rows = [
        {
            "name": name,
            "shares": [_with_interval(entry["accuracy"]), _with_interval(entry["clear_accuracy"])],
            "kappa": number(entry["kappa"]),
            "rho": _with_interval({**entry["spearman"], "mean": entry["spearman"]["rho"]}),
            "missing": entry["missing"],
        }
        for name, entry in [("ensemble", found["ensemble"]), *found["judges"].items()]
    ]
    return {"pairs": found["pairs"], "rows": rows}


def _lowest(policy: str, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the policy's responses with the lowest scores."""
    known = [item for item in items if item["policy"] == policy and item["multi"] is not None]
    rows = [
        {
            "id": item["id"],
            "response": item["response"],
            "kind": item["kind"].replace("_", " "),
            "votes": "; ".join(" ".join(number(vote, "{:.2f}") for vote in votes) for votes in item["votes"].values()),
            "multi": number(item["multi"]),
        }
        for item in sorted(known, key=lambda item: item["multi"])[:_SHOWN]
    ]
    return {"policy": policy, "rows": rows}


def _with_interval(figure: Mapping[str, Any], form: str = "{:.3f}") -> tuple[str, str]:
    if figure["mean"] is None:
        return "-", ""
    interval = "" if figure["low"] is None else f"{form.format(figure['low'])} to {form.format(figure['high'])}"
    return form.format(figure["mean"]), interval


def _plots(folder: Path, metrics: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    drawn: list[tuple[str, str, Figure | None]] = [
        ("figures", "Figures and their intervals", plots.headline(metrics["policies"])),
        ("distribution", "Responses by Multi-ECS", plots.distribution(items)),
        (
            "judges",
            "Cohen's kappa of every two judges",
            plots.agreement_map(list(metrics["judges"]), metrics["between_judges"]),
        ),
    ]
    for name, title, figure in drawn:
        if figure is not None:
            yield {"title": title, "png": picture(folder, name, figure)}
