"""Small corpora in the published structure of STAR, ABCD, tau2-bench and MultiWOZ, written by hand for the tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=2)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


# --- STAR --------------------------------------------------------------------------------------

CHART = {
    "task": "book_room",
    "graph": {"hello": "ask_day", "ask_day": "query", "query": "room_inform"},
    "replies": {
        "hello": "Hello!",
        "ask_day": "Which day?",
        "query": "Query",
        "room_inform": "It is {price:s}.",
        "bye": "Bye.",
    },
}
API = {
    "input": [
        {"Name": "Day", "Type": "Categorical", "Categories": ["Monday", "Sunday"], "ReadableName": "The day"},
        {"Name": "Seats", "Type": "Integer", "ReadableName": "Seats"},
        {"Name": "Balcony", "Type": "Boolean", "ReadableName": "Balcony"},
    ],
    "required": ["Day"],
}


def star_dialogue(number: int, *, level: str = "Complete", draft: str = "which day", **changes: Any) -> dict[str, Any]:
    item = {"APIName": "room_book", "Price": 40}
    return {
        "DialogueID": number,
        "CompletionLevel": level,
        "AnonymizedUserWorkerID": f"worker-{number % 2}",
        "Scenario": {
            "Domains": ["room", None],
            "Happy": False,
            "UserTask": "You want a room.",
            "WizardCapabilities": [{"Domain": "room", "Task": "room_book"}],
        },
        "Events": [
            {"Agent": "UserGuide", "Action": "instruct", "Text": "Be polite. [instruction 1 of 1]"},
            {"Agent": "User", "Action": "utter", "Text": f" A room, please ({number}). "},
            {"Agent": "Wizard", "Action": "request_suggestions", "Text": draft},
            {"Agent": "Wizard", "Action": "pick_suggestion", "ActionLabel": "ask_day", "Text": "Which day?"},
            {"Agent": "User", "Action": "utter", "Text": "Sunday, for four or more."},
            {
                "Agent": "Wizard",
                "Action": "query",
                "APIName": "room_book",
                "Constraints": [
                    {"Day": 'api.is_equal_to("Sunday")'},
                    {"Seats": "api.is_at_least(4)"},
                    {"Balcony": "True"},
                    {"Note": "as it is"},
                    {"Empty": ""},
                ],
            },
            {"Agent": "KnowledgeBase", "Action": "return_item", "APIName": "room_book", "Item": item, "TotalItems": 2},
            {"Agent": "Wizard", "Action": "request_suggestions", "Text": "40"},
            {"Agent": "Wizard", "Action": "pick_suggestion", "ActionLabel": "room_inform", "Text": "It is $40."},
            {"Agent": "User", "Action": "utter", "Text": "Thanks."},
            {"Agent": "Wizard", "Action": "utter", "Text": "See you on Sunday."},
            {"Agent": "User", "Action": "utter", "Text": "Bye."},
            {"Agent": "User", "Action": "complete"},
        ],
        **changes,
    }


def write_star(folder: Path, *dialogues: dict[str, Any]) -> Path:
    write_json(folder / "tasks" / "room_book" / "room_book.json", CHART)
    write_json(folder / "tasks" / "room_book" / "responses.json", CHART["replies"])
    write_json(folder / "apis" / "apis" / "room_book.json", API)
    for dialogue in dialogues or tuple(star_dialogue(n, draft=f"which day {n}") for n in range(1, 6)):
        write_json(folder / "dialogues" / f"{dialogue['DialogueID']}.json", dialogue)
    return folder


# --- ABCD --------------------------------------------------------------------------------------

GUIDELINES = {
    "Product Defect": {
        "description": "refunds and returns",
        "subflows": {
            "Initiate Refund": {"instructions": ["Ask for the reason."], "actions": []},
            "Return Due to Size": {
                "instructions": ["Be brief."],
                "actions": [
                    {"type": "interaction", "button": "Pull up Account", "text": "Get the name", "subtext": ["In full"]}
                ],
            },
        },
    }
}
ONTOLOGY = {
    "intents": {"subflows": {"product_defect": ["refund_initiate", "return_size"]}},
    "actions": {
        "kb_query": {"validate-purchase": ["username", "order_id"]},
        "interaction": {"pull-up-account": ["customer_name", "account_id"], "notify-team": ["company_team"]},
    },
    "values": {"enumerable": {"company_team": ["manager", "website team"]}},
}


def abcd_conversation(number: int, **changes: Any) -> dict[str, Any]:
    said = [
        ("agent", "Hi!", None, []),
        ("customer", f"The shoes are too small ({number}).", None, []),
        ("agent", "May I have your name?", None, []),
        ("customer", "Crystal Minh", None, []),
        ("action", "Account has been pulled up for Crystal Minh.", "pull-up-account", ["crystal minh"]),
        ("action", "Purchase validation in progress ...", "validate-purchase", ["334", "cm"]),
        ("action", "Details have been entered.", "notify-team", ["manager", "(977) 625-2661", "blue"]),
        ("agent", "You can return them.", None, []),
    ]
    return {
        "convo_id": number,
        "scenario": {
            "personal": {"customer_name": "crystal minh", "username": "cm", "phone": "(977) 625-2661"},
            "order": {"order_id": "334"},
            "flow": "product_defect",
            "subflow": "return_size_1",
        },
        "original": [[speaker, text] for speaker, text, _, _ in said],
        "delexed": [
            {
                "speaker": speaker,
                "text": text.lower(),
                "targets": ["return_size", "take_action" if button else None, button, values, -1],
            }
            for speaker, text, button, values in said
        ],
        **changes,
    }


def write_abcd(folder: Path, content: Any = None, *, name: str = "abcd_v1.1.json.gz") -> Path:
    write_json(folder / "guidelines.json", GUIDELINES)
    write_json(folder / "ontology.json", ONTOLOGY)
    parts = {"train": (1, 2, 3), "dev": (4,), "test": (5,)}
    split = {part: [abcd_conversation(n) for n in numbers] for part, numbers in parts.items()}
    return write_json(folder / name, split if content is None else content)


# --- tau2-bench --------------------------------------------------------------------------------


def tau2_simulation(task: str, trial: int, *, reward: float | None = 1.0) -> dict[str, Any]:
    def calls(name: str, requestor: str, **arguments: Any) -> list[dict[str, Any]]:
        return [{"id": f"{name}-id", "name": name, "arguments": arguments, "requestor": requestor}]

    return {
        "id": f"run-{task}-{trial}",
        "task_id": task,
        "trial": trial,
        "reward_info": None if reward is None else {"reward": reward},
        "messages": [
            {"role": "assistant", "content": "Hi! How can I help you today?", "tool_calls": None},
            {"role": "user", "content": f"Cancel order {task}, please. Trial {trial}.", "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": calls("find_order", "assistant", order=task)},
            {"role": "tool", "id": "find_order-id", "content": "pending", "requestor": "assistant"},
            {"role": "user", "content": None, "tool_calls": calls("toggle_wifi", "user")},
            {"role": "tool", "id": "toggle_wifi-id", "content": "off", "requestor": "user"},
            {
                "role": "tool",
                "tool_messages": [{"role": "tool", "id": "x", "content": "on", "requestor": "user"}],
            },
            {"role": "assistant", "content": "It is cancelled.", "tool_calls": None},
            {"role": "user", "content": "Thanks. ###STOP###", "tool_calls": None},
        ],
    }


def tau2_results(**changes: Any) -> dict[str, Any]:
    instructions = {"reason_for_call": "You want to cancel.", "known_info": "You are Mia.", "unknown_info": None}
    actions = [
        {"action_id": "1", "name": "cancel", "arguments": {"order": "1"}},
        {"action_id": "2", "name": "refund", "arguments": {"payments": ["card_77"]}},
    ]
    tasks = [
        {
            "id": task,
            "user_scenario": {"instructions": instructions},
            "evaluation_criteria": {"actions": actions},
        }
        for task in "123"
    ]
    signature = {"name": "find_order", "doc": "Find an order.", "params": {"properties": {"order": {"type": "string"}}}}
    return {
        "timestamp": "2026-01-01",
        "info": {
            "environment_info": {
                "domain_name": "retail",
                "policy": "Cancel pending orders only.",
                "tool_defs": {"find_order": signature},
            }
        },
        "tasks": tasks,
        "simulations": [tau2_simulation(task, trial) for task in "123" for trial in range(2)]
        + [tau2_simulation("3", 2, reward=0.0), tau2_simulation("3", 3, reward=None)],
        **changes,
    }


def write_tau2_domain(folder: Path, *, ticket: str | None = "The customer wants order 1 cancelled.") -> Path:
    (folder / "mock").mkdir(parents=True)
    (folder / "mock" / "policy.md").write_text("Cancel pending orders only.")
    tasks = [{**task, "ticket": ticket and f"{ticket} ({task['id']})"} for task in tau2_results()["tasks"]]
    write_json(folder / "mock" / "tasks.json", tasks)
    return folder / "mock"


# --- MultiWOZ ----------------------------------------------------------------------------------


def multiwoz_dialogue(number: int, *, service_call: bool = False) -> dict[str, Any]:
    call = {
        "service": "hotel",
        "service_call": {"method": "FindHotel", "parameters": {"area": "north"}},
        "service_results": [{"name": "Acorn"}],
    }
    return {
        "dialogue_id": f"PMUL{number}.json",
        "services": ["hotel", "taxi"],
        "turns": [
            {
                "speaker": "USER",
                "turn_id": "0",
                "utterance": f"A hotel in the north ({number}).",
                "frames": [{"service": "hotel", "state": {"slot_values": {"hotel-area": ["north"]}}}],
            },
            {
                "speaker": "SYSTEM",
                "turn_id": "1",
                "utterance": "The Acorn is there.",
                "frames": [call] if service_call else [],
            },
            {"speaker": "USER", "turn_id": "2", "utterance": "Fine, thanks.", "frames": []},
            {"speaker": "SYSTEM", "turn_id": "3", "utterance": "You are welcome.", "frames": []},
        ],
    }


def write_multiwoz_22(folder: Path) -> Path:
    for split, numbers in (("train", range(4)), ("dev", range(4, 5)), ("test", range(5, 6))):
        write_json(folder / split / "dialogues_001.json", [multiwoz_dialogue(number) for number in numbers])
    write_json(folder / "schema.json", [])
    return folder


def write_multiwoz_21(folder: Path) -> Path:
    logs = {
        f"PMUL{number}.json": {
            "goal": {"hotel": {"info": {"area": "north"}}, "taxi": {}, "message": ["A <span>hotel</span>", "please."]},
            "log": [
                {"text": f"A hotel in the north ({number}). ", "metadata": {}},
                {"text": "The Acorn is there.", "metadata": {"hotel": {}}},
            ],
        }
        for number in range(6)
    }
    write_json(folder / "data.json", logs)
    (folder / "valListFile.txt").write_text("PMUL4.json\n")
    (folder / "testListFile.txt").write_text("PMUL5.json\n")
    return folder
