"""Pause and rescore when too many responses of a batch have no reward, instead of training on the rest.

Failed responses are scored again with the same rollout and key. The records of a step are written to the ledger at its
end, so each response is recorded once, with its final outcome. The `attempt` of the key is not used for this: it
distinguishes the *draws* of a prompt within a step, and a rescoring is not a new draw.
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
from hamr.rewards.mix import with_turn_reward
from hamr.types import TURN_REWARD, CustomerUnavailable, Failure, RewardRecord, RolloutGroup

PAUSED = "timing/step/paused"
"""Metric of the seconds that a step waits for its scorers."""


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Groups with enough scored responses. `rescored`: number of repeated scorings. `seconds`: total pause."""

    groups: list[RolloutGroup]
    rescored: int = 0
    seconds: float = 0.0

    @property
    def metrics(self) -> dict[str, float]:
        """Number of rescored responses and seconds of the pause. Empty if nothing was rescored."""
        return {"rollout/rescored": float(self.rescored), PAUSED: self.seconds} if self.rescored else {}


async def settle(
    groups: Sequence[RolloutGroup],
    rewarder: Rewarder,
    config: UnscoredConfig,
    *,
    step: int,
    note: Callable[[str], None],
    before: Sequence[RolloutGroup] = (),
    paused: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Settled:
    """Return the groups once at most `max_frac` of their responses have a failure as their total, and as many of their
    dialogues have failed as a whole: one that failed before its first turn is a single response.

    Until then the failed responses are scored again with exponential backoff. `note` is called with a message at every
    wait. `before`: groups that were returned earlier in the step. They count for the share, so that a single failed
    group that replaces another does not stop the run. `paused`: seconds of the step's earlier pauses, which count for
    `wait_s`. Without groups, or with `max_frac` null, return immediately. The turns of a dialogue that failed as a
    whole cannot be scored again.

    Raises:
        TooManyUnscored: `wait_s` has passed, or too many dialogues, or turns of dialogues, have failed. A scoring in
            progress is completed first; it has its own deadline.
    """
    settled, started, wait_s, rescored = list(groups), clock(), config.first_s, 0
    count = sum(len(group.records) for group in (*before, *groups))
    earlier = _failed_records(before)

    def too_many(failed: Sequence[object]) -> bool:
        return config.max_frac is not None and len(earlier) + len(failed) > config.max_frac * count

    def too_many_dialogues() -> bool:
        ends = [r for group in (*before, *settled) for r in group.records if r.episode is not None]
        lost = [r for r in ends if _dialogue_failure(r) is not None]
        return config.max_frac is not None and len(lost) > config.max_frac * len(ends)

    while (failed := _failed_records(settled)) and (too_many(failed) or too_many_dialogues()):
        passed = paused + clock() - started
        left = config.wait_s - passed
        what = f"step {step}: {_describe_failures([*failed, *earlier], [*settled, *before])}"
        lost = [failure for record in failed if (failure := _dialogue_failure(record)) is not None]
        if left <= 0 or too_many(lost) or too_many_dialogues():
            wrong = any(not isinstance(failure, CustomerUnavailable) for failure in lost)
            remedy = "Restore the pools"
            if wrong:
                remedy = "Correct the dialogues (a changed function of rollout.episode needs a new run)"
            raise TooManyUnscored(
                f"{what} after {passed:.0f} s of retries; limit experiment.unscored.max_frac={config.max_frac:g}; "
                f"nothing of this step was trained on or recorded. {remedy}, then resume the run"
            )
        wait_s = min(wait_s, left)
        note(f"{what}; waiting for the scorers: retry in {wait_s:.0f} s, the run stops in {left:.0f} s")
        await sleep(wait_s)
        settled = list(await asyncio.gather(*(_again(group, rewarder) for group in settled)))
        rescored += len(failed) - len(lost)
        wait_s = min(2 * wait_s, config.longest_s)
    if rescored:
        note(f"step {step}: rescored after {clock() - started:.0f} s, continuing")
    return Settled(groups=settled, rescored=rescored, seconds=clock() - started if rescored else 0.0)


def _failed_records(groups: Sequence[RolloutGroup]) -> list[RewardRecord]:
    return [r for group in groups for r in group.records if isinstance(r.total, Failure)]


def _describe_failures(failed: Sequence[RewardRecord], groups: Sequence[RolloutGroup]) -> str:
    """`6 of 8 responses have no reward (judge_unavailable 5, judge_timeout 1; e.g. no replica was running)`, and with
    failed dialogues `, and 4 of 5 dialogues failed`."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(r.total.kind for r in failed).most_common())
    details = [r.total.detail for r in failed if isinstance(r.total, Failure) and r.total.detail]
    example = f"; e.g. {details[0]}" if details else ""
    ends = [r for group in groups for r in group.records if r.episode is not None]
    lost = sum(_dialogue_failure(r) is not None for r in ends)
    dialogues = f", and {lost} of {len(ends)} dialogues failed" if lost else ""
    responses = sum(len(group.records) for group in groups)
    return f"{len(failed)} of {responses} responses have no reward ({kinds}{example}){dialogues}"


async def _again(group: RolloutGroup, rewarder: Rewarder) -> RolloutGroup:
    """Return the group with its failed responses scored again. Comparative judges wait only for these, not for the
    siblings that have a reward."""
    failed = [i for i, r in enumerate(group.records) if isinstance(r.total, Failure) and _dialogue_failure(r) is None]
    rollouts = {i: replace(group.rollouts[i], siblings=len(failed)) for i in failed}
    points = group.points or (group.sample,) * len(group.records)
    fresh = await asyncio.gather(*(rewarder.score(points[i], rollout) for i, rollout in rollouts.items()))
    records = dict(zip(failed, fresh, strict=True))
    if group.points:
        records = {i: _as_turn(record, group.records[i]) for i, record in records.items()}
    return replace(group, records=tuple(records.get(i, record) for i, record in enumerate(group.records)))


def _dialogue_failure(record: RewardRecord) -> Failure | None:
    """Return the failure of the whole dialogue of a turn, None if it did not fail."""
    found = (c.outcome for c in record.components if c.name == TURN_REWARD)
    return next((outcome for outcome in found if isinstance(outcome, Failure)), None)


def _as_turn(record: RewardRecord, before: RewardRecord) -> RewardRecord:
    """Return the record with what the dialogue added to the one before."""
    for reward in (c for c in before.components if c.name == TURN_REWARD):
        record = with_turn_reward(record, reward)
    return replace(record, observation=before.observation, episode=before.episode)
