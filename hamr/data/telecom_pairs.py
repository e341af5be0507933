"""Replies that agree, half agree or disagree with an act of the generated telecom dialogues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from hamr.data.telecom import Slots, wordings
from hamr.data.telecom_words import BANKS, Split
from hamr.data.telecom_words.stray import STRAY

_INSTEAD: Mapping[str, tuple[str, ...]] = {
    "ask_profile": ("recommend", "goodbye", "penalty_notice", "confirm_change", "hand_over"),
    "recommend": ("ask_profile", "confirm_change", "penalty_notice", "goodbye", "hand_over"),
    "penalty_notice": ("ask_profile", "recommend", "confirm_change", "confirm_cancel", "goodbye", "hand_over"),
    "goodbye": ("ask_profile", "recommend", "penalty_notice", "confirm_change", "hand_over"),
}
"""What a wrong agent would say: the acts that other system variables or another answer would call for."""

_GIST: Mapping[str, str] = {
    "ask_profile": "data or voice?",
    "recommend": "offer {package} ${price}",
    "penalty_notice": "fee ${fee}",
    "goodbye": "goodbye",
    "confirm_change": "changed",
    "confirm_cancel": "cancelled",
    "hand_over": "human",
}
"""What a reply says, in the fewest words: a judge's reasoning is the dearest part of its answer."""

_VERBATIM = 1 / 8


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A reply to be judged (`text`), the acceptable one to judge it by, and why the verdict is what it is."""

    reference: str
    text: str
    thought: str


def candidate(act: str, slots: Slots, split: Split, label: str, rng: Random, reference: str | None = None) -> Candidate:
    """A reply whose relation to `act` is `label`, with `reference` (or any) wording of the act itself."""
    known = wordings(act, slots, split)
    reference = reference or rng.choice(known)
    gist = _GIST[act].format(**slots)
    if label == "consistent":
        others = [text for text in known if text != reference]
        text = reference if rng.random() < _VERBATIM else rng.choice(others)
        return Candidate(reference=reference, text=text, thought=_thought(gist, gist))
    if label == "partial":
        text = rng.choice(BANKS[split].partial[act]).format(**slots)
        return Candidate(reference=reference, text=text, thought=_thought(gist, f"partly {gist}"))
    text, why = _wrong(act, slots, split, known.index(reference), rng)
    return Candidate(reference=reference, text=text, thought=_thought(gist, why))


def _thought(a: str, b: str) -> str:
    return f"A: {a}; B: {b}."


def _wrong(act: str, slots: Slots, split: Split, index: int, rng: Random) -> tuple[str, str]:
    """(reply, what it says). Wrong facts come half the time in the reference's very words, so that they
    are what tells it from a right reply."""
    kinds = {
        "act": 4,
        "fact": 3 if act in ("recommend", "penalty_notice") else 0,
        "negation": 2,
        "noise": 1,
        "stray": 2,
    }
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    if kind == "act":
        other = rng.choice(_INSTEAD[act])
        facts = slots if slots["fee"] != "0" else {**slots, "fee": _other_number("0", rng)}
        return rng.choice(wordings(other, facts, split)), _GIST[other].format(**facts)
    if kind == "fact":
        facts = _changed(act, slots, rng)
        texts = wordings(act, facts, split)
        return texts[index] if rng.random() < 0.5 else rng.choice(texts), _GIST[act].format(**facts)
    if kind == "negation":
        return rng.choice(BANKS[split].negated[act]).format(**slots), "opposite"
    if kind == "stray":
        return _stray(split, rng), "off the point"
    words = wordings(act, slots, split)[index].split()
    rng.shuffle(words)
    return " ".join(words[: rng.randint(1, max(1, len(words) // 2))]), "nonsense"


def _stray(split: Split, rng: Random) -> str:
    """What a model says that has lost the thread: chatter of no use, often over and over."""
    text = rng.choice(STRAY[split])
    return " ".join([text] * rng.choice((1, 1, 2, 4)))


def _changed(act: str, slots: Slots, rng: Random) -> dict[str, str]:
    """The slots with one fact of the act replaced: the fee, the price, or the package for the other profile's."""
    if act == "penalty_notice":
        return {**slots, "fee": _other_number(slots["fee"], rng)}
    if rng.random() < 0.5:
        return {**slots, "price": _other_number(slots["price"], rng)}
    return {**slots, "package": slots["other_package"], "price": slots["other_price"]}


def _other_number(number: str, rng: Random) -> str:
    """Another amount in dollars that needs no "an" before it."""
    return str(rng.choice([n for n in range(15, 201, 5) if str(n) != number and n not in (80, 85)]))
