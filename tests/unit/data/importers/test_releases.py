"""Corpora as they are published: STAR, ABCD, tau2-bench and MultiWOZ."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hamr.cli import main as hamr
from hamr.data.importers import IMPORTERS
from hamr.data.importers.imported import Imported
from hamr.data.samples import read_samples
from hamr.errors import DataError
from hamr.types import ToolCall, Turn
from tests.releases import (
    abcd_conversation,
    multiwoz_dialogue,
    star_dialogue,
    tau2_results,
    tau2_simulation,
    write_abcd,
    write_json,
    write_multiwoz_21,
    write_multiwoz_22,
    write_star,
    write_tau2_domain,
)


def read(corpus: str, path: Path, group: str | None = None) -> Imported:
    return IMPORTERS[corpus]({"input": path}, group=group)


def test_star_items_keep_their_characters(tmp_path: Path) -> None:
    """Escaped text hides private values from their detection."""
    dialogue = star_dialogue(1)
    for event in dialogue["Events"]:
        if event["Action"] == "return_item":
            event["Item"] = {"Address": "Lindenstraße 12"}
    (made,) = read("star", write_star(tmp_path, dialogue)).trajectories
    assert ["Lindenstraße 12" in turn.content for turn in made.turns if turn.role == "tool"] == [True]


def refusal(corpus: str, path: Path, group: str | None = None) -> str:
    with pytest.raises(DataError) as refused:
        read(corpus, path, group)
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(f"{path}", "INPUT")


# --- STAR --------------------------------------------------------------------------------------


def test_star_events_become_turns_and_calls(tmp_path: Path) -> None:
    found = read("star", write_star(tmp_path, star_dialogue(1)))
    (dialogue,) = found.trajectories
    call = ToolCall(
        name="room_book",
        parameters={"Day": "Sunday", "Seats": {"op": "is_at_least", "value": 4}, "Balcony": True, "Note": "as it is"},
    )
    item = '{"item": {"APIName": "room_book", "Price": 40}, "total_items": 2}'
    assert dialogue.turns == (
        Turn(role="customer", content="A room, please (1)."),
        Turn(role="agent", content="Which day?"),
        Turn(role="customer", content="Sunday, for four or more."),
        Turn(role="agent", tool_call=call),
        Turn(role="tool", name="room_book", content=item),
        Turn(role="agent", content="It is $40."),
        Turn(role="customer", content="Thanks."),
        Turn(role="agent", content="See you on Sunday."),
        Turn(role="customer", content="Bye."),
    )
    first = found.samples[0]
    assert (first.id, first.ticket) == ("star-1-1", {"product": "room", "task": "room_book"})
    assert first.policy.splitlines()[1] == "hello > ask day > call room_book > inform"
    assert first.privileged == {
        "ticket_summary": "You want a room.",
        "user_instructions": ["Be polite. [instruction 1 of 1]"],
        "happy_path": False,
    }
    assert first.tools[0]["parameters"]["properties"]["Day"]["enum"] == ["Monday", "Sunday"]
    assert [sample.meta.get("cluster") for sample in found.samples] == ["ask_day", "query", "room_inform", None]


def test_star_drafts_are_references_of_templates_without_values(tmp_path: Path) -> None:
    found = read("star", write_star(tmp_path))
    texts = [[reference.action.content for reference in sample.references] for sample in found.samples[:4:2]]
    assert texts[0] == [
        "Which day?", "which day 1", "which day 3", "which day 4", "which day 5", "which day 2",
    ]  # fmt: skip
    assert texts[1] == ["It is $40.", "40"], "the drafts of other dialogues may have another price"


def test_star_leaves_interrupted_dialogues_out(tmp_path: Path) -> None:
    folder = write_star(tmp_path, star_dialogue(1), star_dialogue(2, level="EarlyDisconnectDuringDialogue"))
    assert [trajectory.id for trajectory in read("star", folder).trajectories] == ["star-1"]


def test_star_dialogues_of_several_tasks_have_all_their_charts(tmp_path: Path) -> None:
    folder = write_star(tmp_path)
    for part in ("tasks/room_search/room_search.json", "apis/apis/room_search.json"):
        write_json(folder / part, json.loads((folder / part.replace("search", "book")).read_text()))
    both = [{"Task": "room_book"}, {"Task": "room_search"}]
    scenario = {**star_dialogue(9)["Scenario"], "WizardCapabilities": both}
    write_json(folder / "dialogues" / "9.json", star_dialogue(9, Scenario=scenario))
    sample = next(sample for sample in read("star", folder).samples if sample.meta["dialogue"] == "9")
    assert sample.policy.count("Task: ") == 2
    assert [tool["name"] for tool in sample.tools] == ["room_book", "room_search"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.pop("Events"), "dialogues/1.json: Events: "),
        (lambda d: d["Events"][1].pop("Text"), "dialogues/1.json: Events[1]: Text: "),
        (lambda d: d["Events"].append(7), "dialogues/1.json: Events[13]: 7: must be a JSON object"),
        (lambda d: d["Scenario"].update(WizardCapabilities=[{"Task": "x"}]), "'star/x': has no file in tasks/"),
    ],
)
def test_malformed_star_dialogue_is_named(tmp_path: Path, change: Callable[[Any], Any], said: str) -> None:
    dialogue = star_dialogue(1)
    change(dialogue)
    assert said in refusal("star", write_star(tmp_path, dialogue))


def test_folder_that_is_not_star_is_refused(tmp_path: Path) -> None:
    assert "has no tasks/*/*.json; give the folder of the STAR repository" in refusal("star", tmp_path)
    folder = write_star(tmp_path / "star")
    assert "dialogues has no such column; did you mean 'AnonymizedUserWorkerID'" in refusal(
        "star", folder, "AnonymizedUserWorker"
    )
    assert len({sample.meta["group"] for sample in read("star", folder, "AnonymizedUserWorkerID").samples}) == 2


@pytest.mark.parametrize("corpus", ["star", "abcd", "tau2"])
def test_lines_without_policies_are_refused(tmp_path: Path, corpus: str) -> None:
    path = tmp_path / "steps.jsonl"
    assert "no such file or directory; give a file or folder" in refusal(corpus, path)
    path.write_text('{"id": "1"}\n')
    assert refusal(corpus, path).startswith("policies: None: missing; give policies=FILE.json, or the corpus as it is")


def test_policies_of_a_published_corpus_are_refused(tmp_path: Path) -> None:
    folder = write_star(tmp_path / "STAR")
    with pytest.raises(DataError, match=r"policies: 'p.json': STAR is a corpus as it is published; remove the option"):
        IMPORTERS["star"]({"input": folder, "policies": Path("p.json")})


# --- ABCD --------------------------------------------------------------------------------------


def test_abcd_buttons_become_calls_with_named_values(tmp_path: Path) -> None:
    first = read("abcd", write_abcd(tmp_path, [abcd_conversation(1)], name="abcd_sample.json")).trajectories[0]
    assert [turn.tool_call for turn in first.turns if turn.tool_call] == [
        ToolCall(name="pull-up-account", parameters={"customer_name": "crystal minh"}),
        ToolCall(name="validate-purchase", parameters={"order_id": "334", "username": "cm"}),
        ToolCall(
            name="notify-team", parameters={"company_team": "manager", "phone": "(977) 625-2661", "value_2": "blue"}
        ),
    ]
    assert first.turns[5] == Turn(
        role="tool", name="pull-up-account", content="Account has been pulled up for Crystal Minh."
    )
    assert first.policy.splitlines() == [
        "Flow: Product Defect. refunds and returns",
        "Case: Return Due to Size",
        "- Be brief.",
        "Step 1 [Pull up Account] (interaction): Get the name",
        "    * In full",
    ]
    assert first.ticket == {"flow": "product_defect", "task": "return_size_1"}
    assert first.privileged["customer"]["username"] == "cm"


@pytest.mark.parametrize("given", ["folder", "file"])
def test_abcd_keeps_its_splits_and_is_read_compressed(tmp_path: Path, given: str) -> None:
    path = write_abcd(tmp_path / "abcd")
    words = [f"input={path if given == 'file' else path.parent}", f"output={tmp_path / 'out'}"]
    assert hamr(["data", "import", "abcd", *words]) == 0
    counts = {
        split: len({s.meta["dialogue"] for s in read_samples(tmp_path / "out" / f"{split}.jsonl")})
        for split in ("train", "validation", "test")
    }
    assert counts == {"train": 3, "validation": 1, "test": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"delexed": []}, "INPUT: 1: delexed: 0: must have the 8 turns of original"),
        ({"original": [["agent"]]}, "INPUT: 1: original[0]: ['agent']: must have 2 items"),
        ({"original": [["robot", "Hi"]], "delexed": [{"targets": []}]}, "original[0]: 'robot': unknown speaker"),
        ({"original": [["action", "x"]], "delexed": [{"targets": ["a"]}]}, "delexed[0].targets: ['a']: must name the"),
        ({"scenario": {"flow": "x", "subflow": "y"}}, "scenario.subflow: 'x/y': not in guidelines.json"),
    ],
)
def test_malformed_abcd_conversation_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    content = [{**abcd_conversation(1), **changes}]
    assert said in refusal("abcd", write_abcd(tmp_path, content, name="abcd_sample.json"))


def test_abcd_without_its_other_files_is_refused(tmp_path: Path) -> None:
    path = write_abcd(tmp_path)
    path.with_name("ontology.json").unlink()
    assert "ontology.json': no such file or directory; give a JSON file" in refusal("abcd", path)
    write_json(path.with_name("ontology.json"), {"intents": {}, "actions": {}, "values": {}})
    assert "ontology.json: intents.subflows: " in refusal("abcd", path)
    write_abcd(tmp_path)
    path.write_bytes(b"\x1f\x8bcut")
    assert "give a JSON file" in refusal("abcd", path)


# --- tau2-bench --------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["file", "folder"])
def test_tau2_simulations_become_dialogues_of_the_agent(tmp_path: Path, layout: str) -> None:
    results = tau2_results()
    if layout == "folder":
        for run in results.pop("simulations"):
            write_json(tmp_path / "simulations" / f"{run['id']}.json", run)
    path = write_json(tmp_path / "results.json", results)
    found = read("tau2", tmp_path if layout == "folder" else path)
    assert len(found.trajectories) == 6, "those with reward 1"
    first = found.trajectories[0]
    assert first.turns == (
        Turn(role="agent", content="Hi! How can I help you today?"),
        Turn(role="customer", content="Cancel order 1, please. Trial 0."),
        Turn(role="agent", tool_call=ToolCall(name="find_order", parameters={"order": "1"})),
        Turn(role="tool", name="find_order", content="pending"),
        Turn(role="agent", content="It is cancelled."),
        Turn(role="customer", content="Thanks."),
    ), "without the customer's own tools and the signal to stop"
    assert (first.policy, first.tools[0]["description"]) == ("Cancel pending orders only.", "Find an order.")
    assert first.privileged == {
        "user_instructions": "reason_for_call: You want to cancel.\nknown_info: You are Mia.",
        "gold_actions": [
            {"name": "cancel", "parameters": {"order": "1"}},
            {"name": "refund", "parameters": {"payments": ["card_77"]}},
        ],
    }
    assert {t.meta["group"] for t in found.trajectories} == {"retail/1", "retail/2", "retail/3"}


def test_tau2_tools_without_definitions_come_from_the_calls(tmp_path: Path) -> None:
    results = tau2_results()
    results["info"]["environment_info"]["tool_defs"] = None
    (tool,) = read("tau2", write_json(tmp_path / "r.json", results)).trajectories[0].tools
    assert (tool["name"], list(tool["parameters"]["properties"])) == ("find_order", ["order"])


def test_tau2_tasks_with_a_ticket_become_their_expected_calls(tmp_path: Path) -> None:
    found = read("tau2", write_tau2_domain(tmp_path))
    assert len(found.samples) == 3, "without the call whose id no result has shown"
    assert found.samples[0].history == (Turn(role="customer", content="The customer wants order 1 cancelled. (1)"),)
    assert found.samples[0].references[0].action == ToolCall(name="cancel", parameters={"order": "1"})
    assert found.samples[0].policy == "Cancel pending orders only."


def test_malformed_tau2_files_are_named(tmp_path: Path) -> None:
    said = refusal("tau2", write_tau2_domain(tmp_path, ticket=None))
    assert "'3 tasks': none has a ticket and expected calls; a task is not a dialogue; give the results" in said
    path = tmp_path / "r.json"
    write_json(path, tau2_results(simulations=[tau2_simulation("1", 0, reward=0.5)]))
    assert refusal("tau2", path) == "INPUT: '1 simulations': none has reward 1; there is nothing to learn from"
    write_json(path, tau2_results(info={}))
    assert refusal("tau2", path).startswith("INPUT: info.environment_info: ")
    write_json(path, tau2_results(simulations=[7]))
    assert refusal("tau2", path).startswith("INPUT: simulations[0]: 7: must be a JSON object")
    write_json(path, [{"id": "1"}])
    assert "must be results of simulations, or tasks.json with policy.md" in refusal("tau2", path)


# --- MultiWOZ ----------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_multiwoz_22, write_multiwoz_21])
def test_multiwoz_keeps_its_splits(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    found = read("multiwoz", write(tmp_path))
    splits = {trajectory.id: trajectory.meta["split"] for trajectory in found.trajectories}
    assert splits == {**{f"PMUL{n}": "train" for n in range(4)}, "PMUL4": "validation", "PMUL5": "test"}
    first = found.trajectories[0]
    assert first.turns[:2] == (
        Turn(role="customer", content="A hotel in the north (0)."),
        Turn(role="agent", content="The Acorn is there."),
    )
    version_22 = write is write_multiwoz_22
    assert first.ticket == {"services": ["hotel", "taxi"] if version_22 else ["hotel"]}
    assert first.privileged == ({"wishes": {"hotel-area": ["north"]}} if version_22 else {"goal": "A hotel please."})


def test_service_calls_of_schema_guided_dialogues_become_calls(tmp_path: Path) -> None:
    path = write_json(tmp_path / "dialogues_001.json", [multiwoz_dialogue(1, service_call=True)])
    (found,) = read("multiwoz", path).trajectories
    assert found.turns[1:4] == (
        Turn(role="agent", tool_call=ToolCall(name="FindHotel", parameters={"area": "north"})),
        Turn(role="tool", name="FindHotel", content='[{"name": "Acorn"}]'),
        Turn(role="agent", content="The Acorn is there."),
    )


def test_multiwoz_is_grouped_by_services(tmp_path: Path) -> None:
    found = read("multiwoz", write_multiwoz_22(tmp_path), "services")
    assert len({trajectory.meta["group"] for trajectory in found.trajectories}) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "contains no dialogue"),
        (7, "must be a list of dialogues, or an object of dialogues with a log"),
        ([{"turns": []}], "INPUT: [0]: dialogue_id: "),
        ([{"dialogue_id": "a", "turns": [{"speaker": "BOT", "utterance": ""}]}], "INPUT: [0]: turns[0].speaker: 'BOT'"),
        ({"a": {}}, "INPUT: a: log: "),
        ([multiwoz_dialogue(1), multiwoz_dialogue(1)], "INPUT: PMUL1.json: 'PMUL1': already used"),
    ],
)
def test_malformed_multiwoz_dialogue_is_named(tmp_path: Path, content: Any, said: str) -> None:
    assert said in refusal("multiwoz", write_json(tmp_path / "dialogues_1.json", content))


def test_folder_without_dialogues_is_refused(tmp_path: Path) -> None:
    assert "has no dialogues_*.json or data.json; give the folder of MultiWOZ" in refusal("multiwoz", tmp_path)
