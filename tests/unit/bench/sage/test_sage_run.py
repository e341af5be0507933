"""Whole evaluations with scripted agents, customers and judges: the score loss of each flaw, and resumption after a
stop.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest

from hamr.bench.sage.coverage import plan_dialogues
from hamr.bench.sage.judging import TurnJudgement
from hamr.bench.sage.reader_exam import ReaderExam, exam_dialogues
from hamr.bench.sage.run import Cast, hold, summarise
from hamr.bench.sage.scripted import KINDS, scripted_pool
from hamr.bench.sage.store import Store, read_settings
from hamr.bench.sage.traces import Trace
from hamr.config.sage import SageConfig
from hamr.data.customer_audit import WordingReader
from hamr.errors import BadInput
from hamr.procedures import load_scenario, scenario_names
from hamr.procedures.words import expansions, load_words
from hamr.types import Answer

QUICK = SageConfig(per_intent=1, per_path=1, resamples=20, longest_wait_s=0.001)
ROUTES = QUICK.model_copy(update={"cover": "routes"})
SETTINGS = {"agents": {}, "scenarios": {}, "judging": {"judges": ["gold"]}}


def cast(
    plans,
    scenarios,
    agents=("perfect",),
    simulator="patient",
    judges=("gold",),
    native=frozenset(),
    readers=None,
    **others,
):
    by_id = {plan.id: plan for plan in plans}

    def who(kind, name):
        return others.get(name) or scripted_pool(kind, name, scenarios, by_id)

    return Cast(
        agents={name: who("agent", name) for name in agents},
        user=who("simulator", simulator),
        simulator=simulator,
        judges={name: who("judges", name) for name in judges},
        native=native,
        readers=readers or {},
    )


def run(folder, names=("telecom_package",), config=QUICK, agents=("perfect",), settings=SETTINGS, **who):
    scenarios = {name: load_scenario(name) for name in names}
    plans = [plan for scenario in scenarios.values() for plan in plan_dialogues(scenario, config)]
    with Store(folder, settings) as store:
        pairs = [(agent, plan) for agent in agents for plan in plans]
        asyncio.run(hold(store, scenarios, pairs, cast(plans, scenarios, agents, **who), config, at_once=8))
        return summarise(store, scenarios, plans, agents, config)


def mean(found, agent, name, scenario=None):
    result = found.summary["agents"][agent]
    figures = result["average"] if scenario is None else result["scenarios"][scenario]["figures"]
    return figures[name]["mean"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_perfect_agent_scores_logic_100_on_every_path(tmp_path, language):
    names = scenario_names()
    config = QUICK.model_copy(update={"language": language, "cover": "routes"})
    found = run(tmp_path, names, config, judges=("gold", "strict", "contrary"))
    for name in names:
        turns = found.assessed["perfect"][name]
        assert {(*a.reference.path, a.reference.action) for a in turns} == {
            (*route.stages, route.action) for route in load_scenario(name).paths()
        }
        assert all(a.worth.logic.logic == pytest.approx(100.0) for a in turns)
        assert all(a.faults == () and a.departed is None for a in turns)
    assert mean(found, "perfect", "chat") == pytest.approx(60.0)  # 90, 30 and 60
    assert mean(found, "perfect", "overall") == pytest.approx(92.0)


def test_wrong_action_with_right_labels_loses_20_points(tmp_path):
    names = scenario_names()
    found = run(tmp_path, names, ROUTES, agents=("wrong_action",))
    for name in names:
        assert mean(found, "wrong_action", "logic", name) == pytest.approx(80.0)
        assert found.summary["agents"]["wrong_action"]["scenarios"][name]["execution_gap"] == pytest.approx(100.0)
        # Each went wrong where the procedure ends, and nowhere before.
        for a in found.assessed["wrong_action"][name]:
            assert a.departed == a.reference.nodes[-1]


def test_answers_without_json_are_format_errors_with_score_zero(tmp_path):
    names = scenario_names()
    found = run(tmp_path, names, ROUTES, agents=("chatty", "silent"))
    for agent, kind in (("chatty", "no_json"), ("silent", "empty")):
        assert mean(found, agent, "chat_length") is None
        for name in names:
            assert mean(found, agent, "unreadable", name) == 100.0
            assert mean(found, agent, "logic", name) == 0.0
            assert mean(found, agent, "overall", name) == 0.0
            assert found.summary["agents"][agent]["scenarios"][name]["faults"] == {kind: 100.0}


def test_wrong_branch_loses_its_label_and_skipped_stages_on_every_path(tmp_path):
    names = scenario_names()
    found = run(tmp_path, names, ROUTES, agents=("wrong_branch",))
    with Store(tmp_path, SETTINGS) as store:
        traces = {trace.plan.id: trace for trace in store.traces.values()}
    for name in names:
        scenario, turns = load_scenario(name), found.assessed["wrong_branch"][name]
        assert {(*a.reference.path, a.reference.action) for a in turns} == {
            (*route.stages, route.action) for route in scenario.paths()
        }
        for a in turns:
            plan = traces[a.dialogue].plan
            said = json.loads(traces[a.dialogue].turns[0].agent)["classification_output"]
            assert sum(said[field] != value for field, value in plan.fields.items()) == 1
            path, action = scenario.reference(said, plan.system)
            right, due = scenario.reference(plan.fields, plan.system)
            stages = len({*path} & {*right}) / len(right)
            cost = 40 / len(plan.fields) + 40 * (1 - stages) + 20 * (action != due)
            assert a.worth.logic.logic == pytest.approx(100 - cost)


# What the procedure of the Telecom Package makes of the first wrong label, by hand. The customer's label that decides
# first is ConsumptionType; the first other option is Change for an enquiry, else Enquiry. Labels cost 0.4 / 4 = 10.
@pytest.mark.parametrize(
    ("fields", "system", "said", "expected"),
    [
        # Right 1 2 3 6 4 ChangeOrder; as a change 1 2 4 ChangeOrder: 3 of 5 stages. 30 + 24 + 20.
        (("Enquiry", "Agree", "Data", "Calm"), ("NoContract", 0), [1, 2, 4], 74.0),
        # Right 1 2 3 6 GoodBye; as a change 1 2 4 ChangeOrder: 2 of 4 stages. 30 + 20 + 0.
        (("Enquiry", "Reject", "Data", "Calm"), ("NoContract", 0), [1, 2, 4], 50.0),
        # Right 1 2 4 5 7 TransHuman; as an enquiry 1 2 3 6 4 5 7 TransHuman: 5 of 5. 30 + 40 + 20.
        (("Change", "Agree", "Data", "Discontent"), ("Contracted", 100), [1, 2, 3, 6, 4, 5, 7], 90.0),
        # Right 1 2 5 ChangeOrder; as an enquiry 1 2 3 6 4 ChangeOrder: 2 of 3. 30 + 80 / 3 + 20.
        (("Cancel", "Agree", "Data", "Calm"), ("NoContract", 0), [1, 2, 3, 6, 4], 30 + 80 / 3 + 20),
    ],
)
def test_wrong_branch_loses_the_skipped_stages(tmp_path, fields, system, said, expected):
    scenario = load_scenario("telecom_package")
    found = run(tmp_path, agents=("wrong_branch",), config=QUICK.model_copy(update={"per_intent": 0}))
    wanted = dict(zip(scenario.file.fields, fields, strict=True))
    with Store(tmp_path, SETTINGS) as store:
        trace = next(
            trace
            for trace in store.traces.values()
            if trace.plan.fields == wanted
            and (trace.plan.system["PackageStatus"], trace.plan.system["Penalty"]) == system
        )
    assert json.loads(trace.turns[0].agent)["now_path"] == [f"stage{n}" for n in said]
    turns = [a for a in found.assessed["wrong_branch"]["telecom_package"] if a.dialogue == trace.plan.id]
    assert [a.turn for a in turns] == [1, 5, 10]
    assert all(a.worth.logic.logic == pytest.approx(expected) for a in turns)
    assert {a.departed for a in turns} == {"stage2"}


def test_other_scoring_options_change_the_figures_as_documented(tmp_path):
    # Enquiries of a free customer who agrees, taken for a change: 3 of 5 stages, of which the first 2 are in order.
    scenario = load_scenario("telecom_package")
    intersection = run(tmp_path / "a", agents=("wrong_branch",))
    prefix = run(tmp_path / "b", agents=("wrong_branch",), config=QUICK.model_copy(update={"path": "prefix"}))
    key = {"ConsumptionType": "Enquiry", "ApplicationTendency": "Agree"}
    reference, _ = scenario.reference(
        {**key, "ConsumptionProfile": "Data"}, {"PackageStatus": "NoContract", "Penalty": 0}
    )

    def paths(found):
        turns = found.assessed["wrong_branch"]["telecom_package"]
        return [a.worth.logic.path for a in turns if list(a.reference.path) == reference]

    assert set(paths(intersection)) == {0.6}
    assert set(paths(prefix)) == {0.4}


@pytest.mark.parametrize(("rule", "expected"), [("left_out", 100.0), ("zero", 50.0)])
def test_unreadable_turns_are_excluded_or_score_zero(tmp_path, rule, expected):
    config = QUICK.model_copy(update={"unreadable": rule, "limit": 6})
    scenarios = {"telecom_package": load_scenario("telecom_package")}
    plans = {plan.id: plan for plan in plan_dialogues(scenarios["telecom_package"], config)}
    perfect = scripted_pool("agent", "perfect", scenarios, plans)

    async def moody(question):
        said = sum(m["role"] == "assistant" for m in question.messages)
        return Answer(text="Hm.") if said in (0, 9) else await perfect(question)

    # Readable at turn 5 alone would be a third; an end after 8 makes it turns 1, 5 and 8.
    async def brief(question):
        said = sum(m["role"] == "assistant" for m in question.messages)
        return Answer(text="[END]" if said == 5 else "And?")

    found = run(tmp_path, agents=("moody",), simulator="brief", config=config, moody=moody, brief=brief)
    assert mean(found, "moody", "logic") == pytest.approx(expected)
    assert mean(found, "moody", "unreadable") == mean(found, "moody", "readable") == pytest.approx(50.0)
    assert found.summary["agents"]["moody"]["judges"]["panel"]["logic"] == pytest.approx(expected)


@pytest.mark.parametrize(("form", "expected"), [("exact", 80.0), ("group", 94.0)])
def test_right_plan_with_the_wrong_option_gets_partial_credit(tmp_path, form, expected):
    """Online Education credits PLAN with 0.7 if the option is wrong: 40 + 40 + 0.7 * 20."""
    scenarios = {"online_education": load_scenario("online_education")}
    config = QUICK.model_copy(update={"action": form, "per_intent": 0, "cover": "routes"})
    plans = {plan.id: plan for plan in plan_dialogues(scenarios["online_education"], config)}
    perfect = scripted_pool("agent", "perfect", scenarios, plans)

    async def other_plan(question):
        said = json.loads((await perfect(question)).text)
        if said["finals"]["Action"] == "PLAN_A":
            said["finals"]["Action"] = "PLAN_B"
        return Answer(text=json.dumps(said))

    found = run(tmp_path, ("online_education",), config, agents=("other_plan",), other_plan=other_plan)
    turns = found.assessed["other_plan"]["online_education"]
    planned = [a for a in turns if a.reference.action == "PLAN_A"]
    assert planned and all(a.worth.logic.logic == pytest.approx(expected) for a in planned)
    assert all(a.worth.logic.logic == pytest.approx(100.0) for a in turns if a not in planned)


def test_failed_customer_simulations_are_counted(tmp_path):
    hasty = run(tmp_path / "a", simulator="hasty")
    machine = run(tmp_path / "b", simulator="machine")
    telecom = "telecom_package"
    assert set(hasty.summary["agents"]["perfect"]["scenarios"][telecom]["dialogues"]) == {"user_ended_at_once"}
    assert set(machine.summary["agents"]["perfect"]["scenarios"][telecom]["dialogues"]) == {"user_broke_character"}
    assert mean(hasty, "perfect", "logic") is None


def test_field_skipped_by_one_judge_is_decided_by_the_others(tmp_path):
    scenarios = {"telecom_package": load_scenario("telecom_package")}
    plans = {plan.id: plan for plan in plan_dialogues(scenarios["telecom_package"], QUICK)}
    gold = scripted_pool("judges", "gold", scenarios, plans)

    async def gap(question):
        said = json.loads((await gold(question)).text)
        del said["classification"]["ConsumptionType"]
        return Answer(text=json.dumps(said))

    found = run(tmp_path, judges=("gap", "contrary", "gold"), gap=gap)
    # One of two is against: a tie, which the first judge with a vote on this field decides wrongly.
    assert found.summary["votes"]["tied"] == {"ConsumptionType": found.summary["votes"]["turns"]}
    alone = run(tmp_path / "b", judges=("gap",), gap=gap)
    assert alone.summary["votes"]["no_reference"] == alone.summary["votes"]["turns"]
    assert mean(alone, "perfect", "logic") is None
    assert mean(alone, "perfect", "chat") == 90.0
    assert mean(alone, "perfect", "judges_right") == 100.0, "who does not answer is not wrong"


def test_single_judge_figures_use_its_own_labels(tmp_path):
    found = run(tmp_path, judges=("gold", "strict", "contrary")).summary["agents"]["perfect"]["judges"]
    assert found["panel"]["logic"] == found["gold"]["logic"] == pytest.approx(100.0)
    assert found["contrary"]["logic"] < 100.0


def test_concurrent_dialogues_are_limited(tmp_path):
    scenarios = {"telecom_package": load_scenario("telecom_package")}
    plans = {plan.id: plan for plan in plan_dialogues(scenarios["telecom_package"], QUICK)}
    perfect, under_way, most = scripted_pool("agent", "perfect", scenarios, plans), 0, 0

    async def counted(question):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1
        return await perfect(question)

    run(tmp_path, agents=("a",), a=counted)
    assert len(plans) > most == 8


# --- dialogues without an assessed turn --------------------------------------------------------


LEAVES, GONE = Answer(text="[END]"), Answer(failure="unavailable")


def flaky(plans, scenarios, asked, *, fails=frozenset(), first=LEAVES, times=1):
    """Return a customer that gives the answer `first` the first `times` times in some dialogues, then talks."""
    patient = scripted_pool("simulator", "patient", scenarios, plans)
    tries = Counter()

    async def ask(question):
        name = question.affinity.removesuffix("/user")
        original = name.partition("+")[0]
        tries[original] += 1
        asked.append(name)
        return first if original in fails and tries[original] <= times else await patient(question)

    return ask


def telecom_case(config=QUICK):
    scenarios = {"telecom_package": load_scenario("telecom_package")}
    plans = {plan.id: plan for plan in plan_dialogues(scenarios["telecom_package"], config)}
    return scenarios, plans, set(list(plans)[1::3])


def assessed_per_path(found, agent="perfect"):
    return [row["assessed"][agent] for row in found.summary["coverage"]["telecom_package"]]


def test_customers_who_leave_at_once_are_replaced_on_their_path(tmp_path):
    config = QUICK.model_copy(update={"reasks": 0})
    (scenarios, plans, leaves), asked = telecom_case(config), []
    found = run(tmp_path, config=config, simulator="s", s=flaky(plans, scenarios, asked, fails=leaves))
    rows = found.summary["coverage"]["telecom_package"]
    assert assessed_per_path(found) == [row["by_intent"] + row["by_path"] for row in rows]
    outcomes = found.summary["agents"]["perfect"]["scenarios"]["telecom_package"]["dialogues"]
    assert outcomes == {"ended": len(plans), "user_ended_at_once": len(leaves)}
    assert {name for name in asked if "+" in name} == {f"{name}+1" for name in leaves}
    asked.clear()
    again = run(tmp_path, config=config, simulator="s", s=flaky(plans, scenarios, asked, fails=leaves))
    assert again.summary == found.summary and asked == []


@pytest.mark.parametrize("rule", ["left_out", "kept"])
def test_dialogues_of_faulty_customers_are_replaced_or_kept_and_counted(tmp_path, rule):
    config = QUICK.model_copy(update={"faulty_customers": rule})
    scenarios, plans, faulty = telecom_case(config)
    patient, judged = scripted_pool("simulator", "patient", scenarios, plans), []

    async def ask(question):
        foreign = question.affinity.removesuffix("/user") in faulty and len(question.messages) == 4
        return Answer(text="请帮我处理一下这个问题") if foreign else await patient(question)

    gold = scripted_pool("judges", "gold", scenarios, plans)

    async def judge(question):
        judged.append(question.affinity)
        return await gold(question)

    found = run(tmp_path, config=config, simulator="s", s=ask, judges=("j",), j=judge)
    entry = found.summary["agents"]["perfect"]["scenarios"]["telecom_package"]
    customers = entry["customers"]
    assert customers["faulty"] == len(faulty) and customers["faults"] == {"other_language": len(faulty)}
    assert found.summary["faulty_rule"] == rule
    left_out = rule == "left_out"
    assert customers["customers"] == len(plans) + left_out * len(faulty)
    assert {a.dialogue for a in found.assessed["perfect"]["telecom_package"]}.isdisjoint(faulty) == left_out
    assert faulty.isdisjoint(judged) == left_out, "a faulty dialogue costs no judgement"
    rows = found.summary["coverage"]["telecom_package"]
    assert assessed_per_path(found) == [row["by_intent"] + row["by_path"] for row in rows]


def exam_answers(scenario, config):
    """Return the right answer to each question of the exam for readers."""
    known, found = WordingReader(scenario, load_words(scenario, config.language)), {}
    for trace in exam_dialogues(scenario, config):
        heard = known.read([turn.user for turn in trace.turns], trace.plan.system)
        shown = [
            {"message": number, "field": name, "value": value}
            for number, message in enumerate(heard, 1)
            for meaning in (one for meanings in message.sentences for one in meanings)
            for name, value in meaning.items() & trace.plan.fields.items()
        ]
        found[trace.plan.id] = Answer(text=json.dumps({"shown": shown}))
    return found


def test_judges_that_read_known_customers_wrongly_may_not_exclude_any(tmp_path):
    config = ROUTES.model_copy(update={"limit": 4})
    scenarios, plans, _ = telecom_case(config)
    exam, asked = exam_answers(scenarios["telecom_package"], config), []

    async def reader(question):
        asked.append(question.affinity)
        shown = [{"message": 1, "field": "ConsumptionType", "value": "Cancel"}]
        return Answer(text=json.dumps({"shown": shown}))

    patient = scripted_pool("simulator", "patient", scenarios, plans)
    found = run(tmp_path, config=config, simulator="s", s=patient, readers={"reader": reader})
    assert sorted(asked) == sorted(exam), "one question each, and none about other dialogues"
    result = found.summary["readers"]["telecom_package"]
    assert not result["passed"] and result["alarms"] > 1
    assert found.summary["agents"]["perfect"]["customers"]["faulty"] == 0


def test_customers_whom_the_judges_find_faulty_are_replaced_and_read_once(tmp_path):
    config = ROUTES.model_copy(update={"limit": 4})
    scenarios, plans, faulty = telecom_case(config)
    patient, asked = scripted_pool("simulator", "patient", scenarios, plans), []
    exam = exam_answers(scenarios["telecom_package"], config)

    async def reader(question):
        if question.affinity in exam:
            return exam[question.affinity]
        asked.append(question.affinity)
        case = plans[question.affinity.partition("+")[0]].fields
        shown = [{"message": 1, "field": name, "value": value} for name, value in case.items()]
        other = next(o for o in ("Cancel", "Change") if o != case["ConsumptionType"])
        if question.affinity in faulty:
            shown.append({"message": 2, "field": "ConsumptionType", "value": other})
        return Answer(text=json.dumps({"shown": shown}))

    found = run(tmp_path, config=config, simulator="s", s=patient, readers={"reader": reader})
    customers = found.summary["agents"]["perfect"]["customers"]
    assert customers["faults"] == {"other_goal": len(faulty)}
    assert customers["understood"] == customers["disclosed"] == 100.0
    result = found.summary["readers"]["telecom_package"]
    assert result["passed"] and result["alarms"] == 0 and result["found"] == result["changed"] > 0
    assert sorted(asked) == sorted([*plans, *(f"{name}+1" for name in faulty)])
    asked.clear()
    again = run(tmp_path, config=config, simulator="s", s=patient, readers={"reader": reader})
    assert again.summary == found.summary and asked == []


def test_fidelity_of_customers_by_template_is_complete(tmp_path):
    found = run(tmp_path, names=("airline_refund",), config=ROUTES, simulator="worded")
    customers = found.summary["agents"]["perfect"]["customers"]
    assert customers["faulty"] == 0 and customers["faults"] == {}
    for name in ("own_language", "in_role", "understood", "disclosed", "goal"):
        assert customers[name] == 100.0
    assert 5 < customers["words"] < 15


@pytest.mark.parametrize(("top_up", "rounds"), [(0, 0), (1, 1), (2, 2)])
def test_replacements_are_bounded_and_coverage_counts_assessed_dialogues(tmp_path, top_up, rounds):
    config = QUICK.model_copy(update={"top_up": top_up, "reasks": 0})
    (scenarios, plans, leaves), asked = telecom_case(config), []
    # The first replacement of all but one customer talks, so that every round helps some dialogue.
    stubborn = min(leaves)
    talks = flaky(plans, scenarios, asked)

    async def ask(question):
        name = question.affinity.removesuffix("/user")
        gone = name in leaves or name.startswith(stubborn)
        answer = await talks(question)
        return LEAVES if gone else answer

    found = run(tmp_path, config=config, simulator="s", s=ask)
    planned = sum(row["by_intent"] + row["by_path"] for row in found.summary["coverage"]["telecom_package"])
    missing = 1 if top_up else len(leaves)
    assert sum(assessed_per_path(found)) == planned - missing
    assert max(int(name.partition("+")[2] or 0) for name in asked) == rounds


def test_interrupted_dialogue_is_repeated_in_the_same_call(tmp_path):
    config = QUICK.model_copy(update={"attempts": 1})
    (scenarios, plans, gone), asked = telecom_case(config), []
    found = run(tmp_path, config=config, simulator="s", s=flaky(plans, scenarios, asked, fails=gone, first=GONE))
    outcomes = found.summary["agents"]["perfect"]["scenarios"]["telecom_package"]["dialogues"]
    assert outcomes == {"ended": len(plans)} and not any("+" in name for name in asked)


def test_nothing_is_topped_up_where_no_dialogue_works(tmp_path):
    (scenarios, plans, _), asked = telecom_case(), []
    run(tmp_path, simulator="s", s=flaky(plans, scenarios, asked, fails=plans.keys(), times=10**6))
    assert set(asked) == set(plans)


# --- stops -------------------------------------------------------------------------------------


class Stop(Exception):
    pass


def test_killed_evaluation_resumes_without_repeating_dialogues(tmp_path):
    scenarios = {"telecom_package": load_scenario("telecom_package")}
    plans = {plan.id: plan for plan in plan_dialogues(scenarios["telecom_package"], QUICK)}
    perfect = scripted_pool("agent", "perfect", scenarios, plans)
    asked = []

    def limited(most):
        async def ask(question):
            if len(asked) >= most:
                raise Stop
            asked.append(question.affinity)
            return await perfect(question)

        return ask

    with pytest.raises(Stop):
        run(tmp_path, agents=("a",), a=limited(203))
    before = (tmp_path / "traces.jsonl").read_text().splitlines()
    done = {json.loads(row)["plan"]["id"] for row in before}
    assert 0 < len(done) < len(plans)
    # A row that a kill cut off in the middle does not count.
    with (tmp_path / "traces.jsonl").open("a") as file:
        file.write(before[0][:100])
    asked.clear()
    found = run(tmp_path, agents=("a",), a=limited(10**6))
    assert set(asked) == set(plans) - done
    assert (tmp_path / "traces.jsonl").read_text().splitlines()[: len(before)] == before
    whole = run(tmp_path / "whole", agents=("a",), a=limited(10**6))
    assert found.summary == whole.summary
    again = run(tmp_path, agents=("a",), a=limited(0))
    assert again.summary == whole.summary


def test_dialogues_interrupted_by_a_pool_are_retried(tmp_path):
    scenarios = {"telecom_package": load_scenario("telecom_package")}
    plans = {plan.id: plan for plan in plan_dialogues(scenarios["telecom_package"], QUICK)}
    perfect = scripted_pool("agent", "perfect", scenarios, plans)
    gold = scripted_pool("judges", "gold", scenarios, plans)
    odd = set(list(plans)[1::2])

    async def away_for_some(question):
        return Answer(failure="timeout") if question.affinity in odd else await perfect(question)

    async def no_judge(question):
        return Answer(failure="unavailable")

    first = run(tmp_path, agents=("a",), judges=("j",), a=away_for_some, j=no_judge)
    assert first.summary["agents"]["a"]["scenarios"]["telecom_package"]["dialogues"] == {
        "ended": len(plans) - len(odd),
        "agent_failed": len(odd),
    }
    assert mean(first, "a", "logic") is None
    second = run(tmp_path, agents=("a",), judges=("j",), a=perfect, j=gold)
    assert second.summary["agents"]["a"]["scenarios"]["telecom_package"]["dialogues"] == {"ended": len(plans)}
    assert mean(second, "a", "logic") == pytest.approx(100.0)
    assert second.summary["votes"]["turns"] == 3 * len(plans)
    assert second.summary["votes"]["no_reference"] == 0, "the turns whose judge was away have been judged"


def test_runs_with_the_same_seed_write_identical_files(tmp_path):
    for name in ("a", "b"):
        run(tmp_path / name, config=ROUTES, agents=("perfect", "wrong_branch"), judges=("gold", "strict", "contrary"))
    for file in ("traces.jsonl", "judgements.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def held(agent="a", outcome="ended"):
    [plan] = plan_dialogues(load_scenario("telecom_package"), QUICK.model_copy(update={"limit": 1}))
    return Trace(agent=agent, simulator="s", plan=plan, turns=(), outcome=outcome)


def test_folder_of_another_evaluation_is_rejected(tmp_path):
    begun = {**SETTINGS, "sage": {"seed": 0}}
    with Store(tmp_path, begun) as store:
        with pytest.raises(BadInput, match="another evaluation is writing"):
            Store(tmp_path, begun)
        store.add_trace(held())
        store.add_judgement(TurnJudgement(agent="a", dialogue=held().plan.id, turn=1, votes=()))
    with pytest.raises(BadInput, match=r"sage.seed=0, now 1"):
        Store(tmp_path, {**SETTINGS, "sage": {"seed": 1}})
    others = {**SETTINGS, "sage": {"seed": 0}, "judging": {"judges": ["strict"]}}
    with pytest.raises(BadInput, match="rejudge=true"):
        Store(tmp_path, others)


def test_models_without_finished_dialogues_may_be_changed(tmp_path):
    def of(**models):
        return {**SETTINGS, "agents": {name: {"model": model} for name, model in models.items()}}

    with Store(tmp_path, {**of(a="typo"), "sage": {"seed": 0}}) as store:
        store.add_trace(held(outcome="agent_failed"))
    with Store(tmp_path, of(a="right", b="typo")) as store:
        store.add_trace(held())
    with Store(tmp_path, of(b="right")) as store:
        assert store.finished_trace("a", held().plan.id) is not None
    assert read_settings(tmp_path)["agents"] == {"a": {"model": "right"}, "b": {"model": "right"}}
    with pytest.raises(BadInput, match=r"agents.a.model=.right., now"):
        Store(tmp_path, of(a="other"))


def test_stopped_rejudging_resumes(tmp_path):
    first, again = (TurnJudgement(agent="a", dialogue=held().plan.id, turn=turn, votes=()) for turn in (1, 5))
    others = {**SETTINGS, "judging": {"judges": ["strict"]}}
    with Store(tmp_path, SETTINGS) as store:
        store.add_trace(held())
        store.add_judgement(first)
    with Store(tmp_path, others, rejudge=True) as store:
        assert store.judgements == {}
    with Store(tmp_path, others, rejudge=True) as store:  # stopped before the first vote
        store.add_judgement(again)
    with Store(tmp_path, others, rejudge=True) as store:
        assert store.judgements == {("a", held().plan.id): {5: again}}
    assert json.loads((tmp_path / "judgements.old.jsonl").read_text())["turn"] == 1


def test_votes_of_every_earlier_judge_are_kept(tmp_path):
    for turn, judge in enumerate(("gold", "strict", "contrary", "other"), start=1):
        with Store(tmp_path, {**SETTINGS, "judging": {"judges": [judge]}}, rejudge=True) as store:
            store.add_trace(held())
            store.add_judgement(TurnJudgement(agent="a", dialogue=held().plan.id, turn=turn, votes=()))
    kept = [json.loads((tmp_path / f"judgements{end}.jsonl").read_text())["turn"] for end in (".old", ".old2", ".old3")]
    assert kept == [1, 2, 3] and (tmp_path / "readings.old3.jsonl").is_file()


def test_rejudging_repeats_the_exams_and_readings_of_other_judges(tmp_path):
    exam = ReaderExam(scenario="telecom_package", customers=10)
    with Store(tmp_path, SETTINGS) as store:
        store.add_trace(held())
        store.add_exam(exam, final=True)
    with Store(tmp_path, SETTINGS, rejudge=True) as store:
        assert store.exams == {"telecom_package": exam}
    with Store(tmp_path, {**SETTINGS, "judging": {"judges": ["strict"]}}, rejudge=True) as store:
        assert store.exams == {}


@pytest.mark.parametrize("line", ["nonsense\n", "[]\n", '{"agent": "a"}\n'])
def test_damaged_row_is_reported(tmp_path, line):
    (tmp_path / "traces.jsonl").write_text(line)
    with pytest.raises(BadInput, match=r"traces.jsonl:1"):
        Store(tmp_path, SETTINGS)
    assert (tmp_path / "traces.jsonl").read_text() == line


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_script_names_the_nearest(kind):
    name = next(iter(KINDS[kind]))
    with pytest.raises(BadInput, match=f"did you mean 'scripted:{name}'"):
        scripted_pool(kind, name[:-1], {}, {})


# --- figures without judges --------------------------------------------------------------------


def test_truth_figures_do_not_depend_on_judges(tmp_path):
    found = run(tmp_path, config=ROUTES, agents=("perfect", "wrong_action"), judges=("contrary",))
    assert mean(found, "perfect", "logic") < 80
    assert mean(found, "perfect", "truth") == pytest.approx(100.0)
    assert mean(found, "perfect", "truth_action") == 100.0
    assert mean(found, "wrong_action", "truth") == pytest.approx(80.0)
    assert mean(found, "perfect", "judges_right") == 0.0
    turns = found.assessed["perfect"]["telecom_package"]
    assert all((a.truth is not None) == (a.judges_right is not None) == a.last for a in turns)
    assert not all(a.last for a in turns)
    right = run(tmp_path / "b", config=ROUTES, judges=("gold",))
    assert mean(right, "perfect", "judges_right") == 100.0


@pytest.mark.parametrize(("rule", "expected"), [("left_out", 0.0), ("zero", 0.0)])
def test_silent_agent_scores_zero_truth(tmp_path, rule, expected):
    config = QUICK.model_copy(update={"unreadable": rule})
    found = run(tmp_path, config=config, agents=("silent",))
    assert mean(found, "silent", "truth") == expected
    assert mean(found, "silent", "judges_right") is None


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_scripted_customers_show_required_fields_and_leave(tmp_path, language):
    config = QUICK.model_copy(update={"language": language, "cover": "routes"})
    names = scenario_names()
    scenarios = {name: load_scenario(name) for name in names}
    plans = [plan for scenario in scenarios.values() for plan in plan_dialogues(scenario, config)]
    with Store(tmp_path, SETTINGS) as store:
        asyncio.run(
            hold(store, scenarios, [("p", p) for p in plans], with_perfect(plans, scenarios), config, at_once=8)
        )
    for trace in store.traces.values():
        scenario, plan = scenarios[trace.plan.scenario], trace.plan
        assert trace.outcome == "ended"
        pinned = {*scenario.file.intents[plan.intent].pins, *load_words(scenario, language).opens_with}
        read = [name for name in scenario.walk(plan.fields, plan.system).read if name in plan.fields]
        told = [name for name in read if name not in pinned]
        assert len(trace.turns) == 1 + len(told)
        if told:
            texts = load_words(scenario, language).test.show[told[-1]][plan.fields[told[-1]]]
            known = {variant.format(**plan.system) for text in texts for variant in expansions(text)}
            assert trace.turns[-1].user.startswith(tuple(known))


def with_perfect(plans, scenarios):
    by_id = {plan.id: plan for plan in plans}
    return Cast(
        agents={"p": scripted_pool("agent", "perfect", scenarios, by_id)},
        user=scripted_pool("simulator", "worded", scenarios, by_id),
        simulator="worded",
        judges={"gold": scripted_pool("judges", "gold", scenarios, by_id)},
    )
