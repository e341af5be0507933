"""A run folder as a training run leaves it, made with the real writers from a policy that gets better by formula."""

import math
import random
from pathlib import Path

from hamr.telemetry.recorder import RunRecorder
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.summary import write_summary
from hamr.types import (
    Component,
    JudgeTimeout,
    MalformedResponse,
    Reference,
    ReferenceScore,
    Reply,
    RewardRecord,
    SampleKey,
    Scored,
    ServiceSample,
    ToolCall,
    Turn,
    VersionSpan,
)
from tests.unit.telemetry.records import call

CONFIG = """
experiment: {name: synthetic, steps: 20, seed: 3}
rewards: {consistency: {weight: 1.0, mode: hybrid, cascade: {tau_a: 0.68, tau_b: 0.98, w1: 0.05, w2: 0.72}}}
rollout: {samples_per_prompt: 8}
"""

SAID = (
    "I want to cancel my package, it is far too expensive for what I get.",
    "Please <b>downgrade</b> me & tell me what happens to the penalty.",
    "My contract ends next month, can I keep my number?",
    "Forget it, I will keep the plan if you give me a discount.",
)
GOOD = (
    "I understand. May I ask what makes the package too expensive for you?",
    "I can check that. One moment, please.",
)
BAD = ("Your order is on its way!", "hello hello hello <script>alert(1)</script> hello", "I do not know about that.")
REPLY = Reply(content="I see. May I ask what you find too expensive about it?")
CANCEL = ToolCall(name="change_order", parameters={"package": "basic", "reason": "too expensive"})


def prompts(n=40):
    return {
        f"s{i}": ServiceSample(
            id=f"s{i}",
            ticket={},
            policy="",
            tools=(),
            history=(Turn(role="customer", content=SAID[i % len(SAID)]),),
            references=(Reference(action=CANCEL if i % 4 == 3 else REPLY),),
        )
        for i in range(n)
    }


def scored_response(rng, key, skill, *, wants_tool=False):
    """One record of a policy of `skill` in [0, 1]."""
    versions = (VersionSpan(version=key.step, start=0, end=20),)
    if rng.random() > 0.6 + 0.4 * skill:
        malformed, zero = MalformedResponse(detail="no JSON object"), Scored(value=0.0)
        parts = _parts(malformed, zero)
        return RewardRecord(
            key=key, total=malformed, components=parts, action=None, band="none", response="{", versions=versions
        )
    good = rng.random() < skill
    if wants_tool:
        action = CANCEL if good else REPLY
        value, band = (1.0, "tool_match") if good else (0.0, "type_mismatch")
        return _record(key, Scored(value=value), action, band, versions)
    s_r = min(0.999, max(0.0, rng.gauss(0.86 if good else 0.3, 0.14)))
    band = "below" if s_r < 0.68 else "above" if s_r > 0.98 else "inside"
    s_j = None if band == "inside" else min(1.0, max(0.0, rng.gauss(0.9 if good else 0.2, 0.08)))
    outcome = Scored(value=s_r if s_j is None else 0.2 * s_r + 0.8 * s_j)
    if s_j is not None and rng.random() < 0.03:
        outcome, s_j = JudgeTimeout(detail="120 s"), None
    calls = (
        call("reranker", service_s=0.03),
        *((call("judge", service_s=0.4, tokens=120),) if s_j is not None else ()),
    )
    scores = (ReferenceScore(reference=0, s_r=s_r, s_j=s_j),)
    action = Reply(content=rng.choice(GOOD if good else BAD))
    more = {"reference_scores": scores, "calls": calls, "s_r": s_r, "s_j": s_j, "seconds": 0.1}
    return _record(key, outcome, action, band, versions, **more)


def _parts(outcome, form):
    return (
        Component(name="consistency", outcome=outcome, weight=1.0),
        Component(name="format", outcome=form, weight=0.2),
        Component(name="length", outcome=Scored(value=-0.1), weight=0.1),
        Component(name="rules", outcome=Scored(value=1.0), weight=0.1),
    )


def _record(key, outcome, action, band, versions, **more):
    parts = _parts(outcome, Scored(value=1.0))
    contributions = [c.contribution for c in parts]
    total = outcome if None in contributions else Scored(value=sum(contributions))
    said = action.content if isinstance(action, Reply) else '{"action": "call_tool"}'
    return RewardRecord(
        key=key, total=total, components=parts, action=action, band=band, response=said, response_tokens=18,
        versions=versions, **more,
    )  # fmt: skip


def evaluate(recorder, rng, name, step, skill, samples):
    records = [
        scored_response(
            rng, SampleKey(run=f"synthetic/eval-{name}", step=step, prompt=p, sample=0), skill, wants_tool=_tool(s)
        )
        for p, s in samples.items()
    ]
    ok = [r for r in records if r.total.ok]
    reward = {"total": sum(r.total.value for r in ok) / len(ok)}
    for part in ("consistency", "format", "length", "rules"):
        values = [c.outcome.value for r in ok for c in r.components if c.name == part]
        reward[part] = sum(values) / len(values)
    figures = {
        "n": len(records),
        "action_accuracy": 0.3 + 0.65 * skill,
        "tool_exact_match": 0.9 * skill,
        "format_error_rate": sum(r.action is None for r in records) / len(records),
        "failed_frac": 1 - len(ok) / len(records),
    }
    flat = {**figures, **{f"reward/{k}": v for k, v in reward.items()}}
    recorder.evaluation(name, step, {f"eval/{name}/{k}": v for k, v in flat.items()}, records)
    acts = ("ask_reason", "offer_discount", "change_order", "close")
    by_act = {a: min(1.0, skill * (0.7 + 0.12 * i) + 0.2) for i, a in enumerate(acts)}
    return {**figures, "reward": reward, "by_act": by_act}


def _tool(sample):
    return isinstance(sample.references[0].action, ToolCall)


def make_run(path: Path, *, steps=20, finished=True) -> RunFolder:
    rng, samples, stages = random.Random(0), prompts(), {}
    with RunFolder.create(path, CONFIG) as folder, RunRecorder(folder, prompts=samples) as recorder:
        stages["base"] = evaluate(recorder, rng, "base", 0, 0.05, samples)
        recorder.begin("sft", 12)
        for step in range(1, 13):
            recorder.metrics(
                step, {"sft/loss": 0.8 + 2.4 * math.exp(-step / 4), "sft/grad_norm": 3.0, "sft/tokens": 400.0}
            )
        stages["sft"] = evaluate(recorder, rng, "sft", 0, 0.45, samples)
        recorder.begin("rl", steps)
        for step in range(1, steps + 1):
            skill = 0.45 + 0.5 * (1 - math.exp(-step / 8))
            recorder.records(step, _step_records(rng, step, skill, samples))
            recorder.metrics(step, _step_metrics(rng, step))
            if step % 5 == 0 and step < steps:
                evaluate(recorder, rng, f"rl-{step}", step, skill, samples)
        stages["rl"] = evaluate(recorder, rng, "rl", steps, 0.93, samples)
        if finished:
            write_summary(folder, summary(stages, steps))
    return folder


def _step_records(rng, step, skill, samples):
    drawn = rng.sample(sorted(samples), 8)
    return [
        scored_response(
            rng, SampleKey(run="synthetic", step=step, prompt=p, sample=i), skill, wants_tool=_tool(samples[p])
        )
        for p in drawn
        for i in range(8)
    ]


def _step_metrics(rng, step):
    score, train, sync = rng.uniform(5, 7), rng.uniform(8, 10), rng.uniform(0.4, 0.7)
    return {
        "policy/entropy": 1.4 * math.exp(-step / 14) + 0.5 + rng.uniform(-0.05, 0.05),
        "policy/clipped": rng.uniform(0.0, 0.03),
        "policy/importance_clipped": rng.uniform(0.0, 0.01),
        "rollout/truncated_frac": 0.3 * math.exp(-step / 5),
        "policy/grad_norm": float("nan") if step == 9 else rng.lognormvariate(0.2, 0.5),
        "rollout/logprob_diff/mean": rng.uniform(0.03, 0.05),
        "rollout/logprob_diff/max": rng.uniform(0.3, 0.6),
        "rollout/response_tokens/mean": 24 - 0.3 * step,
        "rollout/tokens": 1500.0,
        "timing/step/rollout_score": score,
        "timing/step/train": train,
        "timing/step/sync": sync,
        "timing/step/total": score + train + sync + 0.6,
        "truth/reranker_wrong_frac": 0.2,
        "truth/judge_wrong_frac": 0.15,
        "truth/both_wrong_frac": 0.05,
    }


def summary(stages, steps):
    aucs = {"held_out": 0.91, "labelled_pairs": 0.78}
    words = {"held_out": 0.64, "labelled_pairs": 0.69}
    return {
        "name": "synthetic",
        "stages": stages,
        "scorers": {
            "reranker": {"auc": aucs, "word_overlap_auc": words, "finetuned": True},
            "judge": {"auc": {"held_out": 0.95, "labelled_pairs": 0.84}, "word_overlap_auc": words, "finetuned": False},
        },
        "timing": {
            "model and data": 14.0,
            "scorers": 95.0,
            "start": 31.0,
            "sft": 40.0,
            "rl": 320.0,
            "evaluation": 61.0,
        },
        "steps": steps,
        "seed": 3,
        "versions": {"hamr": "0.1.0", "torch": "2.13.0+cpu", "vllm": "0.32.0", "ray": "2.60.0", "python": "3.11.7"},
        "machine": {"cpu": "2 cores, AVX-512", "memory_gb": 24, "gpus": 0},
        "memory_gb_peak": 8.4,
    }
