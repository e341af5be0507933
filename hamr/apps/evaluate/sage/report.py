"""Report of a SAGE evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hamr.apps.evaluate.sage import figures
from hamr.apps.evaluate.sage.graph import draw_graph
from hamr.apps.evaluate.sage.transcripts import TRANSCRIPTS
from hamr.bench.sage.assessment import Assessment
from hamr.bench.sage.compare import RANKED, TESTED
from hamr.bench.sage.reading import read_turn
from hamr.bench.sage.run import Evaluated
from hamr.bench.sage.traces import Trace
from hamr.procedures.prompts import DIMENSIONS
from hamr.report.drawing import draw
from hamr.report.values import (
    Block,
    Cell,
    Column,
    Figure,
    Fold,
    Interval,
    Link,
    Page,
    PageSection,
    Prose,
    Table,
    number_columns,
)

_SHOWN_TURNS = 6
_SHOWN_DIALOGUES = 3
_MOST_GRAPHS = 12
"""Maximum number of graphs; with more agents only the first agents' are drawn. metrics.json has the metrics of all."""

_POINTS = "{:.1f}"
_PARTS = {"labels": "classification", "path": "path", "action": "action"}
_READABLE = {"readable %": "readable"}
_FORMAT = {"faulty %": "format_error", "fenced %": "fenced", "words": "chat_length"}
Summary = Mapping[str, Any]


def sage_page(found: Evaluated, traces: Sequence[Trace]) -> Page:
    summary = found.summary
    return Page(
        title="SAGE",
        summary=_verdict(summary),
        facts=_facts(summary),
        sections=(
            PageSection.of(
                "Scores",
                *score_tables(summary),
                *_production(summary),
                lead="Overall = 0.8 logic + 0.2 chat, out of 100. Means of the scenarios, with 95 % bootstrap "
                "intervals over dialogues.",
            ),
            PageSection.of(
                "Agents compared",
                *comparison_tables(summary),
                lead="Differences are means over the customers of both agents, with 95 % bootstrap intervals, and "
                "p-values of a permutation test of paired samples; adjusted p controls the false discovery rate over "
                "the rows of a score (Benjamini and Hochberg).",
                detail=True,
            ),
            PageSection.of(
                "Errors by stage",
                *_graphs(found),
                lead="A stage is redder the more often the agent left the right path or took a wrong action there.",
            ),
            PageSection.of("Turns, levels, judges", *_figures(found)),
            PageSection.of(
                "By turn and by level",
                *_groups(summary),
                lead="Turns 1, 5, 10, 15 and the last of each dialogue are judged.",
                detail=True,
            ),
            PageSection.of(
                "Dialogues",
                _outcomes(summary),
                lead="Outcomes, assessed turns, the execution gap (labels minus action, in points), and contract "
                "violations as shares of the assessed turns.",
                detail=True,
            ),
            PageSection.of("The judges", _votes(summary["votes"]), detail=True),
            *_customers(summary),
            PageSection.of(
                "Transcripts",
                Table.pairs("", {"all turns, with filters": Link(TRANSCRIPTS, TRANSCRIPTS)}),
                *_dialogues(found, traces),
                lead="The dialogues with the lowest scores: their first turns; in brackets the path and the action "
                "that the agent named.",
                detail=True,
            ),
            *_coverage(summary["coverage"]),
        ),
    )


def _coverage(coverage: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[PageSection]:
    """Yield the section on the customers, which finished dialogues do not have."""
    if any(row["by_intent"] + row["by_path"] for rows in coverage.values() for row in rows):
        yield PageSection.of(
            "Coverage",
            coverage_table(coverage),
            *(Fold(f"Paths of {name}", (_paths(name, rows),)) for name, rows in coverage.items()),
            lead="Customers per path: some of each intent, then more where a path had too few. Contradictions: those "
            "whose adversarial level contradicts what they show. Assessed: dialogues with an assessed turn, of the "
            "agent that has fewest. A customer that left at once, broke character or has another fault is replaced.",
        )


def _customers(summary: Summary) -> Iterator[PageSection]:
    """Yield the section on the fidelity of the simulated customers, which finished dialogues do not have."""
    if any(result["customers"]["customers"] for result in summary["agents"].values()):
        rule = "kept in the scores" if summary["faulty_rule"] == "kept" else "excluded from the scores and replaced"
        yield PageSection.of(
            "The simulated customers",
            customer_table(summary),
            *([_exam_table(summary["readers"])] if summary.get("readers") else []),
            lead=f"Dialogues with a faulty customer are {rule} (faulty_customers={summary['faulty_rule']}). Words per "
            "message, and the share of messages with 5 to 15. In role, own language: shares of the messages. "
            "Understood: sentences whose meaning is known. Fields and goal: of customers that were understood "
            "entirely, the fields of their path that they showed, and those that kept to what they wanted.",
            detail=True,
        )


def _production(summary: Summary) -> Iterator[Table]:
    """Yield the rates of a service in production, where the dialogues have them."""
    names = {"resolved": "resolved %", "taken_over": "taken over %"}
    rows = tuple(
        (agent, *(Interval.of(found[key], 100.0) if key in found else None for key in names))
        for agent, result in summary["agents"].items()
        if (found := result.get("production"))
    )
    if rows:
        columns = (Column("agent"), *(Column(name, _POINTS) for name in names.values()))
        yield Table("In production", columns, rows, note="As the dialogues' file says, with 95 % Wilson intervals.")


def _exam_table(exams: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return how well the judges read customers by template, whose words and case are known."""
    columns = ("scenario", "customers", "false alarms", "changed cases", "found", "judges read")
    rows = tuple(
        (name, *(exam[key] for key in ("customers", "alarms", "changed", "found")), "yes" if exam["passed"] else "no")
        for name, exam in exams.items()
    )
    note = (
        "Only judges that pass read what a model's customers show. Otherwise, and without wordings, faults of meaning "
        "are not decided."
    )
    return Table("Exam of the judges as readers", tuple(map(Column, columns)), rows, note=note)


# --- words and tables --------------------------------------------------------------------------


def _verdict(summary: Summary) -> str:
    """Return the first agent's result in a sentence."""
    agent, result = next(iter(summary["agents"].items()))
    mean = {name: figure["mean"] for name, figure in result["average"].items()}
    if mean["logic"] is None and mean["action"] is not None:
        readable = f"{mean['readable']:.0f} % of the turns were readable"
        return f"{agent} takes the right action at {mean['action']:.1f} % of the turns with an action ({readable})."
    if mean["logic"] is None:
        return f"{agent}: no turn could be scored; the table of outcomes says why."
    text = f"{agent} follows the procedure to {mean['logic']:.1f} of 100"
    if mean["overall"] is not None:
        text += f" and reaches {mean['overall']:.1f} including chat quality {mean['chat']:.1f}"
    gap = None if mean["action"] is None else mean["classification"] - mean["action"]
    text += f" ({mean['readable']:.0f} % of the turns were readable)"
    if gap is not None and gap > 1:
        text += f"; of what it understands, {gap:.0f} points are lost on the way to the action"
    return text + "."


def _facts(summary: Summary) -> tuple[str, ...]:
    results = summary["agents"].values()
    dialogues = sum(sum(s["dialogues"].values()) for r in results for s in r["scenarios"].values())
    return (
        f"{len(results)} agents",
        f"{len(next(iter(results))['scenarios'])} scenarios",
        f"{dialogues:,} dialogues",
        f"{summary['votes']['turns']:,} judged turns",
        f"tie rule: {summary['votes']['tie_rule']}",
    )


def score_tables(summary: Summary) -> list[Table]:
    """Return the paper's Table 1: means of the scenarios, each scenario, and the metrics that need no judge.

    The share of readable turns is in each of them, because the rule for unreadable turns decides what a score means.
    """
    agents = summary["agents"]
    means = {name: name for name in ("overall", "logic", "chat")}
    first = next(iter(agents.values()))
    scenarios = Table(
        "Overall by scenario",
        (
            Column("agent"),
            *(
                Column(entry["code"], _POINTS, name.replace("_", " "))
                for name, entry in first["scenarios"].items()
            ),
        ),
        tuple(
            (agent, *(_with_readable(entry["figures"]) for entry in result["scenarios"].values()))
            for agent, result in agents.items()
        ),
        note="Below each score: the share of readable turns.",
    )  # fmt: skip
    return [
        _averages(agents, "Means of the scenarios", means | _READABLE, intervals=means, note=_rule(summary)),
        _averages(
            agents,
            "Parts of logic, and format",
            _PARTS | _READABLE | _FORMAT,
            note="Unreadable: no JSON that can be parsed. Faulty: any violation of the output contract. Fenced: a code "
            "fence around the JSON, which fence=strip removes and fence=error counts as unreadable. Agents with tools "
            "state neither labels nor a path; of them, the action that they did counts.",
        ),
        scenarios,
        _averages(
            agents,
            "By the customers' own cases",
            {"logic": "truth", "action": "truth_action"} | _READABLE | {"judges right": "judges_right"},
            note="Without judges: logic and action at the last turns against each customer's assigned case, by the "
            "fields that decide its path; and the share of those fields that the judges label correctly. Where judges "
            "are rarely right, use this table.",
        ),
    ]


def _rule(summary: Summary) -> str:
    """Return the rule for unreadable turns in a sentence."""
    counted = "count as 0" if summary["unreadable_rule"] == "zero" else "are left out of the scores"
    return f"Turns that cannot be parsed {counted} (unreadable={summary['unreadable_rule']})."


def _with_readable(values: Mapping[str, Any]) -> Cell:
    """Return the overall score with the share of readable turns below it."""
    overall, readable = values["overall"]["mean"], values["readable"]["mean"]
    return None if overall is None else Prose(_POINTS.format(overall), f"{readable:.0f} % readable")


def comparison_tables(summary: Summary) -> Iterator[Table]:
    """Yield the ranks and paired tests of several agents, and the means by seed where there are several."""
    if len(summary["agents"]) > 1:
        ranked = tuple((agent, *(places[name] for name in RANKED)) for agent, places in summary["ranks"].items())
        yield Table("Ranks", (Column("agent"), *number_columns("{}", *RANKED)), ranked, half=True)
    names = {"truth": "own case: logic"}
    rows = tuple(
        (row["second"], row["first"], names.get(row["score"], row["score"]), row["pairs"],
         Interval.of(row["difference"]), row["p"], row["adjusted_p"])
        for row in summary["paired"]
    )  # fmt: skip
    forms = {"customers": "{:,}", "difference": "{:+.1f}", "p": "{:.3f}", "adjusted p": "{:.3f}"}
    columns = ("agent", "minus agent", "score", *forms)
    yield Table("Paired tests", tuple(Column(name, forms.get(name, "")) for name in columns), rows)
    profiles = summary["residuals"] if len(summary["agents"]) > 1 else {}
    yield Table(
        "Profiles of chat quality",
        (Column("agent"), *(Column(name.replace("_", " "), "{:+.1f}") for name in DIMENSIONS)),
        tuple((agent, *profile.values()) for agent, profile in profiles.items()),
        note="Mean distance from the line of each dimension on the total: positive where an agent is better than its "
        "total says.",
    )
    by_seed = {agent: result["by_seed"] for agent, result in summary["agents"].items()}
    if any(len(entry["seeds"]) > 1 for entry in by_seed.values()):
        seeds = tuple(
            (agent, what, *(values[name] for name in TESTED))
            for agent, entry in by_seed.items()
            for what, values in (*entry["seeds"].items(), ("standard deviation", entry["standard_deviation"]))
        )
        scores = number_columns(_POINTS, *(names.get(name, name) for name in TESTED))
        yield Table("By seed", (Column("agent"), Column("seed"), *scores), seeds)


def _averages(
    agents: Mapping[str, Any],
    title: str,
    columns: Mapping[str, str],
    *,
    intervals: Mapping[str, str] | None = None,
    note: str = "",
) -> Table:
    def cell(name: str, average: Mapping[str, Any]) -> Cell:
        return Interval.of(average[name]) if intervals and name in intervals else average[name]["mean"]

    return Table(
        title,
        (Column("agent"), *(Column(name, _POINTS) for name in columns)),
        tuple((a, *(cell(name, result["average"]) for name in columns.values())) for a, result in agents.items()),
        note=note,
    )


def _groups(summary: Summary) -> Iterator[Table]:
    """Yield per agent a table with a row for every turn, and one with a row for every level."""
    shown = {name: name for name in ("overall", "logic", "chat")} | _READABLE | _FORMAT
    names = tuple(shown.values())
    columns = [Column(name, _POINTS) for name in shown]
    for agent, result in summary["agents"].items():
        levels = {
            level: {name: figure["mean"] for name, figure in values.items()}
            for level, values in result["levels"].items()
        }
        for what, groups in (("turn", result["by_turn"]), ("level", levels)):
            rows = tuple((group, *(values[name] for name in names)) for group, values in groups.items())
            yield Table(f"{agent}, by {what}", (Column(what), *columns), rows, half=True)


def _entries(summary: Summary) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for agent, result in summary["agents"].items():
        for name, entry in result["scenarios"].items():
            yield agent, name, entry


def _outcomes(summary: Summary) -> Table:
    columns = ("agent", "scenario", "ended", "assessed", "turns", "gap", "faults")
    forms = {"assessed": "{:,}", "turns": "{:,}", "gap": _POINTS}
    rows = []
    for agent, name, entry in _entries(summary):
        ended = ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in entry["dialogues"].items())
        faults = ", ".join(f"{kind.replace('_', ' ')} {rate:.1f} %" for kind, rate in entry["faults"].items())
        counts = (entry["assessed"], entry["turns"], entry["execution_gap"])
        rows.append((agent, name.replace("_", " "), ended or "none", *counts, faults or "none"))
    return Table("", tuple(Column(name, forms.get(name, "")) for name in columns), tuple(rows))


def customer_table(summary: Summary) -> Table:
    """Return the fidelity of each agent's customers, by scenario, and their faults."""
    percent = {
        "5 to 15 %": "words_in_range",
        "own language %": "own_language",
        "in role %": "in_role",
        "understood %": "understood",
        "fields %": "disclosed",
        "goal %": "goal",
    }
    rows = []
    for agent, name, entry in _entries(summary):
        found = entry["customers"]
        faults = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in found["faults"].items())
        shares = (found[key] for key in percent.values())
        counts = (found["customers"], found["faulty"], Prose(faults or "none"), found["words"])
        rows.append((agent, name.replace("_", " "), *counts, *shares))
    forms = {"customers": "{:,}", "faulty": "{:,}", "words": _POINTS, **dict.fromkeys(percent, _POINTS)}
    names = ("agent", "scenario", "customers", "faulty", "faults", "words", *percent)
    return Table("Fidelity", tuple(Column(name, forms.get(name, "")) for name in names), tuple(rows))


def coverage_table(coverage: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Return the number of paths of each scenario and of the customers on them, and the dialogues with an assessed
    turn, of the agent that has fewest: all, and on the path that has fewest."""
    rows = []
    for name, paths in coverage.items():
        customers = sum(row["by_intent"] + row["by_path"] for row in paths)
        against = sum(row["contradictions"] for row in paths)
        by_agent = zip(*(row["assessed"].values() for row in paths), strict=True)
        assessed = min(map(sum, by_agent), default=0)
        fewest = min(map(_fewest, paths))
        rows.append((name.replace("_", " "), len(paths), customers, against, assessed, fewest))
    names = ("paths", "customers", "contradictions", "assessed", "fewest per path")
    return Table("Customers by scenario", (Column("scenario"), *(Column(n, "{:,}") for n in names)), tuple(rows))


def _fewest(row: Mapping[str, Any]) -> int:
    """Return the assessed dialogues on a path, of the agent that has fewest."""
    return min(row["assessed"].values(), default=0)


def _paths(name: str, paths: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for row in paths:
        stages, action = row["route"]
        by_intent, by_path = row["by_intent"], row["by_path"]
        route = " ".join(stage.removeprefix("stage") for stage in stages)
        planned = by_intent + by_path
        rows.append((route, action, Prose(row["case"]), by_intent, by_path, planned, _fewest(row)))
    columns = (Column("path"), Column("action"), Column("customer"))
    counts = (Column(n, "{:,}") for n in ("by intent", "top-up", "all", "assessed"))
    return Table(name.replace("_", " "), (*columns, *counts), tuple(rows))


def _votes(votes: Mapping[str, Any]) -> Table:
    def counts(entry: Mapping[str, int]) -> str:
        return ", ".join(f"{name} {n}" for name, n in entry.items()) or "none"

    return Table.pairs(
        "",
        {
            "turns with a judgement": str(votes["turns"]),
            "tie rule": votes["tie_rule"],
            "tied fields": counts(votes["tied"]),
            "fields that no judge labelled": counts(votes["unvoted"]),
            "turns without a reference, because a label is missing": str(votes["no_reference"]),
            "turns without a grade": str(votes["ungraded"]),
        },
    )


# --- figures -----------------------------------------------------------------------------------


def _graphs(found: Evaluated) -> list[Block]:
    """Return the first agent's graphs; the other agents' are folded."""
    by_agent: dict[str, list[Block]] = {}
    for agent, name, entry in list(_entries(found.summary))[:_MOST_GRAPHS]:
        scenario, coverage = found.scenarios[name], found.summary["coverage"][name]
        drawn = draw(
            f"graph_{name}_{agent}",
            f"{name.replace('_', ' ')}, {agent}",
            partial(draw_graph, scenario, entry["stages"], coverage, agent),
            alt=_graph_words(name, agent, entry["stages"]),
            wide=True,
        )
        by_agent.setdefault(agent, []).extend([] if drawn is None else [drawn])
    first, *others = by_agent.items()
    return [*first[1], *(Fold(f"Errors of {agent}", tuple(drawn)) for agent, drawn in others)]


def _graph_words(name: str, agent: str, stages: Mapping[str, Mapping[str, int]]) -> str:
    wrong = [f"{node}: {s['wrong']} of {s['passed']} wrong" for node, s in stages.items() if s["wrong"]]
    errors = "; ".join(wrong) or "no stage has an error"
    return f"Plot: the procedure {name.replace('_', ' ')} and the errors of {agent}. {errors}."


def _figures(found: Evaluated) -> Iterator[Figure | None]:
    agents = found.summary["agents"]
    by_turn = {agent: result["by_turn"] for agent, result in agents.items()}
    judges = {agent: result["judges"] for agent, result in agents.items()}
    levels = list(dict.fromkeys(level for s in found.scenarios.values() for level in s.file.levels))
    yield draw("turns", "Logic and chat by turn", partial(figures.turn_curve, by_turn), wide=True)
    for agent, by_scenario in found.assessed.items():
        assessed = [a for some in by_scenario.values() for a in some]
        yield draw(
            f"levels_{agent}",
            f"By adversarial level, {agent}",
            partial(figures.level_boxes, assessed, levels),
        )
    yield draw(
        "dimensions", "Chat quality by dimension", partial(figures.dimensions, found.summary["correlation"]),
        caption="Means out of 100, and the correlation with the grade; in brackets each dimension's weight.",
    )  # fmt: skip
    for value in ("overall", "logic", "chat"):
        yield draw(f"judges_{value}", f"One judge alone: {value}", partial(figures.judge_map, judges, value))


# --- dialogues ---------------------------------------------------------------------------------


def _dialogues(found: Evaluated, traces: Sequence[Trace]) -> Iterator[Table]:
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
    known = [a.worth.logic.logic for a in assessed if a.worth.logic is not None and a.worth.logic.logic is not None]
    return sum(known) / len(known) if known else -1.0


def _dialogue(found: Evaluated, trace: Trace, assessed: Sequence[Assessment]) -> Table:
    scenario, by_turn = found.scenarios[trace.plan.scenario], {a.turn: a for a in assessed}
    rows: list[tuple[Cell, ...]] = []
    for number, exchange in enumerate(trace.turns[:_SHOWN_TURNS], 1):
        reading = read_turn(scenario, trace.turns[:number])
        output, a = reading.output, by_turn.get(number)
        if output is None:
            agent = Prose(exchange.agent[:300] or "(nothing)")
        else:
            steps = [*output.path, output.action]
            if exchange.calls is not None:
                steps = [f"{use.name}({use.arguments})" for use in exchange.calls]
            agent = Prose(output.chat, f"[{' '.join(steps)}]")
        right = f"{' '.join(a.reference.path)} {a.reference.action}" if a is not None and a.reference else ""
        logic = None if a is None or a.worth.logic is None else a.worth.logic.logic
        rows.append((Prose(exchange.user), agent, Prose(right), Prose(", ".join(reading.kinds)), logic))
    plan = trace.plan
    columns = (Column("customer"), Column("agent"), Column("right"), Column("faults"), Column("logic", _POINTS))
    ended = f"intent {plan.intent}, persona {plan.persona}, level {plan.level}, {trace.outcome.replace('_', ' ')}"
    return Table(f"{trace.agent}: {plan.id}", columns, tuple(rows), note=ended)
