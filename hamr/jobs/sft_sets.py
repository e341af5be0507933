"""The sets of `hamr sft`, read, checked and encoded, before Ray starts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hamr.backends.models import resolve_model
from hamr.backends.tokenizer import Tokenizer, load_tokenizer
from hamr.config.schema import Config
from hamr.config.sft import SftSetConfig
from hamr.data.sft_encoding import EncodedItem, encode_item
from hamr.data.sft_items import KINDS, PARTS, SftItem, decision_item, numbered_items
from hamr.data.sft_mix import MixOrder, held_out_dialogues
from hamr.errors import BadInput, ConfigError, DataError
from hamr.jobs.preparation import load_splits
from hamr.types import ServiceSample


@dataclass(frozen=True, kw_only=True)
class Located:
    """An item and where it stands."""

    item: SftItem
    where: str

    @property
    def dialogue(self) -> str:
        return str(self.item.sample.meta.get("dialogue", self.item.sample.id))


@dataclass(frozen=True, kw_only=True)
class LoadedSet:
    """A set as it is trained on. `other_kinds` items were left out by `sft.kinds`, `too_long` by
    `model.max_context`; `held_out` were kept from training, of which `validation` is what is validated on."""

    name: str
    weight: float
    train: tuple[EncodedItem, ...]
    validation: tuple[EncodedItem, ...]
    other_kinds: int
    too_long: int
    held_out: int


@dataclass(frozen=True, kw_only=True)
class PreparedSft:
    """A job's inputs, checked."""

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
        """Items that the run trains on, those that come up again counted again."""
        sft = self.config.sft
        return sft.steps * sft.batch_size if sft.steps else self.order.total(sft.epochs)

    @property
    def steps(self) -> int:
        return -(-self.items_in_all // self.config.sft.batch_size)

    def batch(self, step: int) -> list[EncodedItem]:
        """The items of optimiser step `step`, counted from 1. The last one's may be fewer."""
        size = self.config.sft.batch_size
        start = (step - 1) * size
        places = self.order.take(start, min(size, self.items_in_all - start))
        return [self.sets[which].train[item] for which, item in places]


def prepare_sft(config: Config) -> PreparedSft:
    """Reads every set, and encodes what is to be trained and validated on.

    Raises BadInput (one line: where, what, what to change) for no sets, a file that cannot be read, a set that has
    nothing to train on, and an item that cannot be trained on.
    """
    if not config.sft.sets:
        raise BadInput("sft.sets", [], "is empty; name what to train on: sft.sets=[{path: items.jsonl}]")
    read = [_read(s, config) for s in config.sft.sets]
    frac = config.sft.held_out_frac
    split_off = [[x.dialogue for x in train] if given is None else [] for train, given, _ in read]
    held = held_out_dialogues(split_off, frac, config.experiment.seed)
    held |= {x.dialogue for _, given, _ in read for x in given or ()}
    model_path = resolve_model(config.model.path)
    tokenizer = load_tokenizer(model_path)
    sets = []
    for entry, (items, given, other_kinds) in zip(config.sft.sets, read, strict=True):
        train = [x for x in items if x.dialogue not in held]
        validation = list(given if given is not None else [x for x in items if x.dialogue in held])
        held_out = len(items) - len(train)
        if len(validation) > config.sft.max_validation:
            rng = random.Random(f"{config.experiment.seed}/validation/{entry.label}")
            validation = rng.sample(validation, config.sft.max_validation)
        fitting = [_encoded(part, tokenizer, config) for part in (train, validation)]
        if entry.weight and not fitting[0]:
            raise DataError(
                f"sft.sets: {entry.label}",
                f"{len(items)} items",
                f"none is left to train on: {held_out} are held out and {len(train)} are longer than "
                f"model.max_context={config.model.max_context}; raise that, or lower sft.held_out_frac={frac:g}",
            )
        sets.append(
            LoadedSet(
                name=entry.label,
                weight=entry.weight,
                train=tuple(fitting[0]),
                validation=tuple(fitting[1]),
                other_kinds=other_kinds,
                too_long=len(train) + len(validation) - len(fitting[0]) - len(fitting[1]),
                held_out=held_out,
            )
        )
    prepared = PreparedSft(config=config, model_path=model_path, tokenizer=tokenizer, sets=tuple(sets))
    if not prepared.order.total(config.sft.epochs):
        weights = ", ".join(f"{s.name} {s.weight:g} x {len(s.train)} items" for s in sets)
        raise ConfigError("sft.sets", weights, "an epoch of the mix has no item; raise the weights")
    return prepared


def _read(entry: SftSetConfig, config: Config) -> tuple[list[Located], list[Located] | None, int]:
    """(items, held-out items if they are given, how many of another kind were left out)."""
    given: list[Located] | None = None
    if entry.path is not None:
        everything = list(_from_file(entry.path))
        if entry.validation is not None:
            given = list(_from_file(entry.validation))
    else:
        splits = load_splits(config.data, config.experiment.seed)
        everything, given = list(_references(splits.train)), list(_references(splits.validation))
    kinds = config.sft.kinds or KINDS
    kept = [x for x in everything if x.item.kind in kinds]
    if not kept:
        counts = ", ".join(f"{n} {kind}" for kind, n in Counter(x.item.kind for x in everything).items())
        raise DataError(f"sft.sets: {entry.label}", counts, f"none is of sft.kinds={list(kinds)}; change one of them")
    if given is not None:
        given = [x for x in given if x.item.kind in kinds]
    return kept, given, len(everything) - len(kept)


def _from_file(path: str) -> Iterable[Located]:
    for number, item in numbered_items(path):
        yield Located(item=item, where=f"{path}:{number}")


def _references(samples: Iterable[ServiceSample]) -> Iterable[Located]:
    for sample in samples:
        for i, reference in enumerate(sample.references):
            yield Located(item=decision_item(sample, reference.action), where=f"sample {sample.id}: references[{i}]")


def _encoded(items: Sequence[Located], tokenizer: Tokenizer, config: Config) -> list[EncodedItem]:
    """The items that fit into the context. Raises DataError for one that does not where that is asked for, and for one
    without a token to learn."""
    fitting = []
    for x in items:
        encoded = encode_item(x.item, tokenizer, config.sft.without_loss, where=x.where)
        if not any(encoded.mask):
            raise ConfigError(
                "sft.without_loss",
                list(config.sft.without_loss),
                f"leaves a {x.item.kind} nothing to learn, which has {', '.join(PARTS[x.item.kind])} ({x.where})",
            )
        if len(encoded) <= config.model.max_context:
            fitting.append(encoded)
        elif config.sft.long_item == "refuse":
            raise DataError(
                x.where,
                f"{len(encoded)} tokens",
                f"longer than model.max_context={config.model.max_context}; raise that, shorten the item, or set "
                "sft.long_item=drop",
            )
    return fitting
