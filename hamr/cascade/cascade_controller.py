"""Controller of a moving cascade: the cascade in force, the window of replies, and the update between steps.

It runs on the driver and sends the cascade with every response (`ControlledRewarder`). The router keeps no copy: a
restarted or replaced router uses the cascade of the request, never the starting values. All responses of a step are
scored by the same cascade.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from hamr.calibration.cascade import Cascade
from hamr.cascade.adaptive_interval import Ends, loss, most_trusted
from hamr.cascade.budget import balance, balance_interval, place_interval, without_audits
from hamr.cascade.reply_window import Bounds, ReplyWindow, WindowReply
from hamr.config.rewards import ConsistencyConfig
from hamr.types import RewardRecord, Rollout, SampleKey, ServiceSample


class CascadeController:
    """Adaptive interval, judge budget, or both, over a window of the replies of the run."""

    def __init__(self, config: ConsistencyConfig) -> None:
        self._config = config
        self._adaptive = config.adaptive if config.adaptive.enabled else None
        self._budget = config.budget if config.budget.judge_frac is not None else None
        wanted = [section for section in (self._adaptive, self._budget) if section is not None]
        self.cascade = Cascade.from_config(config.cascade)
        self._moves = bool(wanted)
        self._fewest = max((section.min_rows for section in wanted), default=0)
        self._seen: deque[WindowReply] = deque(maxlen=max((section.window for section in wanted), default=1))
        self._bounds = Bounds(
            start=(self.cascade.tau_a, self.cascade.tau_b),
            reach=min((section.reach for section in wanted), default=0.0),
            max_move=min((section.max_move for section in wanted), default=0.0),
        )
        self._limit: float | None = None
        self._below: float | None = None

    def step_ended(self, records: Sequence[RewardRecord]) -> dict[str, float]:
        """Add the records of a step, move the interval, and return `cascade/*` of the finished step.

        tau_a, tau_b: the interval that scored its responses. window: replies in the window. judge_frac: the share of
        them that this interval sends to the judge, audits included. loss: gap or 1 - rho of the interval (with
        `adaptive`). moved: the larger move of the two ends for the next step. Empty if the cascade is fixed.
        """
        if not self._moves:
            return {}
        # Sort by key: the arrival order is random, and a resumed run must move in the same way.
        ordered = sorted(records, key=lambda r: (r.key.step, r.key.prompt, r.key.attempt, r.key.sample, r.key.turn))
        found = (WindowReply.of(record, self._config.audit_frac) for record in ordered)
        self._seen.extend(row for row in found if row is not None)
        now: Ends = (self.cascade.tau_a, self.cascade.tau_b)
        figures = {"cascade/tau_a": now[0], "cascade/tau_b": now[1], "cascade/window": float(len(self._seen))}
        goal, known = self._next(now)
        self.cascade = Cascade(*goal, self.cascade.w1, self.cascade.w2)
        moved = max(abs(to - at) for at, to in zip(now, goal, strict=True))
        return {**figures, **known, "cascade/moved": moved}

    def state(self) -> dict[str, Any]:
        """Return the JSON state for a checkpoint, as accepted by `restore`."""
        return {
            "tau_a": self.cascade.tau_a,
            "tau_b": self.cascade.tau_b,
            "limit": self._limit,
            "below": self._below,
            "seen": [[row.low, row.high, row.s_r, row.s_j, row.weight] for row in self._seen],
        }

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state of a checkpoint. A checkpoint without a moving cascade has none."""
        if not state or not self._moves:
            return
        self.cascade = Cascade(state["tau_a"], state["tau_b"], self.cascade.w1, self.cascade.w2)
        self._limit, self._below = state["limit"], state["below"]
        self._seen.clear()
        for low, high, s_r, s_j, weight in state["seen"]:
            self._seen.append(WindowReply(low=low, high=high, s_r=s_r, s_j=s_j, weight=weight))

    def _next(self, now: Ends) -> tuple[Ends, dict[str, float]]:
        if not self._seen:
            return now, {}
        evidence = ReplyWindow.of(tuple(self._seen))
        ends = ReplyWindow.ends(now)
        outside = float(evidence.escalated_share(ends[:, 0], ends[:, 1])[0])
        known = {"cascade/judge_frac": outside + (1.0 - outside) * self._config.audit_frac}
        heard = int(evidence.heard.sum())
        if self._adaptive is not None:
            lost = float(loss(evidence, ends, self.cascade, self._adaptive.measure)[0])
            known |= {"cascade/loss": lost} if lost != float("inf") else {}
        if (heard if self._adaptive is not None else len(self._seen)) < self._fewest:
            return now, known
        if self._budget is not None:
            return self._within_budget(evidence, now), known
        return self._next_interval(evidence, now, known), known

    def _next_interval(self, evidence: ReplyWindow, now: Ends, known: Mapping[str, float]) -> Ends:
        assert self._adaptive is not None, "without a budget, only adaptive moves anything"
        measure = self._adaptive.measure
        if self._limit is None:
            given = self._adaptive.limit
            if given is not None:
                self._limit = 1.0 - given if measure == "rank" else given
            elif "cascade/loss" in known:
                self._limit = known["cascade/loss"]
            else:
                return now  # no judged reply inside the interval yet
        return most_trusted(evidence, now, self._bounds, cascade=self.cascade, measure=measure, limit=self._limit)

    def _within_budget(self, evidence: ReplyWindow, now: Ends) -> Ends:
        assert self._budget is not None
        assert self._budget.judge_frac is not None
        share = without_audits(self._budget.judge_frac, self._config.audit_frac)
        tolerance = self._budget.tolerance
        if self._adaptive is not None:
            measure = self._adaptive.measure
            return place_interval(
                evidence, now, self._bounds, share=share, tolerance=tolerance, cascade=self.cascade, measure=measure
            )
        if self._below is None:
            self._below = balance(evidence, now)
        return balance_interval(evidence, now, self._bounds, share=share, below=self._below, tolerance=tolerance)


class CascadeRouter(Protocol):
    """Router interface used by the driver."""

    async def score(
        self, sample: ServiceSample, rollout: Rollout, *, cascade: Cascade | None = None
    ) -> RewardRecord: ...


class ControlledRewarder:
    """protocols.Rewarder for training: scores each response with the cascade in force and collects the records."""

    def __init__(self, router: CascadeRouter, controller: CascadeController) -> None:
        self._router, self._controller = router, controller
        self._records: dict[SampleKey, RewardRecord] = {}

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        record = await self._router.score(sample, rollout, cascade=self._controller.cascade)
        self._records[record.key] = record  # a rescored response counts once
        return record

    def step_ended(self) -> dict[str, float]:
        """Pass the records of the step to `CascadeController.step_ended`, once all its responses are scored."""
        records, self._records = list(self._records.values()), {}
        return self._controller.step_ended(records)
