from __future__ import annotations

from itertools import pairwise

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.errors import BadInput
from hamr.procedures import load_scenario

FREE = {"PackageStatus": "NoContract", "Penalty": 0}
BOUND = {"PackageStatus": "Contracted", "Penalty": 100}


@pytest.fixture(scope="module")
def telecom():
    return load_scenario("telecom_package")


@pytest.mark.parametrize(
    ("labels", "system", "path", "action"),
    [
        (("Enquiry", "Agree", "Data", "Calm"), FREE, [1, 2, 3, 6, 4], "ChangeOrder"),
        (("Change", "Agree", "Data", "Discontent"), BOUND, [1, 2, 4, 5, 7], "TransHuman"),
        (("Enquiry", "Reject", "Voice", "Calm"), FREE, [1, 2, 3, 6], "GoodBye"),
    ],
)
def test_example_paths_match_the_paper(telecom, labels, system, path, action):
    names = ("ConsumptionType", "ApplicationTendency", "ConsumptionProfile", "EmotionTag")
    fields = dict(zip(names, labels, strict=True))
    expected = [f"stage{number}" for number in path]
    assert telecom.reference(fields, system) == (expected, action)
    assert any(
        dict(case.fields) == fields and dict(case.system) == system and list(case.route.stages) == expected
        for case in telecom.cases()
    )


def test_graph_has_12_leaves_9_sequences_and_36_cases(telecom):
    routes = telecom.paths()
    assert len(routes) == len(set(routes)) == 12
    assert len({route.stages for route in routes}) == 9
    cases = telecom.cases()
    assert len({(tuple(c.fields.items()), tuple(c.system.items())) for c in cases}) == len(cases) == 36
    assert {case.route for case in cases} == set(routes)


def test_cancellation_ignores_the_contract_state(telecom):
    path, action = telecom.reference({"ConsumptionType": "Cancel"}, FREE)
    assert (path, action) == (["stage1", "stage2", "stage5"], "ChangeOrder")


def test_routes_follow_edges_with_satisfied_conditions(telecom):
    graph = telecom.graph
    assert networkx.is_directed_acyclic_graph(graph)
    for case in telecom.cases():
        known = {**case.fields, **case.system}
        nodes = [*case.route.stages, case.route.action]
        for here, there in pairwise(nodes):
            edge = graph.edges[here, there]
            assert edge["reads"] is None or any(test.holds(known[edge["reads"]]) for test in edge["when"])


@given(penalty=st.integers(min_value=1, max_value=10**9))
def test_positive_penalty_leads_to_the_emotion_stage(penalty):
    walk = load_scenario("telecom_package").walk(
        {"ConsumptionType": "Change"}, {"PackageStatus": "Contracted", "Penalty": penalty}
    )
    assert walk.path[-1] == "stage7"
    assert walk.awaits == "EmotionTag"
    assert walk.action is None


def test_unfinished_walk_names_the_missing_field(telecom):
    assert telecom.walk({}, FREE).awaits == "ConsumptionType"
    assert telecom.walk({"ConsumptionType": "Enquiry", "ConsumptionProfile": None}, FREE).awaits == "ConsumptionProfile"


@pytest.mark.parametrize(
    ("fields", "system", "said"),
    [
        ({"ConsumptionType": "Change"}, {"PackageStatus": "Contracted", "Penalty": -1}, "at least 0"),
        ({"ConsumptionType": "Change"}, {"PackageStatus": "NoContract", "Penalty": 5}, "belongs to a contract"),
        ({"ConsumptionType": "Change"}, {"PackageStatus": "Contracted", "Penalty": True}, "whole number"),
        ({"ConsumptionType": "Change"}, {"PackageStatus": "Contracted", "Penalty": "100"}, "whole number"),
        ({"ConsumptionType": "Change"}, {"PackageStatus": "Contracted"}, "Penalty: None: missing"),
        ({"ConsumptionType": "Buy"}, FREE, "allowed: ['Enquiry', 'Change', 'Cancel']"),
        ({"Mood": "Calm"}, FREE, "no such variable"),
        ({"ConsumptionType": "Enquiry"}, FREE, "stage3 needs it"),
        ({"ConsumptionType": "Change"}, BOUND, "stage7 needs it"),
    ],
)
def test_impossible_assignments_are_rejected(telecom, fields, system, said):
    with pytest.raises(BadInput) as caught:
        telecom.reference(fields, system)
    assert said in str(caught.value)


def test_ticket_facts_do_not_affect_the_path(telecom):
    fields = {"ConsumptionType": "Change"}
    assert telecom.reference(fields, telecom.furnish(FREE, seed=3)) == telecom.reference(fields, FREE)


def test_mistyped_variable_suggests_the_nearest(telecom):
    with pytest.raises(BadInput, match="did you mean 'Penalty'"):
        telecom.reference({"ConsumptionType": "Change"}, {"PackageStatus": "NoContract", "Penaltie": 0})
