"""Common parts of the trainer protocols: implicit groups and missing rewards."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hamr.errors import DataError, HamrError

Missing = Literal["refuse", "null", "nan", "group_mean"]
SampleResponses = tuple[Mapping[str, Any], list[str]]
"""A sample in the sample format, and its responses."""


class RewardMissing(HamrError):
    """Responses could not be scored, and the protocol cannot express that. `failures`: index, kind, detail of each."""

    def __init__(self, failures: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(failures)
        self.failures = tuple(failures)

    def __str__(self) -> str:
        first = self.failures[0]
        cause = f"{first['kind']}: {first['detail']}" if first.get("detail") else str(first["kind"])
        return f"{len(self.failures)} responses could not be scored; the first, {first['index']}: {cause}"


def runs(keys: Sequence[object], size: int | None = None) -> list[range]:
    """Return the groups in consecutive responses: neighbours with equal keys, at most `size` of them.

    Only `size` separates two consecutive groups of the same sample.

    >>> runs(["a", "a", "a", "a", "b", "b"], size=2)
    [range(0, 2), range(2, 4), range(4, 6)]
    """
    if size is not None and size < 1:
        raise ValueError(f"size={size}: a group has at least one response")
    found: list[range] = []
    for index, key in enumerate(keys):
        last = found[-1] if found else range(0)
        if last and keys[last.start] == key and (size is None or len(last) < size):
            found[-1] = range(last.start, index + 1)
        else:
            found.append(range(index, index + 1))
    return found


def read_sample(value: Any, where: str) -> Mapping[str, Any]:
    """Parse a sample given as JSON text (in datasets and forms) or as an object. Raise DataError."""
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(where, value, f"is not JSON ({error}); give the sample in the sample format") from error
    if not isinstance(value, Mapping):
        raise DataError(where, value, "must be a sample: an object in the sample format, or its JSON")
    return value


def group_responses(
    samples: Sequence[Any], responses: Sequence[str], where: str, size: int | None = None
) -> list[SampleResponses]:
    """Group consecutive (sample, response) pairs. `where` names the samples in a DataError."""
    return [
        (read_sample(samples[run.start], f"{where}[{run.start}]"), [responses[i] for i in run])
        for run in runs(samples, size)
    ]


def is_malformed(record: Mapping[str, Any]) -> bool:
    """Return whether a record's response could not be parsed. One that the router did not answer has no components."""
    return record["action"] is None and bool(record["components"])


def rewards_as_numbers(
    rewards: Sequence[Sequence[float | None]], missing: Missing, failures: Sequence[Mapping[str, Any]]
) -> list[float | None]:
    """Return the rewards of all groups in order, for a protocol of numbers. A missing reward is never replaced by 0.

    `refuse` raises RewardMissing with `failures`. `group_mean` uses the mean of the other responses in the group, so
    the response has no advantage and the baseline is unchanged; a group without any reward raises RewardMissing. `nan`
    and `null` leave the treatment to the trainer.
    """
    flat: list[float | None] = []
    for group in rewards:
        known = [value for value in group if value is not None]
        if len(known) < len(group) and (missing == "refuse" or (missing == "group_mean" and not known)):
            raise RewardMissing(failures)
        instead = {"nan": math.nan, "group_mean": math.fsum(known) / len(known) if known else None}.get(missing)
        flat += [instead if value is None else value for value in group]
    return flat


def list_unscored(
    rewards: Sequence[Sequence[float | None]], records: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return index, kind and detail of every response without a reward. `records` are those of all groups in order, as
    JSON."""
    flat = [value for group in rewards for value in group]
    return [{"index": i, **r["total"]} for i, (v, r) in enumerate(zip(flat, records, strict=True)) if v is None]
