"""Items from samples of any corpus (`hamr data import`), for which no rule engine determines the right answer.

The correct answers are the logged references. An agent item is the sample itself. A workflow item gives the last node
what the corpus knows: the customer's request, the ticket, and the step (`meta.cluster`, the node of the procedure that
the human was at). A rag item gets
pairs of a customer's message and the logged reply: its own pair, and others at other steps under the same policy. Only
the reply of its own pair is right by construction; what people wrote may itself be wrong, or state nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from random import Random

from hamr.bench.olabench.drafts import RETRIEVED, ItemDraft, Proportions, Slot, add_temptation, skill_nodes, slots
from hamr.bench.olabench.items import KINDS, BenchItem, ItemEvidence, ItemKind, Subset
from hamr.bench.olabench.words import BenchWords, bench_words
from hamr.errors import BadInput
from hamr.types import Reply, ServiceSample

_REQUEST_KEYS = ("intent", "flow", "task", "domain")
"""Keys of `meta` under which importers keep the request."""


def draft_samples(
    samples: Sequence[ServiceSample],
    sizes: Mapping[Subset, int],
    *,
    seed: int,
    language: str,
    proportions: Proportions = "equal",
) -> list[ItemDraft]:
    """Return the items of each subset, of the kinds that the corpus allows, without repeating a sample.

    The result is deterministic across machines. Only samples with a policy whose last turn is the customer's are used.
    Raises BadInput where they are too few.
    """
    rng, words = Random(f"olabench/{seed}"), bench_words(language)
    usable = [s for s in samples if s.policy.strip() and s.history and s.history[-1].role == "customer"]
    corpus = _Corpus(usable)
    kinds = [kind for kind in KINDS if any(corpus.allows(kind, sample) for sample in usable)]
    if not kinds:
        remedy = "none has a policy, a customer's last turn, and tools or a logged reply; give other samples"
        raise BadInput("samples", f"{len(samples)} samples", remedy)
    # Use samples that fit few kinds first, so that enough samples remain for the restrictive slots.
    left = sorted(rng.sample(usable, len(usable)), key=lambda s: sum(corpus.allows(kind, s) for kind in kinds))
    found = []
    for slot in slots(sizes, kinds, proportions):
        sample = next((s for s in left if corpus.allows(slot.kind, s)), None)
        if sample is None:
            remedy = f"none of the {len(usable)} usable samples is left for kind {slot.kind}; ask for fewer items"
            raise BadInput(slot.subset, sizes[slot.subset], remedy)
        left.remove(sample)
        sample = dataclasses.replace(sample, id=f"{sample.id}-{slot.kind}")
        found.append(corpus.draft(add_temptation(sample, slot.trap, words, rng), slot, words, rng))
    return found


class _Corpus:
    """Samples indexed by policy and step."""

    def __init__(self, samples: Sequence[ServiceSample]) -> None:
        self.replies: dict[str, list[ServiceSample]] = {}
        for sample in samples:
            if _reply(sample):
                self.replies.setdefault(sample.policy, []).append(sample)

    def allows(self, kind: ItemKind, sample: ServiceSample) -> bool:
        if kind == "agent":
            return bool(sample.tools)
        if not _reply(sample):
            return False
        return "cluster" in sample.meta if kind == "workflow" else len(self._others(sample)) >= RETRIEVED - 1

    def draft(self, sample: ServiceSample, slot: Slot, words: BenchWords, rng: Random) -> ItemDraft:
        if slot.kind == "agent":
            return ItemDraft(item=BenchItem(sample=sample, kind="agent", subset=slot.subset, trap=slot.trap))
        bare = dataclasses.replace(sample, tools=())
        if slot.kind == "workflow":
            facts = words.joint.join(f"{name} = {value}" for name, value in sample.ticket.items())
            step = str(sample.meta["cluster"]).replace("_", " ")
            nodes = skill_nodes(words, (_request(sample), facts or words.no_facts, step))
            item = BenchItem(sample=bare, kind="workflow", subset=slot.subset, nodes=nodes, trap=slot.trap)
            return ItemDraft(item=item)
        others = rng.sample(self._others(sample), RETRIEVED - 1)
        pairs = tuple(
            ItemEvidence(question=one.history[-1].content, answer=_reply(one))
            for one in rng.sample([sample, *others], 1 + len(others))
        )
        item = BenchItem(sample=bare, kind="rag", subset=slot.subset, evidence=pairs, trap=slot.trap)
        return ItemDraft(item=item, replies=(_reply(sample),))

    def _others(self, sample: ServiceSample) -> list[ServiceSample]:
        """Return replies under the same policy at another step, worded differently from any right one, without
        duplicates."""
        right = {r.action.content for r in sample.references if isinstance(r.action, Reply)}
        found = {
            _reply(other): other
            for other in self.replies[sample.policy]
            if _step(other) != _step(sample) and _reply(other) not in right
        }
        return list(found.values())


def _request(sample: ServiceSample) -> str:
    """Return the corpus's name of the customer's request; without a name, the customer's first message."""
    named = next((str(sample.meta[key]) for key in _REQUEST_KEYS if sample.meta.get(key)), "")
    first = next(turn.content for turn in sample.history if turn.role == "customer")
    return named.replace("_", " ") or first


def _step(sample: ServiceSample) -> str:
    """Return the sample's step; without one, every reply is a step of its own."""
    return str(sample.meta.get("cluster", _reply(sample)))


def _reply(sample: ServiceSample) -> str:
    """Return the logged reply; "" where a tool was called."""
    first = sample.references[0].action
    return first.content if isinstance(first, Reply) else ""
