"""report.html of a SAGE evaluation: one self-contained page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.apps.evaluate.sage import plots
from hamr.apps.evaluate.sage.template import PAGE
from hamr.bench.sage.assessment import Assessment
from hamr.bench.sage.run import Evaluated
from hamr.bench.sage.traces import Trace
from hamr.procedures.contract import read_output
from hamr.report.page import picture, write_page
from hamr.report.plot_kit import STYLE as PLOT_STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_TURNS = 6
_SHOWN_DIALOGUES = 3
_MOST_GRAPHS = 12
"""Maximum number of graphs; with more agents only the first agents' are drawn. metrics.json has the figures of all."""


def write_sage_report(folder: Path, found: Evaluated, traces: Sequence[Trace]) -> Path:
    """Draw plots/*.png and write report.html into the folder of an evaluation."""
    import matplotlib

    with matplotlib.rc_context(PLOT_STYLE):
        sections = list(_sections(folder, found))
    return write_page(
        folder / "report.html",
        PAGE,
        title="SAGE",
        folder=str(folder),
        verdict=_verdict(found.summary),
        facts=_facts(found.summary),
        head=_head(found.summary),
        rows=[_row(agent, result) for agent, result in found.summary["agents"].items()],
        sections=sections,
        turns=[_by("turn", agent, result["by_turn"]) for agent, result in found.summary["agents"].items()],
        levels=[_by("level", agent, _means(result["levels"])) for agent, result in found.summary["agents"].items()],
        details=[_detail(*entry) for entry in _entries(found.summary)],
        coverage=[_coverage(name, rows) for name, rows in found.summary["coverage"].items()],
        votes=_votes(found.summary["votes"]),
        dialogues=list(_dialogues(found, traces)),
    )


# --- words and tables --------------------------------------------------------------------------


def _verdict(summary: Mapping[str, Any]) -> str:
    """Return the first agent's result in a sentence."""
    agent, result = next(iter(summary["agents"].items()))
    mean = {name: figure["mean"] for name, figure in result["average"].items()}
    if mean["logic"] is None:
        return f"{agent}: no turn could be scored; the table of outcomes says why."
    said = f"{agent} follows the procedure to {mean['logic']:.1f} of 100"
    if mean["overall"] is not None:
        said += f" and reaches {mean['overall']:.1f} including chat quality {mean['chat']:.1f}"
    gap = None if mean["action"] is None else mean["classification"] - mean["action"]
    if gap is not None and gap > 1:
        said += f"; of what it understands, {gap:.0f} points are lost on the way to the action"
    return said + "."


def _facts(summary: Mapping[str, Any]) -> list[str]:
    results = summary["agents"].values()
    dialogues = sum(sum(s["dialogues"].values()) for r in results for s in r["scenarios"].values())
    scenarios = len(next(iter(results))["scenarios"])
    return [
        f"{len(results)} agents",
        f"{scenarios} scenarios",
        f"{dialogues:,} dialogues",
        f"{summary['votes']['turns']:,} judged turns",
        f"tie rule: {summary['votes']['tie_rule']}",
    ]


def _head(summary: Mapping[str, Any]) -> list[str]:
    first = next(iter(summary["agents"].values()))
    return [entry["code"] for entry in first["scenarios"].values()]


def _row(agent: str, result: Mapping[str, Any]) -> dict[str, Any]:
    average = result["average"]
    return {
        "agent": agent,
        "average": [_with_interval(average[name]) for name in ("overall", "logic", "chat")],
        "scenarios": [_number(s["figures"]["overall"]["mean"]) for s in result["scenarios"].values()],
        "parts": [_number(average[name]["mean"]) for name in ("classification", "path", "action")],
        "case": [_number(average[name]["mean"]) for name in ("truth", "truth_action", "judges_right")],
        "format": [f"{_number(average[name]['mean'])} %" for name in ("unreadable", "format_error")],
        "length": _number(average["chat_length"]["mean"]),
    }


def _by(what: str, agent: str, groups: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    """Return a table with a row for every turn, or every level."""
    names = ("overall", "logic", "chat", "unreadable", "format_error", "chat_length")
    rows = [(group, *(_number(values[name]) for name in names)) for group, values in groups.items()]
    return {"what": what, "agent": agent, "rows": rows}


def _means(levels: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> dict[str, dict[str, float | None]]:
    return {level: {name: figure["mean"] for name, figure in figures.items()} for level, figures in levels.items()}


def _entries(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for agent, result in summary["agents"].items():
        for name, entry in result["scenarios"].items():
            yield agent, name, entry


def _detail(agent: str, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    faults = ", ".join(f"{kind.replace('_', ' ')} {rate:.1f} %" for kind, rate in entry["faults"].items())
    return {
        "agent": agent,
        "scenario": name,
        "dialogues": ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in entry["dialogues"].items()) or "none",
        "turns": f"{entry['assessed']} of {entry['turns']}",
        "gap": _number(entry["execution_gap"]),
        "faults": faults or "none",
    }


def _coverage(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    shown = [
        {
            "way": " ".join(stage.removeprefix("stage") for stage in row["route"][0]),
            "action": row["route"][1],
            "case": row["case"],
            "counts": (row["by_intent"], row["by_path"], row["by_intent"] + row["by_path"]),
        }
        for row in rows
    ]
    least = min((row["counts"][2] for row in shown), default=0)
    return {"scenario": name, "rows": shown, "least": least}


def _votes(votes: Mapping[str, Any]) -> list[tuple[str, str]]:
    def counts(entry: Mapping[str, int]) -> str:
        return ", ".join(f"{name} {n}" for name, n in entry.items()) or "none"

    return [
        ("turns with a judgement", str(votes["turns"])),
        ("tie rule", votes["tie_rule"]),
        ("tied fields", counts(votes["tied"])),
        ("fields that no judge labelled", counts(votes["unvoted"])),
        ("turns without a reference, because a label is missing", str(votes["no_reference"])),
        ("turns without a grade", str(votes["ungraded"])),
    ]


def _with_interval(figure: Mapping[str, float | None]) -> tuple[str, str]:
    if figure["low"] is None:
        return _number(figure["mean"]), ""
    return _number(figure["mean"]), f"{figure['low']:.1f} to {figure['high']:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# --- plots -------------------------------------------------------------------------------------


def _sections(folder: Path, found: Evaluated) -> Iterator[dict[str, Any]]:
    summary, agents = found.summary, found.summary["agents"]
    graphs = []
    for agent, name, entry in list(_entries(summary))[:_MOST_GRAPHS]:
        figure = plots.graph(found.scenarios[name], entry["stages"], summary["coverage"][name])
        title = f"{name.replace('_', ' ')}, {agent}"
        graphs.append(_figure_entry(folder, f"graph_{name}_{agent}", title, figure, wide=True))
    yield {
        "title": "Errors by stage",
        "lead": "A stage is redder the more often the agent left the right path there, or ended in a wrong action.",
        "plots": graphs,
    }
    every = [a for by_scenario in found.assessed.values() for some in by_scenario.values() for a in some]
    by_turn = {agent: result["by_turn"] for agent, result in agents.items()}
    judges = {agent: result["judges"] for agent, result in agents.items()}
    drawn: list[tuple[str, str, Figure | None, bool]] = [
        ("turns", "Logic and chat by turn", plots.turn_curve(by_turn), True),
        *(
            (f"levels_{agent}", f"By adversarial level, {agent}", _boxes(found, agent), False)
            for agent in found.assessed
        ),
        ("dimensions", "Chat quality by dimension", plots.dimensions(summary["correlation"]), False),
        *(
            (f"judges_{value}", f"One judge alone: {value}", plots.judge_map(judges, value), False)
            for value in ("overall", "logic", "chat")
        ),
    ]
    shown = [
        _figure_entry(folder, name, title, figure, wide) for name, title, figure, wide in drawn if figure is not None
    ]
    if every and shown:
        yield {"title": "Turns, levels, judges", "lead": "", "plots": shown}


def _boxes(found: Evaluated, agent: str) -> Figure | None:
    levels = list(dict.fromkeys(level for s in found.scenarios.values() for level in s.file.levels))
    return plots.level_boxes([a for some in found.assessed[agent].values() for a in some], levels)


def _figure_entry(folder: Path, name: str, title: str, figure: Figure, wide: bool = False) -> dict[str, Any]:
    return {"title": title, "png": picture(folder, name, figure), "wide": wide}


# --- dialogues ---------------------------------------------------------------------------------


def _dialogues(found: Evaluated, traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """Yield each agent's dialogues with the lowest scores."""
    by_key = {(trace.agent, trace.plan.id): trace for trace in traces}
    for agent, by_scenario in found.assessed.items():
        worth: dict[str, list[Assessment]] = {}
        for a in (a for some in by_scenario.values() for a in some):
            worth.setdefault(a.dialogue, []).append(a)
        worst = sorted(worth, key=lambda dialogue: _mean_logic(worth[dialogue]))[:_SHOWN_DIALOGUES]
        for dialogue in worst:
            yield _dialogue(found, by_key[agent, dialogue], worth[dialogue])


def _mean_logic(assessed: Sequence[Assessment]) -> float:
    known = [a.worth.logic.logic for a in assessed if a.worth.logic is not None]
    return sum(known) / len(known) if known else -1.0


def _dialogue(found: Evaluated, trace: Trace, assessed: Sequence[Assessment]) -> dict[str, Any]:
    scenario, by_turn = found.scenarios[trace.plan.scenario], {a.turn: a for a in assessed}
    turns = []
    for number, exchange in enumerate(trace.turns[:_SHOWN_TURNS], 1):
        reading = read_output(exchange.agent, scenario, cut_off=exchange.cut_off)
        output, a = reading.output, by_turn.get(number)
        said = (
            f"{output.chat} [{' '.join(output.path)} {output.action}]" if output is not None else exchange.agent[:300]
        )
        right = f"{' '.join(a.reference.path)} {a.reference.action}" if a is not None and a.reference else ""
        logic = None if a is None or a.worth.logic is None else a.worth.logic.logic
        turns.append((exchange.user, said or "(nothing)", right, ", ".join(reading.kinds), _number(logic)))
    plan = trace.plan
    return {
        "title": f"{trace.agent}: {plan.id}",
        "who": f"intent {plan.intent}, persona {plan.persona}, level {plan.level}, {trace.outcome.replace('_', ' ')}",
        "turns": turns,
    }
