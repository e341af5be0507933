"""Audit of a simulated customer: fidelity to its plan, and typed faults.

Pure: texts and a plan in, a record out. A fault makes the dialogue useless for scores and for training, since the agent
was shown another case than the one that it is scored by.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from hamr.data.language import CHINESE_FROM, chinese_share
from hamr.procedures import Scenario
from hamr.procedures.contract import words as count_words
from hamr.procedures.schema import Value
from hamr.procedures.words import SPLITS, Split, Words, expansions, sentences

CustomerFaultKind = Literal["said_more", "said_less", "other_goal", "ended_early", "left_role", "other_language"]
Ending = Literal["left", "limit", "cut"]
"""The customer left, the dialogue reached its limit of turns, or something else cut it off."""
Meaning = Mapping[str, Value]

_OUT_OF_ROLE = re.compile(
    r"\bas an? (?:ai|artificial|language|virtual|simulated)\b"
    r"|\bi(?: a|')m (?:just |only |really )?an? (?:\w+ )?(?:ai|language model|virtual assistant|chatbot|simulation)\b"
    r"|\blanguage model\b|\bi(?: a|')m (?:only |just )?(?:simulating|role-?playing)|\bin this (?:simulation|role-?play)"
    r"|\b(?:simulated|fictional) (?:customer|user|conversation|scenario)|\broleplay\b|\badversarial\b"
    r"|\bmy (?:prompt|persona|system message|instructions|assigned|character)\b|\bplaying (?:a|the) (?:customer|user)\b"
    r"|\bhow (?:can|may) i (?:help|assist) you"
    r"|\bthank you for (?:contacting|calling|reaching out to) (?:us|our|customer)"
    r"|\banything else i can (?:do|help)|\bi(?: a|')m here to (?:help|assist)|\bwe apologi[sz]e for\b"
    r"|\b(?:here is|here's) (?:the|my|a) (?:next |customer's )?(?:message|reply|response)\b"
    r"|作为(?:一个|一名)?\s*(?:ai|人工智能|语言模型|虚拟|模拟)|我(?:只|其实)?是(?:一个|一名)?\s*(?:ai|人工智能|语言模型|聊天机器人|虚拟|模拟)"
    r"|扮演|提示词|系统提示|人设|模拟(?:的)?(?:客户|用户|顾客|对话)|有什么(?:其他)?(?:可以|能)(?:帮|为)(?:助)?[您你]"
    r"|感谢您的(?:来电|咨询|耐心)|很高兴为[您你]服务|为您带来的不便"
    r"|classification_output|now_path|(?<![a-z])stage_?\d|^\s*[{\[<]|^\s*(?:service )?(?:agent|assistant|客服)\s*[:：]",
    re.IGNORECASE | re.MULTILINE,
)
_LETTER = re.compile(r"[^\W\d_]")
_LATIN_END = "\u024f"
_FEWEST_LETTERS = 6
"""Letters from which a message has a language. Names and codes are shorter."""


def out_of_role(text: str) -> str | None:
    """Return the text that shows a break of character; None where there is none.

    >>> out_of_role("As an AI I have no phone plan.")
    'As an AI'
    """
    if not text.strip():
        return "empty message"
    found = _OUT_OF_ROLE.search(text)
    return found.group().strip() if found else None


def other_language(text: str, language: str) -> str | None:
    """Return the beginning of a message in another language than `language`, by script; None where it is in that one.

    >>> other_language("我想改套餐，谢谢你们", "en")
    '我想改套餐，谢谢你们'
    """
    letters = _LETTER.findall(text)
    if language == "zh":
        strange = len(letters) >= _FEWEST_LETTERS and (chinese_share(text) or 0.0) < CHINESE_FROM
    else:
        foreign = sum(letter > _LATIN_END for letter in letters)
        strange = bool(letters) and foreign / len(letters) >= CHINESE_FROM
    return text[:40] if strange else None


@dataclass(frozen=True, kw_only=True)
class CustomerCase:
    """Plan of a simulated customer: its own fields, its ticket, its wish and its language."""

    fields: Mapping[str, Value]
    system: Mapping[str, Value]
    intent: str
    language: str


@dataclass(frozen=True, kw_only=True)
class MessageReading:
    """Meaning of one message.

    `sentences`: for each sentence that was understood, the fields that it shows; several meanings where it is
    ambiguous, an empty one where it shows none. `unread`: number of the other sentences. `judged`: a model read it, so
    that nothing shown is not taken for an evasion.
    """

    sentences: tuple[tuple[Meaning, ...], ...] = ()
    unread: int = 0
    judged: bool = False


class CustomerReader(Protocol):
    """Reads the fields that messages show."""

    @property
    def opens_with(self) -> frozenset[str]:
        """Return the fields that the first message has to show."""

    def read(self, messages: Sequence[str], system: Mapping[str, Value]) -> list[MessageReading]:
        """Return the meaning of each message of a customer with this ticket."""


class WordingReader:
    """Reader that knows the wordings of a scenario, sentence by sentence.

    It is never wrong about a customer by template. Of a model's customer it understands only sentences that a wording
    has too, so that faults which depend on the meaning are not found there.
    """

    def __init__(self, scenario: Scenario, words: Words | None, splits: Sequence[Split] = SPLITS) -> None:
        self.opens_with = frozenset(words.opens_with if words is not None else ())
        self._fixed: dict[str, list[Meaning]] = {}
        self._slotted: list[tuple[str, Meaning]] = []
        for text, meaning in customer_wordings(scenario, words, splits) if words is not None else ():
            for variant in expansions(text):
                if "{" in variant:
                    self._slotted.append((variant, meaning))
                else:
                    _add(self._fixed, variant, meaning)

    def read(self, messages: Sequence[str], system: Mapping[str, Value]) -> list[MessageReading]:
        slotted: dict[str, list[Meaning]] = {}
        for text, meaning in self._slotted:
            _add(slotted, text.format(**system), meaning)
        return [self._read(message, slotted) for message in messages]

    def _read(self, message: str, slotted: Mapping[str, list[Meaning]]) -> MessageReading:
        known, unread = [], 0
        for sentence in sentences(message):
            meanings = (*self._fixed.get(sentence, ()), *slotted.get(sentence, ()))
            if meanings:
                known.append(meanings)
            else:
                unread += 1
        return MessageReading(sentences=tuple(known), unread=unread)


def _add(known: dict[str, list[Meaning]], text: str, meaning: Meaning) -> None:
    for sentence in sentences(text):
        meanings = known.setdefault(sentence, [])
        if meaning not in meanings:
            meanings.append(meaning)


def customer_wordings(scenario: Scenario, words: Words, splits: Sequence[Split]) -> Iterator[tuple[str, Meaning]]:
    """Yield each text that a customer of these splits may say, with the fields that it shows."""
    for split in splits:
        one = words.of(split)
        yield from ((text, {}) for part in (one.manner, one.adversity) for texts in part.values() for text in texts)
        for intent, texts in one.opening.items():
            yield from ((text, scenario.file.intents[intent].pins) for text in texts)
        for name, by_value in one.show.items():
            yield from ((text, {name: value}) for value, texts in by_value.items() for text in texts)


@dataclass(frozen=True, kw_only=True)
class CustomerFault:
    """A fault at one message, counted from 0; at the number of messages where it is the end of the dialogue."""

    kind: CustomerFaultKind
    message: int
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} at message {self.message + 1}: {self.detail}"


@dataclass(frozen=True, kw_only=True)
class CustomerAudit:
    """Fidelity of one simulated customer.

    `words`: of each message. `own_language` and `in_role`: shares of the messages. `understood`: share of the
    sentences. `disclosed`: share of the fields that its path reads and its messages show; `goal`: it showed what its
    intent pins, and nothing else instead. The last two are None where a sentence was not understood.
    """

    faults: tuple[CustomerFault, ...]
    words: tuple[int, ...]
    own_language: float
    in_role: float
    understood: float
    disclosed: float | None
    goal: bool | None

    @property
    def kinds(self) -> tuple[CustomerFaultKind, ...]:
        return tuple(dict.fromkeys(fault.kind for fault in self.faults))


def audit_customer(
    scenario: Scenario,
    case: CustomerCase,
    messages: Sequence[str],
    reader: CustomerReader,
    *,
    ending: Ending,
    action: str = "",
) -> CustomerAudit:
    """Compare the messages of a simulated customer with its case.

    `said_more`: a message shows a value that the case does not have; `other_goal`: one of a field that the intent pins.
    `said_less`: a field that the path reads was never shown, although the customer had its turn. `ended_early`: the
    customer left before it had shown everything, and before the agent took the action that is due (`action`: its last
    one). `left_role` and `other_language`: a message is out of character, or in another language. A sentence with
    several meanings is read in favour of the customer. A sentence that the reader does not understand shows nothing,
    and faults of omission are then not decided.
    """
    readings = reader.read(messages, case.system)
    faults = [*_by_message(case, messages)]
    shown: dict[str, Value] = {}
    opening: set[str] = set()
    misstated: set[str] = set()
    dodged = False
    for number, message in enumerate(readings):
        before = dict(shown)
        for meanings in message.sentences:
            own = [meaning for meaning in meanings if not _against(meaning, case.fields)]
            for meaning in own:
                shown.update(meaning)
            if not own:
                faults.append(_contradiction(scenario, case, number, meanings[0]))
                misstated |= meanings[0].keys()
        opening = opening or set(shown)
        dodged |= shown == before and not message.unread and not message.judged
    needed = [name for name in scenario.walk(case.fields, case.system).read if name in scenario.file.fields]
    unread = sum(message.unread for message in readings)
    spoke_in_role = not any(fault.kind in ("left_role", "other_language") for fault in faults)
    if spoke_in_role and not unread:
        later = [name for name in needed if name not in opening]
        missing = [name for name in later if name not in shown.keys() | misstated]
        gap = dodged or missing != later[len(later) - len(missing) :] or not reader.opens_with.isdisjoint(missing)
        if missing and ending != "cut":
            faults += _omission(
                scenario, case, missing, len(messages), left=ending == "left" and not gap, action=action
            )
    total = unread + sum(len(message.sentences) or message.judged for message in readings)
    pins = scenario.file.intents[case.intent].pins
    kept = not any(fault.kind == "other_goal" for fault in faults)
    return CustomerAudit(
        faults=tuple(sorted(faults, key=lambda fault: fault.message)),
        words=tuple(map(count_words, messages)),
        own_language=_share(other_language(text, case.language) is None for text in messages),
        in_role=_share(out_of_role(text) is None for text in messages),
        understood=1 - unread / total if total else 0.0,
        disclosed=None if unread else _share(name in shown for name in needed),
        goal=False if not kept else None if unread else all(name in shown for name in pins),
    )


def _by_message(case: CustomerCase, messages: Sequence[str]) -> Iterator[CustomerFault]:
    for number, text in enumerate(messages):
        if (found := out_of_role(text)) is not None:
            yield CustomerFault(kind="left_role", message=number, detail=found)
        if (found := other_language(text, case.language)) is not None:
            yield CustomerFault(kind="other_language", message=number, detail=found)


def _against(meaning: Meaning, fields: Mapping[str, Value]) -> dict[str, Value]:
    """Return the part of a meaning that the customer's own fields contradict. Fields that it does not have are free."""
    return {name: value for name, value in meaning.items() if name in fields and fields[name] != value}


def _contradiction(scenario: Scenario, case: CustomerCase, number: int, meaning: Meaning) -> CustomerFault:
    against = _against(meaning, case.fields)
    pinned = scenario.file.intents[case.intent].pins.keys() & against.keys()
    detail = ", ".join(f"{name}={value} instead of {case.fields[name]}" for name, value in against.items())
    return CustomerFault(kind="other_goal" if pinned else "said_more", message=number, detail=detail)


def _omission(
    scenario: Scenario, case: CustomerCase, missing: Sequence[str], at: int, *, left: bool, action: str
) -> Iterator[CustomerFault]:
    """Yield the fault of a customer that did not show these fields.

    One that `left` showed the fields of its path up to some point and no later one, which is not a fault once the agent
    has taken the right action. Any other left a gap, or had its turn and showed nothing.
    """
    if not left:
        yield CustomerFault(kind="said_less", message=at, detail=f"never showed {', '.join(missing)}")
    elif action != scenario.walk(case.fields, case.system).action:
        yield CustomerFault(kind="ended_early", message=at, detail=f"left before {missing[0]}")


def _share(held: Iterator[bool]) -> float:
    values = list(held)
    return sum(values) / len(values) if values else 1.0
