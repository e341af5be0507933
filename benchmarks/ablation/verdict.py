"""The rule engine's verdict on a response: exact, and no model is asked.

What a tool call does is in its parameters. What a reply says is found in the wording banks: the template that shares
most words with it (facts masked) says which act it is and whether it is whole, a part of it or its opposite; its
amounts and packages say whether the facts are right. The levels are those of the labelled pairs that scorers learn from
(`hamr.data.pairs`): 1 for the due act with its facts, 0.5 with a fact missing, 0 for another act, a wrong fact, the
opposite, or nothing that the banks know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from hamr.data.actions import ResponseFormat, parse_action
from hamr.data.rendering import dialogue_text
from hamr.data.telecom import act_of
from hamr.data.telecom_words import BANKS
from hamr.evaluation.olabench import overall
from hamr.evaluation.scorer_check import word_overlap
from hamr.rewards.matching import match_action
from hamr.types import Action, MalformedResponse, Reply, ServiceSample, ToolCall

KNOWN = 0.5
"""Below this overlap with every template a reply says nothing that the banks know."""
_AMOUNT = re.compile(r"\$\s?\d+(?:\.\d+)?")
_PACKAGE = re.compile(r"\b[A-Z][a-z]+ \d+\s?(?:GB|min)\b")
_SLOT = re.compile(r"\{(\w+)\}")
_FACTS: Mapping[str, tuple[str, ...]] = {"recommend": ("package", "$price"), "penalty_notice": ("$fee",)}
"""Slots that the act has to name; "$" marks an amount."""
_COMMITS = ("confirm_change", "confirm_cancel")

Form = Literal["whole", "part", "opposite"]


@dataclass(frozen=True, kw_only=True)
class Heard:
    """What a reply says: the act ("" for nothing known), how much of it, and its overlap with the nearest wording."""

    act: str
    form: Form
    overlap: float


@dataclass(frozen=True, kw_only=True)
class Exact:
    """Verdicts on one response. `ecs` in {0, 0.5, 1}; `call`: whether it is exactly the due tool call, None where none
    is due; the grades 1 to 5; `risk` and `hallucination` 0 or 1, where 1 is the fault."""

    ecs: float
    call: float | None
    dialogue: int
    policy: int
    tool: int
    rubric: int
    risk: int
    hallucination: int

    @property
    def overall(self) -> float:
        """The second paper's Overall, of a single response: it is linear, so that a mean of these is that of the
        means."""
        return overall(self.dialogue, self.policy, self.tool, float(self.risk), float(self.hallucination))


def judged(sample: ServiceSample, text: str, response_format: ResponseFormat) -> Exact:
    """A malformed response does nothing: the lowest grades, and neither risk nor hallucination."""
    action = parse_action(text, response_format)
    return judged_action(sample, None if isinstance(action, MalformedResponse) else action)


def judged_action(sample: ServiceSample, action: Action | None) -> Exact:
    due = act_of(sample)
    call = 0.0 if due in ("change_order", "transfer_human") else None
    if action is None:
        return Exact(
            ecs=0.0, call=call, dialogue=1, policy=1, tool=5 if call is None else 1, rubric=1, risk=0, hallucination=0
        )
    said = hear(action.content) if isinstance(action, Reply) else None
    ecs = reply_score(sample, action, said) if isinstance(action, Reply) and said else call_score(sample, action)
    risk = int(_commits(action, said) and due != "change_order")
    invented = int(invents(sample, action) or (said is not None and said.form == "opposite"))
    return Exact(
        ecs=ecs,
        call=None if call is None else ecs,
        dialogue=_dialogue(said, ecs),
        policy=5 if ecs == 1 else 3 if ecs else 2 if _act(action, said) == due else 1,
        tool=_tool(sample, action, ecs),
        rubric=_rubric(ecs, risk, invented),
        risk=risk,
        hallucination=invented,
    )


def call_score(sample: ServiceSample, action: Action) -> float:
    return match_action(action, sample.references).score or 0.0


def reply_score(sample: ServiceSample, action: Reply, said: Heard) -> float:
    """1, 0.5 or 0 of a reply, by what was heard in it and the facts that it names."""
    due, slots = act_of(sample), sample.meta["slots"]
    if said.act != due or said.form == "opposite":
        return 0.0
    wanted = {f"${slots[name[1:]]}" if name[0] == "$" else slots[name] for name in _FACTS.get(due, ())}
    named = facts(action.content)
    if named - wanted:
        return 0.0
    return 1.0 if said.form == "whole" and named == wanted else 0.5


def hear(reply: str) -> Heard:
    """The nearest wording of all banks.

    >>> hear("Do you mainly use data or voice?").act
    'ask_profile'
    >>> hear("The weather is fine.").act
    ''
    """
    said = _masked(reply)
    act, form, overlap = max(
        ((act, form, word_overlap(said, wording)) for act, form, wording in _wordings()), key=lambda x: x[2]
    )
    return Heard(act=act if overlap >= KNOWN else "", form=form, overlap=overlap)


def facts(text: str) -> set[str]:
    """Amounts and packages in a text.

    >>> sorted(facts("Take Surf 40GB for $ 25."))
    ['$25', 'Surf 40GB']
    """
    return {a.replace(" ", "") for a in _AMOUNT.findall(text)} | {" ".join(p.split()) for p in _PACKAGE.findall(text)}


def invents(sample: ServiceSample, action: Action) -> bool:
    """Whether it names an amount or a package that stands nowhere in the ticket or the dialogue."""
    if isinstance(action, ToolCall):
        said = " ".join(str(value) for value in action.parameters.values())
    else:
        said = action.content
    known = " ".join([*(f"{value} ;" for value in sample.ticket.values()), dialogue_text(sample)])
    return bool(facts(said) - facts(known))


# --- the parts of a verdict --------------------------------------------------------------------


def _act(action: Action, said: Heard | None) -> str:
    return action.name if isinstance(action, ToolCall) else said.act if said else ""


def _commits(action: Action, said: Heard | None) -> bool:
    """Changes or cancels an order, or says that this is done."""
    return _act(action, said) in ("change_order", *_COMMITS)


def _dialogue(said: Heard | None, ecs: float) -> int:
    """How near a reply is to something that an agent would say, whatever is due. A silent tool call says nothing: 3
    where it is right, as the dialogue judge's prompt has it, else 1."""
    if said is None:
        return 3 if ecs else 1
    return 1 + sum(said.overlap >= bound for bound in (0.3, 0.5, 0.65, 0.8))


def _tool(sample: ServiceSample, action: Action, ecs: float) -> int:
    due = act_of(sample)
    if due not in ("change_order", "transfer_human"):
        return 1 if isinstance(action, ToolCall) else 5
    if not isinstance(action, ToolCall):
        return 1
    return 5 if ecs else 3 if action.name == due else 2


def _rubric(ecs: float, risk: int, invented: int) -> int:
    """The weighted share of the rubric of `ablation.world.rubric_of` as a grade: 5 for the due step, 3 for right facts,
    -2 for a commitment that is not due."""
    points = 5 * ecs + 3 * (1 - invented) - 2 * risk
    return 1 + round(4 * max(0.0, points) / 8)


@cache
def _wordings() -> tuple[tuple[str, Form, str], ...]:
    found: list[tuple[str, Form, str]] = []
    for bank in BANKS.values():
        forms: tuple[tuple[Form, Mapping[str, tuple[str, ...]]], ...] = (
            ("whole", bank.agent),
            ("part", bank.partial),
            ("opposite", bank.negated),
        )
        for form, words in forms:
            found += [(act, form, _masked_template(text)) for act, texts in words.items() for text in texts]
    return tuple(found)


def _masked(reply: str) -> str:
    return _PACKAGE.sub("PACKAGE", _AMOUNT.sub("AMOUNT", reply))


def _masked_template(template: str) -> str:
    amounts = re.sub(r"\$\{\w+\}", "AMOUNT", template)
    return _SLOT.sub("PACKAGE", amounts)
