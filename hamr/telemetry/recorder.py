"""Recorder of a run for all outputs: files, ledger, W&B and the terminal."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from types import TracebackType
from typing import Any

from hamr.algorithms.group_outcomes import metric_word
from hamr.cascade.audit import AuditWindow, JointErrors, with_labels
from hamr.config.logging import AlarmsConfig
from hamr.config.rewards import ConsistencyConfig
from hamr.data.samples import action_json
from hamr.errors import Preempted
from hamr.experience import ATTEMPTS
from hamr.files import JsonlWriter
from hamr.rewards.truth import ExactAct
from hamr.telemetry.callbacks import Callbacks
from hamr.telemetry.console import Console
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import (
    PACE_STEPS,
    MetricsWriter,
    dialogue_reward,
    episode_metrics,
    left_s,
    reward_metrics,
    router_metrics,
    total_rewards,
)
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.sinks import Sink, Sinks
from hamr.telemetry.watch import ActTruthWindow, RecentReplies, TruthWindow, alarms, watch_metrics
from hamr.types import Action, RewardRecord, ServiceSample, ToolCall

SAMPLE_ROWS = 8
"""Number of sampled responses per step and evaluation."""


class RunRecorder:
    """Implements `protocols.Recorder` over a run folder.

    The `records` of a step are written to the ledger immediately. Their reward/* and router/* metrics wait for the
    step's `metrics`, so that metrics.jsonl has one object per step. Call `begin(stage, total)` before each stage.

    Args:
        truth: Rule for exact acts, if the data allow one.
        wandb: Sink for metrics, histograms and sampled responses in addition to the folder: W&B, or several combined.
        prompts: Samples by id; sampled responses then show the customer's message and the closest reference.
        limits: Limits beyond which metrics raise alarms.
        audited: The section of the audited reward. None: nothing is audited.
        callbacks: The user's functions, called after each step and each evaluation.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        console: Console | None = None,
        wandb: Sink | None = None,
        prompts: Mapping[str, ServiceSample] | None = None,
        limits: AlarmsConfig | None = None,
        audited: ConsistencyConfig | None = None,
        truth: ExactAct | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.stage = ""
        self._total = 0
        self._console = console or Console(enabled=False)
        self._wandb: Sink = wandb or Sinks({})
        self._prompts = prompts or {}
        self._ledger = Ledger(folder.ledger)
        self._metrics = MetricsWriter(folder.metrics)
        self._samples = JsonlWriter(folder.samples)
        self._pending: dict[int, dict[str, float]] = {}
        self._standing: dict[str, float] = {}
        self._seconds: deque[float] = deque(maxlen=PACE_STEPS)
        self._limits = limits or AlarmsConfig()
        self._audited, self._truth = audited, truth
        self.scorers_changed()
        self._replies = RecentReplies()
        self._callbacks = callbacks

    def scorers_changed(self) -> None:
        """Start the windows of scores anew: those of other scorers are not comparable."""
        audited = self._audited
        self._audits = AuditWindow(audited.audit.by, audited.judge_best_k) if audited else None
        self._truths, self._act_truths, self._errors = TruthWindow(), ActTruthWindow(), JointErrors()

    def begin(self, stage: str, total: int) -> None:
        """Start stage `stage` (sft, rl) with `total` steps."""
        self.stage, self._total = stage, total
        self._pending.clear()
        self._seconds.clear()

    def rewind(
        self, run: str, step: int, unfinished: Iterable[Mapping[str, Any]] = (), refits: Collection[int] = ()
    ) -> None:
        """Remove the ledger's records of later steps from a run that resumes after `step`.

        The others rebuild the windows of steps that alarms compare, which start anew after a step of `refits`.
        The records of the draws (`Experience.state`) that were not trained on up to that step are removed too, since
        they are repeated. An asynchronous run may train on a response later than it was drawn; in the windows it
        belongs to the step in which it was drawn.
        """
        self._ledger.discard_after(run, step)
        for draw in unfinished:
            attempts = range(draw["attempt"], draw["attempt"] + ATTEMPTS)
            self._ledger.discard(run, draw["step"], draw["prompt"], attempts)
        for earlier in range(1, step + 1):
            self._window_metrics(list(self._ledger.rows(run=run, step=earlier)))
            if earlier in refits:
                self.scorers_changed()

    def records_since(self, run: str, step: int) -> Iterator[RewardRecord]:
        """Yield the recorded responses of `run` from `step` on."""
        return self._ledger.rows(run=run, since=step)

    def add(self, values: Mapping[str, float]) -> None:
        """Add metrics to every following step. A later value of the same name replaces the earlier one."""
        self._standing.update(values)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Record that a step has ended. The display counts steps from 1."""
        merged = {**self._standing, **self._pending.pop(step, {}), **values}
        if "timing/step/total" in merged:
            self._seconds.append(merged["timing/step/total"])
        if (left := left_s(list(self._seconds), step, self._total)) is not None:
            merged["progress/left_s"] = left
        flags, raised = alarms(merged, self._limits)
        for name, found in (("top_reply_frac", repr(self._replies.top)), ("truth_act_drop", self._act_truths.act)):
            if name in raised and found:  # a refit in this step has emptied the window of acts
                raised[name] += f": {found}"
        merged |= {f"alarm/{name}": flag for name, flag in flags.items()}
        self._metrics.write(step, self.stage, merged)
        self._wandb.metrics(step, self.stage, merged)
        self._console.step(step, self._total, merged)
        for line in raised.values():
            self._console.note(line)
        if self._callbacks:
            self._callbacks.call("on_step_end", self.stage, step, merged)

    def records(self, step: int, records: Sequence[RewardRecord]) -> None:
        """Record every response of the step, dropped groups included. Call once per step, so that means cover all."""
        self._ledger.add(records)
        self._pending[step] = {
            **reward_metrics(records),
            **episode_metrics(records),
            **router_metrics(records),
            **watch_metrics(records),
            **self._window_metrics(records),
        }
        self._wandb.records(step, records)
        self.samples(step, pick_samples(records, self._prompts, SAMPLE_ROWS, seed=step))

    def _window_metrics(self, records: Sequence[RewardRecord]) -> dict[str, float]:
        """Add the records of a step to the windows, and return the metrics that need them."""
        audits = self._audits.add(records) if self._audits else {}
        return {**self._replies.add(records), **audits, **self._exact_acts(records)}

    def _exact_acts(self, records: Sequence[RewardRecord]) -> dict[str, float]:
        """Return truth/* of a step; empty without a rule, except for what independent audits tell."""
        known = [(r, self._prompts[r.key.prompt]) for r in records if r.key.prompt in self._prompts]
        if self._truth is None or not known:
            return self._errors.add(with_labels(records))
        by_act = self._truth.by_act([r.action for r, _ in known], [sample for _, sample in known])
        share = sum(map(sum, by_act.values())) / len(known)
        metrics = {"truth/exact_act": share}
        metrics |= {f"truth/exact_by_act/{metric_word(act)}": fmean(held) for act, held in by_act.items()}
        exact = [(r, sample, self._truth.is_exact(r.action, sample)) for r, sample in known]
        metrics |= self._errors.add((r, right) for r, _, right in exact)
        if rewards := total_rewards(records):
            metrics["truth/drop"] = self._truths.add(fmean(rewards), share)
            metrics["truth/act_drop"] = self._act_truths.add(fmean(rewards), shares_by_act(exact))
        return metrics

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]], stage: str | None = None) -> None:
        staged = [{"stage": stage or self.stage, **row} for row in rows]
        for row in staged:
            self._samples.write({"step": step, **row})
        self._wandb.samples(step, staged)

    def evaluation(
        self, name: str, step: int, values: Mapping[str, float], records: Sequence[RewardRecord] = ()
    ) -> None:
        """Record held-out metrics (`eval/<stage>/*`) and their records, separate from those of training.

        The row of metrics.jsonl has `eval-<name>` as its stage.
        """
        for run in {record.key.run for record in records}:
            self._ledger.discard_step(run, step)  # an evaluation that was stopped before its end is repeated
        self._ledger.add(records)
        self._metrics.write(step, f"eval-{name}", values)
        self._wandb.metrics(step, f"eval-{name}", values)
        self._console.evaluation(name, values)
        self.samples(step, pick_samples(records, self._prompts, SAMPLE_ROWS, seed=step), f"eval-{name}")
        if self._callbacks:
            self._callbacks.call("on_evaluation_end", name, step, dict(values), tuple(records))

    def close(self, *, failed: bool = False) -> None:
        if self._callbacks:
            self._callbacks.close()
        self._metrics.close()
        self._samples.close()
        self._ledger.close()
        self._wandb.close(failed=failed)

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close(failed=kind is not None and not issubclass(kind, Preempted))


def shares_by_act(exact: Iterable[tuple[RewardRecord, ServiceSample, bool]]) -> dict[str, list[float]]:
    """Return, for each expected act, the exact shares of its prompts' responses."""
    by_prompt: dict[tuple[str, str], list[bool]] = {}
    for record, sample, right in exact:
        by_prompt.setdefault((str(sample.meta.get("act")), record.key.prompt), []).append(right)
    shares: dict[str, list[float]] = {}
    for (act, _), held in by_prompt.items():
        shares.setdefault(act, []).append(fmean(held))
    return shares


def pick_samples(
    records: Sequence[RewardRecord], prompts: Mapping[str, ServiceSample], n: int, *, seed: int
) -> list[dict[str, Any]]:
    """Return about n responses with their reward breakdown: best, worst, a failure if any, the rest at random.

    Dialogues are chosen as a whole, and at least two of them. The draw depends on the seed only; the rows keep the
    order of the records.
    """
    dialogues: dict[tuple[object, ...], list[int]] = {}
    for i, record in enumerate(records):
        key = record.key
        dialogues.setdefault((key.run, key.step, key.prompt, key.attempt, key.sample), []).append(i)
    units = list(dialogues.values())
    wanted = n if len(units) == len(records) else max(2, round(n * len(units) / len(records)))
    if len(units) <= wanted:
        chosen = set(range(len(units)))
    else:
        rewards = [dialogue_reward([records[i] for i in unit]) for unit in units]
        scored = [(reward, i) for i, reward in enumerate(rewards) if reward is not None]
        first = [max(scored)[1], min(scored)[1]] if scored else []
        first += [i for i, reward in enumerate(rewards) if reward is None][:1]
        chosen = set(first[:wanted])
        rest = [i for i in range(len(units)) if i not in chosen]
        chosen |= set(random.Random(seed).sample(rest, wanted - len(chosen)))
    rows = sorted(i for unit in chosen for i in units[unit])
    return [sample_row(records[i], prompts.get(records[i].key.prompt)) for i in rows]


def sample_row(record: RewardRecord, sample: ServiceSample | None) -> dict[str, Any]:
    """Return one response and its reward as a flat row of JSON values; null if scoring failed."""
    row: dict[str, Any] = {"prompt": record.key.prompt, "sample": record.key.sample}
    if record.observation:
        row["turn"] = record.key.turn
    if sample is not None:
        others = [t for t in sample.history if t.role != "agent"]
        row["customer"] = record.observation or (others[-1].content if others else "")
        if sample.references and not record.observation:
            row["reference"] = show_action(sample.references[_closest(record)].action)
    row |= {
        "response": record.response,
        "action": action_json(record.action) if record.action else None,
        "band": record.band,
        "s_r": record.s_r,
        "s_j": record.s_j,
        "outcome": record.total.kind,
        "total": record.reward,
    }
    for c in record.components:
        row[f"reward/{c.name}"] = c.value
    if record.episode is not None:
        row |= {"end": record.episode.outcome, **{f"episode/{c.name}": c.value for c in record.episode.components}}
    return row


def show_response(record: RewardRecord) -> str:
    """Return a response's action as text; its raw text if it has none."""
    return record.response if record.action is None else show_action(record.action)


def show_action(action: Action) -> str:
    """Format an action: the text of a reply, or `tool(name=value)`."""
    if isinstance(action, ToolCall):
        shown = (f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in action.parameters.items())
        return f"{action.name}({', '.join(shown)})"
    return action.content


def _closest(record: RewardRecord) -> int:
    """Return the index of the best-scoring reference; the first if none was scored."""
    asked = [(s.s_j if s.s_j is not None else s.s_r, s.reference) for s in record.reference_scores]
    known = [(score, -index) for score, index in asked if score is not None]
    return -max(known)[1] if known else 0
