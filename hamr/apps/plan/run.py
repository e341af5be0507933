"""Reads a run folder for `hamr.apps.plan.build`: steps with their times, groups and requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from hamr.algorithms.batch import BatchBuilder
from hamr.apps.plan.build import Past, overlap_of
from hamr.apps.plan.measured import MeasuredResponse, MeasuredStep
from hamr.config.load import load_dumped
from hamr.config.schema import Config
from hamr.errors import RunFolderError
from hamr.experience import ATTEMPTS
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import read_metrics
from hamr.telemetry.run_folder import RunFolder
from hamr.types import CASCADE_BANDS, RewardRecord, Rollout, RolloutGroup, ServiceSample, Stale

RecordGroup = Sequence[RewardRecord]


def read_past(path: Path | str) -> Past:
    """Read a finished or running run. Raises RunFolderError if it has no complete RL step in its ledger."""
    folder = RunFolder.open(path, "from")
    config = load_dumped(folder.config)
    rows = {r["step"]: r for r in read_metrics(folder.metrics) if r["stage"] == "rl" and r.get("timing/step/total")}
    if not rows or not folder.ledger.is_file():
        raise RunFolderError("from", str(path), "has no finished step of RL to measure; give a run that trained")
    with Ledger(folder.ledger, readonly=True) as ledger:
        # In order of arrival: round by round, group by group.
        found = ledger.query("SELECT DISTINCT run FROM records WHERE run NOT LIKE '%/eval-%'")
        records = [r for (run,) in found for r in ledger.rows(run=run)]
    if overlap_of(config):
        # A group may have started before the step that took it. The ledger has the groups in the order of these.
        by_step = _by_count(records, rows)
    else:
        by_number = sorted(records, key=lambda r: r.key.step)
        by_step = {step: list(mine) for step, mine in groupby(by_number, key=lambda r: r.key.step) if step in rows}
    steps = (_step(config, step, rows[step], own) for step, own in by_step.items())
    return Past(config=config, steps=tuple(step for step in steps if step.responses))


def _by_count(
    records: Sequence[RewardRecord], rows: Mapping[int, Mapping[str, float]]
) -> dict[int, list[RewardRecord]]:
    found, at = {}, 0
    for step in sorted(rows):
        count = int(rows[step]["rollout/responses"])
        found[step], at = list(records[at : at + count]), at + count
    return found


def _step(config: Config, step: int, row: dict[str, float], records: list[RewardRecord]) -> MeasuredStep:
    # Further samples of an all-wrong group have the next attempt; without them, another attempt is another group.
    attempts = ATTEMPTS if config.algorithm.all_wrong.more_samples else 1
    by_draw = groupby(records, key=lambda r: (r.key.step, r.key.prompt, r.key.attempt // attempts))
    groups, overlap = [list(g) for _, g in by_draw], overlap_of(config)
    in_rounds: Sequence[Sequence[RecordGroup]]
    dropped: float
    if overlap:
        signal = [_is_trainable(config, g, surplus=not overlap.max_policy_age) for g in groups]
        in_rounds, dropped = [groups], len(groups) - sum(signal)
    else:
        signal, in_rounds, dropped = [], rounds(config, groups), row.get("rollout/groups_dropped") or 0.0
    return MeasuredStep(
        step=step,
        rollout_score_s=row["timing/step/rollout_score"],
        train_s=row["timing/step/train"],
        total_s=row["timing/step/total"],
        trained_tokens=row.get("policy/tokens") or 0.0,
        groups_dropped=dropped,
        rounds=tuple(tuple(map(_responses, groups)) for groups in in_rounds),
        signal=tuple(signal),
    )


def _is_trainable(config: Config, group: RecordGroup, *, surplus: bool = False) -> bool:
    """Return whether a step could train on the group. With `surplus`, a stale one was only not needed."""
    if any(isinstance(r.total, Stale) for r in group):
        return surplus
    batches = BatchBuilder(
        algorithm=config.algorithm,
        max_new_tokens=config.rollout.max_new_tokens,
        seed=config.experiment.seed,
        normalise=config.rewards.normalise,
        answer=lambda action: (),
    )
    return bool(batches.trainable([_rollout_group(config, group)]))


def _rollout_group(config: Config, records: RecordGroup) -> RolloutGroup:
    """Return the group that the records describe. Its texts, and its tokens except for their numbers, are unknown."""
    prompt = records[0].key.prompt
    sample = ServiceSample(id=prompt, ticket={}, policy="", tools=(), history=(), references=())
    rollouts = tuple(_rollout(r, config.rollout.max_new_tokens) for r in records)
    return RolloutGroup(sample=sample, rollouts=rollouts, records=tuple(records))


def _rollout(record: RewardRecord, limit: int) -> Rollout:
    tokens, answer = record.response_tokens, record.answer_tokens
    return Rollout(
        key=record.key,
        prompt_ids=(),
        token_ids=(0,) * tokens,
        logprobs=(),
        text="",
        # The ledger does not have the reason. A response that ended by itself with the last token counts as truncated.
        finish_reason="length" if tokens >= limit else "stop",
        versions=(),
        # The record of an answer without a known end has the number of all tokens.
        answer_tokens=None if answer == tokens else answer,
    )


def rounds(config: Config, groups: Sequence[RecordGroup]) -> list[list[RecordGroup]]:
    """Return the groups by generation round. Each round replaces the earlier groups that the step cannot
    train on, as in the controller."""
    wanted = config.experiment.prompts_per_step
    split: list[list[RecordGroup]] = []
    kept, left = 0, list(groups)
    while left:
        take = max(1, wanted - kept)
        mine, left = left[:take], left[take:]
        split.append(mine)
        kept += sum(_is_trainable(config, g) for g in mine)
    return split


def _responses(group: RecordGroup) -> tuple[MeasuredResponse, ...]:
    """Return each dialogue as one response, because its turns follow each other. A single decision is a dialogue of one
    turn."""
    dialogues = [list(turns) for _, turns in groupby(group, key=lambda r: (r.key.attempt, r.key.sample))]
    return tuple(
        MeasuredResponse(
            tokens=sum(r.response_tokens for r in turns),
            cascaded=any(r.band in CASCADE_BANDS for r in turns),
            # A shared answer counts only for the response that requested it.
            calls=tuple((c.pool, c.queue_s, c.service_s) for r in turns for c in r.calls if c.attempts),
        )
        for turns in dialogues
    )
