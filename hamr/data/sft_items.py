"""The SFT file: one target per line, divided into the parts of the first paper's formulas. Errors name the line.

    {"kind": "decision_dra", "sample": {a line of a sample file}, "target": [
        {"part": "rationale", "text": "<think>The customer wants to leave, so ...</think>"},
        {"part": "action", "text": "<answer>May I ask why?</answer>"}]}

The target is the concatenation of the parts' texts, without separators, as the policy's answer to the sample's prompt.
A tag is therefore in the text of the part that it opens or closes. With q_t the sample, c_t the rationale, a the
agent's action and q_{t+1} the environment's turn (a customer's message or a tool's result), the kinds are

    decision       a_t                              -log p(a_t | q_t)
    decision_dra   c_t, a_t                         Eq. 2: -log p(c_t, a_t | q_t)
    patm           a~_t, q~_{t+1}, a~_{t+1}         Eq. 3: -log p(a~_t, q~_{t+1}, a~_{t+1} | q_t)
    patm_dra       c_t, a~_t, q~_{t+1}, a~_{t+1}    section 3.2: the rationale in front of Eq. 3's sequence
    decision_post  a_t, c_t                         second paper, section 4.3: -log p(a_t, c_t | q_t), post-CoT

The wire forms are `hamr.data.actions`' `plain` for `decision`, its `think_answer` for `decision_dra` and its
`answer_think` for `decision_post` (each under a system prompt that asks for its order), and for plans

    <plans><plan_1>a~_t</plan_1><plan_2>q~_{t+1} a~_{t+1}</plan_2></plans><actions>[the tool calls]</actions>

after a <think> block if the kind has a rationale.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hamr.data.actions import ResponseFormat, parse_action, render_action
from hamr.data.rendering import policy_messages
from hamr.data.samples import from_json, read_rows, to_json, write_rows
from hamr.errors import DataError
from hamr.types import Action, MalformedResponse, ServiceSample, SftKind

PartKind = Literal["rationale", "action", "environment"]

KINDS: tuple[SftKind, ...] = get_args(SftKind)
PARTS: Mapping[SftKind, tuple[PartKind, ...]] = {
    "decision": ("action",),
    "decision_dra": ("rationale", "action"),
    "patm": ("action", "environment", "action"),
    "patm_dra": ("rationale", "action", "environment", "action"),
    "decision_post": ("action", "rationale"),
}
"""Parts of a target by kind, in order. All have loss, also the environment's turn, which is predicted (Eq. 3)."""

_FORMAT: Mapping[SftKind, ResponseFormat] = {
    "decision": "plain", "decision_dra": "think_answer", "decision_post": "answer_think",
}  # fmt: skip
_PLAN = (
    "<plans><plan_1>what I do now and why</plan_1><plan_2>assuming what comes back, this indicates ..., therefore I "
    "...</plan_2></plans><actions>[every tool call of the plan as JSON]</actions>"
)
_PLANNING: Mapping[SftKind, str] = {
    "patm": f"Plan the next two steps: {_PLAN}",
    "patm_dra": f"First think, then plan the next two steps: <think>...</think>{_PLAN}",
}


@dataclass(frozen=True, kw_only=True)
class TargetPart:
    part: PartKind
    text: str


@dataclass(frozen=True, kw_only=True)
class SftItem:
    """One prompt with the target answer of the policy. `target` has the parts of `PARTS[kind]`, in that order."""

    kind: SftKind
    sample: ServiceSample
    target: tuple[TargetPart, ...]

    @property
    def text(self) -> str:
        """The whole answer."""
        return "".join(part.text for part in self.target)


def item_messages(item: SftItem, *, native: bool = False) -> list[dict[str, Any]]:
    """Return the chat messages of the prompt. The instruction depends on the kind: an action, a thought and an action,
    or a plan.

    The prompt of a decision is identical to that of RL with the same `model.response_format` (`plain`; `think_answer`
    with a rationale, `answer_think` with one after the action). The prompt of a plan differs, so that a policy trained
    on both still acts when requested. `native` as in `policy_messages`.
    """
    if item.kind in _FORMAT:
        return policy_messages(item.sample, _FORMAT[item.kind], native=native)
    return policy_messages(item.sample, instruction=_PLANNING[item.kind], native=native)


def decision_item(sample: ServiceSample, action: Action, rationale: str = "", *, answer_first: bool = False) -> SftItem:
    """Return a `decision`, with a rationale a `decision_dra`, or a `decision_post` if the answer comes first. Raise
    DataError for text that no policy can generate."""
    if not rationale.strip():
        return SftItem(kind="decision", sample=sample, target=(TargetPart(part="action", text=render_action(action)),))
    whole = render_action(action, "think_answer", rationale)
    thought, tag, answer = whole.partition("<answer>")
    target = (TargetPart(part="rationale", text=thought), TargetPart(part="action", text=tag + answer))
    if answer_first:
        return SftItem(kind="decision_post", sample=sample, target=target[::-1])
    return SftItem(kind="decision_dra", sample=sample, target=target)


# --- file --------------------------------------------------------------------------------------


def read_items(path: str | Path) -> list[SftItem]:
    """Read all items of the file, in order. Skip blank lines. Raise DataError at the first fault.

    A sample may occur several times: with another kind, or with another of its references.
    """
    return [item for _, item in numbered_items(path)]


def numbered_items(path: str | Path) -> Iterator[tuple[int, SftItem]]:
    """Yield the items of `read_items`, with the line of each."""
    for number, row in read_rows(path):
        yield number, item_from_json(row, where=f"{path}:{number}")


def write_items(path: str | Path, items: Iterable[SftItem]) -> None:
    """Write the whole file atomically."""
    write_rows(path, (item_to_json(item) for item in items))


def item_to_json(item: SftItem) -> dict[str, Any]:
    """Return the line object of an item. Inverse of `item_from_json`."""
    target = [{"part": part.part, "text": part.text} for part in item.target]
    return {"kind": item.kind, "sample": to_json(item.sample), "target": target}


def item_from_json(row: Any, *, where: str = "item") -> SftItem:
    """Return the item of a line object. DataError has the place `<where>: <field>`.

    Faults are an unknown kind, parts that do not match the kind or its order, an empty text, and a decision that does
    not parse as one action.
    """
    if not isinstance(row, dict):
        raise DataError(f"{where}: line", row, "must be a JSON object")
    for field in ("kind", "sample", "target"):
        if field not in row:
            raise DataError(f"{where}: {field}", sorted(row), f"missing field; add {field!r}")
    kind = row["kind"]
    if kind not in KINDS:
        raise DataError(f"{where}: kind", kind, f"unknown kind; use {', '.join(KINDS)}")
    sample = from_json(row["sample"], where=f"{where}: sample")
    item = SftItem(kind=kind, sample=sample, target=_target(row["target"], kind, where))
    if kind in _FORMAT:
        # Check the whole text: any text after an answer is valid for a policy, but not as an example of a rationale.
        action = parse_action(item.text, "plain" if kind == "decision" else "think_answer")
        if isinstance(action, MalformedResponse):
            raise DataError(f"{where}: target", item.text, f"does not parse as an action: {action.detail}")
        if kind != "decision":
            _check_places(item.target, where)
    return item


def _check_places(target: Sequence[TargetPart], where: str) -> None:
    """Check that each block is in the part with its name. The prompt requests this order."""
    for i, part in enumerate(target):
        tag = "<think>" if part.part == "rationale" else "<answer>"
        if not part.text.lstrip().startswith(tag):
            raise DataError(f"{where}: target[{i}].text", part.text, f"a part {part.part!r} begins with {tag}")


def _target(rows: Any, kind: SftKind, where: str) -> tuple[TargetPart, ...]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{where}: target", rows, "must be a list of objects with part and text")
    names = tuple(row.get("part") for row in rows)
    if names != PARTS[kind]:
        raise DataError(f"{where}: target", names, f"a {kind} has the parts {', '.join(PARTS[kind])}, in this order")
    for i, row in enumerate(rows):
        if not isinstance(row.get("text"), str) or not row["text"].strip():
            raise DataError(f"{where}: target[{i}].text", row.get("text"), "must be a text that is not empty")
    return tuple(TargetPart(part=row["part"], text=row["text"]) for row in rows)
