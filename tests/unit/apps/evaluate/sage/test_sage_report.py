"""The parts of a SAGE report that can be wrong without anything failing."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hamr.apps.evaluate.sage import plots
from hamr.apps.evaluate.sage.console import coverage_table, lines
from hamr.bench.sage.run import DialogueProgress
from hamr.procedures import load_scenario, scenario_names


@pytest.mark.parametrize("name", scenario_names())
def test_every_node_has_a_place_of_its_own_and_edges_go_to_the_right(name):
    scenario = load_scenario(name)
    places = plots.layout(scenario)
    assert places.keys() == set(scenario.graph.nodes)
    assert len(set(places.values())) == len(places)
    assert all(places[here][0] < places[there][0] for here, there in scenario.graph.edges)


def row(case, route, nodes, by_intent, by_path):
    return {"case": case, "route": route, "nodes": nodes, "by_intent": by_intent, "by_path": by_path}


ROWS = [
    row("a", (("stage1", "stage2", "stage4"), "ChangeOrder"), ("stage1", "stage2", "stage4"), 2, 3),
    row("b", (("stage1", "stage2", "stage4"), "ChangeOrder"), ("stage1", "stage2", "stage4"), 0, 1),
]


def test_the_graph_says_where_it_went_wrong_and_who_was_sent():
    scenario = load_scenario("telecom_package")
    stages = {"stage1": {"passed": 4, "wrong": 0}, "stage2": {"passed": 4, "wrong": 3}}
    figure = plots.graph(scenario, stages, ROWS)
    said = [text.get_text() for text in figure.axes[0].texts]
    assert "3 of 4 wrong" in said and "0 of 4 wrong" in said
    assert "6 customers" in said
    assert said.count("0 customers") == len(scenario.file.actions) - 1
    shades = {patch.get_facecolor() for patch in figure.axes[0].patches}
    assert len(shades) == 3  # white, the redder stage2, the actions' green


def test_without_figures_there_is_no_plot():
    assert plots.turn_curve({"a": {"1": {"logic": 5.0, "chat": None}}}) is None
    assert plots.level_boxes([], ("zero",)) is None
    assert plots.judge_map({"a": {}}, "logic") is None
    assert plots.dimensions({"content_utility": {"mean": None, "r2": None, "slope": None}}) is None


def test_the_coverage_table_sums_the_paths_of_a_route():
    table = coverage_table("telecom_package", ROWS)
    assert [list(column.cells) for column in table.columns] == [
        ["1 2 4 ChangeOrder"],
        ["2"],
        ["2"],
        ["4"],
        ["6"],
        ["1"],
    ]


def test_progress_without_a_terminal_is_a_line_now_and_then():
    screen, at = io.StringIO(), iter([0.0, 5.0, 30.0, 31.0])
    report = lines(Console(file=screen, width=100), clock=lambda: next(at))
    for held, judged in ((2, 1), (6, 5), (7, 6)):
        report(DialogueProgress(total=10, held=held, judged=judged))
    [line] = screen.getvalue().splitlines()
    assert line.startswith("6 of 10 dialogues held, 5 judged, about 30.0 s left")
