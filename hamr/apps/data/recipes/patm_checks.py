"""Rule checks of a rewritten plan (first paper, Appendix D.3.2, D.3.3 and D.3.5), in the order in which they run.

Only a plan that passes all of them is sent to the judges.

    tags           <plans><plan_1>..</plan_1><plan_2>..</plan_2></plans><actions>[..]</actions> and nothing else
    first_person   each plan says "I" and does not refer to the agent in the third person
    order          plan_2 assumes, then says what that indicates, then "therefore, I can": in this order
    banned_words   no guessing ("I think", "probably"), no reference to a turn by position ("the first message")
    anonymised     no private value in the plans: what `hamr.data.pii` finds, and what the tool calls carry
    actions        all tool calls of the dialogue, in order, with identical parameters

Appendix D.3.1 and D.3.2 show the third step without "therefore" in their output blocks, but the checks of D.3.3 and
D.3.5 require it; it is required here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hamr.apps.data.recipes.teachers import CheckFailure, without_thought
from hamr.data.pii import kind_by_name, private_in
from hamr.data.samples import action_json
from hamr.data.trajectories import Window
from hamr.types import Language, ServiceSample, ToolCall


@dataclass(frozen=True, kw_only=True)
class RewritePlan:
    """A parsed rewrite. `actions` is the text inside its tag."""

    plan_1: str
    plan_2: str
    actions: str


_TAGS = re.compile(
    r"<plans>\s*<plan_1>(?P<plan_1>.*?)</plan_1>\s*<plan_2>(?P<plan_2>.*?)</plan_2>\s*</plans>"
    r"\s*<actions>(?P<actions>.*?)</actions>",
    re.DOTALL,
)
_ANY_TAG = re.compile(r"</?[A-Za-z_]\w*\s*/?>")

_I = {"en": re.compile(r"\bI\b"), "zh": re.compile("我")}
_SOMEBODY_ELSE = {
    "en": re.compile(
        r"\b(?:the |a |an |this |our )?(?:(?:customer )?service agent|support agent|human agent|chat ?bot|robot)s?\b"
        r"|\b(?:the|this) agent\b",
        re.IGNORECASE,
    ),
    "zh": re.compile("客服|机器人|人工"),
}
_STEPS = {
    "en": (
        re.compile(r"\b(?:assum(?:e|ing)|possibly|it is possible)\b", re.IGNORECASE),
        re.compile(r"\bthis (?:also )?indicates\b", re.IGNORECASE),
        re.compile(r"\btherefore,? I can\b", re.IGNORECASE),
    ),
    "zh": (re.compile("假设|可能"), re.compile("这个?说明"), re.compile("因此[，,]?\\s*我可以")),
}
_STEP_NAMES = ("assuming / possibly", "this indicates", "therefore, I can")
_BANNED = {
    "en": re.compile(
        r"\bI (?:think|feel|believe|guess|suppose)\b|\bprobably\b|\bperhaps\b|\bin my opinion\b|\bground truth\b"
        r"|\baforementioned\b|\b(?:dialogue|turn|message|line) ?(?:\[\d+\]|#?\d+)"
        r"|\b(?:first|second|third|last|previous) (?:dialogue|turn|message|line|round)\b",
        re.IGNORECASE,
    ),
    "zh": re.compile(
        "我觉得|我想(?!要)|我认为|我感觉|大概|应该是|也许|前述|上述对话|真实对话|ground truth"
        r"|对话\s*[\[【]?\d|第\s*[一二三四五六七八九十\d]+\s*(?:条|轮|句)",
        re.IGNORECASE,
    ),
}


def read_plan(text: str) -> RewritePlan | CheckFailure:
    """Return the rewrite's parts, or a fault for a missing, repeated or misplaced tag or text outside the tags."""
    body = without_thought(text).removeprefix("```xml").removeprefix("```").removesuffix("```").strip()
    found = _TAGS.fullmatch(body)
    if found is None:
        wanted = ("<plans>", "<plan_1>", "</plan_1>", "<plan_2>", "</plan_2>", "</plans>", "<actions>", "</actions>")
        wrong = next((f"{body.count(tag)} x {tag}" for tag in wanted if body.count(tag) != 1), "text outside the tags")
        return CheckFailure(check="tags", detail=wrong)
    plan = RewritePlan(**{name: found.group(name).strip() for name in ("plan_1", "plan_2", "actions")})
    for name in ("plan_1", "plan_2"):
        if not getattr(plan, name):
            return CheckFailure(check="tags", detail=f"nothing in {name}")
    inner = _ANY_TAG.search(f"{plan.plan_1} {plan.plan_2}")
    return CheckFailure(check="tags", detail=f"{inner.group()} inside a part") if inner else plan


def plan_fault(plan: RewritePlan, window: Window, language: Language) -> CheckFailure | None:
    """Return the first fault of the checks after `tags`; None if the plan may go to the judges."""
    plans = {"plan_1": plan.plan_1, "plan_2": plan.plan_2}
    for name, text in plans.items():
        if not _I[language].search(text):
            return CheckFailure(check="first_person", detail=f"{name} never says {'I' if language == 'en' else '我'}")
        other = _SOMEBODY_ELSE[language].search(text)
        if other:
            return CheckFailure(check="first_person", detail=f"{name} speaks of {other.group()!r}")
    missing = missing_step(plan.plan_2, language)
    if missing:
        return CheckFailure(check="order", detail=missing)
    known = known_private(window.sample, calls_of(window))
    for name, text in plans.items():
        banned = _BANNED[language].search(text)
        if banned:
            return CheckFailure(check="banned_words", detail=f"{name} says {banned.group()!r}")
    for name, text in plans.items():
        private = private_in(text, known)
        if private is not None:
            return CheckFailure(check="anonymised", detail=f"{name} has {private!r}")
    return actions_fault(plan.actions, window)


def missing_step(plan_2: str, language: Language) -> str | None:
    """Return the step of the three that is missing or out of order."""
    at = 0
    for name, step in zip(_STEP_NAMES, _STEPS[language], strict=True):
        found = step.search(plan_2, at)
        if found is None:
            return f"{name!r} {'comes too early' if step.search(plan_2) else 'is missing'} in plan_2"
        at = found.end()
    return None


def decision_at(plan_2: str, language: Language) -> int:
    """Return the offset in plan_2 of the next action: "therefore, I can" after the other steps.

    The text before it is the environment's turn and its interpretation. Needs a plan_2 without a `missing_step`.
    """
    start = end = 0
    for step in _STEPS[language]:
        found = step.search(plan_2, end)
        assert found is not None, "checked before"
        start, end = found.span()
    return start


# --- actions -----------------------------------------------------------------------------------


def calls_of(window: Window) -> list[ToolCall]:
    """Return the window's tool calls, in order."""
    return [action for action in window.actions if isinstance(action, ToolCall)]


def calls_text(calls: Sequence[ToolCall]) -> str:
    """Return the expected content of <actions>.

    "<" is escaped, so that no value can close the tag or be changed in a prompt.
    """
    return json.dumps([action_json(call) for call in calls], ensure_ascii=False).replace("<", "\\u003c")


def actions_fault(text: str, window: Window) -> CheckFailure | None:
    """Compare the calls as JSON values: 7, 7.0 and "7" differ.

    The order of the calls matters, the order of keys does not. `arguments` is accepted for `parameters`, as some models
    write it.
    """
    try:
        calls = json.loads(text)
    except (ValueError, RecursionError) as error:
        return CheckFailure(check="actions", detail=f"is not JSON ({error})")
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return CheckFailure(check="actions", detail="is not a list of calls")
    wanted = [action_json(call) for call in calls_of(window)]
    if len(calls) != len(wanted):
        return CheckFailure(check="actions", detail=f"{len(calls)} calls, the dialogue has {len(wanted)}")
    for i, (one, other) in enumerate(zip(calls, wanted, strict=True)):
        if _canonical(one) != _canonical(other):
            detail = f"call {i + 1} is {_canonical(one)[:120]}, not {_canonical(other)[:120]}"
            return CheckFailure(check="actions", detail=detail)
    return None


def _canonical(call: Mapping[str, Any]) -> str:
    renamed = {"parameters" if key == "arguments" else key: value for key, value in call.items()}
    return json.dumps(renamed, sort_keys=True, ensure_ascii=False)


def known_private(sample: ServiceSample, calls: Sequence[ToolCall]) -> list[str]:
    """Return values of this ticket that a text must not contain, although no rule detects them.

    These are the values in `privileged["pii"]`, and those that the ticket and the tool calls so far have under a
    private name (user_id, phone, ...). Aliases are not private.
    """
    pii = sample.privileged.get("pii")
    found = [str(value) for value in pii.values()] if isinstance(pii, Mapping) else []
    earlier = [turn.tool_call for turn in sample.history if turn.tool_call is not None]
    for held in (sample.ticket, *(call.parameters for call in (*earlier, *calls))):
        for name, value in held.items():
            long_enough = isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) >= 4
            if long_enough and kind_by_name(name) is not None:
                found.append(str(value))
    return [value for value in found if not value.startswith("[")]
