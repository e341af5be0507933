"""Drafts of items, and the allocation of a benchmark's items to kinds, subsets and traps."""

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
    """An item with the facts known at its construction.

    `replies`: answers that state only what the material supports. `misuse`: content of a retrieved pair that does not
    fit the case. `aside`: a true pair about another case, which was not retrieved. `step`: the required action, ""
    where it is not known.
    """

    item: BenchItem
    replies: tuple[str, ...] = ()
    misuse: tuple[str, ...] = ()
    aside: ItemEvidence | None = None
    step: str = ""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A requested item."""

    kind: Kind
    subset: Subset
    trap: str = ""


def slots(sizes: Mapping[Subset, int], kinds: Sequence[Kind] = KINDS) -> list[Slot]:
    """Return the slots of each subset, divided among the kinds and, within a kind, among its possible traps.

    Misuse needs retrieved pairs. A remainder goes to the first kinds and traps.

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
    """Return the sample with a sentence that tempts to `trap` at the end of the customer's last message."""
    if not trap:
        return sample
    *before, last = sample.history
    content = f"{last.content} {rng.choice(words.traps[trap])}".strip()
    return dataclasses.replace(sample, history=(*before, dataclasses.replace(last, content=content)))
