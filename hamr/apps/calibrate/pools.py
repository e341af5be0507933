"""Calibration triples from the pools: labelled pairs in, three scores per pair out."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from hamr.apps.scorer.pair_check import pair_question
from hamr.apps.shared.pools_up import known_pool, pools_of, with_pools, with_starts
from hamr.apps.shared.progress import Report, progress
from hamr.apps.shared.reply_clusters import scorer_splits
from hamr.cascade.cached_pool import failure_of
from hamr.config.pools import PoolConfig
from hamr.config.schema import Config
from hamr.data.pairs import ReplyPair
from hamr.data.progress import ItemResult, WorkItem, WorkProgress, item_key
from hamr.data.triples import Triples
from hamr.errors import BadInput, HamrError, first_failure
from hamr.prompting.labels import LABEL_VALUES
from hamr.prompting.templates import PromptTemplate, is_path
from hamr.protocols import Ask
from hamr.rewards.verdict import canonical_label, hard_score

Tell = Callable[[str], None]
RUN = "calibrate"
LABELS = "labels"
"""Value of `teachers` for the labels of the pairs."""


def ask_pools(config: Config, pairs: Sequence[ReplyPair], teachers: Sequence[str], tell: Tell, kept: Path) -> Triples:
    """Start the required pools, query them about every pair, and stop them.

    `kept` is a file to which scores are appended as they arrive. A later call reuses them if it has the same pairs,
    pools and prompts. If all scores exist, no pool starts.

    Raises BadInput for a pool that the configuration does not have, HamrError when every pair has a missing score.
    """
    pools = wanted_pools(config, teachers)
    by: list[Any] = [pool.model_dump(mode="json") for pool in pools.values()]
    by += [PromptTemplate.read(pool.prompt).digest for pool in pools.values() if is_path(pool.prompt)]
    settings = (by, config.data.model_dump(mode="json") if any(pool.finetune for pool in pools.values()) else None)
    items = [
        WorkItem(id=str(number), key=item_key(RUN, dataclasses.astuple(pair), list(pools), *settings), content=pair)
        for number, pair in enumerate(pairs)
    ]
    found = WorkProgress.of(kept, items)
    try:
        if found.done:
            tell(f"{len(found.done)} of {len(items)} pairs already have their scores, in {kept}")
        if len(found.done) < len(items):
            named = config.rewards.consistency

            async def work(asks: Mapping[str, Ask]) -> None:
                await score_pairs(items, asks, named.reranker, named.judge, teachers, tell, found)

            trained = any(pool.learns_pairs for pool in with_starts(config, pools).values())
            splits = scorer_splits(config, tell) if trained else None
            with_pools(config, list(pools), work, run=pools_of(RUN, kept), progress=tell, splits=splits)
    finally:
        found.close()
    return triples_of(found)


def find_teachers(config: Config, given: Sequence[str]) -> tuple[str, ...]:
    """Return the named teachers; by default the judge ensemble of the configuration. Empty: the labels of the pairs.

    The ensemble is the teacher in the paper (Eq. 5). The calibrated judge is not in it.
    """
    if given:
        return () if tuple(given) == (LABELS,) else tuple(given)
    calibrated = (config.rewards.consistency.reranker, config.rewards.consistency.judge)
    judges = [name for name, pool in config.pools.items() if pool.role == "judge" and name not in calibrated]
    return tuple(judges) if len(judges) > 1 else ()


def wanted_pools(config: Config, teachers: Sequence[str]) -> dict[str, PoolConfig]:
    """Return the sections of the reranker, the judge and the teachers."""
    named = config.rewards.consistency
    wanted = {"rewards.consistency.reranker": named.reranker, "rewards.consistency.judge": named.judge}
    wanted |= {f"teachers[{i}]": name for i, name in enumerate(teachers)}
    found = {}
    for key, name in wanted.items():
        found[name] = known_pool(config, key, name)
        if key.startswith("teachers") and name in (named.reranker, named.judge):
            raise BadInput(key, name, "is being calibrated and cannot be its own teacher; name another pool")
    return found


async def score_pairs(
    items: Sequence[WorkItem],
    asks: Mapping[str, Ask],
    reranker: str,
    judge: str,
    teachers: Sequence[str],
    tell: Tell,
    found: WorkProgress,
) -> None:
    """Query every pool about every pair that has no scores yet.

    A pair on which any pool failed is left out and counted: the mean over the remaining teachers would be another
    measure, and a failure is not a score.

    Raises HamrError when no pair has all its scores.
    """
    left = [item for item in items if item.id not in found.done]
    tell(f"asking {', '.join(asks)} about {len(left)} pairs")
    failures: Counter[str] = Counter()
    details: list[str] = []
    done = itertools.count(1)

    async def score(item: WorkItem, report: Report) -> None:
        pair: ReplyPair = item.content
        question = pair_question(pair)
        answers = dict(zip(asks, await asyncio.gather(*(ask(question) for ask in asks.values())), strict=True))
        report("pairs", next(done))
        scores: dict[str, float] = {}
        for name, answer in answers.items():
            failure = failure_of("reranker" if name == reranker else "judge", answer)
            if failure is not None or answer.score is None:
                failures[f"{name}: {failure.kind if failure else 'no score'}"] += 1
                details.append(failure.detail if failure else "")
            else:
                scores[name] = answer.score
        if len(scores) < len(answers):
            return
        y = fmean(scores[name] for name in teachers) if teachers else label_value(pair)
        verdict = answers[judge].verdict
        hard = hard_score(verdict) if verdict is not None else None
        found.finish(item, ItemResult(kept={"row": [scores[reranker], scores[judge], y, hard]}))

    with progress({"pairs": len(left)}, Console(), RUN) as report:
        await asyncio.gather(*(score(item, report) for item in left))
    if failures:
        counted = ", ".join(f"{what} {count}" for what, count in sorted(failures.items()))
        tell(f"left out {len(items) - len(found.done)} of {len(items)} pairs: {counted}")
    if not found.done:
        raise HamrError(f"no pair got all its scores ({counted}){first_failure(details)}; run the command again")


def triples_of(found: WorkProgress) -> Triples:
    """Return the scores in the order of the pairs."""
    rows = [made.kept["row"] for _, made in sorted(found.done.items(), key=lambda entry: int(entry[0])) if made.kept]
    s_r, s_j, y, hard = (list(column) for column in zip(*rows, strict=True))
    return Triples(s_r=s_r, s_j=s_j, y=y, hard=None if None in hard else hard)


def label_value(pair: ReplyPair) -> float:
    """Return the pair's own label as a score: 1, 0.5 or 0."""
    label = canonical_label(pair.label)
    assert label is not None, "the pairs' labels are among the verdicts"
    return LABEL_VALUES[label]
