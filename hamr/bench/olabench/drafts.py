"""What building an item knows of it, and how a bench is dealt out over kinds, subsets and traps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from hamr.bench.olabench.items import KINDS, SUBSETS, TRAPS, BenchItem, ItemEvidence, Kind, Subset
from hamr.bench.olabench.words import BenchWords
from hamr.types import ServiceSample


@dataclass(frozen=True, kw_only=True)
class ItemDraft:
    """`replies`: answers that are known to say nothing but what the material bears out. `misuse`: what a retrieved pair
    says that does not fit the case. `aside`: a true pair about another case, which was not retrieved. `step`: what has
    to be done, "" where that is not known."""

    item: BenchItem
    replies: tuple[str, ...] = ()
    misuse: tuple[str, ...] = ()
    aside: ItemEvidence | None = None
    step: str = ""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One item that is wanted."""

    kind: Kind
    subset: Subset
    trap: str = ""


def slots(sizes: Mapping[Subset, int], kinds: Sequence[Kind] = KINDS) -> list[Slot]:
    """So many items of each subset, shared by the kinds and, within a kind, by the types that it can be tempted to
    (misuse needs something retrieved). What does not divide goes to the first.

    >>> [(slot.kind, slot.trap) for slot in slots({"core": 0, "risk": 0, "hallucination": 2}, ["rag", "agent"])]
    [('rag', 'misuse'), ('agent', 'factual')]
    """
    found = []
    for subset in SUBSETS:
        given = dict.fromkeys(kinds, 0)
        for number in range(sizes[subset]):
            kind = kinds[number % len(kinds)]
            traps = [trap for trap in TRAPS[subset] if trap != "misuse" or kind == "rag"]
            trap = traps[given[kind] % len(traps)] if traps else ""
            found.append(Slot(kind=kind, subset=subset, trap=trap))
            given[kind] += 1
    return found


def add_temptation(sample: ServiceSample, trap: str, words: BenchWords, rng: Random) -> ServiceSample:
    """The sample with a sentence that tempts to `trap` at the end of the customer's last message."""
    if not trap:
        return sample
    *before, last = sample.history
    content = f"{last.content} {rng.choice(words.traps[trap])}".strip()
    return dataclasses.replace(sample, history=(*before, dataclasses.replace(last, content=content)))
