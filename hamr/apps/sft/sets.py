"""Reads, checks and encodes the sets of `hamr sft` before Ray starts."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hamr.apps.shared.preparation import load_splits
from hamr.config.schema import Config
from hamr.config.sft import SftSetConfig
from hamr.data.policy_chat import PolicyChat
from hamr.data.sft_encoding import EncodedItem, encode_item
from hamr.data.sft_items import KINDS, SftItem, decision_item, numbered_items
from hamr.data.sft_mix import MixOrder, held_out_dialogues
from hamr.data.splits import dialogue_of
from hamr.errors import BadInput, ConfigError, DataError
from hamr.models.bundled import resolve_model
from hamr.models.tokenizer import Tokenizer, load_tokenizer
from hamr.types import ServiceSample


@dataclass(frozen=True, kw_only=True)
class Located:
    """An item and its location in the input."""

    item: SftItem
    where: str

    @property
    def dialogue(self) -> str:
        return dialogue_of(self.item.sample)


@dataclass(frozen=True, kw_only=True)
class LoadedSet:
    """An encoded set. `other_kinds` items were excluded by `sft.kinds`, `too_long` ones, of either part, by
    `model.max_context`; `held_out` items were excluded from training, those of the test split from validation too."""

    name: str
    weight: float
    train: tuple[EncodedItem, ...]
    validation: tuple[EncodedItem, ...]
    other_kinds: int
    too_long: int
    held_out: int


@dataclass(frozen=True, kw_only=True)
class PreparedSft:
    """Checked inputs of a job."""

    config: Config
    model_path: Path
    tokenizer: Tokenizer
    sets: tuple[LoadedSet, ...]

    @cached_property
    def order(self) -> MixOrder:
        return MixOrder(
            sizes=tuple(len(s.train) for s in self.sets),
            weights=tuple(s.weight for s in self.sets),
            seed=self.config.experiment.seed,
        )

    @property
    def items_in_all(self) -> int:
        """Number of items that the run trains on, counting repetitions."""
        sft = self.config.sft
        return sft.steps * sft.batch_size if sft.steps else self.order.total(sft.epochs)

    @property
    def steps(self) -> int:
        return -(-self.items_in_all // self.config.sft.batch_size)

    @cached_property
    def digest(self) -> str:
        """Digest of all training items in order. A step is only a position in the mix, so the items must not change."""
        hasher = hashlib.sha256()
        for s in self.sets:
            hasher.update(f"{s.name}/{s.weight}/{len(s.train)}".encode())
            for item in s.train:
                for part in (item.prompt_ids, item.token_ids):
                    hasher.update(hashlib.sha256(part).digest())
        return hasher.hexdigest()[:16]

    def batch(self, step: int) -> list[EncodedItem]:
        """Return the items of optimiser step `step`, counted from 1. The last batch may be smaller."""
        size = self.config.sft.batch_size
        start = (step - 1) * size
        places = self.order.take(start, min(size, self.items_in_all - start))
        return [self.sets[which].train[item] for which, item in places]


def prepare_sft(config: Config) -> PreparedSft:
    """Read every set and encode its training and validation items.

    Raises BadInput (one line: where, what, what to change) for no sets, an unreadable file, a set without training
    items, and an item that cannot be trained on.
    """
    if not config.sft.sets:
        raise BadInput("sft.sets", [], "is empty; name the sets to train on: sft.sets=[{path: items.jsonl}]")
    read = [_read(entry, config) for entry in config.sft.sets]
    split_off = [[x.dialogue for x in r.items] if r.validation is None else [] for r in read]
    held = held_out_dialogues(split_off, config.sft.held_out_frac, config.experiment.seed)
    held |= {x.dialogue for r in read for x in r.validation or ()}
    test = frozenset[str]().union(*(r.test for r in read))
    model_path = resolve_model(config.model.path)
    tokenizer = load_tokenizer(model_path)
    chat = PolicyChat.of(tokenizer, config.model.tools_prompt)
    sets = [_load_set(entry, r, held, test, chat, config) for entry, r in zip(config.sft.sets, read, strict=True)]
    prepared = PreparedSft(config=config, model_path=model_path, tokenizer=tokenizer, sets=tuple(sets))
    if not prepared.order.total(config.sft.epochs):
        weights = ", ".join(f"{s.name} {s.weight:g} x {len(s.train)} items" for s in sets)
        raise ConfigError("sft.sets", weights, "an epoch of the mix has no items; raise the weights")
    return prepared


@dataclass(frozen=True, kw_only=True)
class _Read:
    """A set's items of the wanted kinds. `validation` is None if no validation items were given; some are split off
    then. `test` has the dialogues of the test split of `data`, which no set may use."""

    items: list[Located]
    validation: list[Located] | None
    other_kinds: int
    test: frozenset[str] = frozenset()


def _read(entry: SftSetConfig, config: Config) -> _Read:
    given: list[Located] | None = None
    test = frozenset[str]()
    if entry.path is not None:
        everything = list(_from_file(entry.path))
        if entry.validation is not None:
            given = list(_from_file(entry.validation))
    else:
        splits = load_splits(config.data, config.experiment.seed)
        everything, given = list(_references(splits.for_sft)), list(_references(splits.validation))
        test = frozenset(map(dialogue_of, splits.test))
    kinds = config.sft.kinds or KINDS
    kept = [x for x in everything if x.item.kind in kinds]
    if not kept:
        counts = ", ".join(f"{n} {kind}" for kind, n in Counter(x.item.kind for x in everything).items())
        raise DataError(f"sft.sets: {entry.label}", counts, f"none is of sft.kinds={list(kinds)}; change one of them")
    if given is not None:
        given = [x for x in given if x.item.kind in kinds]
    return _Read(items=kept, validation=given, other_kinds=len(everything) - len(kept), test=test)


def _load_set(
    entry: SftSetConfig, read: _Read, held: set[str], test: frozenset[str], chat: PolicyChat, config: Config
) -> LoadedSet:
    """Return training and validation items, encoded; items of dialogues in `held` are not trained on, those of
    dialogues in `test` not used at all."""
    train = [x for x in read.items if x.dialogue not in held | test]
    known = [x for x in read.items if x.dialogue in held] if read.validation is None else read.validation
    validation = [x for x in known if x.dialogue not in test]
    if len(validation) > config.sft.max_validation:
        rng = random.Random(f"{config.experiment.seed}/validation/{entry.label}")
        validation = rng.sample(validation, config.sft.max_validation)
    fitting, validated = _encode_items(train, chat, config), _encode_items(validation, chat, config)
    held_out = len(read.items) - len(train)
    if entry.weight and not fitting:
        raise DataError(
            f"sft.sets: {entry.label}",
            f"{len(read.items)} items",
            f"none is left to train on: {held_out} are held out and {len(train)} are longer than model.max_context="
            f"{config.model.max_context}; raise that, or lower sft.held_out_frac={config.sft.held_out_frac:g}",
        )
    return LoadedSet(
        name=entry.label,
        weight=entry.weight,
        train=tuple(fitting),
        validation=tuple(validated),
        other_kinds=read.other_kinds,
        too_long=len(train) + len(validation) - len(fitting) - len(validated),
        held_out=held_out,
    )


def _from_file(path: str) -> Iterable[Located]:
    for number, item in numbered_items(path):
        yield Located(item=item, where=f"{path}:{number}")


def _references(samples: Iterable[ServiceSample]) -> Iterable[Located]:
    for sample in samples:
        for i, reference in enumerate(sample.references):
            yield Located(item=decision_item(sample, reference.action), where=f"sample {sample.id}: references[{i}]")


def _encode_items(items: Sequence[Located], chat: PolicyChat, config: Config) -> list[EncodedItem]:
    """Encode the items that fit into the context."""
    found = (encode_item(x.item, chat.tokenizer, native=chat.native, where=x.where) for x in items)
    return [item for item in found if len(item) <= config.model.max_context]
