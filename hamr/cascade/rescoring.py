"""Waiting for the scorers when too many responses of a batch have no reward, instead of training on the rest.

The failed responses are scored again, as they are: same rollout, same key. Nothing of the batch is in the ledger yet
(a step's records go there at its end), so that each response is recorded once, as what became of it in the end. The
key's `attempt` is not used for this: it tells apart the *draws* of a prompt within a step, and a second scoring is no
second draw.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from hamr.config.faults import UnscoredConfig
from hamr.errors import TooManyUnscored
from hamr.protocols import Rewarder
from hamr.types import Failure, RewardRecord, RolloutGroup


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Groups of which enough is scored. `rescored`: scorings that were repeated; `seconds`: the pause, in all."""

    groups: list[RolloutGroup]
    rescored: int = 0
    seconds: float = 0.0

    @property
    def metrics(self) -> dict[str, float]:
        return {"rollout/rescored": float(self.rescored), "timing/step/paused": self.seconds} if self.rescored else {}


async def settle(
    groups: Sequence[RolloutGroup],
    rewarder: Rewarder,
    config: UnscoredConfig,
    *,
    step: int,
    note: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Settled:
    """The groups, once at most `max_frac` of their responses have a failure as their total.

    Until then the failed ones are scored again after growing waits. `note` is told of every wait. Raises
    TooManyUnscored when `wait_s` has passed: scoring that is under way then is heard out, for it has a deadline of its
    own. No groups, or `max_frac` null: nothing to wait for.
    """
    settled, started, wait_s, rescored = list(groups), clock(), config.first_s, 0
    while (failed := _failed_records(settled)) and _too_many(failed, settled, config):
        passed = clock() - started
        left = config.wait_s - passed
        what = f"step {step}: {_describe_failures(failed, settled)}"
        if left <= 0:
            raise TooManyUnscored(
                f"{what} after {passed:.0f} s of asking again, and experiment.unscored.max_frac={config.max_frac:g}; "
                "nothing of this step was trained on or recorded: see to the pools, then resume the run"
            )
        wait_s = min(wait_s, left)
        note(f"{what}; waiting for the scorers: asked again in {wait_s:.0f} s, the run stops in {left:.0f} s")
        await sleep(wait_s)
        settled = list(await asyncio.gather(*(_again(group, rewarder) for group in settled)))
        rescored += len(failed)
        wait_s = min(2 * wait_s, config.longest_s)
    if rescored:
        note(f"step {step}: scored again after {clock() - started:.0f} s, goes on")
    return Settled(groups=settled, rescored=rescored, seconds=clock() - started if rescored else 0.0)


def _failed_records(groups: Sequence[RolloutGroup]) -> list[RewardRecord]:
    return [r for group in groups for r in group.records if isinstance(r.total, Failure)]


def _too_many(failed: Sequence[RewardRecord], groups: Sequence[RolloutGroup], config: UnscoredConfig) -> bool:
    count = sum(len(group.records) for group in groups)
    return config.max_frac is not None and len(failed) > config.max_frac * count


def _describe_failures(failed: Sequence[RewardRecord], groups: Sequence[RolloutGroup]) -> str:
    """`6 of 8 responses have no reward (judge_unavailable 5, judge_timeout 1; e.g. no replica was running)`."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(r.total.kind for r in failed).most_common())
    details = [r.total.detail for r in failed if isinstance(r.total, Failure) and r.total.detail]
    example = f"; e.g. {details[0]}" if details else ""
    return f"{len(failed)} of {sum(len(g.records) for g in groups)} responses have no reward ({kinds}{example})"


async def _again(group: RolloutGroup, rewarder: Rewarder) -> RolloutGroup:
    """The group with its failed responses scored anew. Who compares them waits for these alone: the others do not come
    a second time."""
    failed = [i for i, record in enumerate(group.records) if isinstance(record.total, Failure)]
    rollouts = {i: replace(group.rollouts[i], siblings=len(failed), rescored=True) for i in failed}
    fresh = await asyncio.gather(*(rewarder.score(group.sample, rollout) for rollout in rollouts.values()))
    records = dict(zip(failed, fresh, strict=True))
    return replace(group, records=tuple(records.get(i, record) for i, record in enumerate(group.records)))
