"""Rule checks of thoughts and of the response based on them.

The second paper names none; these are common faults of teachers. Only a text that passes all of them is sent to the
judges.

    teacher: ...    nothing, a refusal, a loop, another language (`hamr.apps.data.recipes.teachers`)
    tags            the requested parts, each once, and no other tag
    empty_chain     both halves of the thoughts have content
    hindsight       thoughts do not refer to an answer that they were given
    anonymised      no private value in the thoughts
    no_action       the response is an action: words for the customer, or one call
    tool_call       a call that one of the sample's tools accepts
    quotes_answer   the thoughts do not contain the whole answer: the model would learn to write it twice
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hamr.apps.data.recipes.dra import hindsight_fault
from hamr.apps.data.recipes.patm_checks import known_private
from hamr.apps.data.recipes.teachers import CheckFailure, teacher_problem, without_thought
from hamr.data.actions import customer_text, parse_action
from hamr.data.pii import private_in
from hamr.data.trajectories import fitting
from hamr.data.words import plain
from hamr.files import encodable
from hamr.types import Action, Language, MalformedResponse, Reply, ServiceSample, ToolCall

CHAIN = ("process", "strategy")
"""The two halves of a chain: the reading of the case, and the approach (second paper, Appendix G)."""
DRAFT = (*CHAIN, "response")

_ANY_TAG = re.compile(r"</?[A-Za-z_][\w-]*\s*/?>")
_QUOTED_FROM = 6
"""Minimum length of an answer, in words or Chinese characters, for the quote check."""


@dataclass(frozen=True, kw_only=True)
class ThoughtDraft:
    """Thoughts and the resulting action."""

    chain: str
    action: Action


def read_parts(text: str, names: Sequence[str]) -> dict[str, str] | CheckFailure:
    """Return the texts inside <name>..</name>. The text must consist of exactly these parts, in this order.

    >>> read_parts("<process>a</process> <strategy>b</strategy>", CHAIN)
    {'process': 'a', 'strategy': 'b'}
    """
    body = encodable(without_thought(text))
    found = re.fullmatch(r"\s*".join(f"<{name}>(?P<{name}>.*?)</{name}>" for name in names), body, re.DOTALL)
    if found is None:
        tags = (f"<{slash}{name}>" for name in names for slash in ("", "/"))
        wrong = next((f"{body.count(tag)} x {tag}" for tag in tags if body.count(tag) != 1), "text outside the tags")
        return CheckFailure(check="tags", detail=wrong)
    parts = {name: found.group(name).strip() for name in names}
    return next(
        (CheckFailure(check="empty_chain", detail=f"nothing in {name}") for name in CHAIN if not parts.get(name, "-")),
        parts,
    )


def join_chain(parts: dict[str, str]) -> str:
    """Return the chain in its training format."""
    return "\n".join(parts[name] for name in CHAIN)


def chain_of(text: str, sample: ServiceSample, language: Language, action: Action | None = None) -> str | CheckFailure:
    """Return a teacher's two halves as one chain, or its first fault. `action`: the logged action, where known."""
    parts = read_parts(text, CHAIN)
    if isinstance(parts, CheckFailure):
        return work_fault(text, language, parts)
    return chain_fault(join_chain(parts), sample, language, action) or join_chain(parts)


def work_fault(text: str, language: Language, fault: CheckFailure) -> CheckFailure:
    """Return `fault` for a text without its parts, unless the text is unusable."""
    problem = None if fault.check == "empty_chain" else teacher_problem(without_thought(text), language)
    return problem or fault


def chain_fault(
    chain: str, sample: ServiceSample, language: Language, action: Action | None = None
) -> CheckFailure | None:
    """Return the first fault of a chain by any author."""
    problem = teacher_problem(chain, language)
    if problem is not None:
        return CheckFailure(check="empty_chain") if problem.check == "teacher: nothing" else problem
    tag = _ANY_TAG.search(chain)
    if tag:
        return CheckFailure(check="tags", detail=f"{tag.group()} inside the thoughts")
    hindsight = hindsight_fault(chain, language)
    if hindsight:
        return hindsight
    private = private_in(chain, known_private(sample, [action] if isinstance(action, ToolCall) else []))
    if private is not None:
        return CheckFailure(check="anonymised", detail=f"has {private!r}")
    return quote_fault(chain, action) if action is not None else None


def quote_fault(chain: str, action: Action) -> CheckFailure | None:
    """Return a fault where a chain contains the whole reply, ignoring case and punctuation."""
    reply = plain(action.content) if isinstance(action, Reply) else ""
    if len(re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+", reply)) < _QUOTED_FROM:
        return None
    return CheckFailure(check="quotes_answer", detail=reply[:80]) if reply in plain(chain) else None


def response_of(text: str, chain: str, sample: ServiceSample, language: Language) -> ThoughtDraft | CheckFailure:
    """Return the draft with this response, or the response's first fault.

    A response may apologise to a customer. Words next to a call are discarded: the call is the action.
    """
    body = encodable(without_thought(text))
    if not body:
        return CheckFailure(check="teacher: nothing", detail="no response")
    action = parse_action(body)
    if isinstance(action, MalformedResponse):
        return CheckFailure(check="no_action", detail=action.detail)
    words = customer_text(body)
    tag = _ANY_TAG.search(words)
    if tag:
        return CheckFailure(check="tags", detail=f"{tag.group()} inside the response")
    problem = teacher_problem(words, language, may_refuse=True) if words else None
    if problem is not None:
        return problem
    if isinstance(action, ToolCall) and not fitting(action, sample.tools):
        return CheckFailure(check="tool_call", detail=f"no tool of the sample admits this call of {action.name}")
    fault = chain_fault(chain, sample, language, action)
    return fault or ThoughtDraft(chain=chain, action=action)
