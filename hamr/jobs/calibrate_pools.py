"""Triples for calibration from the pools themselves: labelled pairs in, three scores per pair out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from hamr.config.pools import PoolConfig
from hamr.config.schema import Config
from hamr.data.pairs import ReplyPair
from hamr.data.triples import Triples
from hamr.errors import BadInput, HamrError
from hamr.evaluation.scorer_check import pair_question
from hamr.jobs.pools_up import bounded, capacity
from hamr.protocols import Ask
from hamr.rewards.verdict import LABEL_VALUES, canonical_label, hard_score
from hamr.routing.asking import failure_of

Progress = Callable[[str], None]
RUN = "calibrate"


def ask_pools(config: Config, pairs: Sequence[ReplyPair], teachers: Sequence[str], progress: Progress) -> Triples:
    """Starts the pools that are needed, asks them about every pair, and takes them down again.

    Raises BadInput for a pool that the configuration does not have, HamrError when every pair lost a score.
    """
    pools = wanted_pools(config, teachers)
    # Ray and the engines load only here: calibrating from a file needs neither.
    from hamr.actors.pools import PoolClient, start_pools, stop_pools
    from hamr.actors.session import ray_session
    from hamr.jobs.pool_room import check_pool_room
    from hamr.jobs.preparation import load_splits
    from hamr.jobs.scorer import prepare_scorers

    check_pool_room(config, pools, router=False)
    needs_training = any(pool.learns_pairs for pool in config.pools.values())
    splits = load_splits(config.data, config.experiment.seed) if needs_training else None
    scorers = prepare_scorers(config, splits.train if splits else (), splits.validation if splits else (), progress)
    paths: dict[str, Path] = {name: scorer.path for name, scorer in scorers.items() if name in pools}

    async def ask() -> Triples:
        await start_pools(pools, paths, run=RUN, timeout_s=config.cluster.start_timeout_s)
        clients = {name: PoolClient(name, pool, RUN) for name, pool in pools.items()}
        try:
            asks = {name: bounded(client.ask, capacity(pools[name])) for name, client in clients.items()}
            named = config.rewards.consistency
            return await score_pairs(pairs, asks, named.reranker, named.judge, teachers, progress)
        finally:
            await asyncio.gather(*(client.close() for client in clients.values()))
            await stop_pools(RUN)

    with ray_session(config.cluster):
        check_pool_room(config, pools, router=False)
        return asyncio.run(ask())


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
    pairs: Sequence[ReplyPair],
    asks: Mapping[str, Ask],
    reranker: str,
    judge: str,
    teachers: Sequence[str],
    progress: Progress,
) -> Triples:
    """Every pair to every pool. A pair that any of them failed on is left out and counted: the mean over the remaining
    teachers would be another measure, and a failure is no score.

    Raises HamrError when no pair is left.
    """
    progress(f"asking {', '.join(asks)} about {len(pairs)} pairs")
    failures: Counter[str] = Counter()
    done = 0

    async def of(pair: ReplyPair) -> tuple[float, float, float, float | None] | None:
        nonlocal done
        question = pair_question(pair)
        answers = dict(zip(asks, await asyncio.gather(*(ask(question) for ask in asks.values())), strict=True))
        done += 1
        if done % max(1, len(pairs) // 10) == 0:
            progress(f"{done}/{len(pairs)} pairs")
        scores: dict[str, float] = {}
        for name, answer in answers.items():
            failure = failure_of("reranker" if name == reranker else "judge", answer)
            if failure is not None or answer.score is None:
                failures[f"{name}: {failure.kind if failure else 'no score'}"] += 1
            else:
                scores[name] = answer.score
        if len(scores) < len(answers):
            return None
        y = fmean(scores[name] for name in teachers) if teachers else label_value(pair)
        verdict = answers[judge].verdict
        return scores[reranker], scores[judge], y, hard_score(verdict) if verdict is not None else None

    found = [row for row in await asyncio.gather(*map(of, pairs)) if row is not None]
    if failures:
        counted = ", ".join(f"{what} {count}" for what, count in sorted(failures.items()))
        progress(f"left out {len(pairs) - len(found)} of {len(pairs)} pairs: {counted}")
    if not found:
        raise HamrError(f"no pair got all its scores ({counted}); see the pools' logs")
    s_r, s_j, y, hard = (list(column) for column in zip(*found, strict=True))
    return Triples(s_r=s_r, s_j=s_j, y=y, hard=None if None in hard else hard)


def label_value(pair: ReplyPair) -> float:
    """The pair's own label as a score: 1, 0.5 or 0."""
    label = canonical_label(pair.label)
    assert label is not None, "the pairs' labels are among the verdicts"
    return LABEL_VALUES[label]
