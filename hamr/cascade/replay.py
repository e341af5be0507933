"""Recompute a recorded reward from its recorded scores, without models or texts. The result is identical."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hamr.calibration.cascade import Cascade
from hamr.cascade.audited_rewards import corrected_value
from hamr.cascade.consistency import combine
from hamr.cascade.rubric_cascade import judged_value
from hamr.config.judged import JudgeSection
from hamr.config.rewards import ConsistencyConfig, RewardsConfig
from hamr.config.schema import EnvConfig
from hamr.errors import DataError, MissingScore
from hamr.rewards.mix import mix
from hamr.types import (
    TURN_REWARD,
    Component,
    EpisodeResult,
    Failure,
    JudgeUnavailable,
    Outcome,
    RewardRecord,
    Scored,
    Stale,
    Total,
    Vetoed,
)


def replay(record: RewardRecord, rewards: RewardsConfig) -> Total:
    """Return the total of `record` under `rewards`. Its own configuration gives exactly the recorded total.

    Another configuration answers "what if" questions: other weights, another mode, another scale of the judges' grades,
    as far as the recorded scores allow. Length, rules and the user's own functions and episodes keep their recorded
    values, since their texts are not read again. A response that no scorer was asked about keeps its failure, and one
    that no step trained on stays stale.

    A correction by audits belongs to the cascade value that it was estimated for. It is applied if `rewards` has one
    and gives the reply that value.

    The cascade is the one in force when the response was scored (it may move during a run), or that of `rewards` if the
    record has none.

    Raises:
        MissingScore: The configuration needs a score that was never requested.
        DataError: The configuration does not know a component with a weight.
    """
    unasked = all(c.name == TURN_REWARD for c in record.components)
    if isinstance(record.total, Stale) or (isinstance(record.total, Failure) and unasked):
        return record.total
    consistency = rewards.consistency
    if record.cascade is not None:
        consistency = Cascade(*record.cascade).put_into(consistency)
    return mix([_again(component, record, rewards, consistency) for component in record.components])


EPISODE_WEIGHTS = ("completion", "extra_turns", "violations", "cost")
"""Rewards of a dialogue that hamr's own environments weight by the settings of the same name in `env`."""


def replay_episode(end: EpisodeResult, env: EnvConfig) -> float | None:
    """Return the reward of a dialogue as a whole under the weights of `env`, None without one. An episode function's
    own rewards keep their weights."""
    own = {name: getattr(env, name) for name in EPISODE_WEIGHTS} if env.type in ("sage", "tau2") else {}
    return replace(end, components=tuple(replace(c, weight=own.get(c.name, c.weight)) for c in end.components)).reward


def _again(
    component: Component, record: RewardRecord, rewards: RewardsConfig, consistency: ConsistencyConfig
) -> Component:
    section: Any = rewards.section(component.name)
    if component.name == TURN_REWARD or (section is None and not component.weight):
        return component
    if section is None:
        known = sorted(
            name for name in (*type(rewards).model_fields, *rewards.custom, *rewards.judged) if rewards.section(name)
        )
        raise DataError("record.components", component.name, f"the configuration has only {known}")
    outcome = component.outcome
    if component.name == "consistency" and record.reference_scores:
        # The record keeps only the decisive failure. Use it for every absent score.
        # After a fallback, the judge was unavailable for every absent score that counts.
        failure = JudgeUnavailable(detail="the judge was unavailable") if record.fallback else outcome
        failures = (
            {score.reference: failure for score in record.reference_scores} if isinstance(failure, Failure) else {}
        )
        outcome = combine(record.reference_scores, consistency, failures).outcome
        own = record.correction
        if own is not None and consistency.correction != "off" and outcome == Scored(value=own.value):
            outcome = Scored(value=corrected_value(own, record.audit))
    if isinstance(section, JudgeSection) and section.weight:
        outcome = _judged_value(component, record, rewards)
    return replace(component, outcome=outcome, weight=section.weight)


def _judged_value(component: Component, record: RewardRecord, rewards: RewardsConfig) -> Outcome:
    """Value of a judgement under `rewards`. An outcome without a judgement (failed, absent, malformed) is unchanged."""
    if isinstance(component.outcome, Vetoed) and not rewards.veto_first:
        raise MissingScore(f"{component.name} was not judged: {component.outcome.detail}")
    for judgement in record.judgements:
        if judgement.component == component.name:
            return Scored(value=judged_value(judgement, rewards.section(component.name)))
    return component.outcome
