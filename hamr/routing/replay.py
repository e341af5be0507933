"""A recorded reward, computed again from its recorded scores alone: no model, no text, the same number."""

from __future__ import annotations

from dataclasses import replace

from hamr.config.schema import RewardsConfig
from hamr.errors import DataError
from hamr.rewards.mix import mix
from hamr.routing.consistency import combine
from hamr.types import Component, Failure, Outcome, RewardRecord


def replay(record: RewardRecord, rewards: RewardsConfig) -> Outcome:
    """The total of `record` under `rewards`: its own configuration gives the recorded total, exactly.

    Another one answers "what if": other weights, another trust interval, another mode, as far as the recorded
    scores reach. Length and rules keep their recorded values, since their texts are not read again.

    Raises MissingScore where the configuration needs a score that was never asked for, DataError for a component
    that the configuration does not know.
    """
    return mix([_again(component, record, rewards) for component in record.components])


def _again(component: Component, record: RewardRecord, rewards: RewardsConfig) -> Component:
    section = getattr(rewards, component.name, None)
    if section is None:
        known = sorted(type(rewards).model_fields)
        raise DataError("record.components", component.name, f"the configuration has only {known}")
    outcome = component.outcome
    if component.name == "consistency" and record.reference_scores:
        # The record keeps one failure: the one that decided. It stands for every score that is absent.
        failures = (
            {score.reference: outcome for score in record.reference_scores} if isinstance(outcome, Failure) else {}
        )
        outcome = combine(record.reference_scores, rewards.consistency, failures).outcome
    return replace(component, outcome=outcome, weight=section.weight)
