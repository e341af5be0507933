"""Replies that agree, half agree or disagree with an act of the generated telecom dialogues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from hamr.data.contrasts import (
    TELECOM_ACTS,
    Kind,
    changed_slots,
    courtesy,
    fragment,
    off_topic,
    other_facts,
    shuffled,
    with_fee,
)
from hamr.data.telecom import Slots, wordings
from hamr.data.telecom_words import BANKS, Split

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


_SHARES: Mapping[Kind, int] = {
    "act": 4, "fact": 3, "negation": 2, "courtesy": 2, "fragment": 1, "shuffled": 1, "off_topic": 2,
}  # fmt: skip
_NONSENSE = {"courtesy": "courtesy", "fragment": "a fragment", "shuffled": "nonsense", "off_topic": "off the point"}


def _wrong(act: str, slots: Slots, split: Split, index: int, rng: Random) -> tuple[str, str]:
    """(reply, what it says). All acts are equally likely in the place of the right one."""
    kind = rng.choices(list(_SHARES), list(_SHARES.values()))[0]
    if (kind == "fact" and act not in ("recommend", "penalty_notice")) or (kind == "courtesy" and act == "goodbye"):
        kind = "act"
    if kind == "act":
        other = rng.choice([name for name in TELECOM_ACTS if name != act])
        facts = other_facts(with_fee(slots, rng), with_fee(slots, rng), rng)
        return rng.choice(wordings(other, facts, split)), _GIST[other].format(**facts)
    if kind == "fact":
        facts = changed_slots(act, slots, rng)
        texts = wordings(act, facts, split)
        # Half of them in the reference's very words, so that the fact is what tells them from a right reply.
        return texts[index] if rng.random() < 0.5 else rng.choice(texts), _GIST[act].format(**facts)
    if kind == "negation":
        return rng.choice(BANKS[split].negated[act]).format(**slots), "opposite"
    reference = wordings(act, slots, split)[index]
    made = {"courtesy": courtesy, "off_topic": off_topic}.get(kind)
    text = made(split, rng) if made else {"fragment": fragment, "shuffled": shuffled}[kind](reference, rng)
    return text, _NONSENSE[kind]
