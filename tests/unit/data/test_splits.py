"""Splits taken from the training samples."""

from __future__ import annotations

import dataclasses

import pytest

from hamr.config.schema import SageDataConfig
from hamr.data.pairs import reply_pairs
from hamr.data.sage_samples import generate_samples
from hamr.data.samples import read_samples, write_samples
from hamr.data.splits import add_sft, count_copies, split_samples
from hamr.errors import DataError
from hamr.types import Reference, Reply, ServiceSample


def sample(name: str, dialogue: str) -> ServiceSample:
    return ServiceSample(
        id=name, ticket={}, policy="", tools=(), history=(), references=(Reference(action=Reply(content="Hi")),),
        meta={"dialogue": dialogue},
    )  # fmt: skip


SAMPLES = [sample(f"s{i}", f"d{i // 2}") for i in range(20)]


def test_group_stays_in_one_split() -> None:
    grouped = [dataclasses.replace(s, meta={**s.meta, "group": f"g{i % 4}"}) for i, s in enumerate(SAMPLES)]
    splits = split_samples(grouped, {}, held_out_frac=0.25, seed=0)
    groups = [{s.meta["group"] for s in split} for split in (splits.train, splits.validation, splits.test)]
    assert [len(group) for group in groups] == [2, 1, 1]
    assert len(set().union(*groups)) == 4


def test_group_in_two_splits_is_rejected() -> None:
    def grouped(name: str, group: str) -> ServiceSample:
        return dataclasses.replace(sample(name, name), meta={"group": group})

    train = [grouped(f"a{i}", f"g{i}") for i in range(8)]
    remedy = "has the group of 'a0' in data.train; move all samples of a group to one of these splits, or"
    with pytest.raises(DataError, match=f"data.test: group: 'g0': sample 't0' {remedy} import with split=false"):
        split_samples(train, {"test": [grouped("t0", "g0")]}, held_out_frac=0, seed=0)
    given = {"validation": [grouped("v0", "h")], "test": [grouped("t0", "h")]}
    with pytest.raises(DataError, match="data.test: group: 'h': sample 't0' has the group of 'v0' in data.validation"):
        split_samples(train, given, held_out_frac=0.1, seed=0)
    assert split_samples(train, {"test": [grouped("t0", "h")]}, held_out_frac=0.1, seed=0).test


def test_whole_dialogues_are_split_off_and_the_rest_keeps_its_order() -> None:
    splits = split_samples(SAMPLES, {}, held_out_frac=0.2, seed=3)
    parts = [{s.meta["dialogue"] for s in part} for part in (splits.train, splits.validation, splits.test)]
    assert [len(part) for part in parts] == [6, 2, 2] and len(set().union(*parts)) == 10
    assert list(splits.train) == [s for s in SAMPLES if s.meta["dialogue"] in parts[0]]
    assert split_samples(SAMPLES, {}, held_out_frac=0.2, seed=3) == splits
    assert split_samples(SAMPLES, {}, held_out_frac=0.2, seed=4) != splits


def test_pairs_from_files_equal_those_of_the_generator(tmp_path) -> None:
    made = generate_samples(SageDataConfig(train=60, validation=10, test=10, seed=5))
    write_samples(tmp_path / "train.jsonl", made.train)
    given = {"validation": made.validation, "test": made.test}
    splits = split_samples(read_samples(tmp_path / "train.jsonl"), given, held_out_frac=0.15, seed=0)
    assert reply_pairs(splits.train, 40, 17) == reply_pairs(made.train, 40, 17)


def test_duplicate_id_across_splits_is_rejected() -> None:
    given = {"validation": SAMPLES[:2], "test": [sample("s3", "elsewhere")]}
    with pytest.raises(DataError, match="data.test: id: 's3': another sample of data.train has this id"):
        split_samples(SAMPLES, given, held_out_frac=0.1, seed=0)
    assert split_samples(SAMPLES, {"validation": SAMPLES[:2], "test": SAMPLES[2:4]}, held_out_frac=0.1, seed=0)


def test_other_sft_data_lose_held_out_samples_and_keep_their_ids() -> None:
    splits = split_samples([sample(f"s{i}", f"d{i}") for i in range(9)], {}, held_out_frac=0.3, seed=0)
    other = [
        dataclasses.replace(s, references=(Reference(action=Reply(content="Wrong.")),))
        for s in (*splits.train, *splits.test)
    ]
    assert {s.id for s in add_sft(splits, other).sft} == {s.id for s in splits.train}
    with pytest.raises(DataError, match="data.sft: id: .* another sample of data.train has this id"):
        add_sft(splits, [dataclasses.replace(splits.train[0], policy="Another.")])
    with pytest.raises(DataError, match="data.sft: .* all of them are held out"):
        add_sft(splits, splits.test)


def test_other_sft_data_lose_the_dialogues_of_held_out_samples() -> None:
    splits = split_samples(SAMPLES, {}, held_out_frac=0.2, seed=3)
    points = [dataclasses.replace(s, id=f"{s.id} again") for s in SAMPLES]
    assert {s.meta["dialogue"] for s in add_sft(splits, points).sft} == {s.meta["dialogue"] for s in splits.train}


def test_too_few_samples_are_rejected() -> None:
    with pytest.raises(DataError, match="too few to split off"):
        split_samples(SAMPLES[:1], {}, held_out_frac=0.5, seed=0)


def logged(name: str, reply: str) -> ServiceSample:
    references = (Reference(action=Reply(content=reply)),)
    return ServiceSample(id=name, ticket={}, policy="", tools=(), history=(), references=references)


def test_copies_of_a_sample_stay_in_one_split() -> None:
    samples = [logged(f"s{i}", f"reply {i % 5}") for i in range(20)]
    assert count_copies(samples) == 15
    splits = split_samples(samples, {}, held_out_frac=0.2, seed=0)
    parts = [{s.references for s in part} for part in (splits.train, splits.validation, splits.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 5


def test_copies_of_one_sample_can_still_be_split() -> None:
    splits = split_samples([logged(f"s{i}", "Hi") for i in range(10)], {}, held_out_frac=0.2, seed=0)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [6, 2, 2]
