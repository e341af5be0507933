"""Auditors other than pools: the data's rule for exact acts, or a person's labels.

The router asks the pools that answer audits (`judge`, `ensemble`). The answers of `rules` and `file` need no model and
are added to the records on the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

from pydantic import Field

from hamr.calibration.cascade import Cascade
from hamr.cascade.audit import is_audited, value_of
from hamr.config.rewards import ConsistencyConfig
from hamr.data.samples import read_rows
from hamr.data.shapes import Shape, check_shape
from hamr.errors import ConfigError, DataError
from hamr.rewards.truth import ExactAct
from hamr.types import Audit, Failure, LabelMissing, Reply, RewardRecord, Rollout, ServiceSample

POOL_AUDITORS = ("judge", "ensemble")
ReplyLabels = Mapping[tuple[str, str], float]
"""(sample id, text of the reply) -> label in [0, 1]."""


class CascadeRouter(Protocol):
    """Router interface used by the driver."""

    async def score(
        self, sample: ServiceSample, rollout: Rollout, *, cascade: Cascade | None = None
    ) -> RewardRecord: ...


@dataclass(frozen=True)
class AuditedRouter:
    """Router whose records have the answers of an auditor other than a pool."""

    router: CascadeRouter
    config: ConsistencyConfig
    auditor: ExactAct | ReplyLabels

    async def score(self, sample: ServiceSample, rollout: Rollout, *, cascade: Cascade | None = None) -> RewardRecord:
        """Return the router's record, with the auditor's answer if the reply is drawn for an audit."""
        record = await self.router.score(sample, rollout, cascade=cascade)
        reply = record.action
        if value_of(record) is None or record.s_r is None or not isinstance(reply, Reply):
            return record
        if not is_audited(record.key, self.config.audit_frac):
            return record
        audit, label = Audit(s_r=record.s_r, by=self.config.audit.by), self._label(sample, reply)
        if isinstance(label, Failure):
            return replace(record, audit=replace(audit, failure=label.kind))
        return replace(record, audit=replace(audit, s_j=label, best=label, mix=label))

    def _label(self, sample: ServiceSample, reply: Reply) -> float | Failure:
        if isinstance(self.auditor, ExactAct):
            return float(self.auditor.is_exact(reply, sample))
        label = self.auditor.get((sample.id, reply.content.strip()))
        return LabelMissing(detail=f"no label of this reply to {sample.id}") if label is None else label


def with_auditor(router: CascadeRouter, config: ConsistencyConfig, truth: ExactAct | None) -> CascadeRouter:
    """Return the router, with the audits of the configured auditor if it is not a pool.

    Raises:
        ConfigError: `audit.by=rules`, and the data have no rule.
        DataError: `audit.by=file`, and the file cannot be read.
    """
    auditor = find_auditor(config, truth)
    return router if auditor is None else AuditedRouter(router, config, auditor)


def find_auditor(config: ConsistencyConfig, truth: ExactAct | None) -> ExactAct | ReplyLabels | None:
    """Return the auditor of `with_auditor`, None for pools. Raises as it does."""
    if config.audit.by == "rules":
        if truth is None:
            remedy = "the samples name no act (meta.act), so that there is no rule; use judge, ensemble or file"
            raise ConfigError("rewards.consistency.audit.by", "rules", remedy)
        return truth
    return read_labels(config.audit.file) if config.audit.file is not None else None


def check_pool_auditor(config: ConsistencyConfig) -> None:
    """Raise ConfigError if audits are drawn that only `hamr train` can answer."""
    if config.audit_frac and config.audit.by not in POOL_AUDITORS:
        remedy = f"answers in hamr train only; use {' or '.join(POOL_AUDITORS)}, or rewards.consistency.audit_frac=0"
        raise ConfigError("rewards.consistency.audit.by", config.audit.by, remedy)


class _LabelRow(Shape):
    sample: str
    reply: str
    label: Annotated[float, Field(ge=0.0, le=1.0)]


def read_labels(path: str) -> ReplyLabels:
    """Return the labels of a JSONL file of {"sample", "reply", "label"}. Spaces around a reply do not count.

    Raises DataError at `file:line: field`, also for a second label of a reply that differs.
    """
    labels: dict[tuple[str, str], float] = {}
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        one = check_shape(_LabelRow, row, where)
        if labels.setdefault((one.sample, one.reply.strip()), one.label) != one.label:
            earlier = labels[one.sample, one.reply.strip()]
            raise DataError(f"{where}: label", one.label, f"this reply already has the label {earlier:g}; keep one")
    return labels
