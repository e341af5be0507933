"""Held-out figures from records with known answers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence

import pytest

from hamr.apps.train.held_out import decision_matches, evaluate_held_out, summarise
from hamr.data.actions import render_action
from hamr.data.formats import Formats
from hamr.protocols import GenerationRequest, SamplingConfig
from hamr.telemetry.glossary import check_names
from hamr.types import (
    Action,
    Audit,
    Band,
    Component,
    Failure,
    JudgeTimeout,
    MalformedResponse,
    Outcome,
    Reference,
    ReferenceScore,
    Reply,
    RewardRecord,
    Rollout,
    SampleKey,
    Scored,
    ServiceSample,
    ToolCall,
)

ASK, CALL = Reply(content="Data or voice?"), ToolCall(name="change_order", parameters={"operation": "change"})


def sample(i: int, gold: Action, act: str) -> ServiceSample:
    return ServiceSample(
        id=str(i), ticket={}, policy="", tools=(), history=(), references=(Reference(action=gold),), meta={"act": act}
    )


def record(i: int, action: Action | None, outcome: Outcome, band: Band) -> RewardRecord:
    return RewardRecord(
        key=SampleKey(run="r", step=0, prompt=str(i), sample=0),
        total=outcome,
        components=(Component(name="consistency", outcome=outcome, weight=1.0),),
        action=action,
        band=band,
    )


def test_held_out_figures_match_hand_computed_values() -> None:
    samples = [sample(0, ASK, "ask"), sample(1, CALL, "call"), sample(2, CALL, "call"), sample(3, ASK, "ask")]
    records = [
        record(0, Reply(content="Which one?"), Scored(value=0.8), "inside"),
        record(1, CALL, Scored(value=1.0), "tool_match"),
        record(2, ToolCall(name="change_order"), Scored(value=0.0), "tool_match"),
        record(3, None, MalformedResponse(detail="empty"), "none"),
    ]
    result = summarise(samples, records)
    assert result.action_accuracy == 0.75 and result.tool_exact_match == 0.5 and result.format_error_rate == 0.25
    assert result.reward["total"] == (0.8 + 1.0) / 4 and result.by_act == {"ask": 0.5, "call": 1.0}
    assert result.failed_frac == 0.0
    bare = [dataclasses.replace(r, components=()) for r in records]
    assert summarise(samples, bare).tool_exact_match == 0.5, "whatever the reward is made of"


def test_audits_correct_the_mean_consistency() -> None:
    """30 of 40 replies are inside the interval and audited; the judge takes 0.2 off half of these."""
    samples = [sample(i, ASK, "ask") for i in range(40)]
    audits = [Audit(s_r=0.8, s_j=0.0, best=0.0, mix=0.6 if i % 2 else 0.8) for i in range(30)]
    records = [record(i, ASK, Scored(value=0.8), "inside" if i < 30 else "below") for i in range(40)]
    records = [dataclasses.replace(r, reference_scores=(ReferenceScore(reference=0, s_r=0.8),)) for r in records]
    audited = [dataclasses.replace(r, audit=audit) for r, audit in zip(records, audits, strict=False)] + records[30:]
    result = summarise(samples, audited)
    assert result.reward["consistency"] == pytest.approx(0.8)
    found = result.debiased["consistency"]
    assert result.debiased["total"] == found, "the only component, with weight 1"
    assert found["mean"] == pytest.approx(0.8 - 0.1 * 30 / 40)
    assert found["low"] < found["mean"] < found["high"] < 0.8
    check_names(result.metrics("before"), strict=True)
    assert summarise(samples, records).debiased == {}


def test_failed_score_is_excluded_from_the_means() -> None:
    result = summarise([sample(0, ASK, "ask")], [record(0, ASK, JudgeTimeout(), "below")])
    assert result.failed_frac == 1.0 and result.reward == {} and result.tool_exact_match is None


def test_response_that_the_router_did_not_return_is_no_format_error() -> None:
    """Its record has neither an action nor components, but its text."""
    call = render_action(CALL)
    lost = [
        dataclasses.replace(record(i, None, Failure(detail="no record"), "none"), components=(), response=text)
        for i, text in enumerate(("Which one?", call, "<tool_call>"))
    ]
    result = summarise([sample(0, ASK, "ask"), sample(1, CALL, "call"), sample(2, CALL, "call")], lost)
    assert (result.format_error_rate, result.failed_frac) == (1 / 3, 1.0)
    assert (result.action_accuracy, result.tool_exact_match) == (2 / 3, 0.5)


def test_different_tool_is_a_different_decision() -> None:
    references = (Reference(action=CALL),)
    assert decision_matches(ToolCall(name="change_order"), references)
    assert not decision_matches(ToolCall(name="transfer_human"), references)
    assert not decision_matches(ASK, references) and not decision_matches(None, references)


class Echo:
    """An engine whose responses say their seed, and a rewarder that takes every response for right."""

    def __init__(self) -> None:
        self.requests: list[GenerationRequest] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        self.requests += requests
        for request in requests:
            for key, seed in zip(request.keys, request.seeds, strict=True):
                yield Rollout(
                    key=key, prompt_ids=request.prompt_ids, token_ids=(1,), logprobs=(0.0,), text=str(seed),
                    finish_reason="stop", versions=(), seed=seed, seconds=0.0,
                )  # fmt: skip

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        said = Reply(content=rollout.text)
        return RewardRecord(key=rollout.key, total=Scored(value=1.0), components=(), action=said, band="inside")


async def test_scoring_is_cancelled_if_the_engine_dies() -> None:
    class Dying(Echo):
        scoring = 0

        async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
            async for rollout in super().generate(requests):
                yield rollout
                await asyncio.sleep(0)
            raise RuntimeError("the engine died")

        async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
            self.scoring += 1
            try:
                await asyncio.sleep(60)
            finally:
                self.scoring -= 1
            raise AssertionError("the engine dies first")

    engine = Dying()
    with pytest.raises(RuntimeError, match="the engine died"):
        await evaluate_held_out(
            [sample(0, ASK, "ask")],
            run="r",
            stage="rl",
            step=1,
            encode=lambda s: (1,),
            engine=engine,
            rewarder=engine,
            sampling=SamplingConfig(temperature=0.0, max_new_tokens=4),
        )
    await asyncio.sleep(0)
    assert engine.scoring == 0


async def test_seeds_are_equal_across_stages_and_distinct_per_prompt() -> None:
    samples = [sample(0, ASK, "ask"), sample(1, CALL, "call")]
    engine = Echo()
    results = [
        await evaluate_held_out(
            samples,
            run="r",
            stage=stage,
            step=step,
            encode=lambda s: (7,),
            engine=engine,
            rewarder=engine,
            sampling=SamplingConfig(temperature=0.5, max_new_tokens=4),
            responses=3,
        )
        for stage, step in (("sft", 0), ("rl", 10))
    ]
    before, after = engine.requests[:2], engine.requests[2:]
    assert [r.seeds for r in before] == [r.seeds for r in after]
    assert len({seed for r in before for seed in r.seeds}) == 6
    assert {r.sampling.temperature for r in engine.requests} == {0.5}
    assert [r.n for r in results] == [6, 6]
    # The three responses to the first prompt are the right decision, those to the second are not.
    assert results[0].by_act == {"ask": 1.0, "call": 0.0} and results[0].action_accuracy == 0.5


async def test_answer_first_prompts_stop_early_and_are_reported_apart() -> None:
    samples = [sample(i, ASK, "ask") for i in range(12)]
    formats = Formats(asked="hybrid")
    asked: list[GenerationRequest] = []

    class Engine:
        async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
            asked.extend(requests)
            for request in requests:
                yield Rollout(
                    key=request.keys[0], prompt_ids=(1,), token_ids=(2, 3), logprobs=(0.0, 0.0), text="x",
                    finish_reason="stop", versions=(),
                )  # fmt: skip

    class Rewarder:
        async def score(self, given: ServiceSample, rollout: Rollout) -> RewardRecord:
            made = record(int(given.id), ASK, Scored(value=0.5), "inside")
            return dataclasses.replace(made, answer_tokens=7)

    options = {"run": "r", "stage": "rl", "step": 1, "encode": lambda s: (1,), "formats": formats}
    options |= {"sampling": SamplingConfig(temperature=0.7, top_p=0.9, max_new_tokens=4)}
    result = await evaluate_held_out(samples, engine=Engine(), rewarder=Rewarder(), stop_at_answer=True, **options)
    first = {request.keys[0].prompt: request.sampling.stop for request in asked}
    post = [s.id for s in samples if formats.of(s) == "answer_think"]
    assert 0 < len(post) < 12
    assert {name for name, stop in first.items() if stop == ("</answer>",)} == set(post)
    assert result.by_format["post_cot"] == {
        "n": len(post), "action_accuracy": 1.0, "reward": 0.5, "answer_tokens": 7.0
    }  # fmt: skip
    assert result.metrics("rl")["eval/rl/by_format/pre_cot/n"] == 12 - len(post)
    asked.clear()
    await evaluate_held_out(samples, engine=Engine(), rewarder=Rewarder(), **options)
    assert {request.sampling.stop for request in asked} == {()}
    assert {(r.sampling.temperature, r.sampling.top_p) for r in asked} == {(0.7, 0.9)}
    assert {request.sampling.mark for request in asked} == {"", "</answer>"}
