"""Ratings of extracted chains of thought by people (second paper, section 4.1).

A file to fill in, and the agreement of people with the judge: mean grades and Spearman's rho.

Every chain that the judge of chains has graded can be rated, dropped ones included; raters do not see its grade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from hamr.apps.data.recipes.teachers import without_thought
from hamr.bench.agreement import correlation
from hamr.data.progress import ItemResult
from hamr.data.rendering import turns_text
from hamr.data.samples import read_rows, write_rows
from hamr.errors import BadInput, DataError, VerdictUnparsable
from hamr.rewards.cot import read_cot_quality
from hamr.types import ServiceSample

JUDGED = "chain's quality"
"""Step of the recipes in which the judge grades a chain."""
RESAMPLES = 1000


def graded_chains(results: Mapping[str, ItemResult]) -> dict[str, tuple[str, int]]:
    """Return {item: (the text with the chain, the judge's grade)} of every item's last graded extraction."""
    found = {}
    for name, result in results.items():
        written = ""
        for text in result.texts:
            if text["step"] != JUDGED:
                written = without_thought(text["text"] or "")
                continue
            try:
                found[name] = (written, read_cot_quality(text["text"] or "").grade)
            except VerdictUnparsable:
                continue
    return found


def write_to_rate(path: Path, samples: Sequence[ServiceSample], results: Mapping[str, ItemResult], count: int) -> int:
    """Write up to `count` chains, drawn by chance, with an open `rating`. Return their number."""
    chains, by_id = graded_chains(results), {sample.id: sample for sample in samples}
    names = sorted(Random(0).sample(sorted(chains), min(count, len(chains))))
    write_rows(
        path,
        (
            {"id": name, "history": turns_text(by_id[name].history), "chain": chains[name][0], "rating": None}
            for name in names
        ),
    )
    return len(names)


def agreement(path: Path, results: Mapping[str, ItemResult]) -> dict[str, Any]:
    """Return the agreement of the judge with the filled-in file; open rows are skipped.

    Raises DataError for a rating that is not 1 to 5, for an unknown item and for another chain than was rated;
    BadInput where nothing is rated.
    """
    chains = graded_chains(results)
    people: list[int] = []
    judge: list[int] = []
    for line, row in read_rows(path):
        where = f"{path}:{line}"
        if not isinstance(row, dict) or not isinstance(row.get("id"), str) or row["id"] not in chains:
            raise DataError(f"{where}: id", row.get("id") if isinstance(row, dict) else row, "no such graded chain")
        if row.get("chain") != chains[row["id"]][0]:
            raise DataError(f"{where}: chain", row["id"], "has been written again since; rate the new chain")
        rating = row.get("rating")
        if rating is None:
            continue
        if rating not in (1, 2, 3, 4, 5) or isinstance(rating, bool):
            raise DataError(f"{where}: rating", rating, "must be an integer from 1 to 5, or null")
        people.append(int(rating))
        judge.append(chains[row["id"]][1])
    if not people:
        raise BadInput("ratings", str(path), "has no rating; fill in some")
    rho = correlation([float(grade) for grade in judge], [float(grade) for grade in people], RESAMPLES, 0)
    return {
        "rated": len(people),
        "judge_mean": fmean(judge),
        "people_mean": fmean(people),
        "spearman": rho.rho,
        "low": rho.low,
        "high": rho.high,
    }
