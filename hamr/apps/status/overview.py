"""Overview of a run in a few lines, from its folder alone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.telemetry.console import duration
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.metrics import read_metrics
from hamr.telemetry.pace import PACE_STEPS, left_s
from hamr.telemetry.run_folder import read_config


@dataclass(frozen=True, kw_only=True)
class Overview:
    """State of a run. Figures are None where there is none yet."""

    folder: Path
    live: LiveStatus | None
    stage: str
    step: int
    total: int
    reward: float | None
    escalated: float | None
    failed: float | None
    step_s: float | None
    left_s: float | None
    samples_s: float | None
    last_sign: float | None
    pools: Mapping[str, Mapping[str, Any]]


def overview(folder: Path) -> Overview:
    """Read the run's own files; no process is contacted."""
    path = folder / "config.yaml"
    config = read_config(path) if path.exists() else {}  # a run that starts has none yet
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if not row["stage"].startswith("eval-")]
    live = LiveStatus.read(folder)
    stage = rows[-1]["stage"] if rows else ""
    recent = [row for row in rows if row["stage"] == stage][-PACE_STEPS:]
    last = recent[-1] if recent else {}
    experiment = config.get("experiment", {})
    steps = {"rl": experiment.get("steps", 0), "sft": experiment.get("sft", {}).get("steps", 0)}
    pools = dict(live.pools) if live else {}
    for name, section in config.get("pools", {}).items():
        pools.setdefault(name, {"configured": section.get("replicas")})
    seconds = [row["timing/step/total"] for row in recent if row.get("timing/step/total")]
    responses = _responses(config, recent)
    return Overview(
        folder=folder,
        live=live,
        stage=stage,
        step=last.get("step", 0),
        total=steps.get(stage, 0),
        reward=last.get("reward/total/mean"),
        escalated=last.get("router/escalated_frac"),
        failed=last.get("reward/failed_frac"),
        step_s=sum(seconds) / len(seconds) if seconds else None,
        left_s=left_s(seconds, last.get("step", 0), steps.get(stage, 0)),
        samples_s=sum(responses) / sum(seconds) if seconds and responses else None,
        last_sign=max((t for t in (live.time if live else None, last.get("time")) if t), default=None),
        pools=pools,
    )


def _responses(config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the number of responses generated and scored per step: N per prompt, including dropped groups."""
    each = config.get("rollout", {}).get("samples_per_prompt", 0)
    return [row["rollout/prompts"] * each for row in rows if row.get("rollout/prompts")]


def overview_lines(seen: Overview, now: float | None = None) -> list[str]:
    now = time.time() if now is None else now
    lines = [f"run {seen.folder.name}: {_state(seen, now)}", f"  folder     {seen.folder}"]
    if seen.stage:
        place = f"{seen.stage} step {seen.step}" + (f" of {seen.total}" if seen.total else "")
        figures = [
            f"reward {seen.reward:.3f}" if seen.reward is not None else "",
            f"escalated {seen.escalated:.0%}" if seen.escalated is not None else "",
            f"without a reward {seen.failed:.0%}" if seen.failed else "",
        ]
        lines.append(f"  progress   {', '.join([place, *filter(None, figures)])}")
    if seen.step_s is not None:
        pace = f"{duration(seen.step_s)} a step"
        pace += f", {seen.samples_s:.2f} samples/s" if seen.samples_s is not None else ""
        alive = seen.live is not None and seen.live.alive(now)
        if alive and seen.left_s:
            end = time.strftime("%H:%M", time.localtime(now + seen.left_s))
            pace += f", about {duration(seen.left_s)} left (until {end})"
        lines.append(f"  pace       {pace}")
    return lines + _pool_lines(seen, now)


def _state(seen: Overview, now: float) -> str:
    live = seen.live
    ago = f"{duration(max(0.0, now - seen.last_sign))} ago" if seen.last_sign is not None else ""
    if live is None:
        return f"no status yet; its last step ended {ago}" if ago else "no status yet"
    where = f"process {live.pid} on {live.host}"
    if live.alive(now):
        return f"{live.state}, {live.phase or 'between phases'} ({where})"
    if live.state in ("finished", "preempted", "failed"):
        return f"{live.state} {ago}" + (f": {live.detail}" if live.detail else "")
    return f"gone: no heartbeat for {ago.removesuffix(' ago')} ({where}); last known state:"


def _pool_lines(seen: Overview, now: float) -> list[str]:
    header = ("pool", "replicas", "waiting", "p50", "p99", "asked", "breaker", "")
    rows = [header, *(_pool_row(name, pool) for name, pool in sorted(seen.pools.items()))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _pool_row(name: str, pool: Mapping[str, Any]) -> tuple[str, ...]:
    if "running" not in pool:
        return name, f"({pool.get('configured', '?')})", "", "", "", "", "", "not started"
    wanted, running, leaving = pool["replicas"], pool["running"], pool.get("leaving", 0)
    replicas = f"{running}" if running == wanted else f"{running} of {wanted}"
    remarks = [
        f"{leaving} leaving" if leaving else "",
        "" if pool.get("status") in ("RUNNING", None) else str(pool["status"]).lower().replace("_", " "),
        f"retry in {pool['retry_in_s']:.0f} s" if pool.get("retry_in_s") else "",
    ]
    return (
        name,
        replicas,
        _number(pool.get("waiting"), "{:.0f}"),
        _number(pool.get("p50_s"), "{:.2f} s"),
        _number(pool.get("p99_s"), "{:.2f} s"),
        _number(pool.get("asked"), "{:.0f}"),
        str(pool.get("breaker") or "-").replace("_", " "),
        ", ".join(filter(None, remarks)),
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
