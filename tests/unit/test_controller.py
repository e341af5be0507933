"""The controller in one process on scripted fakes, without Ray and models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hamr.config.algorithm import AlgorithmConfig, AllWrongConfig, DynamicSamplingConfig, OverlongConfig
from hamr.config.faults import UnscoredConfig
from hamr.data.stream import PromptStream
from hamr.errors import TooManyUnscored
from hamr.rewards.mix import mix
from hamr.telemetry.ledger import Ledger
from hamr.types import (
    Audit,
    Component,
    JudgeTimeout,
    JudgeUnavailable,
    Outcome,
    Reply,
    RewardCorrection,
    RewardRecord,
    Rollout,
    RolloutGroup,
    SampleKey,
    Scored,
    ServiceSample,
)
from tests.factories import ScriptedRewarder, build, by_index, sample


async def test_a_step_collects_scores_trains_and_syncs() -> None:
    controller, engine, trainer, recorder = build(by_index)
    metrics = await controller.step(0, PromptStream([sample(i) for i in range(5)], seed=0))
    (batch,) = trainer.batches
    assert len(batch.groups) == 2 and all(len(g.sequences) == 4 for g in batch.groups)
    assert [s.advantage > 0 for s in batch.groups[0].sequences] == [False, True, False, True]
    assert controller.version == 1 and controller.weights.versions == [1]
    assert len(recorder.kept) == 8 and len({r.key for r in recorder.kept}) == 8
    assert metrics["rollout/groups_dropped"] == 0 and metrics["rollout/tokens"] == 24


async def test_stream_learns_the_share_of_right_responses() -> None:
    class Listening(PromptStream):
        def learn(self, sample: ServiceSample, score: float) -> None:
            learned.append(score)

    learned: list[float] = []
    controller, _, _, _ = build(by_index)
    await controller.step(0, Listening([sample(i) for i in range(5)], seed=0))
    assert learned == [0.5, 0.5]


async def test_responses_are_scored_while_siblings_are_generated() -> None:
    def reward(rollout: Rollout) -> Outcome:
        begun.append(controller.engine.open)
        return by_index(rollout)

    begun: list[int] = []
    controller, _, _, _ = build(reward)
    await controller.step(0, PromptStream([sample(i) for i in range(5)], seed=0))
    assert begun[0] < 8


async def test_response_records_its_number_of_siblings() -> None:
    controller, _, _, _ = build(by_index, n=4)
    (group,) = await controller.score_groups([sample(0)], [controller.request(0, sample(0))])
    assert [r.siblings for r in group.rollouts] == [4, 4, 4, 4]


async def test_dynamic_sampling_refills_with_further_prompts() -> None:
    def reward(rollout: Rollout) -> Outcome:
        return Scored(value=1.0) if rollout.key.prompt in {"s0", "s1"} else by_index(rollout)

    controller, engine, trainer, _ = build(reward, prompts=3)
    metrics = await controller.step(0, PromptStream([sample(i) for i in range(5)], seed=0))
    prompts = [r.keys[0].prompt for r in engine.requests]
    assert len(trainer.batches[0].groups) == 3
    assert metrics["rollout/groups_dropped"] == len({"s0", "s1"} & set(prompts))
    assert metrics["rollout/prompts"] == len(prompts), "as its glossary says: those of dropped groups included"
    assert len(prompts) == len(set(prompts)) == 3 + metrics["rollout/groups_dropped"]


async def test_rounds_are_bounded_and_a_step_without_signal_is_skipped() -> None:
    algorithm = AlgorithmConfig(dynamic_sampling=DynamicSamplingConfig(max_rounds=2))
    controller, engine, trainer, recorder = build(lambda r: Scored(value=0.0), algorithm=algorithm)
    metrics = await controller.step(0, PromptStream([sample(0)], seed=0))
    assert trainer.batches == [] and metrics["rollout/rounds"] == 2
    # the one prompt came up four times; the attempt keeps the keys apart
    assert len({r.key for r in recorder.kept}) == 16


async def test_failed_score_is_excluded_from_the_baseline() -> None:
    def reward(rollout: Rollout) -> Outcome:
        return JudgeTimeout(detail="dead") if rollout.key.sample == 0 else by_index(rollout)

    controller, _, trainer, recorder = build(reward, prompts=1)
    await controller.step(0, PromptStream([sample(0)], seed=0))
    advantages = [s.advantage for s in trainer.batches[0].groups[0].sequences]
    assert len(advantages) == 3 and advantages[0] == advantages[2] > 0 > advantages[1]
    assert sum(advantages) == pytest.approx(0.0, abs=1e-9)
    assert len(recorder.kept) == 4


async def test_overlong_penalty_lowers_the_reward_of_long_responses() -> None:
    algorithm = AlgorithmConfig(overlong=OverlongConfig(enabled=True, cache=7))
    controller, _, trainer, _ = build(lambda r: Scored(value=1.0), prompts=1, algorithm=algorithm)
    groups, _ = await controller.collect(0, PromptStream([sample(0)], seed=0))
    assert groups == []  # all equal: 3 of 8 tokens, penalty (8 - 7 - 3) / 7 for each
    (group,) = await controller.score_groups([sample(0)], [controller.request(0, sample(0))])
    assert controller.batches.rewards(group) == pytest.approx([1.0 - 2.0 / 7.0] * 4)


async def test_tokens_after_the_answer_mark_get_no_overlong_penalty() -> None:
    algorithm = AlgorithmConfig(overlong=OverlongConfig(enabled=True, cache=7))
    controller, engine, _, _ = build(lambda r: Scored(value=1.0), prompts=1, algorithm=algorithm)
    controller.mark = lambda s: "</answer>" if s.id == sample(0).id else ""
    requests = [controller.request(0, sample(i)) for i in range(2)]
    assert [request.sampling.mark for request in requests] == ["</answer>", ""]
    assert [request.sampling.stop for request in requests] == [(), ()], "in training the rationale is written"
    (group,) = await controller.score_groups([sample(0)], requests[:1])
    short = replace(group, rollouts=tuple(replace(r, answer_tokens=1) for r in group.rollouts))
    assert controller.batches.rewards(short) == pytest.approx([1.0] * 4)  # 1 of 3 tokens, and 8 - 7 are free


def truncate(group: RolloutGroup, *numbers: int) -> RolloutGroup:
    """Return the group with these responses truncated at the limit."""
    rollouts = [replace(r, finish_reason="length") if i in numbers else r for i, r in enumerate(group.rollouts)]
    return replace(group, rollouts=tuple(rollouts))


@pytest.mark.parametrize("filtered", [True, False])
async def test_overlong_filtering_takes_truncated_responses_out_of_the_loss_alone(filtered: bool) -> None:
    algorithm = AlgorithmConfig(overlong=OverlongConfig(filter=filtered))
    controller, *_ = build(by_index, prompts=1, algorithm=algorithm)
    (group,) = await controller.score_groups([sample(0)], [controller.request(0, sample(0))])
    (whole,) = controller.batches.build([group]).groups
    (cut,) = controller.batches.build([truncate(group, 0, 3)]).groups
    left = whole.sequences[1:3] if filtered else whole.sequences
    assert cut.sequences == left, "the rewards of truncated responses stay in the baseline"


async def test_group_of_truncated_responses_has_no_signal() -> None:
    algorithm = AlgorithmConfig(overlong=OverlongConfig(filter=True))
    controller, *_ = build(by_index, prompts=1, algorithm=algorithm)
    (group,) = await controller.score_groups([sample(0)], [controller.request(0, sample(0))])
    assert controller.batches.has_signal(truncate(group, 0, 1, 2))
    assert not controller.batches.has_signal(truncate(group, 0, 1, 2, 3))
    assert controller.batches.build([truncate(group, 0, 1, 2, 3)]).groups == ()
    lost = replace(group.records[3], total=JudgeTimeout(detail="late"))
    assert not controller.batches.has_signal(truncate(replace(group, records=(*group.records[:3], lost)), 0, 1, 2))
    answered = replace(group, rollouts=tuple(replace(r, answer_tokens=1) for r in truncate(group, 0, 1).rollouts))
    assert len(controller.batches.build([answered]).groups[0].sequences) == 4, "text after the answer may be truncated"


async def test_reinforce_pp_normalises_over_the_tokens_of_scored_responses_of_the_batch() -> None:
    algorithm = AlgorithmConfig(advantage="reinforce_pp", loss_aggregation="constant_length")

    def reward(rollout: Rollout) -> Outcome:
        return (
            by_index(rollout) if rollout.key.prompt == "s0" or rollout.key.sample else JudgeUnavailable(detail="away")
        )

    controller, *_ = build(reward, prompts=2, algorithm=algorithm)
    samples = [sample(0), sample(1)]
    groups = await controller.score_groups(samples, [controller.request(0, s) for s in samples])
    batch = controller.batches.build(groups)
    tokens = [s.advantage for g in batch.groups for s in g.sequences for _ in s.token_ids]
    assert sum(len(g.sequences) for g in batch.groups) == 7
    assert sum(tokens) == pytest.approx(0.0, abs=1e-9)
    assert sum(a * a for a in tokens) == pytest.approx(len(tokens) - 1)
    assert (batch.aggregation, batch.horizon) == ("constant_length", controller.rollout.max_new_tokens)


HASTY = UnscoredConfig(max_frac=0.5, first_s=0.001, longest_s=0.001, wait_s=0.2)


async def test_unscored_batch_waits_and_records_each_response_once(tmp_path: Path) -> None:
    tries: Counter[SampleKey] = Counter()
    notes: list[str] = []

    def reward(rollout: Rollout) -> Outcome:
        tries[rollout.key] += 1
        return by_index(rollout) if tries[rollout.key] > 2 else JudgeUnavailable(detail="away")

    controller, engine, trainer, recorder = build(reward, prompts=2)
    controller.experiment = controller.experiment.model_copy(update={"unscored": HASTY})
    controller.note = notes.append
    metrics = await controller.step(0, PromptStream([sample(i) for i in range(5)], seed=0))
    assert [len(g.sequences) for g in trainer.batches[0].groups] == [4, 4]
    assert len(engine.requests) == 2, "the responses are the same, only their scores are new"
    assert set(tries.values()) == {3}
    assert [r.total.ok for r in recorder.kept] == [True] * 8
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.add(recorder.kept) == len(recorder.kept) == 8
    assert metrics["rollout/rescored"] == 16
    assert "8 of 8 responses have no reward" in notes[0]


async def test_copies_of_an_audited_reply_are_trained_on_with_its_reward() -> None:
    controller, _, trainer, recorder = build(by_index, prompts=1)

    class Audited(ScriptedRewarder):
        async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
            record = await super().score(sample, rollout)
            found = Audit(s_r=0.9, s_j=0.25, mix=0.25) if rollout.key.sample == 2 else None
            value = 0.25 if found else 0.9
            outcome = Scored(value=value)
            return replace(
                record,
                total=outcome,
                components=(Component(name="consistency", outcome=outcome, weight=1.0),),
                action=Reply(content="Hello!" if rollout.key.sample % 2 == 0 else f"{rollout.key.sample}"),
                audit=found,
                correction=RewardCorrection(value=0.9, strata=(), propensity=0.1, shift=0.0),
            )

    controller.rewarder = Audited(by_index)
    await controller.step(0, PromptStream([sample(0)], seed=0))
    assert [r.components[0].value for r in recorder.kept] == [0.25, 0.9, 0.25, 0.9]
    assert [s.advantage > 0 for s in trainer.batches[0].groups[0].sequences] == [False, True, False, True]


async def test_run_without_scorers_stops_and_discards_the_step() -> None:
    controller, _, trainer, recorder = build(lambda r: JudgeUnavailable(detail="away"))
    controller.experiment = controller.experiment.model_copy(update={"unscored": HASTY})
    with pytest.raises(TooManyUnscored, match=r"step 0: 8 of 8 responses have no reward \(judge_unavailable 8"):
        await controller.step(0, PromptStream([sample(i) for i in range(5)], seed=0))
    assert (trainer.batches, recorder.kept, controller.version, controller.weights.versions) == ([], [], 0, [])


ALL_WRONG = AllWrongConfig(reference=True)
ONE_ROUND = DynamicSamplingConfig(max_rounds=1)


def wrong_but_for(prompt: str) -> Callable[[Rollout], Outcome]:
    return lambda r: by_index(r) if r.key.prompt == prompt else Scored(value=0.0)


async def test_reference_is_added_to_all_wrong_groups() -> None:
    controller, _, trainer, recorder = build(wrong_but_for("s0"), algorithm=AlgorithmConfig(all_wrong=ALL_WRONG))
    controller.batches = replace(controller.batches, answer=lambda action: (7, 8))
    metrics = await controller.step(0, PromptStream([sample(0), sample(1)], seed=0))
    groups = sorted(trainer.batches[0].groups, key=lambda g: len(g.sequences))
    assert [len(g.sequences) for g in groups] == [4, 5], "a group with a right response needs no help"
    reference = groups[1].sequences[-1]
    assert (reference.token_ids, reference.old_logprobs) == ((7, 8), ()) and reference.advantage == pytest.approx(
        2.0, abs=1e-4
    )
    assert [s.advantage for s in groups[1].sequences[:-1]] == pytest.approx([-0.5] * 4, abs=1e-4)
    assert len(recorder.kept) == 8, "it is no response of the policy's"
    assert metrics["groups/all_wrong_frac"] == metrics["groups/mixed_frac"] == 0.5
    assert (
        metrics["policy/advantage/max"] == pytest.approx(2.0, abs=1e-4) and metrics["groups/kept_reward/mean"] == 0.25
    )


async def test_reference_gets_full_consistency_and_the_best_side_rewards() -> None:
    controller, _, _, _ = build(lambda r: Scored(value=0.0), prompts=1)
    controller.batches = replace(controller.batches, answer=lambda action: (7,))
    (group,) = await controller.score_groups([sample(0)], [controller.request(0, sample(0))])
    side = Component(name="format", outcome=Scored(value=1.0), weight=0.2)
    first = replace(group.records[0], total=Scored(value=0.2), components=(*group.records[0].components, side))
    assert controller.batches.reference(replace(group, records=(first, *group.records[1:])))[1] == pytest.approx(1.2)


async def test_further_responses_are_sampled_for_all_wrong_groups() -> None:
    def reward(rollout: Rollout) -> Outcome:
        return Scored(value=float(rollout.key.prompt == "s0" or (rollout.key.attempt == 1 and rollout.key.sample == 0)))

    algorithm = AlgorithmConfig(all_wrong=AllWrongConfig(more_samples=6), dynamic_sampling=ONE_ROUND)
    controller, engine, trainer, recorder = build(reward, algorithm=algorithm)
    await controller.step(0, PromptStream([sample(0), sample(1)], seed=0))
    assert [len(r.keys) for r in engine.requests] == [4, 4, 6]
    (group,) = trainer.batches[0].groups
    assert len(group.sequences) == 10 and sum(s.advantage > 0 for s in group.sequences) == 1
    assert len({r.key for r in recorder.kept}) == 14


async def test_no_further_responses_are_sampled_before_all_are_scored() -> None:
    """During an outage of the judge a group with one malformed response is not known to be all wrong."""
    controller, _, _, _ = build(
        lambda r: JudgeUnavailable(detail="away") if r.key.sample else Scored(value=0.0),
        algorithm=AlgorithmConfig(all_wrong=AllWrongConfig(more_samples=6)),
    )
    groups = await controller.score_groups([sample(0)], [controller.request(0, sample(0))])
    assert await controller.sample_more(0, groups, Counter()) == groups


async def test_all_wrong_remedies_are_off_by_default() -> None:
    controller, engine, trainer, _ = build(lambda r: Scored(value=0.0))
    controller.batches = replace(controller.batches, answer=lambda action: (7,))
    await controller.step(0, PromptStream([sample(0)], seed=0))
    assert trainer.batches == [] and {len(r.keys) for r in engine.requests} == {4}


# --- rewards.normalise=gdpo ----------------------------------------------------------------------


class TwoRewards(ScriptedRewarder):
    """Two components whose sum is the same for every response, unless one fails."""

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        record = await super().score(sample, rollout)
        number = float(rollout.key.sample % 2)
        rare = Scored(value=-10.0 * number) if rollout.key.sample else JudgeTimeout(detail="late")
        components = (
            Component(name="consistency", outcome=Scored(value=number), weight=2.0),
            Component(name="mine", outcome=rare, weight=0.2),
            Component(name="off", outcome=Scored(value=rollout.key.sample), weight=0.0),
        )
        return replace(record, components=components, total=mix(components))


async def test_decoupled_rewards_give_signal_for_equal_totals() -> None:
    controller, engine, trainer, _ = build(by_index)
    controller.rewarder = TwoRewards(by_index)
    groups = await controller.score_groups([sample(0)], [controller.request(0, sample(0))])
    assert controller.batches.rewards(groups[0]) == [None, 0.0, 0.0, 0.0] and not controller.batches.trainable(groups)
    controller.batches = replace(controller.batches, normalise="gdpo")
    assert controller.batches.trainable(groups) == groups
    (group,) = controller.batches.build(groups).groups
    first, second, third = (s.advantage for s in group.sequences)
    assert len(group.sequences) == 3, "the failed response is not trained on"
    assert first == third > 0 > second, "consistency has the larger weight"
    assert first**2 + second**2 + third**2 == pytest.approx(3.0, abs=1e-3)


async def test_decoupled_rewards_leave_out_groups_that_no_scorer_answered() -> None:
    controller, _, _, _ = build(by_index)
    groups = await controller.score_groups([sample(0), sample(1)], [controller.request(0, sample(i)) for i in (0, 1)])
    lost = [replace(r, total=JudgeTimeout(detail="no router"), components=()) for r in groups[0].records]
    groups[0] = replace(groups[0], records=tuple(lost))
    (group,) = replace(controller.batches, normalise="gdpo").build(groups).groups
    assert [s.advantage for s in group.sequences] == pytest.approx([-1.0, 1.0, -1.0, 1.0], abs=1e-5)


async def test_the_overlong_penalty_is_a_component_of_decoupled_rewards() -> None:
    overlong = OverlongConfig(enabled=True, cache=8, weight=0.5)
    controller, engine, _, _ = build(by_index, algorithm=AlgorithmConfig(overlong=overlong))
    (group,) = await controller.score_groups([sample(0)], [controller.request(0, sample(0))])
    penalty = controller.batches.overlong(group.rollouts[0])
    assert penalty < 0 and controller.batches.components(group) == [(1.0, [0.0, 1.0, 0.0, 1.0]), (0.5, [penalty] * 4)]
    assert controller.batches.rewards(group)[1] == 1.0 + 0.5 * penalty
