"""Drafts of items, and the allocation of a benchmark's items to kinds, subsets and traps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from hamr.bench.olabench.items import KINDS, SUBSETS, TRAPS, BenchItem, ItemEvidence, ItemKind, SkillNode, Subset
from hamr.bench.olabench.words import BenchWords
from hamr.types import ServiceSample

RETRIEVED = 4
"""Number of retrieved pairs of an item, including the one that fits."""


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

    kind: ItemKind
    subset: Subset
    trap: str = ""


Proportions = Literal["equal", "paper"]
KIND_SHARES: Mapping[ItemKind, int] = {"rag": 768, "workflow": 952, "agent": 1280}
TRAP_SHARES: Mapping[Subset, Mapping[str, int]] = {
    "risk": {"liability": 618, "role": 228, "overcommitment": 138, "disparagement": 16},
    "hallucination": {"misuse": 321, "factual": 481, "relevance": 144, "logical": 54},
}
"""Items of the second paper's Table 1: of each kind in the core subset, and of each type in the others."""


def proportional(total: int, weights: Mapping[Any, int]) -> dict[Any, int]:
    """Divide a total in proportion to the weights, by the largest remainders.

    >>> proportional(10, {"a": 2, "b": 1})
    {'a': 7, 'b': 3}
    """
    exact = {name: total * weight / sum(weights.values()) for name, weight in weights.items()}
    found = {name: int(value) for name, value in exact.items()}
    left = sorted(exact, key=lambda name: found[name] - exact[name])
    for name in left[: total - sum(found.values())]:
        found[name] += 1
    return found


def paper_slots(sizes: Mapping[Subset, int], kinds: Sequence[ItemKind] = KINDS) -> list[Slot]:
    """Return the slots of each subset in the proportions of the paper's Table 1.

    The table does not say of which kinds the items of a risk or a hallucination are: they are divided evenly, except
    misuse, which needs retrieved pairs.
    """
    core = proportional(sizes["core"], {kind: KIND_SHARES[kind] for kind in kinds})
    found = [Slot(kind=kind, subset="core") for kind in kinds for _ in range(core[kind])]
    for subset, weights in TRAP_SHARES.items():
        possible = {trap: weight for trap, weight in weights.items() if trap != "misuse" or "rag" in kinds}
        given = dict.fromkeys(kinds, 0)
        for trap, count in proportional(sizes[subset], possible).items():
            for _ in range(count):
                kind: ItemKind = "rag" if trap == "misuse" else min(kinds, key=given.__getitem__)
                given[kind] += 1
                found.append(Slot(kind=kind, subset=subset, trap=trap))
    return found


def slots(
    sizes: Mapping[Subset, int], kinds: Sequence[ItemKind] = KINDS, proportions: Proportions = "equal"
) -> list[Slot]:
    """Return the slots of each subset: in the paper's proportions, or divided evenly among the kinds and, within a
    kind, among its possible traps.

    Misuse needs retrieved pairs. A remainder goes to the first kinds and traps.

    >>> [(slot.kind, slot.trap) for slot in slots({"core": 0, "risk": 0, "hallucination": 2}, ["rag", "agent"])]
    [('rag', 'misuse'), ('agent', 'factual')]
    """
    if proportions == "paper":
        return paper_slots(sizes, kinds)
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


def skill_nodes(words: BenchWords, outputs: Sequence[str]) -> tuple[SkillNode, ...]:
    """Return the nodes of a workflow: one with each output, then the node under test."""
    nodes = zip(words.nodes, (*outputs, None), strict=True)
    return tuple(SkillNode(name=node.name, task=node.task, output=output) for node, output in nodes)


def add_temptation(sample: ServiceSample, trap: str, words: BenchWords, rng: Random) -> ServiceSample:
    """Return the sample with a sentence that tempts to `trap` at the end of the customer's last message."""
    if not trap:
        return sample
    *before, last = sample.history
    content = f"{last.content} {rng.choice(words.traps[trap])}".strip()
    return dataclasses.replace(sample, history=(*before, dataclasses.replace(last, content=content)))
