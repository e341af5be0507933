"""`hamr status`: overview of a run in a few lines, from its folder alone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hamr.config.yaml_files import read_config
from hamr.telemetry.console import duration
from hamr.telemetry.live import LiveStatus, find_run
from hamr.telemetry.metrics import PACE_STEPS, left_s, read_metrics

WATCH_S = 2.0


def show_status(run: str, *, watch: bool) -> int:
    """Print the state of a run once, or until it is over."""
    folder = find_run(run)
    if not watch or not LiveStatus.is_alive(folder):
        print("\n".join(overview_lines(folder)))
        return 0
    with Live(_render(folder), console=Console(highlight=False), auto_refresh=False) as live:
        while LiveStatus.is_alive(folder):
            time.sleep(WATCH_S)
            live.update(_render(folder), refresh=True)
    return 0


def _render(folder: Path) -> Group:
    return Group(*(Text(line, no_wrap=True) for line in overview_lines(folder)))


def overview_lines(folder: Path, now: float | None = None) -> list[str]:
    """Return the state of a run from its own files; no process is contacted."""
    now = time.time() if now is None else now
    path = folder / "config.yaml"
    config = read_config(path) if path.exists() else {}  # a run that starts has none yet
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if not row["stage"].startswith("eval-")]
    live = LiveStatus.read(folder)
    stage = rows[-1]["stage"] if rows else ""
    recent = [row for row in rows if row["stage"] == stage][-PACE_STEPS:]
    last = recent[-1] if recent else {}
    experiment = _section(config, "experiment")
    sft = mix if (mix := _section(config, "sft")).get("sets") else _section(experiment, "sft")
    total = {"rl": experiment.get("steps", 0), "sft": sft.get("steps") or 0}.get(stage, 0)
    last_sign = max((t for t in (live.time if live else None, last.get("time")) if t), default=None)
    lines = [f"run {folder.name}: {_state(live, last_sign, now)}", f"  folder     {folder}"]
    if stage:
        reward, escalated = last.get("reward/total/mean"), last.get("router/escalated_frac")
        figures = [
            f"{stage} step {last['step']}" + (f" of {total}" if total else ""),
            f"reward {reward:.3f}" if reward is not None else "",
            f"escalated {escalated:.0%}" if escalated is not None else "",
            f"without a reward {failed:.0%}" if (failed := last.get("reward/failed_frac")) else "",
        ]
        lines.append(f"  progress   {', '.join(filter(None, figures))}")
    if seconds := [row["timing/step/total"] for row in recent if row.get("timing/step/total")]:
        pace = f"{duration(sum(seconds) / len(seconds))} a step"
        # N responses per prompt, including dropped groups.
        each = _section(config, "rollout").get("samples_per_prompt", 0)
        if responses := [row["rollout/prompts"] * each for row in recent if row.get("rollout/prompts")]:
            pace += f", {sum(responses) / sum(seconds):.2f} samples/s"
        left = left_s(seconds, last["step"], total)
        if live is not None and live.alive(now) and left:
            pace += f", about {duration(left)} left (until {time.strftime('%H:%M', time.localtime(now + left))})"
        lines.append(f"  pace       {pace}")
    pools = dict(live.pools) if live else {}
    wanted = _section(config, "pools")
    for name in wanted:
        pools.setdefault(name, {"configured": _section(wanted, name).get("replicas")})
    return lines + _pool_lines(pools)


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of config.yaml, or {} if it has none. A damaged file must not hide the state of the run."""
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _state(live: LiveStatus | None, last_sign: float | None, now: float) -> str:
    ago = f"{duration(max(0.0, now - last_sign))} ago" if last_sign is not None else ""
    if live is None:
        return f"no status yet; its last step ended {ago}" if ago else "no status yet"
    where = f"process {live.pid} on {live.host}"
    if live.alive(now):
        return f"{live.state}, {live.phase or 'between phases'} ({where})"
    if live.state in ("finished", "preempted", "failed"):
        return f"{live.state} {ago}" + (f": {live.detail}" if live.detail else "")
    return f"gone: no heartbeat for {ago.removesuffix(' ago')} ({where}); last known state:"


def _pool_lines(pools: Mapping[str, Mapping[str, Any]]) -> list[str]:
    header = ("pool", "replicas", "waiting", "p50", "p99", "asked", "breaker", "")
    rows = [header, *(_pool_row(name, pool) for name, pool in sorted(pools.items()))]
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
