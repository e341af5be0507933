"""The six scenarios, over every assignment of their variables, against hand-written procedures."""

from __future__ import annotations

import itertools
from itertools import pairwise

import networkx
import pytest

from hamr.errors import BadInput
from hamr.procedures import load_scenario, scenario_names

COUNTS = {  # stage sequences, (sequence, action) leaves, different assignments of the variables that are read
    "telecom_package": (9, 12, 19),
    "online_education": (7, 13, 21),
    "ecommerce_refund": (6, 12, 17),
    "property_service": (7, 12, 23),
    "logistics_delivery": (7, 12, 18),
    "airline_refund": (9, 15, 21),
}


def telecom(v):
    if v["ConsumptionType"] == "Enquiry":
        if v["ApplicationTendency"] != "Agree":
            return [1, 2, 3, 6], "GoodBye"
        way = [1, 2, 3, 6, 4]
    else:
        way = [1, 2, 4] if v["ConsumptionType"] == "Change" else [1, 2]
    if way[-1] == 4 and v["PackageStatus"] == "NoContract":
        return way, "ChangeOrder"
    way = [*way, 5]
    if v["Penalty"] == 0:
        return way, "ChangeOrder"
    return [*way, 7], "ChangeOrder" if v["EmotionTag"] == "Calm" else "TransHuman"


def education(v):
    if not v["DescriptionClear"]:
        return [1, 2], "GUIDE"
    if v["QuestionRelevance"]:
        if v["RepeatedRaised"]:
            return [1, 2, 3, 4], "REVIEW"
        if v["EmotionTendency"] == "Dissatisfied":
            return [1, 2, 3, 4, 5], "COMFORT"
        way, plans = [1, 2, 3, 4, 5, 6, 7], "ABC"
    else:
        way, plans = [1, 2, 3, 6, 7], "DEF"
    if v["RegardingRefund"]:
        return [*way, 8], "NEGOTIATE" if v["isRiskUser"] else "REFUND"
    return way, "PLAN_" + plans[["HighDependency", "MediumDependency", "LowDependency"].index(v["ResolveDependency"])]


def ecommerce(v):
    shipping, credit = v["ShippingStatus"], v["CreditLevel"]
    if shipping != "Signed":
        swap = v["CoreIntention"] == "Exchange"
        return [1, 2, 3], "Interception" if shipping == "Shipping" else "Exchange" if swap else "Refund"
    if v["CoreIntention"] == "Exchange":
        return [1, 2, 3, 4], "PayFee" if credit == "Low" else "Exchange"
    if v["Responsibility"] == "User":
        if credit != "Low":
            return [1, 2, 3, 5, 4], "CollectionService"
        if v["RefundReasonable"] == "Unreasonable":
            return [1, 2, 3, 5, 4, 6], "Reject"
        return [1, 2, 3, 5, 4, 6, 8], "CollectionService" if v["ProvidedDocument"] else "Supplementary"
    if credit == "High":
        return [1, 2, 3, 5, 4], "Comfort+Compensation"
    return [1, 2, 3, 5, 4, 7], "CollectionService" if v["EmotionStatus"] == "Calm" else "Comfort"


def property_(v):
    empty, owes = v["HouseStatus"] == "UnOccupied", v["FeePaymentStatus"] == "Unpaid"
    if v["CoreIntention"] == "Payment":
        return ([1, 2, 3] if empty else [1, 2, 3, 6]), "Payment" if owes and not empty else "PayInformation"
    if v["CoreIntention"] == "Complaint":
        if owes and not empty:
            return [1, 2, 3, 6], "Payment"
        return [1, 2, 3, 7] if empty else [1, 2, 3, 6, 7], "Comfort" if v["EmotionTag"] == "Calm" else "TransHuman"
    if v["RelatedScope"] == "Personal":
        if owes:
            return [1, 2, 4, 5, 6], "Reject"
        way = [1, 2, 4, 5, 6, 8]
    else:
        way = [1, 2, 4, 5, 8]
    return way, "TransHuman" if v["EmergencyLevel"] == "Urgent" else "Registration"


def logistics(v):
    if v["RiskStatus"] == "Risk":
        return [1, 2], "Interception"
    if not v["InfoCompleteness"]:
        return [1, 2, 3], "Supplementary"
    way, arrived = [1, 2, 3, 4, 5], v["orderStatus"] == "Arrived"
    if v["UserIntention"] == "Modify":
        return way, {"Arrived": "Reject", "Delivered": "MakeUpDifference", "Undelivered": "Modify"}[v["orderStatus"]]
    if not arrived:
        return [*way, 6], "Registration" if v["EmergencyLevel"] == "Urgent" else "Detail"
    if v["UserIntention"] == "Urge":
        return way, "Detail"
    if not v["ComplaintValidity"]:
        return [*way, 7], "Comfort"
    if v["hasInsurance"]:
        return [*way, 7, 8], "Compensation"
    return [*way, 7, 8, 9], "Comfort" if v["EmotionalState"] == "Calm" else "TransHuman"


def airline(v):
    complete, valid, member = v["IsInfoComplete"] == "Complete", v["DocumentValidity"] == "Valid", v["memberLevel"]
    if v["CoreDemand"] == "Inqury":
        return [1, 2, 5], "Enquiry" if complete else "Supplementary"
    if v["CoreDemand"] == "Complaint":
        if member != "Regular":
            return [1, 2, 4], "TransHuman" if member == "VIP" else "Reject"
        if v["UserEmotion"] == "Normal":
            return [1, 2, 4, 6], "Comfort"
        return [1, 2, 4, 6, 8], "Compensation" if valid else "Comfort"
    done = "RescheduleOrRefund"
    if v["ChangeReason"] != "Personal":
        return [1, 2, 3, 4], f"{done}+Compensation" if member == "VIP" else done
    if not complete:
        return [1, 2, 3, 5], "Supplementary"
    if not valid:
        return [1, 2, 3, 5, 8], "Supplementary"
    if member != "Regular":
        return [1, 2, 3, 5, 8, 4], done if member == "VIP" else "Reject"
    return [1, 2, 3, 5, 8, 4, 7], done if v["hasInsurance"] else f"{done}+HandlingFee"


BY_HAND = {
    "telecom_package": telecom,
    "online_education": education,
    "ecommerce_refund": ecommerce,
    "property_service": property_,
    "logistics_delivery": logistics,
    "airline_refund": airline,
}
EVERY = pytest.mark.parametrize("name", sorted(COUNTS))


def assignments(scenario):
    names = list(scenario.file.fields)
    for values in itertools.product(*(scenario.file.fields[name].options for name in names)):
        for system in scenario.file.system_states:
            yield dict(zip(names, values, strict=True)), dict(system)


def test_shipped_scenarios_are_the_expected_ones():
    assert scenario_names() == sorted(COUNTS)


@EVERY
def test_every_assignment_has_the_path_and_action_of_its_procedure(name):
    scenario = load_scenario(name)
    graph = scenario.graph
    for fields, system in assignments(scenario):
        stages, action = BY_HAND[name]({**fields, **system})
        assert scenario.reference(fields, system) == ([f"stage{number}" for number in stages], action)
        walk = scenario.walk(fields, system)
        for here, there in pairwise([*walk.nodes, action]):
            edge = graph.edges[here, there]
            known = {**fields, **system}
            assert edge["reads"] is None or any(test.holds(known[edge["reads"]]) for test in edge["when"])


@EVERY
def test_path_counts_match_the_tables(name):
    scenario = load_scenario(name)
    routes = scenario.paths()
    read = set()
    for fields, system in assignments(scenario):
        known = {**fields, **system}
        read.add(tuple((variable, known[variable]) for variable in scenario.walk(fields, system).read))
    assert (len({route.stages for route in routes}), len(routes), len(read)) == COUNTS[name]
    assert routes == sorted(set(routes))


@EVERY
def test_cases_cover_every_route_and_have_an_intent(name):
    scenario = load_scenario(name)
    cases = scenario.cases()
    assert {case.route for case in cases} == set(scenario.paths())
    assert len({repr((dict(c.fields), dict(c.system))) for c in cases}) == len(cases)
    for case in cases:
        assert list(case.fields) == list(scenario.file.fields)
        assert scenario.intents_of(case.fields)
    taken = {intent for case in cases for intent in scenario.intents_of(case.fields)}
    assert taken == set(scenario.file.intents)


@EVERY
def test_graph_contains_all_stages_and_ends_in_actions(name):
    scenario = load_scenario(name)
    graph = scenario.graph
    assert networkx.is_directed_acyclic_graph(graph)
    ends = {node for node in graph if graph.out_degree(node) == 0}
    assert ends == set(scenario.file.actions)
    assert {graph.nodes[node]["kind"] for node in ends} == {"action"}


@EVERY
def test_texts_are_in_both_languages_and_levels_are_ordered(name):
    scenario = load_scenario(name)
    file = scenario.file
    assert file.levels == ("zero", "weak", "strong")
    texts = [file.title, file.description, *file.adversity.values()]
    texts += [entry.description for part in (file.intents, file.personas, file.actions) for entry in part.values()]
    texts += [stage.title for stage in file.stages.values()]
    for variable in (*file.fields.values(), *file.system.values()):
        texts += [variable.description, *(variable.meanings or {}).values()]
    for text in texts:
        assert text.en.isascii()
        assert any("\u4e00" <= character <= "\u9fff" for character in text.zh)


@EVERY
def test_amounts_are_non_negative_integers_for_every_ticket(name):
    scenario = load_scenario(name)
    amounts = {action.amount for action in scenario.file.actions.values()} - {None}
    assert amounts == set(scenario.file.formulas)
    for seed in range(300):
        ticket = scenario.furnish(scenario.file.system_states[0], seed=seed)
        assert ticket == scenario.furnish(scenario.file.system_states[0], seed=seed)
        for formula in scenario.file.formulas:
            assert scenario.amount(formula, ticket) >= 0


@pytest.mark.parametrize(
    ("name", "formula", "values", "expected"),
    [
        # 1200 * (36 - 9) / 36 = 900; after a week 10 % less
        ("online_education", "RefundAmount",
         {"PaidAmount": 1200, "TotalLessons": 36, "TakenLessons": 9, "DaysSincePurchase": 7, "MaterialFee": 50}, 850),
        ("online_education", "RefundAmount",
         {"PaidAmount": 1200, "TotalLessons": 36, "TakenLessons": 9, "DaysSincePurchase": 8, "MaterialFee": 50}, 760),
        ("online_education", "RefundAmount",
         {"PaidAmount": 60, "TotalLessons": 24, "TakenLessons": 23, "DaysSincePurchase": 1, "MaterialFee": 80}, 0),
        ("airline_refund", "HandlingFee", {"TicketPrice": 1000, "HoursToDeparture": 169}, 100),
        ("airline_refund", "HandlingFee", {"TicketPrice": 1000, "HoursToDeparture": 168}, 200),
        ("airline_refund", "HandlingFee", {"TicketPrice": 999, "HoursToDeparture": 5}, 399),
        ("airline_refund", "HandlingFee", {"TicketPrice": 1000, "HoursToDeparture": 4}, 600),
        ("logistics_delivery", "Payout", {"DeclaredValue": 1500}, 1400),
        ("property_service", "FeeDue", {"Area": 80, "BillMonths": 12}, 2736),
    ],
)  # fmt: skip
def test_amounts_match_hand_computed_values(name, formula, values, expected):
    assert load_scenario(name).amount(formula, values) == expected


def test_amount_names_its_missing_variables():
    with pytest.raises(BadInput, match="needs HoursToDeparture"):
        load_scenario("airline_refund").amount("HandlingFee", {"TicketPrice": 1000})
    with pytest.raises(BadInput, match="divides by zero"):
        load_scenario("online_education").amount(
            "RefundAmount",
            {"PaidAmount": 1, "TotalLessons": 0, "TakenLessons": 0, "DaysSincePurchase": 1, "MaterialFee": 0},
        )


def test_only_plan_actions_have_group_credit():
    file = load_scenario("online_education").file
    assert file.metrics.group_credit == 0.7
    assert {name for name, action in file.actions.items() if action.group == "PLAN"} == {f"PLAN_{x}" for x in "ABCDEF"}
    assert all(load_scenario(name).file.metrics.group_credit is None for name in COUNTS if name != "online_education")
