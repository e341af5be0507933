"""From scored groups to a training batch: rewards, the groups that carry signal, advantages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hamr.algorithms.advantages import Weighted, decoupled_advantages, unit_scale
from hamr.algorithms.credit import EpisodeRewards, comparisons, episode_rewards, turn_advantages
from hamr.algorithms.dynamic_sampling import carries_signal
from hamr.algorithms.estimators import configured_estimator
from hamr.algorithms.group_outcomes import outcome
from hamr.algorithms.overlong import is_overlong, overlong_penalty
from hamr.algorithms.reinforce_pp import WHITENED, whiten
from hamr.config.algorithm import AlgorithmConfig
from hamr.config.rewards import Normalisation
from hamr.protocols import AnswerEncoder
from hamr.types import Rollout, RolloutGroup, TrainBatch, TrainGroup, TrainSequence, derive_seed


@dataclass(frozen=True)
class BatchBuilder:
    """Estimates group-relative advantages and builds training batches."""

    algorithm: AlgorithmConfig
    max_new_tokens: int
    seed: int
    normalise: Normalisation = "sum"
    """`gdpo`: normalise each component within its group before they are summed, instead of the total reward."""
    answer: AnswerEncoder | None = None
    """Encodes an action as a completion of the policy. Used for references that join a group."""

    def build(self, groups: Sequence[RolloutGroup]) -> TrainBatch:
        """Estimate group-relative advantages and build the training batch.

        A response whose scoring failed is excluded from its group's baseline and from the batch. It contributes neither
        to the policy gradient nor to the entropy bonus. A response that overlong filtering takes out is in the
        baseline, but not in the batch. Turns of dialogues with the same prompt, such as all first ones, share it.
        """
        batch: list[TrainGroup] = []
        for group, (advantages, extra) in zip(groups, self.advantages(groups), strict=True):
            by_prompt: dict[tuple[int, ...], list[TrainSequence]] = {}
            for r, a, reward in zip(group.rollouts, advantages, group.rewards, strict=True):
                if self.is_in_loss(r, reward):
                    sequence = TrainSequence(token_ids=r.token_ids, advantage=a, old_logprobs=r.logprobs)
                    by_prompt.setdefault(r.prompt_ids, []).append(sequence)
            if extra:
                by_prompt.setdefault(group.rollouts[0].prompt_ids, []).extend(extra)
            batch += [TrainGroup(prompt_ids=ids, sequences=tuple(own)) for ids, own in by_prompt.items()]
        if self.algorithm.advantage in WHITENED:
            batch = whiten(batch)
        return TrainBatch(groups=tuple(batch), aggregation=self.algorithm.loss_aggregation, horizon=self.max_new_tokens)

    def advantages(self, groups: Sequence[RolloutGroup]) -> list[tuple[list[float], tuple[TrainSequence, ...]]]:
        """Return, for each group, the advantages of its responses, and the reference that joins it, if any."""
        if self.normalise == "sum":
            return [self.advantages_of_totals(group) for group in groups]
        floor = self.algorithm.std_floor
        estimated = [
            # A group that no scorer answered has no components.
            decoupled_advantages(self.components(group), std_floor=floor) or [0.0] * len(group.records)
            for group in groups
        ]
        scored = [
            a
            for group, own in zip(groups, estimated, strict=True)
            for a, reward in zip(own, group.rewards, strict=True)
            if reward is not None
        ]
        scale = unit_scale(scored)
        return [([scale * a for a in own], ()) for own in estimated]

    def advantages_of_totals(self, group: RolloutGroup) -> tuple[list[float], tuple[TrainSequence, ...]]:
        """Return the advantages of one group, by its total rewards, and the reference that joins it, if any."""
        rewards = self.rewards(group)
        normalise = configured_estimator(self.algorithm)
        if not self.takes_reference(group):
            return turn_advantages(self.episodes(group), self.algorithm.credit, normalise), ()
        reference, reward = self.reference(group)
        *advantages, last = normalise([*rewards, reward])
        return advantages, (replace(reference, advantage=last),)

    def trainable(self, groups: Sequence[RolloutGroup]) -> list[RolloutGroup]:
        """Return the groups that the optimiser can learn from."""
        sampling = self.algorithm.dynamic_sampling
        if not sampling.enabled:
            return list(groups)
        return [g for g in groups if self.has_signal(g) or self.takes_reference(g)]

    def has_signal(self, group: RolloutGroup) -> bool:
        """Return whether the rewards that are normalised differ within the group: the totals, or any component.

        A group without a response in the loss has no signal.
        """
        if not any(map(self.is_in_loss, group.rollouts, group.rewards)):
            return False
        if self.normalise == "gdpo":
            values = [values for _, values in self.components(group)]
        else:
            values = comparisons(self.episodes(group), self.algorithm.credit)
        return any(carries_signal(own, self.algorithm.dynamic_sampling.tolerance) for own in values)

    def takes_reference(self, group: RolloutGroup) -> bool:
        """Return whether a reference joins the group: the option is on and all of its responses are wrong."""
        wanted = self.algorithm.all_wrong.reference and self.answer is not None
        return wanted and outcome(group) == "all_wrong"

    def reference(self, group: RolloutGroup) -> tuple[TrainSequence, float]:
        """Return one of the sample's references as a completion, drawn by the group's key, and its reward."""
        assert self.answer is not None, "takes_reference checks this"
        key, references = group.rollouts[0].key, group.sample.references
        drawn = references[derive_seed(self.seed, key.step, key.prompt, "reference") % len(references)]
        best = max(
            (
                total - (own.contribution or 0.0) + own.weight
                for total, record in zip(self.rewards(group), group.records, strict=True)
                for own in record.components
                if total is not None and own.name == "consistency"
            ),
            default=1.0,
        )
        return TrainSequence(token_ids=self.answer(drawn.action)), best

    def rewards(self, group: RolloutGroup) -> list[float | None]:
        """Return the total reward per response, with DAPO's soft overlong penalty if enabled; None if unscored."""
        overlong = self.algorithm.overlong
        if not overlong.enabled:
            return list(group.rewards)
        return [
            None if reward is None else reward + overlong.weight * self.overlong(r)
            for reward, r in zip(group.rewards, group.rollouts, strict=True)
        ]

    def episodes(self, group: RolloutGroup) -> list[EpisodeRewards]:
        """Return the rewards of a group by dialogue."""
        return episode_rewards(group.records, self.rewards(group))

    def components(self, group: RolloutGroup) -> list[Weighted]:
        """Return the components with a weight, and the overlong penalty if enabled. A response without a total reward
        has no value for any."""
        weights = {c.name: c.weight for record in group.records for c in record.components if c.weight}
        values = [
            {} if total is None else {c.name: c.value for c in record.components}
            for total, record in zip(group.rewards, group.records, strict=True)
        ]
        found: list[Weighted] = [(weight, [own.get(name) for own in values]) for name, weight in weights.items()]
        overlong = self.algorithm.overlong
        if overlong.enabled and overlong.weight:
            penalties = [
                None if total is None else self.overlong(r)
                for total, r in zip(group.rewards, group.rollouts, strict=True)
            ]
            found.append((overlong.weight, penalties))
        return found

    def overlong(self, rollout: Rollout) -> float:
        """Return DAPO's soft overlong penalty before its weight."""
        # Tokens after the end of the answer do not affect the reward.
        length = len(rollout.token_ids) if rollout.answer_tokens is None else rollout.answer_tokens
        return overlong_penalty(length, self.max_new_tokens, self.algorithm.overlong.cache)

    def is_in_loss(self, rollout: Rollout, reward: float | None) -> bool:
        """Return whether a response has a reward and tokens, and DAPO's overlong filtering does not take it out."""
        filtered = self.algorithm.overlong.filter and is_overlong(rollout)
        return reward is not None and bool(rollout.token_ids) and not filtered
