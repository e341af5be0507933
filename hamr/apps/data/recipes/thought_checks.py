"""What thoughts and the response under them have to be, by rules alone. The second paper names none; these are flaws of
teachers. Judges are asked only about what passes all of them.

    teacher: ...    nothing, a refusal, a loop, another language (`hamr.apps.data.recipes.teachers`)
    tags            the parts that were asked for, each once, and no other tag
    empty_chain     both halves of the thoughts say something
    hindsight       thoughts do not speak of an answer that they were given
    anonymised      no private value in the thoughts
    no_action       the response can be acted on: words for the customer, or one call
    tool_call       a call that one of the sample's tools admits
    quotes_answer   the thoughts do not hold the whole answer: they would teach to write it twice
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hamr.apps.data.recipes.dra import hindsight_fault
from hamr.apps.data.recipes.multigt import wording
from hamr.apps.data.recipes.patm_checks import CheckFailure, known_private
from hamr.apps.data.recipes.teachers import teacher_problem, without_thought
from hamr.data.actions import customer_text, parse_action
from hamr.data.language import Language
from hamr.data.pii import private_in
from hamr.data.trajectories import fitting
from hamr.types import Action, MalformedResponse, Reply, ServiceSample, ToolCall

CHAIN = ("process", "strategy")
"""The two halves of a chain: how the case is read, and how it is gone about (second paper, Appendix G)."""
DRAFT = (*CHAIN, "response")

_ANY_TAG = re.compile(r"</?[A-Za-z_][\w-]*\s*/?>")
_QUOTED_FROM = 6
"""Words or Chinese characters from which on an answer is long enough to be quoted; a "Yes, please" is not."""


@dataclass(frozen=True, kw_only=True)
class ThoughtDraft:
    """Thoughts, and the action under them."""

    chain: str
    action: Action


def read_parts(text: str, names: Sequence[str]) -> dict[str, str] | CheckFailure:
    """The texts inside <name>..</name>, which have to be all there is, in this order.

    >>> read_parts("<process>a</process> <strategy>b</strategy>", CHAIN)
    {'process': 'a', 'strategy': 'b'}
    """
    body = writable(without_thought(text))
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


def writable(text: str) -> str:
    """The text as every file can hold it: half a surrogate pair becomes "?"."""
    return text.encode("utf-8", "replace").decode()


def join_chain(parts: dict[str, str]) -> str:
    """The chain as it is learnt."""
    return "\n".join(parts[name] for name in CHAIN)


def chain_of(text: str, sample: ServiceSample, language: Language, action: Action | None = None) -> str | CheckFailure:
    """A teacher's two halves as one chain, or its first fault. `action`: what was done, where that is known."""
    parts = read_parts(text, CHAIN)
    if isinstance(parts, CheckFailure):
        return work_fault(text, language, parts)
    return chain_fault(join_chain(parts), sample, language, action) or join_chain(parts)


def work_fault(text: str, language: Language, fault: CheckFailure) -> CheckFailure:
    """Of a text without its parts: `fault`, unless it is no work at all."""
    problem = None if fault.check == "empty_chain" else teacher_problem(without_thought(text), language)
    return fault if problem is None else CheckFailure(check=problem[0], detail=problem[1])


def chain_fault(
    chain: str, sample: ServiceSample, language: Language, action: Action | None = None
) -> CheckFailure | None:
    """The first fault of a chain, whoever wrote it."""
    problem = teacher_problem(chain, language)
    if problem is not None:
        return CheckFailure(check="empty_chain" if problem[0] == "teacher: nothing" else problem[0], detail=problem[1])
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
    """Where a chain holds the whole reply, case and punctuation aside."""
    said = wording(action.content) if isinstance(action, Reply) else ""
    if len(re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+", said)) < _QUOTED_FROM:
        return None
    return CheckFailure(check="quotes_answer", detail=said[:80]) if said in wording(chain) else None


def response_of(text: str, chain: str, sample: ServiceSample, language: Language) -> ThoughtDraft | CheckFailure:
    """The draft that a response completes, or the response's first fault. A response may say sorry to a customer.

    Of words beside a call nothing is kept: the call is the action.
    """
    body = writable(without_thought(text))
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
        return CheckFailure(check=problem[0], detail=problem[1])
    if isinstance(action, ToolCall) and not fitting(action, sample.tools):
        return CheckFailure(check="tool_call", detail=f"no tool of the sample admits this call of {action.name}")
    fault = chain_fault(chain, sample, language, action)
    return fault or ThoughtDraft(chain=chain, action=action)
