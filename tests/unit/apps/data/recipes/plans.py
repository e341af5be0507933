"""A window, valid plans for it in both languages, and scripted pools, shared by the tests of the recipes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hamr.apps.data.recipes.patm import PLANNING_SCORES, REWRITE_SCORES
from hamr.apps.data.recipes.runner import Pools
from hamr.apps.data.recipes.teachers import Teacher, Teachers
from hamr.data.trajectories import Window, trajectory_from_json, windows
from hamr.types import Answer, Question

UID = "48213377"
FIND = {
    "name": "find_order",
    "description": "",
    "parameters": {"type": "object", "properties": {"user_id": {"type": "string"}, "limit": {"type": "integer"}}},
}
CALL = {"action": "call_tool", "name": "find_order", "parameters": {"user_id": UID, "limit": 7}}
PLANS = {
    "en": (
        "The customer asks where the order is and has given an account, so nothing is missing. I decide to call "
        "find_order with the customer's account.",
        "Assuming the tool returns that the order was sent, this indicates that it is on its way, therefore, I can "
        "tell the customer so.",
    ),
    "zh": (
        "客户询问订单的去向，并已提供账号，信息完整。我决定用客户的账号调用 find_order 查询。",
        "假设工具返回订单已发出，这个说明包裹在途，因此，我可以告知客户。",
    ),
}


def rows(name: str = "t") -> dict[str, Any]:
    """A ticket with one call in its first window and none in its second."""
    return {
        "id": name, "ticket": {"product": "shop"}, "policy": "Look it up first.", "tools": [FIND],
        "turns": [
            {"role": "customer", "content": f"Where is my order? I am {UID}."},
            {"role": "agent", **CALL},
            {"role": "tool", "name": "find_order", "content": "sent"},
            {"role": "agent", "content": "It was sent."},
            {"role": "customer", "content": "When?"},
            {"role": "agent", "content": "Yesterday."},
        ],
    }  # fmt: skip


def window(name: str = "t", number: int = 0) -> Window:
    found = [w for w in windows(trajectory_from_json(rows(name))) if isinstance(w, Window)]
    return found[number]


def rewrite(plan_1: str, plan_2: str, calls: Any = (CALL,)) -> str:
    actions = calls if isinstance(calls, str) else json.dumps(list(calls), ensure_ascii=False)
    return f"<plans><plan_1>{plan_1}</plan_1><plan_2>{plan_2}</plan_2></plans>\n<actions>{actions}</actions>"


def good(language: str = "en") -> str:
    return rewrite(*PLANS[language])


def rewrite_verdict(**failed: int) -> str:
    violations = [f"{name} fails" for name in failed]
    scores = {**dict.fromkeys(REWRITE_SCORES, 1), **failed}
    return "Looked at. " + json.dumps({"reason": "r", **scores, "violation_list": violations})


def planning_verdict(**failed: int) -> str:
    scores = {**dict.fromkeys(PLANNING_SCORES, 1), **failed}
    return json.dumps({"reason": "r", **scores, "total_score": sum(scores.values())})


def agreement(agrees: str = "yes") -> str:
    return json.dumps({"reason": "r", "agrees": agrees})


class Judge:
    """Says one verdict for each kind of check; keeps what it was asked."""

    def __init__(self, rewrite: str = "", planning: str = "", agrees: str = "") -> None:
        self.asked: list[Question] = []
        self.said = {
            "patm_rewrite_check": rewrite or rewrite_verdict(),
            "patm_plan_check": planning or planning_verdict(),
            "dra_check": agrees or agreement(),
        }

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        return Answer(text=self.said[question.prompt.partition(".")[0]])


class Writer:
    """Says one text per attempt; keeps what it was asked."""

    def __init__(self, *said: str | Answer) -> None:
        self.said, self.asked = said, []

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        text = self.said[min(question.attempt, len(self.said) - 1)]
        return text if isinstance(text, Answer) else Answer(text=text)


def pools(teacher: Callable[[Question], Any], judge: Callable[[Question], Any] | None = None) -> Pools:
    return Pools(teachers=Teachers({"t": Teacher(ask=teacher)}), judge=judge or Judge())
