"""Responses with a judge's label, for training and measuring a grader.

A line is a sample (`hamr.data.samples`) with `response`, `label` and `reason`, as `hamr data hallucination` writes it.
`label` is "none", or the flaw, or a list of flaws. A line with `labels` is a labelled response of
OlaBench (`hamr.bench.olabench.labelled`), such as those that `hamr data olabench` plants.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.bench.olabench.items import visible_sample
from hamr.bench.olabench.labelled import UNKNOWN, parse_labelled
from hamr.data.samples import from_json, read_rows
from hamr.data.splits import dialogue_of
from hamr.errors import DataError
from hamr.rewards.questions import case_variables
from hamr.types import ServiceSample

CLEAN = "none"
HELD_OUT = 5
"""One dialogue of this number is held out if there is no separate file."""


@dataclass(frozen=True, kw_only=True)
class JudgedResponse:
    """A labelled response. `labels` is empty for one without flaws."""

    sample: ServiceSample
    response: str
    labels: tuple[str, ...]
    reason: str


def read_judged(path: str | Path, labels: Sequence[str], reward: str = "hallucination") -> list[JudgedResponse]:
    """Return the responses of a file that have a label for `reward`. `labels`: the known flaws.

    Raises DataError at `file:line: field`.
    """
    found = []
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: line", row, "must be a JSON object")
        if "labels" in row:
            found += _of_bench(row, where, reward)
            continue
        row = dict(row)
        response, label, reason = (row.pop(field, None) for field in ("response", "label", "reason"))
        if not isinstance(response, str):
            raise DataError(f"{where}: response", response, "must be a text")
        if not isinstance(reason, str | None):
            raise DataError(f"{where}: reason", reason, "must be a text or null")
        found.append(
            JudgedResponse(
                sample=from_json(row, where=where),
                response=response,
                labels=_labels(label, labels, where),
                reason=reason or "",
            )
        )
    return found


def _of_bench(row: dict[str, Any], where: str, reward: str) -> list[JudgedResponse]:
    """Return the labelled response of an OlaBench item, or nothing without a label of known type. Responses to an item
    have its id, so that they are held out together."""
    one = parse_labelled(row, where)
    label = getattr(one.labels, reward)
    if label is None or label in UNKNOWN:
        return []
    flaws = label if isinstance(label, tuple) else () if label == CLEAN else (label,)
    sample = dataclasses.replace(visible_sample(one.item), id=one.id.rpartition("/")[0] or one.id)
    return [JudgedResponse(sample=sample, response=one.response, labels=flaws, reason="")]


def _labels(label: Any, known: Sequence[str], where: str) -> tuple[str, ...]:
    named = [label] if isinstance(label, str) else label
    if named == [CLEAN]:
        return ()
    if not isinstance(named, list) or not named or not set(map(str, named)) <= set(known):
        raise DataError(f"{where}: label", label, f'must be "{CLEAN}" or of {", ".join(known)}')
    return tuple(name for name in known if name in named)


def split_off(rows: Sequence[JudgedResponse], seed: int) -> tuple[list[JudgedResponse], list[JudgedResponse]]:
    """Return (training rows, held-out rows). All responses to the samples of one dialogue are in the same part."""
    dialogues = sorted({dialogue_of(row.sample) for row in rows})
    random.Random(seed).shuffle(dialogues)
    out = set(dialogues[: len(dialogues) // HELD_OUT])
    train = [row for row in rows if dialogue_of(row.sample) not in out]
    return train, [row for row in rows if dialogue_of(row.sample) in out]


def borne_out(row: JudgedResponse) -> float:
    """Return the share of the response's distinct words that occur in the judge's input: the baseline of a grader.

    1.0 for a response without words.
    """
    words = set(re.findall(r"\w+", row.response.lower()))
    material = set(re.findall(r"\w+", " ".join(case_variables(row.sample).values()).lower()))
    return len(words & material) / len(words) if words else 1.0
