"""Train, validation and test splits: given as files, or split off by a seeded draw over dialogues."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hamr.errors import DataError
from hamr.types import ServiceSample

FEWEST = 3
"""Minimum number of dialogues for three splits."""


@dataclass(frozen=True, kw_only=True)
class Splits:
    train: tuple[ServiceSample, ...]
    validation: tuple[ServiceSample, ...]
    test: tuple[ServiceSample, ...]
    sft: tuple[ServiceSample, ...] = ()
    """Data for supervised fine-tuning if different from `train`, for example logs with errors."""

    @property
    def for_sft(self) -> tuple[ServiceSample, ...]:
        return self.sft or self.train


def split_samples(
    train: Sequence[ServiceSample],
    given: Mapping[str, Sequence[ServiceSample]],
    *,
    held_out_frac: float,
    seed: int,
) -> Splits:
    """Return the splits, with `validation` and `test` from `given` or split off the training samples.

    Each missing split gets `held_out_frac` of the training samples in whole groups (`meta["group"]`) or dialogues
    (`meta["dialogue"]`, else the sample and its copies). The remaining training samples keep their order, so the same
    samples give the same pairs for scorers, from a generator or from its file.

    Raises:
        DataError: No training or no test samples remain, two splits use one id for different samples (caches of
            prompts and rewards use the id as key), or a given split shares a group with another split.
    """
    place, dialogues = _dialogues(train), dict[str, list[ServiceSample]]()
    for sample in train:
        dialogues.setdefault(place[sample.id], []).append(sample)
    order = sorted(dialogues)
    random.Random(seed).shuffle(order)
    share = max(1, round(len(order) * held_out_frac)) if held_out_frac else 0
    parts = dict(given)
    for name in ("validation", "test"):
        if name not in parts:
            cut, order = order[:share], order[share:]
            parts[name] = [sample for dialogue in cut for sample in dialogues[dialogue]]
    left = set(order)
    kept = [sample for sample in train if place[sample.id] in left]
    if not kept or not parts["test"]:
        raise DataError(
            "data.train",
            f"{len(train)} samples of {len(dialogues)} dialogues",
            f"too few to split off {held_out_frac:g} of them twice; "
            "give data.validation and data.test, or more samples",
        )
    splits = {"train": kept, "validation": parts["validation"], "test": parts["test"]}
    _check_ids(splits)
    _check_groups(splits)
    return Splits(**{name: tuple(samples) for name, samples in splits.items()})


def add_sft(splits: Splits, samples: Sequence[ServiceSample]) -> Splits:
    """Return the splits with `samples` for supervised fine-tuning, without those of held-out dialogues and groups.

    Raises:
        DataError: A sample has the id of a training sample with another prompt. Caches use the id as key.
    """
    held_out = {key for sample in (*splits.validation, *splits.test) for key in (sample.id, dialogue_of(sample))}
    kept = tuple(sample for sample in samples if not held_out & {sample.id, dialogue_of(sample)})
    if not kept:
        raise DataError("data.sft", f"{len(samples)} samples", "all of them are held out; give others")
    _check_ids({"train": [_prompt(sample) for sample in splits.train], "sft": [_prompt(sample) for sample in kept]})
    return dataclasses.replace(splits, sft=kept)


def _prompt(sample: ServiceSample) -> ServiceSample:
    return dataclasses.replace(sample, references=(), privileged={}, meta={})


def _check_ids(splits: Mapping[str, Sequence[ServiceSample]]) -> None:
    seen: dict[str, tuple[str, ServiceSample]] = {}
    for name, samples in splits.items():
        for sample in samples:
            where, first = seen.setdefault(sample.id, (name, sample))
            if first is not sample and first != sample:
                raise DataError(
                    f"data.{name}: id",
                    sample.id,
                    f"another sample of data.{where} has this id; make ids unique over both",
                )


def _check_groups(splits: Mapping[str, Sequence[ServiceSample]]) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for name, samples in splits.items():
        for sample in samples:
            if (group := sample.meta.get("group")) is not None:
                where, first = seen.setdefault(str(group), (name, sample.id))
                if where != name:
                    raise DataError(
                        f"data.{name}: group",
                        group,
                        f"sample {sample.id!r} has the group of {first!r} in data.{where}; "
                        "move all samples of a group to one of these splits, or import with split=false",
                    )


def count_copies(samples: Iterable[ServiceSample]) -> int:
    """Return the number of samples that repeat another one in everything but id and `meta`."""
    every = list(samples)
    return len(every) - len({_content(sample) for sample in every})


def dialogue_of(sample: ServiceSample) -> str:
    """Return the name of the part of the data that stays in one split: the sample's group (`meta["group"]`: a customer
    or a task), else its dialogue (`meta["dialogue"]`), else the sample."""
    return str(sample.meta.get("group", sample.meta.get("dialogue", sample.id)))


def _dialogues(samples: Sequence[ServiceSample]) -> dict[str, str]:
    """Map the sample id to its `dialogue_of`, but a sample without a dialogue to the first one with the same content.

    If almost all samples are copies of one other, so that three splits cannot differ, each copy counts by itself.
    """
    first: dict[str, str] = {}
    for sample in samples:
        first.setdefault(_content(sample), sample.id)
    unique = len(first) >= FEWEST
    own = {s.id: first[_content(s)] if unique else s.id for s in samples}
    return {s.id: dialogue_of(s) if {"group", "dialogue"} & s.meta.keys() else own[s.id] for s in samples}


def _content(sample: ServiceSample) -> str:
    return repr(dataclasses.replace(sample, id="", meta={}))
