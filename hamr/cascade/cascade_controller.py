"""Controller of what the run learns between steps: the cascade in force, its certificate and the correction by audits.

It runs on the driver and sends the cascade with every response (`ControlledRewarder`). The router keeps no copy: a
restarted or replaced router uses the cascade of the request, never the starting values. All responses of a group are
scored by the same cascade and corrected by the same audits. In synchronous training this holds for the whole step; with
groups in flight, those that started before the last step ended keep what was in force then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from hamr.calibration.audit_correction import AuditCorrection
from hamr.calibration.cascade import Cascade
from hamr.cascade.audited_rewards import correct, correction_metrics, gap_of, residuals
from hamr.cascade.auditors import CascadeRouter
from hamr.cascade.budget import ReplyWindow, balance, balance_interval, score_range, without_audits
from hamr.cascade.certificate import Certificate, Ends
from hamr.config.rewards import ConsistencyConfig
from hamr.experience import ATTEMPTS, Draw
from hamr.types import RewardRecord, Rollout, SampleKey, ServiceSample


class CascadeController:
    """Judge budget, certificate and correction of a run."""

    def __init__(self, config: ConsistencyConfig) -> None:
        self._config = config
        self.cascade = Cascade.from_config(config.cascade)
        self._seen: deque[tuple[float, float]] = deque(maxlen=config.budget.window)
        self._below: float | None = None
        self._certificate = Certificate() if config.audit_frac and config.mode == "hybrid" else None
        self.correction = AuditCorrection() if config.correction == "stratified" else None
        self._step = 0

    def correct(self, record: RewardRecord, sample: ServiceSample, model: AuditCorrection | None) -> RewardRecord:
        """Return the record corrected by `model`, a present or earlier `correction`. None: the record itself."""
        if model is None:
            return record
        return correct(record, sample, model, self._config.audit_frac, self._config.audit.by)

    def step_ended(self, records: Sequence[RewardRecord]) -> dict[str, float]:
        """Add the records of a step, move the interval, and return the metrics of the finished step.

        cascade/tau_a, tau_b: the interval of the step. window: replies in the window. judge_frac: the share of them
        that this interval sends to the judge, audits included. moved: the larger move of the two ends for the next
        step. Those are empty if the cascade is fixed. audit/bound_*: the certificate, for which audits of responses
        that an earlier interval scored do not count. audit/correction_*: the correction.
        """
        self._step += 1
        # Sort by key: the arrival order is random, and a resumed run must continue in the same way.
        ordered = sorted(records, key=lambda r: (r.key.step, r.key.prompt, r.key.attempt, r.key.sample, r.key.turn))
        figures: dict[str, float] = {}
        if self.correction is not None:
            figures |= correction_metrics(ordered, self.correction)
            self.correction = copy(self.correction)  # groups in flight keep the one before
            self.correction.update(self._step, residuals(ordered, self._step - 1))
        now: Ends = (self.cascade.tau_a, self.cascade.tau_b)
        if self._certificate is not None:
            gaps = (gap_of(record) for record in ordered if record.cascade and record.cascade[:2] == now)
            self._certificate.add([gap for gap in gaps if gap is not None])
            figures |= self._certificate.metrics()
        limit = self._config.certificate.limit
        excess = self._certificate.excess(limit) if self._certificate is not None and limit is not None else 0.0
        if limit is not None:
            figures["audit/bound_excess"] = excess
        if not self._config.moves_interval:
            return figures
        self._seen.extend(found for record in ordered if (found := score_range(record)) is not None)
        goal, known = self._next(now, excess)
        self.cascade = Cascade(*goal, self.cascade.w1, self.cascade.w2)
        moved = max(abs(to - at) for at, to in zip(now, goal, strict=True))
        if self._certificate is not None and moved:
            self._certificate = Certificate()
        figures |= {"cascade/tau_a": now[0], "cascade/tau_b": now[1], "cascade/window": float(len(self._seen))}
        return {**figures, **known, "cascade/moved": moved}

    def scorers_changed(self) -> None:
        """Forget the evidence about scorers that others have replaced."""
        self._seen.clear()
        if self._certificate is not None:
            self._certificate = Certificate()
        if self.correction is not None:
            self.correction = AuditCorrection()

    def certificate_line(self) -> str | None:
        """Return the bound on the mean gap inside the interval as a line. None without audits there."""
        found = self._certificate.metrics() if self._certificate is not None else {}
        if not found:
            return None
        return (
            f"certificate: inside the trust interval rewards are {found['audit/bound_lower']:+.3f} to "
            f"{found['audit/bound_upper']:+.3f} above the auditor's on average (95 %, "
            f"{found['audit/bound_audits']:.0f} audits)"
        )

    def state(self) -> dict[str, Any]:
        """Return the JSON state for a checkpoint, as accepted by `restore`."""
        return {
            "tau_a": self.cascade.tau_a,
            "tau_b": self.cascade.tau_b,
            "below": self._below,
            "seen": [list(found) for found in self._seen],
            "step": self._step,
            "certificate": self._certificate.state() if self._certificate is not None else None,
            "correction": self.correction.state() if self.correction is not None else None,
        }

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state of a checkpoint. Parts that another configuration lacks start anew."""
        if not state:
            return
        self._step = state["step"]
        if self._certificate is not None and state["certificate"]:
            self._certificate.restore(state["certificate"])
        if self.correction is not None and state["correction"]:
            self.correction.restore(self._step, state["correction"])
        if self._config.moves_interval:
            self.cascade = Cascade(state["tau_a"], state["tau_b"], self.cascade.w1, self.cascade.w2)
            self._below = state["below"]
            self._seen.clear()
            self._seen.extend((low, high) for low, high in state["seen"])

    def _next(self, now: Ends, excess: float) -> tuple[Ends, dict[str, float]]:
        if not self._seen:
            return now, {}
        evidence = ReplyWindow.of(tuple(self._seen))
        known = {"cascade/judge_frac": self._judge_frac(evidence, now)}
        budget, certificate = self._config.budget, self._config.certificate
        if budget.judge_frac is not None:
            if len(self._seen) < budget.min_rows:
                return now, known
            if self._below is None:
                self._below = balance(evidence, now)
            share = without_audits(budget.judge_frac, self._config.judge_audit_frac)
            settings = {"below": self._below, "tolerance": budget.tolerance, "max_move": budget.max_move}
            return balance_interval(evidence, now, share=share, **settings), known
        assert self._certificate is not None
        assert certificate.limit is not None
        if not excess:
            return now, known
        most = max(certificate.max_judge_frac, self._judge_frac(evidence, now))
        goal = self._certificate.largest_part(
            now, certificate.limit, lambda ends: self._judge_frac(evidence, ends) <= most
        )
        return goal, known

    def _judge_frac(self, evidence: ReplyWindow, ends: Ends) -> float:
        outside = float(evidence.escalated_share(np.array([ends[0]]), np.array([ends[1]]))[0])
        return outside + (1.0 - outside) * self._config.judge_audit_frac


class ControlledRewarder:
    """protocols.Rewarder for training: scores each response with the cascade in force, corrects it and collects the
    records. The cascade and the correction of a group are those at the first score of one of its responses."""

    def __init__(self, router: CascadeRouter, controller: CascadeController) -> None:
        self._router, self._controller = router, controller
        self._records: dict[SampleKey, RewardRecord] = {}
        self._outdated: set[SampleKey] = set()
        self._in_force: dict[tuple[int, str, int], tuple[Cascade, AuditCorrection | None]] = {}

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        """Return the record of a response by the cascade of its group, corrected, and keep it for `step_ended`."""
        present = self._controller.cascade, self._controller.correction
        cascade, correction = self._in_force.setdefault(_draw(rollout.key), present)
        record = await self._router.score(sample, rollout, cascade=cascade)
        record = self._controller.correct(record, sample, correction)
        self._records[record.key] = record  # a rescored response counts once
        self._outdated.discard(record.key)
        return record

    def scorers_changed(self) -> None:
        """Forget the evidence about scorers that others have replaced: also that of responses no step has recorded."""
        self._controller.scorers_changed()
        self._outdated = set(self._records)

    def step_ended(
        self, recorded: Collection[SampleKey] | None = None, in_flight: Collection[Draw] = ()
    ) -> dict[str, float]:
        """Pass the records of a step to `CascadeController.step_ended`, once all its responses are scored.

        Args:
            recorded: Keys of the responses that the step recorded; None: of all. No other counts, because a resumed
                run draws the groups that are not recorded again.
            in_flight: Draws that a later step may record. The other responses are forgotten.
        """
        keys = list(self._records) if recorded is None else recorded
        records = [self._records.pop(key) for key in keys if key in self._records]
        records = [record for record in records if record.key not in self._outdated]
        kept = {(draw.step, draw.sample.id, draw.attempt // ATTEMPTS) for draw in in_flight}
        self._records = {key: record for key, record in self._records.items() if _draw(key) in kept}
        self._outdated &= self._records.keys()
        self._in_force = {draw: found for draw, found in self._in_force.items() if draw in kept}
        return self._controller.step_ended(records)


def _draw(key: SampleKey) -> tuple[int, str, int]:
    """Return the key that the responses of a group share, further samples of an all-wrong group included."""
    return key.step, key.prompt, key.attempt // ATTEMPTS
