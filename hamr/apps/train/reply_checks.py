"""Checks of the scorers on the policy's replies during RL."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from hamr.apps.train.scorer_refit import ScoredReply
from hamr.protocols import Rewarder
from hamr.telemetry.console import Console
from hamr.types import Reply, RewardRecord, Rollout, SampleKey, ServiceSample

if TYPE_CHECKING:
    from hamr.apps.train.stages import Run
    from hamr.cascade.cascade_controller import ControlledRewarder


class Counted:
    """Rewarder wrapper that shows scoring progress on the console and collects the replies."""

    def __init__(self, rewarder: Rewarder, console: Console, total: int) -> None:
        self._rewarder, self._console, self._total = rewarder, console, total
        self._done = 0
        self.replies: dict[SampleKey, ScoredReply] = {}
        """Replies since the last check of the scorers, each with its latest score."""

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        record = await self._rewarder.score(sample, rollout)
        self._done += 1
        self.collect(sample, record)
        self._console.progress(self._done, max(self._done, self._total), "responses scored")
        return record

    def collect(self, sample: ServiceSample, record: RewardRecord) -> None:
        """Keep a reply for the next check of the scorers."""
        if isinstance(record.action, Reply):
            score = next((c.value for c in record.components if c.name == "consistency"), None)
            self.replies[record.key] = ScoredReply(sample, record.action.content, score)

    def begin(self) -> None:
        """Reset the progress count."""
        self._done = 0


async def check_scorers(
    run: Run, step: int, replies: dict[SampleKey, ScoredReply], rewarder: ControlledRewarder
) -> dict[str, float]:
    """Check the scorers after this step if that is due, on the replies since the last check; refit them on an alarm."""
    scorers = run.config.scorers
    if not scorers.check_every:
        replies.clear()
    # Not `step % every`: a check that a stop cancelled follows after the first step of the resumed run.
    if not scorers.check_every or step // scorers.check_every == run.checked // scorers.check_every:
        return {}
    # An asynchronous run scores further replies during the check; they are those of the next one.
    checked, done = list(replies.values()), list(replies)
    replies.clear()
    found = await run.scorers.of_replies(checked)
    if scorers.on_alarm == "refit":
        if found.get("alarm/scorers_fooled") and step < run.config.experiment.steps:
            hold, refits = run.experience.hold if run.experience is not None else nullcontext, len(run.refit.steps)
            await run.refit.run(step, checked, hold)
            if len(run.refit.steps) > refits:
                rewarder.scorers_changed()
                run.recorder.scorers_changed()
                done += replies  # scored by the scorers before
                replies.clear()
        found["scorers/refits"] = float(len(run.refit.steps))
    run.checked, run.checked_ahead = step, {key for key in done if key.step > step}
    return found


def restore_replies(run: Run, counted: Counted) -> None:
    """Collect the replies of a resumed run since its last check of the scorers, from the ledger.

    The turns of dialogues are left out: the ledger does not have their own references.
    """
    if not run.config.scorers.check_every or run.config.holds_dialogues:
        return
    samples = {sample.id: sample for sample in run.prepared.splits.train}
    for record in run.recorder.records_since(run.run_id, run.checked + 1):
        sample = samples.get(record.key.prompt)
        if sample is not None and record.key not in run.checked_ahead:
            counted.collect(sample, record)
