"""Triples for calibration from the pools themselves: labelled pairs in, three scores per pair out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from hamr import signals
from hamr.augmentation.progress import Item, Made, Progress, item_key
from hamr.config.pools import PoolConfig
from hamr.config.schema import Config
from hamr.data.pairs import ReplyPair
from hamr.data.triples import Triples
from hamr.errors import BadInput, HamrError
from hamr.evaluation.scorer_check import pair_question
from hamr.jobs.pools_up import pools_of
from hamr.protocols import Ask
from hamr.rewards.verdict import LABEL_VALUES, canonical_label, hard_score
from hamr.routing.asking import failure_of

Tell = Callable[[str], None]
Row = tuple[float, float, float, float | None]
"""s_r, s_j, y, and the judge's verdict as a number."""
RUN = "calibrate"


def ask_pools(config: Config, pairs: Sequence[ReplyPair], teachers: Sequence[str], tell: Tell, kept: Path) -> Triples:
    """Starts the pools that are needed, asks them about every pair, and takes them down again.

    `kept` is a file that scores are appended to as they come: a call that was killed has them back, if it is about the
    same pairs and pools. With all of them there no pool starts.

    Raises BadInput for a pool that the configuration does not have, HamrError when every pair lost a score.
    """
    pools = wanted_pools(config, teachers)
    by = [pool.model_dump(mode="json") for pool in pools.values()]
    told = (by, config.data.model_dump(mode="json") if any(pool.finetune for pool in pools.values()) else None)
    items = [
        Item(id=str(number), key=item_key(RUN, dataclasses.astuple(pair), list(pools), *told), content=pair)
        for number, pair in enumerate(pairs)
    ]
    found = Progress.of(kept, items)
    try:
        if len(found.done) < len(items):
            tell(f"{len(found.done)} of {len(items)} pairs have their scores already")
            _ask(config, pools, items, found, teachers, tell, pools_of(RUN, kept))
    finally:
        found.close()
    return triples_of(found)


def _ask(
    config: Config,
    pools: Mapping[str, PoolConfig],
    items: Sequence[Item],
    found: Progress,
    teachers: Sequence[str],
    tell: Tell,
    run: str,
) -> None:
    # Ray and the engines load only here: calibrating from a file needs neither.
    from hamr.actors.model_folders import pool_model
    from hamr.actors.pools import PoolClient, start_pools, stop_pools
    from hamr.actors.session import ray_session
    from hamr.jobs.pool_room import check_pool_room
    from hamr.jobs.reply_clusters import scorer_splits
    from hamr.jobs.scorer import prepare_scorers

    check_pool_room(config, pools, router=False)
    needs_training = any(pool.learns_pairs for pool in config.pools.values())
    splits = scorer_splits(config, tell) if needs_training else None
    scorers = prepare_scorers(config, splits.train if splits else (), splits.validation if splits else (), tell)
    paths: dict[str, Path] = {name: scorer.path for name, scorer in scorers.items() if name in pools}

    async def ask() -> None:
        await start_pools(pools, paths, run=run, timeout_s=config.cluster.start_timeout_s)
        clients = {name: PoolClient(name, pool, run) for name, pool in pools.items()}
        try:
            asks = {name: client.ask for name, client in clients.items()}
            named = config.rewards.consistency
            await score_pairs(items, asks, named.reranker, named.judge, teachers, tell, found)
        finally:
            await asyncio.gather(*(client.close() for client in clients.values()))
            await stop_pools(run)

    with ray_session(config.cluster):
        models = {pool_model(name): path for name, path in paths.items()}
        check_pool_room(config, pools, router=False, models=models)
        signals.run(ask())


def wanted_pools(config: Config, teachers: Sequence[str]) -> dict[str, PoolConfig]:
    """The sections of the reranker, the judge and the teachers."""
    named = config.rewards.consistency
    wanted = {"rewards.consistency.reranker": named.reranker, "rewards.consistency.judge": named.judge}
    wanted |= {f"teachers[{i}]": name for i, name in enumerate(teachers)}
    for key, name in wanted.items():
        if name not in config.pools:
            raise BadInput(key, name, f"no such pool; there are: {', '.join(sorted(config.pools))}")
        if key.startswith("teachers") and name in (named.reranker, named.judge):
            raise BadInput(key, name, "is calibrated itself and cannot be its own teacher; name another pool")
    return {name: config.pools[name] for name in wanted.values()}


async def score_pairs(
    items: Sequence[Item],
    asks: Mapping[str, Ask],
    reranker: str,
    judge: str,
    teachers: Sequence[str],
    tell: Tell,
    found: Progress,
) -> None:
    """Every pair that has no scores yet to every pool. A pair that any of them failed on is left out and counted: the
    mean over the remaining teachers would be another measure, and a failure is no score.

    Raises HamrError when no pair is left.
    """
    left = [item for item in items if item.id not in found.done]
    tell(f"asking {', '.join(asks)} about {len(left)} pairs")
    failures: Counter[str] = Counter()
    done = 0

    async def of(item: Item) -> None:
        nonlocal done
        pair: ReplyPair = item.content
        question = pair_question(pair)
        answers = dict(zip(asks, await asyncio.gather(*(ask(question) for ask in asks.values())), strict=True))
        done += 1
        if done % max(1, len(left) // 10) == 0:
            tell(f"{done}/{len(left)} pairs")
        scores: dict[str, float] = {}
        for name, answer in answers.items():
            failure = failure_of("reranker" if name == reranker else "judge", answer)
            if failure is not None or answer.score is None:
                failures[f"{name}: {failure.kind if failure else 'no score'}"] += 1
            else:
                scores[name] = answer.score
        if len(scores) < len(answers):
            return
        y = fmean(scores[name] for name in teachers) if teachers else label_value(pair)
        verdict = answers[judge].verdict
        hard = hard_score(verdict) if verdict is not None else None
        found.finish(item, Made(kept={"row": [scores[reranker], scores[judge], y, hard]}))

    await asyncio.gather(*map(of, left))
    if failures:
        counted = ", ".join(f"{what} {count}" for what, count in sorted(failures.items()))
        tell(f"left out {len(items) - len(found.done)} of {len(items)} pairs: {counted}")
    if not found.done:
        raise HamrError(f"no pair got all its scores ({counted}); see the pools' logs")


def triples_of(found: Progress) -> Triples:
    """The scores in the order of the pairs."""
    rows = [made.kept["row"] for _, made in sorted(found.done.items(), key=lambda entry: int(entry[0])) if made.kept]
    s_r, s_j, y, hard = (list(column) for column in zip(*rows, strict=True))
    return Triples(s_r=s_r, s_j=s_j, y=y, hard=None if None in hard else hard)


def label_value(pair: ReplyPair) -> float:
    """The pair's own label as a score: 1, 0.5 or 0."""
    label = canonical_label(pair.label)
    assert label is not None, "the pairs' labels are among the verdicts"
    return LABEL_VALUES[label]
