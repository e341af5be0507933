"""Grafana dashboard, generated from the glossary's metric names.

python -m scripts.grafana > launch/grafana.json
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hamr.cluster.prometheus import COMMON, reading

PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Reward", ("reward/total/mean", "reward/total/p10", "reward/total/p90")),
    ("Components", ("reward/consistency/mean",)),
    ("Responses without a reward", ("reward/failed_frac", "reward/outcome/judge_timeout")),
    ("Escalated to the judge", ("router/escalated_frac", "router/cache_hit_frac", "router/fallback_frac")),
    ("Step", ("progress/step",)),
    ("Estimated seconds left in the stage", ("progress/left_s",)),
    ("Responses per second", ("rollout/responses_per_s",)),
    ("Pool replicas, running and target", ("pool/judge/running", "pool/judge/replicas")),
    ("Resizes by hamr scale", ("pool/judge/scaled",)),
    ("Waiting questions", ("pool/judge/waiting",)),
    ("Answer latency in seconds, p50 and p99", ("pool/judge/p50_s", "pool/judge/p99_s")),
    ("Queueing time of the pools", ("router/queue_s/judge/mean",)),
    ("Service time of the pools", ("router/service_s/judge/mean",)),
    ("Seconds from a response's end to its reward", ("router/seconds/p90",)),
    ("Breakers (1: open)", ("pool/judge/breaker",)),
    ("Failed questions", ("pool/judge/timeout", "pool/judge/unavailable", "pool/judge/unparsable")),
    ("Seconds per step", ("timing/step/rollout_score", "timing/step/train", "timing/step/sync", "timing/step/total")),
    ("Loss and gradient", ("policy/loss", "policy/grad_norm")),
    ("Entropy and KL", ("policy/entropy", "policy/approx_kl")),
    ("Log-probability difference of trainer and engine", ("rollout/logprob_diff/mean",)),
    ("Response length", ("rollout/response_tokens/mean", "rollout/truncated_frac")),
    ("Alarms", ("alarm/length_correlation",)),
    ("Held-out reward", ("eval/rl/reward/total",)),
)
"""Title and metrics of each panel. A metric with labels is shown for all their values, not only the named one."""

WIDTH, HEIGHT, COLUMNS = 12, 8, 2


def dashboard() -> dict[str, Any]:
    """Return the dashboard for Grafana's import, which asks for the Prometheus data source."""
    chosen = [_variable("run", "ray_hamr_timing_step_total"), _variable("stage", "ray_hamr_timing_step_total")]
    return {
        "uid": "hamr",
        "title": "hamr",
        "tags": ["hamr"],
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}, *chosen]},
        "panels": [_panel(index, title, names) for index, (title, names) in enumerate(PANELS)],
    }


def _variable(name: str, metric: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {name})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


_SOURCE: Mapping[str, str] = {"type": "prometheus", "uid": "${datasource}"}


def _panel(index: int, title: str, names: tuple[str, ...]) -> dict[str, Any]:
    place = {"x": index % COLUMNS * WIDTH, "y": index // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT}
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [_target(chr(ord("A") + i), name) for i, name in enumerate(names)],
    }


def _target(ref: str, name: str) -> dict[str, Any]:
    known = reading(name)
    assert known is not None, name
    gauge, values = known
    # Only the chosen statistic is shown, but every component, pool or kind.
    fixed = "".join(f', {label}="{value}"' for label, value in values.items() if label in ("stat", "percentile"))
    # An evaluation has its own stage, which a selection of one stage would hide.
    stage = "" if name.startswith("eval/") else ', stage=~"$stage"'
    legend = [label for label in gauge.labels if label not in (*COMMON, "stat", "percentile")]
    return {
        "refId": ref,
        "datasource": _SOURCE,
        "expr": f'ray_{gauge.name}{{run=~"$run"{stage}{fixed}}}',
        "legendFormat": " ".join(["{{run}}", *(f"{{{{{label}}}}}" for label in legend), name.split("/")[-1]]),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    print(text(), end="")
