"""Metrics of a step: reduced once from raw values, named by the glossary, written as one JSON object per line."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, get_args

from hamr.algorithms.group_outcomes import has_reward, metric_word, rewarded_turns
from hamr.errors import RunFolderError
from hamr.files import JsonlWriter, numbered_rows
from hamr.rewards.mix import mix
from hamr.telemetry.glossary import check_names
from hamr.telemetry.record_json import failure_kinds
from hamr.types import (
    CASCADE_BANDS,
    MATCH_BANDS,
    EpisodeOutcome,
    Failure,
    MalformedResponse,
    RewardRecord,
    Scored,
    ScorerCall,
    Stale,
)

# --- reducing ----------------------------------------------------------------------------------


def percentile(values: Sequence[float], q: float) -> float:
    """Return the q-th percentile (0..100), linear between neighbours. Raises ValueError if there are no values.

    >>> percentile([1.0, 2.0, 3.0, 5.0], 50)
    2.5
    """
    import numpy as np

    if not values:
        raise ValueError("percentile needs at least one value")
    return float(np.percentile(values, q))


_STATS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "std": pstdev,
    "min": min,
    "max": max,
    "sum": math.fsum,
}


def reduce_stats(name: str, values: Iterable[float], stats: Sequence[str] = ("mean", "max")) -> dict[str, float]:
    """Return `{name}/{stat}` over raw values; a percentile is called `p90`. Empty if there are no values.

    Call it once on the raw values: a mean of means of unequal batches would be wrong.
    """
    raw = list(values)
    if not raw:
        return {}
    return {f"{name}/{s}": percentile(raw, float(s[1:])) if s[0] == "p" else float(_STATS[s](raw)) for s in stats}


def histogram(
    values: Iterable[float], *, bins: int = 20, low: float | None = None, high: float | None = None
) -> tuple[list[int], list[float]]:
    """Return the counts and the edges of equal bins between low and high, by default the extremes of the values.

    A value on an edge counts in the bin to its right, one outside the edges in the outermost bin. NaN and infinite
    values are skipped. Without values, all counts are 0.
    """
    import numpy as np

    raw = [v for v in values if math.isfinite(v)]
    low = min(raw, default=0.0) if low is None else low
    high = max(raw, default=1.0) if high is None else high
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    return np.histogram(np.clip(raw, low, edges[-1]), edges)[0].tolist(), edges.tolist()


# --- from records ------------------------------------------------------------------------------


def total_rewards(records: Iterable[RewardRecord]) -> list[float]:
    """Return the total rewards of the scored responses, trained on or not. Turns without a reward of their own are left
    out; where no turn of the dialogues has one, return the rewards of the dialogues."""
    turns = rewarded_turns(replace(r, total=mix(r.components)) if isinstance(r.total, Stale) else r for r in records)
    whole = [r.episode.reward for r in turns if r.episode is not None and r.episode.reward is not None]
    if whole and not any(map(has_reward, turns)):
        return whole
    return [r.total.value for r in turns if not isinstance(r.total, Failure)]


def dialogue_reward(turns: Sequence[RewardRecord]) -> float | None:
    """Return the sum of the rewards of a dialogue: those of its turns and that of the whole. A single response is a
    dialogue of one turn. None if one of them failed."""
    values = [r.reward for r in turns]
    values += [r.episode.reward for r in turns if r.episode is not None and r.episode.components]
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def reward_metrics(records: Sequence[RewardRecord]) -> dict[str, float]:
    """Return reward/* of a step. The mean of a component, and of the total, is over all responses that have a score of
    it, trained on or not. Other failures than `stale` are counted in `reward/failed_frac`.

    If all responses failed, only the shares are returned. No records, no metrics.
    """
    if not records:
        return {}
    metrics = reduce_stats("reward/total", total_rewards(records), ("mean", "min", "max", "std", "p10", "p50", "p90"))
    values: dict[str, list[float]] = {}
    for record in records:
        for c in record.components:
            if c.value is not None:
                values.setdefault(c.name, []).append(c.value)
    for name, raw in values.items():
        if name != "total":
            metrics |= reduce_stats(f"reward/{name}", raw, ("mean", "std"))
    kinds = Counter(r.total.kind for r in records)
    failed = [r for r in records if isinstance(r.total, Failure) and not isinstance(r.total, Stale)]
    metrics["reward/failed_frac"] = len(failed) / len(records)
    for kind in (Scored.kind, MalformedResponse.kind, *failure_kinds()):
        metrics[f"reward/outcome/{kind}"] = kinds[kind] / len(records)
    return metrics


def _dialogue(record: RewardRecord) -> tuple[object, ...]:
    return record.key.step, record.key.prompt, record.key.sample, record.key.attempt


def episode_metrics(records: Sequence[RewardRecord]) -> dict[str, float]:
    """Return episodes/* of a step: length, ends and rewards of its dialogues. Empty without dialogues."""
    last = [(r, r.episode) for r in records if r.episode is not None]
    if not last:
        return {}
    tokens = Counter[tuple[object, ...]]()
    for r in records:
        tokens[_dialogue(r)] += r.response_tokens
    ends = Counter(end.outcome for _, end in last)
    metrics = {f"episodes/{outcome}_frac": ends[outcome] / len(last) for outcome in get_args(EpisodeOutcome)}
    # One that failed may have ended before its first turn; evaluations leave failed dialogues out, too.
    whole = [r for r, end in last if end.outcome != "failed"]
    metrics |= reduce_stats("episodes/turns", [r.key.turn + 1 for r in whole])
    metrics |= reduce_stats("episodes/tokens", [tokens[_dialogue(r)] for r in whole])
    metrics |= reduce_stats("episodes/reward", [e.reward for _, e in last if e.reward is not None], ("mean", "std"))
    values: dict[str, list[float]] = {}
    for _, end in last:
        for c in end.components:
            if c.value is not None:
                values.setdefault(f"component/{c.name}", []).append(c.value)
                if c.name == "completion" and end.path:
                    values.setdefault(f"completion_by_path/{metric_word(end.path)}", []).append(c.value)
    return metrics | {f"episodes/{name}": fmean(own) for name, own in sorted(values.items())}


def router_metrics(records: Sequence[RewardRecord]) -> dict[str, float]:
    """Return router/* of a step, as far as its records tell: bands, escalation to the judge, cost.

    Shares of bands and escalation are over the replies in the cascade; a share without replies is omitted.
    """
    if not records:
        return {}
    bands: Counter[str] = Counter(r.band for r in records)
    metrics = {f"router/{band}_frac": bands[band] / len(records) for band in MATCH_BANDS}
    cascaded = sum(bands[b] for b in CASCADE_BANDS)
    if cascaded:
        metrics["router/escalated_frac"] = sum(is_escalated(r) for r in records) / cascaded
        metrics |= {f"router/band/{b}_frac": bands[b] / cascaded for b in CASCADE_BANDS}
    metrics["router/fallback_frac"] = sum(r.fallback is not None for r in records) / len(records)
    metrics |= reduce_stats("router/seconds", [r.seconds for r in records], ("mean", "p90", "max"))
    calls: dict[str, list[ScorerCall]] = {}
    for record in records:
        for call in record.calls:
            calls.setdefault(call.pool, []).append(call)
    for pool, made in calls.items():
        metrics[f"router/tokens/{pool}"] = float(sum(c.prompt_tokens + c.output_tokens for c in made))
        metrics[f"router/cost/{pool}"] = math.fsum(c.cost for c in made)
        asked = sum(c.prompt_tokens for c in made)
        if asked:
            metrics[f"router/prefix_hit_frac/{pool}"] = sum(c.cached_tokens for c in made) / asked
    return metrics


PACE_STEPS = 5
"""Number of last steps that determine the pace. Earlier ones are ignored, since a run may be resized."""


def left_s(seconds: Sequence[float], step: int, total: int) -> float | None:
    """Return the seconds until step `total`, at the pace of the last steps' `seconds`; None without a step."""
    return fmean(seconds[-PACE_STEPS:]) * max(0, total - step) if seconds and total else None


def is_escalated(record: RewardRecord) -> bool:
    """Return whether the cascade sent this reply to the judge, for any of its references."""
    asked = record.band in ("below", "above") or any(s.s_j is not None for s in record.reference_scores)
    return record.band in CASCADE_BANDS and asked


# --- the file ----------------------------------------------------------------------------------


class MetricsWriter:
    """Writer of metrics.jsonl: {"step", "stage", "time", <metrics>}; `time` in seconds since the epoch.

    A non-finite metric is written as null. A resumed run writes the steps after its checkpoint again; readers use the
    last line of a (stage, step), as `read_metrics` does.
    """

    def __init__(self, path: Path | str, *, clock: Callable[[], float] = time.time) -> None:
        self._out = JsonlWriter(path)
        self._clock = clock

    def write(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        """Write one row. `check_names` describes what happens to a name that is not in the glossary."""
        check_names(values)
        numbers = {k: float(v) if math.isfinite(v) else None for k, v in values.items()}
        self._out.write({"step": step, "stage": stage, "time": self._clock(), **numbers})

    def close(self) -> None:
        self._out.close()


def read_metrics(path: Path | str) -> list[dict[str, Any]]:
    """Return one row of metrics.jsonl per (stage, step), in the order of first appearance.

    A step that a resumed run has repeated has the metrics of the last time. The rows of an evaluation are merged, those
    of decisions and of dialogues. Raises RunFolderError for a line that is not a row of metrics.
    """
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for place, row in numbered_rows(path):
        if not isinstance(row.get("stage"), str) or not isinstance(row.get("step"), int):
            raise RunFolderError(place, str(row)[:60], "has no `stage` and `step`; restore the line, or remove it")
        key = row["stage"], row["step"]
        before = rows.get(key, {}) if row["stage"].startswith("eval-") else {}
        rows[key] = before | row
    return list(rows.values())
