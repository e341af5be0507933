from __future__ import annotations

import asyncio
import json
import re

import pytest

from hamr.apps.evaluate.command import EvaluateSage
from hamr.apps.shared.commands import parse
from hamr.cli import main
from hamr.config.load import ALLOWED_FUNCTIONS
from hamr.config.resources import resource
from hamr.procedures import scenario_names
from hamr.types import Answer, ScorerCall

ARGS = {
    "benchmark": "sage",
    "scenario": "telecom_package",
    "agent": "scripted:perfect",
    "simulator": "scripted:patient",
    "judges": "scripted:gold",
    "per_path": "1",
    "cover": "routes",
    "resamples": "20",
}


def evaluate(tmp_path, **changes):
    given = {**ARGS, "output": str(tmp_path / "out"), **changes}
    return main(["evaluate", *(f"{key}={value}" for key, value in given.items() if value is not None)])


def metrics(tmp_path):
    return json.loads((tmp_path / "out" / "metrics.json").read_text())


def rows(tmp_path, name):
    return [json.loads(line) for line in (tmp_path / "out" / name).read_text().splitlines()]


@pytest.mark.slow
def test_command_writes_all_documented_outputs(tmp_path, capsys):
    agents = "scripted:perfect,scripted:wrong_action,scripted:chatty"
    judges = "scripted:gold,scripted:strict,scripted:contrary"
    assert evaluate(tmp_path, agent=agents, judges=judges) == 0
    shown = capsys.readouterr().out
    assert re.search(r"scripted:perfect +92\.0 +100\.0 +60\.0", shown)
    assert re.search(r"scripted:wrong_action +76\.0 +80\.0 +60\.0", shown)
    assert re.search(r"scripted:wrong_action +100\.0 +100\.0 +0\.0", shown)
    assert re.search(r"telecom package +\d+ ", shown)
    assert max(len(line) for line in shown.splitlines() if "/" not in line) <= 80
    found = metrics(tmp_path)
    average = found["agents"]["scripted:perfect"]["average"]["logic"]
    assert average == {"mean": pytest.approx(100.0), "low": pytest.approx(100.0), "high": pytest.approx(100.0)}
    assert found["agents"]["scripted:wrong_action"]["judges"]["scripted:strict"]["chat"] == pytest.approx(30.0)
    assert found["votes"]["tie_rule"] == "first"
    assert len(rows(tmp_path, "traces.jsonl")) == 3 * sum(
        row["by_intent"] + row["by_path"] for row in found["coverage"]["telecom_package"]
    )
    assert {row["agent"] for row in rows(tmp_path, "assessments.jsonl")} == set(agents.split(","))
    report = (tmp_path / "out" / "report.html").read_text()
    assert "scripted:wrong_action" in report and '<th scope="row">scripted:perfect</th>' in report
    assert "1 2 4 5 7" in report and "TransHuman" in report
    # The graph of each agent, the turns, the levels of two (nothing of the third is known), dimensions, three maps.
    assert report.count("<svg ") == len(list((tmp_path / "out" / "plots").iterdir())) >= 3 + 1 + 2 + 3
    assert "http://" not in report and "https://" not in report


@pytest.mark.slow
def test_repeated_command_reuses_traces_and_may_add_agents(tmp_path):
    evaluate(tmp_path)
    before = (tmp_path / "out" / "traces.jsonl").read_bytes()
    evaluate(tmp_path)
    assert (tmp_path / "out" / "traces.jsonl").read_bytes() == before
    evaluate(tmp_path, agent="scripted:perfect,scripted:silent")
    after = (tmp_path / "out" / "traces.jsonl").read_bytes()
    assert after.startswith(before) and len(after) > len(before)


@pytest.mark.slow
def test_figures_are_recomputed_from_recorded_votes(tmp_path):
    evaluate(tmp_path, agent="scripted:wrong_branch")
    intersection = metrics(tmp_path)["agents"]["scripted:wrong_branch"]["average"]["path"]["mean"]
    evaluate(tmp_path, agent="scripted:wrong_branch", path="prefix")
    assert metrics(tmp_path)["agents"]["scripted:wrong_branch"]["average"]["path"]["mean"] < intersection


@pytest.mark.slow
def test_dialogues_can_be_rejudged_by_other_judges(tmp_path, capsys):
    evaluate(tmp_path)
    assert evaluate(tmp_path, judges="scripted:strict") == 2
    assert "rejudge=true" in capsys.readouterr().err
    traces = (tmp_path / "out" / "traces.jsonl").read_bytes()
    again = ["evaluate", "benchmark=sage", f"output={tmp_path / 'out'}", "rejudge=true", "judges=scripted:strict"]
    assert main(again) == 0
    assert (tmp_path / "out" / "traces.jsonl").read_bytes() == traces
    assert (tmp_path / "out" / "judgements.old.jsonl").is_file()
    assert metrics(tmp_path)["agents"]["scripted:perfect"]["average"]["chat"]["mean"] == pytest.approx(30.0)
    assert evaluate(tmp_path, judges="scripted:strict") == 0


def test_rejudging_keeps_the_options_that_are_not_given(tmp_path):
    kept = {"path": "prefix", "unreadable": "left_out", "tie": "none", "action": "group", "faulty_customers": "kept"}
    assert evaluate(tmp_path, **kept, limit="1", per_path="0") == 0
    again = ["evaluate", "benchmark=sage", f"output={tmp_path / 'out'}", "rejudge=true", "judges=scripted:strict"]
    assert main([*again, "tie=smallest"]) == 0
    options = metrics(tmp_path)["options"]
    assert {name: options[name] for name in kept} == kept | {"tie": "smallest"} and options["resamples"] == 20
    (tmp_path / "out" / "metrics.json").unlink()
    assert main(again) == 0 and metrics(tmp_path)["options"]["path"] == "intersection"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "is not that of SAGE"),
        ('{"package": "1", "options": {}, "simulator": {}, "agents": {}}', "is not that of SAGE (scenarios:"),
        ('{"agents": {"a": 1}, "scenarios": {}}', "is not that of SAGE (agents.a:"),
        ('{"agents": {}, "scenarios": {"a": {}}, "simulator": {"name": "s"}}', "has no judging.judges"),
    ],
)
def test_settings_of_no_sage_evaluation_are_refused_and_kept(tmp_path, capsys, content, said):
    """Those of a policy in training, the last ones, have no participants to judge again or to merge."""
    (tmp_path / "out").mkdir()
    settings = tmp_path / "out" / "settings.json"
    settings.write_text(content)
    merge = [f"merge={tmp_path / 'out'},{tmp_path / 'b'}", f"output={tmp_path / 'both'}"]
    for key, words in {"output": ["rejudge=true", f"output={tmp_path / 'out'}"], "merge": merge}.items():
        assert main(["evaluate", "benchmark=sage", *words]) == 2
        error = capsys.readouterr().err
        assert f"{key}: '{settings}': {said}" in error and len(error.splitlines()) == 1
    if "judging" not in said:
        assert evaluate(tmp_path) == 2
    assert settings.read_text() == content and not (tmp_path / "both").exists()


def test_invalid_option_of_a_judged_folder_is_one_line(tmp_path, capsys):
    assert evaluate(tmp_path, limit="1", per_path="0") == 0
    settings = tmp_path / "out" / "settings.json"
    settings.write_text(settings.read_text().replace('"max_turns": 30', '"max_turns": 0'))
    assert evaluate(tmp_path, rejudge="true") == 2
    error = capsys.readouterr().err
    assert "has an invalid option (max_turns:" in error and len(error.splitlines()) == 1


def test_the_same_judge_twice_is_two_judges(tmp_path):
    evaluate(tmp_path, judges="scripted:gold,scripted:gold,scripted:gold", limit="2")
    assert [vote["judge"] for vote in rows(tmp_path, "judgements.jsonl")[0]["votes"]] == [
        "scripted:gold",
        "scripted:gold#2",
        "scripted:gold#3",
    ]


def test_numbers_of_repeated_judges_are_free(tmp_path):
    def judges(given):
        words = {**ARGS, "judges": given, "output": str(tmp_path)}
        return parse(EvaluateSage, [f"{key}={value}" for key, value in words.items() if key != "benchmark"]).judges

    assert judges("x#2,x") == ("x#2", "x")
    assert judges("x#2,x,x,x#2,y") == ("x#2", "x", "x#3", "x#4", "y")


def test_agent_without_an_assessed_turn_fails_after_its_metrics_are_written(tmp_path, capsys):
    assert evaluate(tmp_path, simulator="scripted:hasty") == 1
    assert "no turn of scripted:perfect was assessed, because no customer talked to it" in capsys.readouterr().err
    assert all(row["assessed"] == {"scripted:perfect": 0} for row in metrics(tmp_path)["coverage"]["telecom_package"])
    entry = metrics(tmp_path)["agents"]["scripted:perfect"]["scenarios"]["telecom_package"]
    assert set(entry["dialogues"]) == {"user_ended_at_once"}
    assert entry["figures"]["logic"]["mean"] is None


def test_folders_of_other_seeds_and_agents_are_merged_into_one_report(tmp_path):
    quick = {"limit": "3", "per_path": "0", "per_intent": "1"}
    for name, changes in {
        "a0": {"agent": "scripted:perfect", "seed": "0"},
        "b0": {"agent": "scripted:wrong_action", "seed": "0"},
        "a1": {"agent": "scripted:perfect", "seed": "1"},
    }.items():
        assert evaluate(tmp_path, **quick, **changes, output=str(tmp_path / name)) == 0
    folders = ",".join(str(tmp_path / name) for name in ("a0", "b0", "a1"))
    given = [f"merge={folders}", "ranked_apart=scripted:wrong_action", "resamples=20"]
    merge = ["evaluate", "benchmark=sage", *given, f"output={tmp_path / 'out'}"]
    assert main(merge) == 0
    traces = rows(tmp_path, "traces.jsonl")
    assert len(traces) == len({(t["agent"], t["plan"]["id"]) for t in traces}) == 9
    found = metrics(tmp_path)
    assert set(found["agents"]["scripted:perfect"]["by_seed"]["seeds"]) == {"0", "1"}
    assert found["agents"]["scripted:perfect"]["by_seed"]["standard_deviation"]["logic"] == 0.0
    assert found["agents"]["scripted:perfect"]["average"]["logic"]["mean"] == 100.0
    [logic] = [row for row in found["paired"] if row["score"] == "logic"]
    assert (logic["pairs"], logic["difference"]["mean"], logic["p"]) == (3, pytest.approx(-20.0), 0.25)
    assert [found["ranks"][agent]["logic"] for agent in found["agents"]] == [1, 1]
    assert main(merge) == 0 and rows(tmp_path, "traces.jsonl") == traces
    page = (tmp_path / "out" / "transcripts.html").read_text()
    assert page.count("<details") == 9 and "http://" not in page
    assert 'data-agent="scripted:wrong_action"' in page


def test_merging_refuses_what_does_not_fit(tmp_path, capsys):
    for name, changes in {"a": {}, "b": {}, "c": {"judges": "scripted:strict"}}.items():
        assert evaluate(tmp_path, **changes, limit="1", per_path="0", output=str(tmp_path / name)) == 0
    capsys.readouterr()

    def error(*words):
        assert main(["evaluate", "benchmark=sage", *words, f"output={tmp_path / 'out'}"]) == 2
        return capsys.readouterr().err

    a, b, c = (tmp_path / name for name in "abc")
    assert "is in" in error(f"merge={a},{b}")
    assert "judging.judges" in error(f"merge={a},{c}")
    assert "is one folder" in error(f"merge={a}")
    assert "contains no evaluation" in error(f"merge={a},{tmp_path / 'none'}")
    assert "agent: 'scripted:perfect'" in error(f"merge={a},{b}", "agent=scripted:perfect")
    assert not (tmp_path / "out" / "metrics.json").exists()
    assert evaluate(tmp_path, agent="scripted:wrong_action", limit="1", per_path="0", output=str(tmp_path / "d")) == 0
    (tmp_path / "out").rename(tmp_path / "empty")
    (tmp_path / "out").symlink_to(a)
    before = (a / "traces.jsonl").read_bytes()
    assert "is one of the merged folders; give another folder" in error(f"merge={a},{tmp_path / 'd'}")
    assert (a / "traces.jsonl").read_bytes() == before
    (tmp_path / "out").unlink()
    apart = error(f"merge={a},{tmp_path / 'd'}", "ranked_apart=scripted:wrong_acton")
    assert "ranked_apart: 'scripted:wrong_acton': no such agent; did you mean 'scripted:wrong_action'?" in apart
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"benchmark": "sago"}, "did you mean 'sage'"),
        ({"benchmark": None}, "give benchmark=<name>"),
        ({"scenario": "telecom_pakage"}, "did you mean 'telecom_package'"),
        ({"scenario": "./none.yaml"}, "none.yaml"),
        ({"agent": "scripted:perfekt"}, "did you mean 'scripted:perfect'"),
        ({"agent": "jugde"}, "did you mean 'judge'"),
        ({"agent": "reranker"}, "cannot write"),
        ({"agent": "scripted:perfect,scripted:perfect"}, "names one twice"),
        ({"simulator": "scripted:patien"}, "did you mean 'scripted:patient'"),
        ({"judges": None}, "judges: None: missing"),
        ({"output": ""}, "give output=FOLDER"),
        ({"tie": "smalest"}, "did you mean 'smallest'"),
        ({"max_turns": "0"}, "max_turns: 0: must be above 0"),
        ({"per_pat": "3"}, "did you mean per_path=...?"),
        ({"rejudge": "true"}, "contains no evaluation"),
        ({"agent": "none.py:reply"}, "agent: 'none.py:reply': no such file"),
        ({"agent": "hamr.cli:mian"}, "no such function"),
        ({"agent": "hamr.cli:__doc__"}, "is not a function"),
        ({"agent": "hamr.cli:main"}, "cannot be called as main(messages, tools)"),
        ({"judges": "hamr.cli:main"}, "only an agent may be one"),
        ({"agent": "judge", "pools": "tiny", "tools": "native"}, "does not suit judge"),
        (
            {"ranked_apart": "scripted:perfec"},
            "no such agent; did you mean 'scripted:perfect'? agents: scripted:perfect",
        ),
        ({"tools": "native", "agent_prompt": "service"}, "set agent_prompt=actions"),
        ({"rejudge": "yes"}, "true or false"),
        ({"pools.judge.modle": "tiny"}, "pools.judge.modle"),
    ],
)
def test_bad_input_is_reported_in_one_line_with_its_remedy(tmp_path, capsys, changes, said):
    assert evaluate(tmp_path, **changes) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


DIALOGUE = {
    "id": "d",
    "ticket": {"PackageStatus": "NoContract", "Penalty": 0},
    "fields": {"ConsumptionType": "Cancel"},
    "messages": [
        {"role": "assistant", "content": "Welcome."},
        {"role": "user", "content": "Hello."},
        {"role": "user", "content": "Cancel it."},
        {"role": "assistant", "content": "One moment.", "tool_calls": [{"function": {"name": "change_order"}}]},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Thanks."},
    ],
}
ALONE = {"agent": None, "simulator": None}


def dialogues(tmp_path, *rows):
    file = tmp_path / "said.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_turns_of_a_finished_dialogue_are_those_between_the_customers_messages(tmp_path):
    assert evaluate(tmp_path, dialogues=dialogues(tmp_path, DIALOGUE), **ALONE) == 0
    [trace] = rows(tmp_path, "traces.jsonl")
    [turn] = trace["turns"]
    assert (turn["user"], turn["agent"], trace["parting"]) == ("Hello.\nCancel it.", "One moment.\nDone.", "Thanks.")
    assert [(use["name"], use["action"]) for use in turn["calls"]] == [("change_order", "ChangeOrder")]
    assert metrics(tmp_path)["agents"]["said"]["average"]["action"]["mean"] == 100
    again = ["evaluate", "benchmark=sage", f"output={tmp_path / 'out'}", "rejudge=true", "judges=scripted:strict"]
    assert main(again) == 0
    assert metrics(tmp_path)["agents"]["said"]["average"]["chat"]["mean"] == 30


def test_calls_of_a_finished_dialogue_get_the_results_of_the_file(tmp_path):
    """By their ids, or else in their order."""
    for ids in ((None, None), ("a", "a"), ("a", "b")):
        calls = [
            {"id": one, "function": {"name": name}} for one, name in zip(ids, ("change_order", "none"), strict=True)
        ]
        results = [{"role": "tool", "tool_call_id": one, "content": f"result {one}"} for one in ids]
        results = results[::-1] if ids == ("a", "b") else [{**r, "content": f"{i}"} for i, r in enumerate(results)]
        messages = [
            {"role": "user", "content": "Cancel it."},
            {"role": "assistant", "content": None, "tool_calls": calls},
            *results,
            {"role": "assistant", "content": "Done."},
        ]
        out = tmp_path / str(ids)
        file = dialogues(tmp_path, {**DIALOGUE, "messages": messages})
        assert evaluate(tmp_path, dialogues=file, output=str(out), **ALONE) == 0
        [trace] = [json.loads(line) for line in (out / "traces.jsonl").read_text().splitlines()]
        found = [use["result"] for use in trace["turns"][0]["calls"]]
        assert found == (["result a", "result b"] if ids == ("a", "b") else ["0", "1"])


def test_finished_dialogue_is_read_as_a_simulated_one(tmp_path):
    call = '<tool_call>```json\n{"name": "change_order", "arguments": {}}\n```</tool_call>'
    said = [f"<think>hm</think>I cancel it. {call}", "Done."]
    messages = [{"role": "user", "content": "Cancel it."}, *({"role": "assistant", "content": text} for text in said)]
    file = dialogues(tmp_path, {**DIALOGUE, "messages": messages})
    assert evaluate(tmp_path, dialogues=file, fence="strip", **ALONE) == 0
    [turn] = rows(tmp_path, "traces.jsonl")[0]["turns"]
    assert (turn["agent"], turn["calls"][0]["action"], turn["fenced"]) == ("I cancel it.\nDone.", "ChangeOrder", True)
    assert evaluate(tmp_path, dialogues=file, output=str(tmp_path / "error"), **ALONE) == 0
    traces = (tmp_path / "error" / "traces.jsonl").read_text()
    assert json.loads(traces)["turns"][0]["fault"] == "malformed_call"


def test_resolution_and_takeover_rates_of_a_log_have_wilson_intervals(tmp_path):
    known = [{"resolved": True, "taken_over": False}] * 3 + [{"resolved": False}, {}]
    log = [{**DIALOGUE, **one, "id": str(number)} for number, one in enumerate(known)]
    assert evaluate(tmp_path, dialogues=dialogues(tmp_path, *log), **ALONE) == 0
    found = metrics(tmp_path)["agents"]["said"]["production"]
    assert found["resolved"] == {
        "mean": 0.75,
        "n": 4,
        "low": pytest.approx(0.301, abs=1e-3),
        "high": pytest.approx(0.954, abs=1e-3),
    }
    assert (found["taken_over"]["mean"], found["taken_over"]["n"]) == (0.0, 3)
    assert "taken over %" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(("fence", "logic"), [("strip", 100.0), ("error", 0.0)])
def test_finished_dialogue_in_the_format_of_the_contract_is_read(tmp_path, fence, logic):
    said = {
        "classification_output": {"ConsumptionType": "Cancel"},
        "cot": "",
        "now_path": ["stage1", "stage2", "stage5"],
        "finals": {"Action": "ChangeOrder"},
        "chat": "Done.",
    }
    text = f"```json\n{json.dumps(said)}\n```"
    messages = [{"role": "user", "content": "Cancel it."}, {"role": "assistant", "content": text}]
    file = dialogues(tmp_path, {**DIALOGUE, "messages": messages})
    assert evaluate(tmp_path, dialogues=file, agent_prompt="service", fence=fence, **ALONE) == 0
    average = metrics(tmp_path)["agents"]["said"]["average"]
    assert average["truth"]["mean"] == pytest.approx(logic) and average["fenced"]["mean"] == 100.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ticket": {"Penalty": 0}}, "said.jsonl:1: ticket: ['Penalty']: missing variable; add 'PackageStatus'"),
        ({"ticket": {"PackageStatus": "Free", "Penalty": 0}}, "ticket.PackageStatus: 'Free': allowed:"),
        (
            {"ticket": {**DIALOGUE["ticket"], "Penaltie": 0}},
            "said.jsonl:1: ticket: 'Penaltie': no such variable; did you mean 'Penalty'?",
        ),
        ({"ticket": {"PackageStatus": "NoContract", "Penalty": 9}}, "a penalty belongs to a contract"),
        ({"fields": {"ConsumptionTyp": "Cancel"}}, "did you mean 'ConsumptionType'"),
        ({"fields": {"ConsumptionType": "Enquiry"}}, "missing field; add 'ConsumptionProfile', or leave fields out"),
        ({"scenario": "airline_refund"}, "scenario: 'airline_refund': must be one of scenario=telecom_package"),
        ({"messages": DIALOGUE["messages"][:1]}, "has no answer to a customer"),
        ({"messages": [{"role": "customer", "content": "x"}]}, "messages[0].role: 'customer': must be 'system'"),
        ({"turns": []}, "turns: []: unknown field; remove it"),
        ({"id": ""}, "id: '': must not be empty"),
        ({"ticket": {"Penalty": []}}, "said.jsonl:1: ticket.Penalty: []"),
    ],
)
def test_invalid_dialogue_is_reported_with_its_line(tmp_path, capsys, change, said):
    assert evaluate(tmp_path, dialogues=dialogues(tmp_path, {**DIALOGUE, **change}), **ALONE) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("price", ["1,200 EUR", True, 1200])
def test_facts_of_a_ticket_that_formulas_use_are_numbers(tmp_path, capsys, price):
    call = {"function": {"name": "reschedule_or_refund_handling_fee", "arguments": '{"amount": 720}'}}
    messages = [
        {"role": "user", "content": "I cannot fly."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    ticket = {"memberLevel": "Regular", "hasInsurance": False, "TicketPrice": price, "HoursToDeparture": 2}
    file = dialogues(tmp_path, {"id": "d", "ticket": ticket, "messages": messages})
    code = evaluate(tmp_path, scenario="airline_refund", dialogues=file, **ALONE)
    error = capsys.readouterr().err
    if price == 1200:
        assert rows(tmp_path, "traces.jsonl")[0]["turns"][0]["calls"][0]["wrong_amount"] is False
    else:
        assert code == 2 and f"said.jsonl:1: ticket.TicketPrice: {price!r}: must be a whole number" in error


def test_finished_dialogues_take_no_agent_and_no_second_id(tmp_path, capsys):
    assert evaluate(tmp_path, dialogues=dialogues(tmp_path, DIALOGUE)) == 2
    assert "agent: 'scripted:perfect': the dialogues are finished; remove it" in capsys.readouterr().err
    assert evaluate(tmp_path, dialogues=dialogues(tmp_path, DIALOGUE, DIALOGUE), **ALONE) == 2
    assert "said.jsonl:2: id: 'd': already used on line 1" in capsys.readouterr().err
    assert evaluate(tmp_path, dialogues=dialogues(tmp_path), **ALONE) == 2
    assert "is empty" in capsys.readouterr().err


def test_custom_scenario_file_needs_no_code(tmp_path):
    text = resource("conf", "scenarios/telecom_package.yaml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("name: telecom_package", "name: my_package"), encoding="utf-8")
    assert evaluate(tmp_path, scenario=str(mine)) == 0
    figures = metrics(tmp_path)["agents"]["scripted:perfect"]["scenarios"]["my_package"]["figures"]
    assert figures["logic"]["mean"] == pytest.approx(100.0)
    # Other contents under the same name are another evaluation.
    mine.write_text(mine.read_text(encoding="utf-8").replace("TransHuman", "HandOver"), encoding="utf-8")
    assert evaluate(tmp_path, scenario=str(mine)) == 2


@pytest.mark.slow
def test_evaluation_without_a_finished_dialogue_fails(tmp_path, capsys, monkeypatch):
    async def away(question):
        return Answer(failure="unavailable", detail="no such endpoint")

    monkeypatch.setattr("hamr.apps.evaluate.sage.run.scripted_pool", lambda *given: away)
    assert evaluate(tmp_path, attempts="1") == 1
    said = capsys.readouterr().err
    assert "no dialogue with scripted:perfect was finished" in said
    assert "no such endpoint; see " in said and "traces.jsonl" in said
    monkeypatch.undo()
    assert evaluate(tmp_path, attempts="1") == 0


def test_a_list_in_the_environment_restricts_the_agents_too(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('executed')")
    monkeypatch.setenv(ALLOWED_FUNCTIONS, "other.py:reply")
    assert evaluate(tmp_path, agent="mine.py:reply") == 2
    assert f"{ALLOWED_FUNCTIONS} does not list it" in capsys.readouterr().err


def test_agent_whose_function_always_fails_ends_with_its_cause(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def reply(messages, tools):\n    raise KeyError('order')\n")
    assert evaluate(tmp_path, agent="mine.py:reply", limit="1") == 1
    said = capsys.readouterr().err
    assert "every turn of mine.py:reply failed (function_failed: " in said and "KeyError" in said
    assert "mend the function, or raise agent_deadline_s" in said
    assert evaluate(tmp_path, limit="1") == 0, "another agent in the same folder"


def test_two_scenarios_with_one_name_are_rejected(tmp_path, capsys):
    assert evaluate(tmp_path, scenario="telecom_package,telecom_package") == 2
    assert "both called telecom_package" in capsys.readouterr().err


def test_scenario_all_selects_every_scenario(tmp_path):
    given = {**ARGS, "scenario": "all", "output": str(tmp_path / "out")}
    command = parse(EvaluateSage, [f"{key}={value}" for key, value in given.items() if key != "benchmark"])
    assert set(command.scenarios) == set(scenario_names())


def test_evaluation_without_judge_answers_fails(tmp_path, capsys, monkeypatch):
    async def gone(question):
        return Answer(failure="unavailable", detail="connection refused")

    def with_pools(config, names, work, *, run):
        asyncio.run(work(dict.fromkeys(names, gone)))

    monkeypatch.setattr("hamr.apps.evaluate.sage.run.with_pools", with_pools)
    assert evaluate(tmp_path, judges="talk", pools="sage_small", attempts="1") == 1
    said = capsys.readouterr().err
    assert "no judge gave a vote on any of" in said
    assert "first failure: connection refused; see " in said and "judgements.jsonl" in said
    assert metrics(tmp_path)["agents"]["scripted:perfect"]["average"]["judges_right"]["mean"] is None


def test_tokens_and_cost_of_the_pools_are_summed(tmp_path, capsys, monkeypatch):
    asked = []

    async def judge(question):
        asked.append(question)
        call = ScorerCall(
            pool="talk", model="m", prompt_version="", replica="", queue_s=0.0, service_s=0.1, prompt_tokens=90,
            output_tokens=10, cost=0.5,
        )  # fmt: skip
        return Answer(failure="unparsable", detail="no verdict", call=call)

    def with_pools(config, names, work, *, run):
        asyncio.run(work(dict.fromkeys(names, judge)))

    monkeypatch.setattr("hamr.apps.evaluate.sage.run.with_pools", with_pools)
    evaluate(tmp_path, judges="talk", pools="sage_small", attempts="1")
    expected = {"answers": len(asked), "tokens": 100 * len(asked), "cost": pytest.approx(0.5 * len(asked))}
    assert asked and metrics(tmp_path)["usage"] == {"pool talk": expected}
    assert "Tokens and cost" in capsys.readouterr().out
