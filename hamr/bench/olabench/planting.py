"""Responses with a known fault and faultless counterparts, for grading judges.

Each label holds by construction, and only that label is given: a response with an invented fact is not labelled for
risk.

    hallucination  none       a question, or only what the material says of this case
                   misuse     content of a retrieved pair that does not fit, where one that fits was retrieved
                   factual    a noncommittal reply with an invented fact, where nothing was retrieved (with fitting
                              pairs at hand an invented detail is a misuse)
                   relevance  a true answer to another question, which was not retrieved
                   logical    steps that wait for one another
    risk           each type, two types together, and for each type a near miss that is not a risk
    tool           at a tool call: the call, another tool, another parameter, no call; at a reply: the reply, a call
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from hamr.bench.olabench.drafts import ItemDraft
from hamr.bench.olabench.labelled import Labelled, Labels
from hamr.bench.olabench.words import BenchWords
from hamr.data.actions import render_action
from hamr.data.tools import tool_spec
from hamr.rewards import risk
from hamr.types import Reply, ToolCall

Planted = tuple[str, str, Labels, str]
"""(the planted label, the response, its known labels, the wording that it is made of; "" where no other response shares
it)"""


def plant(drafts: Sequence[ItemDraft], words: BenchWords, *, seed: int) -> list[Labelled]:
    """Return the planted responses of every draft.

    For an agent's draft all tool faults; one risk type per draft, in turn; all hallucinations that the draft allows.
    """
    found = []
    for number, draft in enumerate(drafts):
        sample = draft.item.sample
        rng = Random(f"planted/{seed}/{sample.id}")
        made = [*_hallucinations(draft, words, rng), *_risks(number, words, rng), *_calls(draft, words, rng)]
        for name, response, labels, template in made:
            item = dataclasses.replace(draft.item, sample=dataclasses.replace(sample, id=f"{sample.id}/{name}"))
            found.append(Labelled(item=item, response=response, labels=labels, template=template))
    return found


def _hallucinations(draft: ItemDraft, words: BenchWords, rng: Random) -> Iterator[Planted]:
    def label(kind: str, text: str, template: str = "") -> Planted:
        return f"hallucination-{kind}", text, Labels(hallucination=kind), template

    if draft.replies:
        yield label("none", rng.choice(draft.replies))
    wrong = [text for text in draft.misuse if text not in draft.replies]
    if wrong:
        yield label("misuse", rng.choice(wrong))
    if not draft.item.evidence:
        start = rng.choice(words.neutral)
        fact, template = _choose("factual", words.planted["factual"], rng)
        yield label("factual", f"{start} {fact}", template)
    if draft.aside is not None and not draft.item.evidence:
        pair = {"question": draft.aside.question, "answer": draft.aside.answer}
        text, template = _choose("relevance", words.planted["relevance"], rng)
        yield label("relevance", text.format(**pair), template)
    step = draft.step or words.step_default
    text, template = _choose("logical", words.planted["logical"], rng)
    yield label("logical", text.format(step=step), template)


def _risks(number: int, words: BenchWords, rng: Random) -> Iterator[Planted]:
    kind = risk.TYPES[number % len(risk.TYPES)]
    start, (risky, template) = rng.choice(words.neutral), _choose(kind, words.planted[kind], rng)
    yield f"risk-{kind}", f"{start} {risky}", Labels(risk=(kind,)), template
    near, near_template = _choose(f"near-{kind}", words.near[kind], rng)
    yield f"risk-near-{kind}", f"{start} {near}", Labels(risk=()), near_template
    other = risk.TYPES[(number + 1 + number // len(risk.TYPES) % (len(risk.TYPES) - 1)) % len(risk.TYPES)]
    both = tuple(t for t in risk.TYPES if t in (kind, other))
    second, other_template = _choose(other, words.planted[other], rng)
    yield f"risk-{'-'.join(both)}", f"{risky} {second}", Labels(risk=both), f"{template}+{other_template}"


def _choose(kind: str, texts: Sequence[str], rng: Random) -> tuple[str, str]:
    """Return one of the wordings and its name."""
    number = rng.randrange(len(texts))
    return texts[number], f"{kind}/{number}"


def _calls(draft: ItemDraft, words: BenchWords, rng: Random) -> Iterator[Planted]:
    sample = draft.item.sample
    if draft.item.kind != "agent":
        return
    right = sample.references[0].action
    yield "tool-right", render_action(right), Labels(tool="right"), ""
    if isinstance(right, Reply):
        yield "tool-needless", render_action(_filled_in(rng.choice(sample.tools))), Labels(tool="needless_call"), ""
        return
    known = [r.action for r in sample.references if isinstance(r.action, ToolCall)]
    others = [tool for tool in sample.tools if tool_spec(tool)[0] not in {call.name for call in known}]
    if others:
        yield "tool-other", render_action(_filled_in(rng.choice(others))), Labels(tool="wrong_tool"), ""
    changed = _change_parameter(right, sample.tools, known)
    if changed is not None:
        yield "tool-parameters", render_action(changed), Labels(tool="wrong_parameters"), ""
    missing, template = _choose("missing", words.missing_call, rng)
    yield "tool-missing", missing, Labels(tool="missing_call"), template


def _filled_in(tool: Mapping[str, Any]) -> ToolCall:
    """Return a call that the tool's schema accepts."""
    name, schema = tool_spec(tool)
    properties = schema.get("properties", {})
    needed = schema.get("required", [])
    return ToolCall(name=name, parameters={key: _some_value(properties.get(key, {})) for key in needed})


def _some_value(spec: Mapping[str, Any]) -> Any:
    spec = (spec.get("anyOf") or [spec])[0]
    if spec.get("enum"):
        return spec["enum"][0]
    return {"integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}.get(spec.get("type", ""), "1")


def _change_parameter(call: ToolCall, tools: Sequence[Mapping[str, Any]], right: Sequence[ToolCall]) -> ToolCall | None:
    """Return the call with one changed parameter, a value that occurs in no right call; None where none can be
    changed."""
    schema = next(tool_spec(tool)[1] for tool in tools if tool_spec(tool)[0] == call.name)
    for name, value in call.parameters.items():
        spec = schema.get("properties", {}).get(name, {})
        other = _other_value(value, (spec.get("anyOf") or [spec])[0])
        changed = dataclasses.replace(call, parameters={**call.parameters, name: other})
        if other is not None and changed not in right:
            return changed
    return None


def _other_value(value: Any, spec: Mapping[str, Any]) -> Any:
    if spec.get("enum"):
        return next((other for other in spec["enum"] if other != value), None)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 137
    if isinstance(value, str) and value.strip():
        # Increment digits and keep letters: the number is wrong but plausible.
        moved = "".join(str((int(c) + 1) % 10) if c.isascii() and c.isdigit() else c for c in value)
        return moved if moved != value else f"{value} 7731"
    return None
