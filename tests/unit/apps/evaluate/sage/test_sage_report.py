"""Parts of a SAGE report that could be wrong without raising an error."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from hamr.apps.evaluate.sage import figures
from hamr.apps.evaluate.sage.graph import draw_graph, layout
from hamr.apps.evaluate.sage.tables import coverage_table, customer_table, score_tables
from hamr.bench.sage.metrics import VALUES
from hamr.procedures import load_scenario, scenario_names
from hamr.report.drawing import LEAST_PX, draw


@pytest.mark.parametrize("name", scenario_names())
def test_graph_boxes_do_not_overlap_and_edges_point_down(name):
    scenario = load_scenario(name)
    placed = layout(scenario)
    assert placed.nodes.keys() == set(scenario.graph.nodes)
    assert all(placed.nodes[here][1] < placed.nodes[there][1] for here, there in scenario.graph.edges)
    for (x, y), (other_x, other_y) in combinations(placed.nodes.values(), 2):
        assert abs(x - other_x) >= 152 or abs(y - other_y) >= 66
    for edge, points in placed.edges.items():
        assert points[0] == placed.nodes[edge[0]] and points[-1] == placed.nodes[edge[1]]
        assert all(0 <= x <= placed.width and 0 <= y <= placed.height for x, y in points)


def row(case, route, nodes, by_intent, by_path, **assessed):
    planned = {"by_intent": by_intent, "by_path": by_path, "contradictions": int(case == "b")}
    return {"case": case, "route": route, "nodes": nodes, **planned, "assessed": assessed}


ROWS = [
    row("a", (("stage1", "stage2", "stage4"), "ChangeOrder"), ("stage1", "stage2", "stage4"), 2, 3, a=4, b=5),
    row("b", (("stage1", "stage2", "stage4"), "ChangeOrder"), ("stage1", "stage2", "stage4"), 0, 1, a=1, b=0),
]
STAGES = {"stage1": {"passed": 4, "wrong": 0}, "stage2": {"passed": 4, "wrong": 3}}


def test_the_graph_shows_errors_and_customers():
    scenario = load_scenario("telecom_package")
    figure = draw_graph(scenario, STAGES, ROWS, "a")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "3 of 4 wrong" in texts and "0 of 4 wrong" in texts
    assert "5 customers" in texts, "those whose dialogue with this agent was assessed"
    assert texts.count("0 customers") == len(scenario.file.actions) - 1


def test_graph_text_is_at_least_11_px_at_normal_size():
    scenario = load_scenario("telecom_package")
    drawn = draw("graph", "Graph", lambda: draw_graph(scenario, STAGES, ROWS, "a"))
    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', drawn.svg).group(1))
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", drawn.svg)]
    assert len(sizes) > 30
    assert min(sizes) * drawn.least_width / width >= LEAST_PX


def test_figure_without_values_is_omitted():
    assert figures.turn_curve({"a": {"1": {"logic": 5.0, "chat": None}}}) is None
    assert figures.level_boxes([], ("zero",)) is None
    assert figures.judge_map({"a": {}}, "logic") is None
    assert figures.dimensions({"content_utility": {"mean": None, "r2": None, "slope": None}}) is None


def test_coverage_table_sums_paths_per_scenario():
    table = coverage_table({"telecom_package": ROWS})
    names = [column.name for column in table.columns]
    assert names[1:] == ["paths", "customers", "contradictions", "assessed", "fewest per path"]
    assert table.rows == (("telecom package", 2, 6, 1, 5, 0),)


def test_customer_table_names_the_faults_and_leaves_unknown_measures_empty():
    known = {"customers": 12, "faulty": 3, "faults": {"said_more": 2, "left_role": 1}, "words": 8.25}
    shares = {"words_in_range": 90.0, "own_language": 100.0, "in_role": 95.0, "understood": 40.0}
    entry = {"customers": {**known, **shares, "disclosed": None, "goal": None}}
    table = customer_table({"agents": {"mine": {"scenarios": {"telecom_package": entry}}}})
    [row] = table.rows
    values = dict(zip([column.name for column in table.columns], row, strict=True))
    assert (values["customers"], values["faulty"], values["words"]) == (12, 3, 8.25)
    assert str(values["faults"].text) == "2 said more, 1 left role"
    assert values["fields %"] is values["goal %"] is None


@pytest.mark.parametrize(("rule", "words"), [("zero", "count as 0"), ("left_out", "are left out")])
def test_every_score_has_the_share_of_readable_turns_next_to_it(rule, words):
    values = {name: {"mean": 80.0, "low": None, "high": None} for name in VALUES} | {"readable": {"mean": 62.5}}
    result = {"average": values, "scenarios": {"telecom_package": {"code": "TP", "figures": values}}}
    means, parts, scenarios, own = score_tables({"agents": {"mine": result}, "unreadable_rule": rule})
    assert words in means.note
    for table in (means, parts, own):
        place = [column.name for column in table.columns].index("readable %")
        assert table.rows[0][place] == 62.5
    assert scenarios.columns[1].lines(scenarios.rows[0][1]) == ("80.0", "62 % readable")
