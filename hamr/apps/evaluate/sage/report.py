"""Report of a SAGE evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from hamr.apps.evaluate.sage import figures, tables
from hamr.apps.evaluate.sage.graph import draw_graph
from hamr.apps.evaluate.sage.tables import SageSummary, entries
from hamr.apps.evaluate.sage.transcripts import TRANSCRIPTS
from hamr.bench.sage.run import Evaluated
from hamr.report.drawing import draw
from hamr.report.values import Figure, Fold, Link, Page, PageBlock, PageSection, Table

_MOST_GRAPHS = 12
"""Maximum number of graphs; with more agents only the first agents' are drawn. metrics.json has the metrics of all."""


def sage_page(found: Evaluated) -> Page:
    summary = found.summary
    return Page(
        title="SAGE",
        summary=_verdict(summary),
        facts=_facts(summary),
        sections=(
            PageSection.of(
                "Scores",
                *tables.score_tables(summary),
                *tables.production_table(summary),
                lead="Overall = 0.8 logic + 0.2 chat, out of 100. Means of the scenarios, with 95 % bootstrap "
                "intervals over dialogues.",
            ),
            PageSection.of(
                "Agents compared",
                *tables.comparison_tables(summary),
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
            PageSection.of(
                "Turns, levels, judges",
                *_figures(found),
                lead="Turns 1, 5, 10, 15 and the last of each dialogue are judged.",
            ),
            PageSection.of(
                "Dialogues",
                tables.outcome_table(summary),
                lead="Outcomes, assessed turns, the execution gap (labels minus action, in points), and contract "
                "violations as shares of the assessed turns.",
                detail=True,
            ),
            PageSection.of("The judges", tables.vote_table(summary["votes"]), detail=True),
            *_customers(summary),
            PageSection.of(
                "Transcripts", Table.pairs("", {"all turns, with filters": Link(TRANSCRIPTS, TRANSCRIPTS)}), detail=True
            ),
            *_coverage(summary["coverage"]),
        ),
    )


def _coverage(coverage: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[PageSection]:
    """Yield the section on the customers, which finished dialogues do not have."""
    if any(row["by_intent"] + row["by_path"] for rows in coverage.values() for row in rows):
        yield PageSection.of(
            "Coverage",
            tables.coverage_table(coverage),
            *(Fold(f"Paths of {name}", (tables.path_table(name, rows),)) for name, rows in coverage.items()),
            lead="Customers per path: some of each intent, then more where a path had too few. Contradictions: those "
            "whose adversarial level contradicts what they show. Assessed: dialogues with an assessed turn, of the "
            "agent that has fewest. A customer that left early, broke character or has another fault is replaced.",
        )


def _customers(summary: SageSummary) -> Iterator[PageSection]:
    """Yield the section on the fidelity of the simulated customers, which finished dialogues do not have."""
    if any(result["customers"]["customers"] for result in summary["agents"].values()):
        rule = "kept in the scores" if summary["faulty_rule"] == "kept" else "excluded from the scores and replaced"
        yield PageSection.of(
            "The simulated customers",
            tables.customer_table(summary),
            *([tables.exam_table(summary["readers"])] if summary.get("readers") else []),
            lead=f"Dialogues with a faulty customer are {rule} (faulty_customers={summary['faulty_rule']}). Words per "
            "message, and the share of messages with 5 to 15. In role, own language: shares of the messages. "
            "Understood: sentences whose meaning is known. Fields and goal: of customers that were understood "
            "entirely, the fields of their path that they showed, and those that kept to what they wanted.",
            detail=True,
        )


# --- words -------------------------------------------------------------------------------------


def _verdict(summary: SageSummary) -> str:
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


def _facts(summary: SageSummary) -> tuple[str, ...]:
    results = summary["agents"].values()
    dialogues = sum(sum(s["dialogues"].values()) for r in results for s in r["scenarios"].values())
    return (
        f"{len(results)} agents",
        f"{len(next(iter(results))['scenarios'])} scenarios",
        f"{dialogues:,} dialogues",
        f"{summary['votes']['turns']:,} judged turns",
        f"tie rule: {summary['votes']['tie_rule']}",
    )


# --- figures -----------------------------------------------------------------------------------


def _graphs(found: Evaluated) -> list[PageBlock]:
    """Return the first agent's graphs; the other agents' are folded."""
    by_agent: dict[str, list[PageBlock]] = {}
    for agent, name, entry in list(entries(found.summary))[:_MOST_GRAPHS]:
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
