"""Tables of a SAGE evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hamr.bench.sage.compare import RANKED, TESTED
from hamr.procedures.prompts import DIMENSIONS
from hamr.report.values import Cell, Column, Interval, Prose, Table, number_columns

POINTS = "{:.1f}"
_PARTS = {"labels": "classification", "path": "path", "action": "action"}
_READABLE = {"readable %": "readable"}
_FORMAT = {"faulty %": "format_error", "fenced %": "fenced", "words": "chat_length"}
SageSummary = Mapping[str, Any]


def score_tables(summary: SageSummary) -> list[Table]:
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
                Column(entry["code"], POINTS, name.replace("_", " "))
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


def _rule(summary: SageSummary) -> str:
    """Return the rule for unreadable turns in a sentence."""
    counted = "count as 0" if summary["unreadable_rule"] == "zero" else "are left out of the scores"
    return f"Turns that cannot be parsed {counted} (unreadable={summary['unreadable_rule']})."


def _with_readable(values: Mapping[str, Any]) -> Cell:
    """Return the overall score with the share of readable turns below it."""
    overall, readable = values["overall"]["mean"], values["readable"]["mean"]
    return None if overall is None else Prose(POINTS.format(overall), f"{readable:.0f} % readable")


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
        (Column("agent"), *(Column(name, POINTS) for name in columns)),
        tuple((a, *(cell(name, result["average"]) for name in columns.values())) for a, result in agents.items()),
        note=note,
    )


def production_table(summary: SageSummary) -> Iterator[Table]:
    """Yield the rates of a service in production, where the dialogues have them."""
    names = {"resolved": "resolved %", "taken_over": "taken over %"}
    rows = tuple(
        (agent, *(Interval.of(found[key], 100.0) if key in found else None for key in names))
        for agent, result in summary["agents"].items()
        if (found := result.get("production"))
    )
    if rows:
        columns = (Column("agent"), *(Column(name, POINTS) for name in names.values()))
        yield Table("In production", columns, rows, note="As the dialogues' file says, with 95 % Wilson intervals.")


def comparison_tables(summary: SageSummary) -> Iterator[Table]:
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
        scores = number_columns(POINTS, *(names.get(name, name) for name in TESTED))
        yield Table("By seed", (Column("agent"), Column("seed"), *scores), seeds)


def entries(summary: SageSummary) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for agent, result in summary["agents"].items():
        for name, entry in result["scenarios"].items():
            yield agent, name, entry


def outcome_table(summary: SageSummary) -> Table:
    columns = ("agent", "scenario", "ended", "assessed", "turns", "gap", "faults")
    forms = {"assessed": "{:,}", "turns": "{:,}", "gap": POINTS}
    rows = []
    for agent, name, entry in entries(summary):
        ended = ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in entry["dialogues"].items())
        faults = ", ".join(f"{kind.replace('_', ' ')} {rate:.1f} %" for kind, rate in entry["faults"].items())
        counts = (entry["assessed"], entry["turns"], entry["execution_gap"])
        rows.append((agent, name.replace("_", " "), ended or "none", *counts, faults or "none"))
    return Table("", tuple(Column(name, forms.get(name, "")) for name in columns), tuple(rows))


def customer_table(summary: SageSummary) -> Table:
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
    for agent, name, entry in entries(summary):
        found = entry["customers"]
        faults = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in found["faults"].items())
        shares = (found[key] for key in percent.values())
        counts = (found["customers"], found["faulty"], Prose(faults or "none"), found["words"])
        rows.append((agent, name.replace("_", " "), *counts, *shares))
    forms = {"customers": "{:,}", "faulty": "{:,}", "words": POINTS, **dict.fromkeys(percent, POINTS)}
    names = ("agent", "scenario", "customers", "faulty", "faults", "words", *percent)
    return Table("Fidelity", tuple(Column(name, forms.get(name, "")) for name in names), tuple(rows))


def exam_table(exams: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table of the judges' reading of customers by template, whose words and case are known."""
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


def path_table(name: str, paths: Sequence[Mapping[str, Any]]) -> Table:
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


def vote_table(votes: Mapping[str, Any]) -> Table:
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
