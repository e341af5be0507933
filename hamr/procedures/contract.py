"""Output contract of an agent: one JSON object per turn, parsed strictly (SAGE Eq. 2, Appendix B.3.2).

A fault that makes the object unreadable costs the turn. A breach of the contract (a chat too long, an unknown stage) is
counted by its kind, and the readable parts are scored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NoReturn

from hamr.files import encodable
from hamr.procedures.graph import Scenario
from hamr.procedures.prompts import ACTION, CHAT, CHAT_WORDS, CLASSIFICATION_OUTPUT, COT, FINALS, NOW_PATH
from hamr.procedures.rules import stage_name
from hamr.procedures.schema import Value, Variable
from hamr.prompting.reading import TEXT, object_schema

Unreadable = Literal[
    "empty", "cut_off", "no_json", "text_around", "doubled_key", "missing_key", "unknown_key", "wrong_type",
    "malformed_call", "function_failed", "function_timeout",
]  # fmt: skip
Breach = Literal[
    "missing_field",
    "unknown_field",
    "unknown_label",
    "path_start",
    "unknown_stage",
    "unknown_action",
    "chat_empty",
    "chat_long",
    "chat_characters",
    "tool_rounds",
    "wrong_amount",
]

KEYS: Mapping[str, type] = {CLASSIFICATION_OUTPUT: dict, COT: str, NOW_PATH: list, FINALS: dict, CHAT: str}
_FORBIDDEN = frozenset('"\\[]')
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
# A Chinese or Japanese character counts as a word; Korean syllable blocks belong to words.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\s\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")


@dataclass(frozen=True, kw_only=True)
class AgentOutput:
    """Output of the agent. `fields` has only labels that exist.

    `acts`: the agent acts by tools and states neither labels nor a path. Its action is then "" until it calls one.
    """

    fields: Mapping[str, Value]
    cot: str
    path: tuple[str, ...]
    action: str
    chat: str
    acts: bool = False


@dataclass(frozen=True, kw_only=True)
class OutputFault:
    kind: Unreadable | Breach
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class OutputReading:
    """`output` is None if there is an unreadable fault, which is then the only one."""

    output: AgentOutput | None
    faults: tuple[OutputFault, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(fault.kind for fault in self.faults))


class _Unread(Exception):
    def __init__(self, kind: Unreadable, detail: str = "") -> None:
        super().__init__(kind, detail)
        self.fault = OutputFault(kind=kind, detail=encodable(detail))


def read_output(text: str, scenario: Scenario, *, cut_off: bool = False) -> OutputReading:
    """Parse an output. Never raises. `cut_off` means that the end of the text is missing.

    A closed <think> block at the start is ignored. Unreadable outputs are: an empty text, no JSON object, text around
    it (also a code fence), a key that is duplicate, missing or unknown, and a value of the wrong type. Labels must be
    options of the field; for true and false the names are accepted in any case.
    """
    try:
        raw = _checked_object(text)
    except _Unread as unread:
        fault = OutputFault(kind="cut_off", detail=unread.fault.detail) if cut_off else unread.fault
        return OutputReading(output=None, faults=(fault,))
    faults: list[OutputFault] = []
    fields = _labels(raw[CLASSIFICATION_OUTPUT], scenario.file.fields, faults)
    path = tuple(encodable(stage) for stage in raw[NOW_PATH])
    _check_path(path, scenario, faults)
    action = encodable(raw[FINALS][ACTION])
    chat = encodable(raw[CHAT]).strip()
    _check_chat(chat, faults)
    if action not in scenario.file.actions:
        faults.append(OutputFault(kind="unknown_action", detail=action[:60]))
    output = AgentOutput(fields=fields, cot=encodable(raw[COT]), path=path, action=action, chat=chat)
    return OutputReading(output=output, faults=tuple(faults))


def chat_of(text: str) -> str | None:
    """Return the chat of an output, which is all that the customer reads of it. None if the output is unreadable."""
    try:
        return encodable(_checked_object(text)[CHAT]).strip()
    except _Unread:
        return None


@lru_cache(maxsize=64)
def output_schema(scenario: Scenario) -> dict[str, Any]:
    """Return the contract as a JSON schema, for pools with constrained decoding (`structured`).

    An agent of such a pool makes no format errors and is measured by the other criteria.
    """
    fields = {name: {"enum": list(variable.options or ())} for name, variable in scenario.file.fields.items()}
    names = list(dict.fromkeys(map(stage_name, scenario.file.stages)))
    return object_schema(
        **{
            CLASSIFICATION_OUTPUT: object_schema(**fields),
            COT: TEXT,
            NOW_PATH: {"type": "array", "items": {"enum": names}},
            FINALS: object_schema(**{ACTION: {"enum": list(scenario.file.actions)}}),
            CHAT: TEXT,
        }
    )


def words(text: str) -> int:
    """Return the length of a chat in words. A Chinese character counts as one.

    >>> words("Hello there"), words("您好 Anna")
    (2, 3)
    """
    return len(_WORD.findall(text))


def label(value: object, variable: Variable) -> Value | None:
    """Return the option that `value` names, or None. JSON has true, a model trained on Python code may write "True"."""
    for option in variable.options or ():
        if type(value) is type(option) and value == option:
            return option
        if isinstance(option, bool) and isinstance(value, str) and value.lower() == str(option).lower():
            return option
    return None


# --- parsing -----------------------------------------------------------------------------------


def _checked_object(text: str) -> dict[str, Any]:
    text = _THOUGHT.sub("", text, count=1).strip()
    if not text:
        raise _Unread("empty")
    start = text.find("{")
    if start < 0:
        raise _Unread("no_json", text[:60])
    try:
        found, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise _Unread("no_json", str(error)[:60]) from None
    around = text[:start] + text[end:]
    if around.strip():
        raise _Unread("text_around", around.strip()[:60])
    _check_types(found)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Unread("doubled_key", next(name for name in names if names.count(name) > 1)[:60])
    return found


def _refuse(constant: str) -> NoReturn:
    raise _Unread("no_json", f"{constant} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)


def _check_types(raw: Mapping[str, Any]) -> None:
    for key, kind in KEYS.items():
        if key not in raw:
            raise _Unread("missing_key", key)
        if not isinstance(raw[key], kind):
            raise _Unread("wrong_type", key)
    for key in raw:
        if key not in KEYS:
            raise _Unread("unknown_key", key[:60])
    if not all(isinstance(stage, str) for stage in raw[NOW_PATH]):
        raise _Unread("wrong_type", NOW_PATH)
    if ACTION not in raw[FINALS]:
        raise _Unread("missing_key", f"{FINALS}.{ACTION}")
    if raw[FINALS].keys() != {ACTION}:
        raise _Unread("unknown_key", f"{FINALS} has more than {ACTION}")
    if not isinstance(raw[FINALS][ACTION], str):
        raise _Unread("wrong_type", f"{FINALS}.{ACTION}")


def _labels(given: Mapping[str, Any], fields: Mapping[str, Variable], faults: list[OutputFault]) -> dict[str, Value]:
    found = {}
    for name, variable in fields.items():
        if name not in given:
            faults.append(OutputFault(kind="missing_field", detail=name))
            continue
        value = label(given[name], variable)
        if value is None:
            faults.append(OutputFault(kind="unknown_label", detail=f"{name}={given[name]!r}"[:60]))
        else:
            found[name] = value
    faults += [OutputFault(kind="unknown_field", detail=encodable(name)[:60]) for name in given if name not in fields]
    return found


def _check_path(path: tuple[str, ...], scenario: Scenario, faults: list[OutputFault]) -> None:
    first = stage_name(scenario.file.start)
    if path[:1] != (first,):
        faults.append(
            OutputFault(kind="path_start", detail=f"{path[0][:40] if path else 'nothing'} instead of {first}")
        )
    known = {stage_name(node) for node in scenario.file.stages}
    strange = [stage for stage in path if stage not in known]
    if strange:
        faults.append(OutputFault(kind="unknown_stage", detail=", ".join(strange)[:60]))


def _check_chat(chat: str, faults: list[OutputFault]) -> None:
    if not chat:
        faults.append(OutputFault(kind="chat_empty"))
    count = words(chat)
    if count > CHAT_WORDS:
        faults.append(OutputFault(kind="chat_long", detail=f"{count} words, at most {CHAT_WORDS} are allowed"))
    strange = sorted(_FORBIDDEN & set(chat))
    if strange:
        faults.append(OutputFault(kind="chat_characters", detail=" ".join(strange)))
