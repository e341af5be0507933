"""Evaluation of a policy on held-out decision points, scored as in training."""

from __future__ import annotations

import dataclasses
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hamr.algorithms.group_outcomes import metric_word
from hamr.bench.statistics import share_interval
from hamr.cascade.audit import DebiasedRewards, debiased_metrics
from hamr.config.matching import MatchingConfig
from hamr.controller import score_responses
from hamr.data.actions import ResponseFormat, acting_text, parse_action
from hamr.data.formats import NAMES, PLAIN, Formats
from hamr.protocols import GenerationRequest, PromptEncoder, Rewarder, RolloutEngine, SamplingConfig
from hamr.rewards.matching import MatchRules, match_action
from hamr.rewards.truth import ExactAct
from hamr.types import Action, Failure, MalformedResponse, Reference, RewardRecord, SampleKey, ServiceSample, ToolCall


@dataclass(frozen=True, kw_only=True)
class HeldOutResult:
    """Held-out metrics as in summary.json (`hamr.telemetry.summary.StageSummary`), and the records."""

    n: int
    action_accuracy: float
    tool_exact_match: float | None
    format_error_rate: float
    failed_frac: float
    reward: dict[str, float]
    by_act: dict[str, float]
    by_format: dict[str, dict[str, float]]
    records: tuple[RewardRecord, ...]
    exact_act: float | None = None
    exact_by_act: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    debiased: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics without the records, JSON-serialisable."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "records"}

    def metrics(self, stage: str) -> dict[str, float]:
        flat = {
            "action_accuracy": self.action_accuracy,
            "format_error_rate": self.format_error_rate,
            "failed_frac": self.failed_frac,
            **{f"reward/{name}": value for name, value in self.reward.items()},
            **debiased_metrics(self.debiased),
            **{
                f"by_format/{form}/{name}": value for form, own in self.by_format.items() for name, value in own.items()
            },
        }
        if self.tool_exact_match is not None:
            flat["tool_exact_match"] = self.tool_exact_match
        if self.exact_act is not None:
            flat["exact_act"] = self.exact_act
            flat |= {f"exact_by_act/{metric_word(act)}": own["share"] for act, own in self.exact_by_act.items()}
        return {f"eval/{stage}/{name}": value for name, value in flat.items()}


async def evaluate_held_out(
    samples: Sequence[ServiceSample],
    *,
    run: str,
    stage: str,
    step: int,
    encode: PromptEncoder,
    engine: RolloutEngine,
    rewarder: Rewarder,
    sampling: SamplingConfig,
    responses: int = 1,
    formats: Formats = PLAIN,
    stop_at_answer: bool = False,
    truth: ExactAct | None = None,
    matching: MatchingConfig | None = None,
) -> HeldOutResult:
    """Sample `responses` responses of the current policy per sample and score them while others are still generated.

    The seeds depend on the prompt alone, so every stage of every run uses the same random numbers. `stop_at_answer`:
    where a prompt asks for the answer first, generation stops at the end of the answer.
    """
    requests = []
    for sample in samples:
        keys = tuple(
            SampleKey(run=f"{run}/eval-{stage}", step=step, prompt=sample.id, sample=i) for i in range(responses)
        )
        seeds = tuple(zlib.crc32(f"{sample.id}/{i}".encode()) for i in range(responses))
        mark = formats.mark(sample)
        own = dataclasses.replace(sampling, stop=(mark,) if mark and stop_at_answer else (), mark=mark)
        requests.append(GenerationRequest(prompt_ids=encode(sample), keys=keys, seeds=seeds, sampling=own))
    groups = await score_responses(engine, rewarder, samples, requests)
    each = [(group.sample, record) for group in groups for record in group.records]
    return summarise([sample for sample, _ in each], [record for _, record in each], formats, truth, matching)


def summarise(
    samples: Sequence[ServiceSample],
    records: Sequence[RewardRecord],
    formats: Formats = PLAIN,
    truth: ExactAct | None = None,
    matching: MatchingConfig | None = None,
) -> HeldOutResult:
    """Reduce records to the held-out metrics; `samples` has one entry per record."""
    actions = [_action(record, formats.of(sample)) for sample, record in zip(samples, records, strict=True)]
    right = [decision_matches(action, s.references) for s, action in zip(samples, actions, strict=True)]
    rules = MatchRules(leniency=matching or MatchingConfig())
    exact = [
        action is not None and match_action(action, s.references, rules).score == 1.0
        for s, action in zip(samples, actions, strict=True)
        if all(isinstance(reference.action, ToolCall) for reference in s.references)
    ]
    values: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if not isinstance(record.total, Failure):
            values["total"].append(record.total.value)
        for component in record.components:
            if component.value is not None:
                values[component.name].append(component.value)
    acts: dict[str, list[bool]] = defaultdict(list)
    for sample, ok in zip(samples, right, strict=True):
        acts[str(sample.meta.get("act", "all"))].append(ok)
    n = len(samples)
    known = {} if truth is None else truth.by_act(actions, samples)
    return HeldOutResult(
        n=n,
        action_accuracy=sum(right) / n,
        tool_exact_match=sum(exact) / len(exact) if exact else None,
        format_error_rate=actions.count(None) / n,
        failed_frac=sum(isinstance(r.total, Failure) for r in records) / n,
        reward={name: sum(v) / len(v) for name, v in values.items()},
        by_act={act: sum(v) / len(v) for act, v in sorted(acts.items())},
        by_format=_by_format(samples, records, right, formats),
        records=tuple(records),
        exact_act=sum(map(sum, known.values())) / n if known else None,
        exact_by_act={act: _share(held) for act, held in known.items()},
        debiased=DebiasedRewards.of(records).estimates(),
    )


def _action(record: RewardRecord, asked: ResponseFormat) -> Action | None:
    """Return the action of a response, None if it is malformed. The router reads it; a response that it never returned
    is read here."""
    if record.action is not None:
        return record.action
    action = parse_action(acting_text(record.response, asked), asked)
    return None if isinstance(action, MalformedResponse) else action


def _share(held: Sequence[bool]) -> dict[str, float]:
    found = share_interval(held)
    assert found.mean is not None and found.low is not None and found.high is not None, "an act has responses"
    return {"n": float(found.n), "share": found.mean, "low": found.low, "high": found.high}


def _by_format(
    samples: Sequence[ServiceSample], records: Sequence[RewardRecord], right: Sequence[bool], formats: Formats
) -> dict[str, dict[str, float]]:
    """Return the metrics per response format; empty where no prompt asks for a rationale."""
    found: dict[str, dict[str, list[float]]] = {}
    for sample, record, ok in zip(samples, records, right, strict=True):
        asked = formats.of(sample)
        if asked == "plain":
            continue
        values = {
            "action_accuracy": float(ok),
            "reward": record.reward,
            "answer_tokens": record.answer_tokens,
            "answer_s": record.answer_s,
        }
        own = found.setdefault(NAMES[asked], {})
        for name, value in values.items():
            if value is not None:
                own.setdefault(name, []).append(value)
    return {
        form: {"n": float(len(own["action_accuracy"])), **{name: sum(v) / len(v) for name, v in own.items()}}
        for form, own in sorted(found.items())
    }


def decision_matches(action: Action | None, references: Sequence[Reference]) -> bool:
    """Return whether the action takes the same decision as a reference: to reply, or to call the same tool."""
    if action is None:
        return False
    return any(_decision(action) == _decision(reference.action) for reference in references)


def _decision(action: Action) -> str:
    return f"call_tool:{action.name}" if isinstance(action, ToolCall) else "reply"
