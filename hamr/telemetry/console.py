"""Live terminal display of a run: its phases, the last steps and the learning curve.

If the output is not a terminal (a log file, CI), the same information is printed as plain lines.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO, Literal

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hamr.security.redaction import redact_text

SILENCE_S = 25.0
"""Longest time without output in a running phase if there is no terminal."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_ROWS = 6
_CURVE = 60
_THROUGHPUT = ("rollout/tokens", "sft/computed_tokens", "sft/tokens")
"""Metrics for tokens per second; the first one present in a step is used."""


def sparkline(values: list[float], width: int = _CURVE) -> str:
    """Return the values as a row of blocks, lowest to highest, averaged into `width` buckets if there are more.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    if not values:
        return ""
    if len(values) > width:
        cuts = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, high = min(values), max(values)
    if high == low:
        return _BLOCKS[3] * len(values)
    return "".join(_BLOCKS[int((v - low) / (high - low) * (len(_BLOCKS) - 1) + 0.5)] for v in values)


def duration(seconds: float) -> str:
    """Format a duration as `4.2 s`, `3 min 05 s` or `2 h 07 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


@dataclass
class _Phase:
    name: str
    started: float
    seconds: float | None = None
    inner: float = 0.0
    """Seconds spent in nested phases."""
    state: Literal["running", "done", "failed"] = "running"
    step: int = 0
    total: int = 0
    first: tuple[int, float] | None = None
    """Step and time of the first step seen. Steps done before a resume do not count into the pace."""
    part: tuple[int, int, str, float] | None = None
    """Done, total, unit and start of the work of the current step (or of a phase without steps)."""


@dataclass
class _Row:
    phase: str
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class Console:
    """Progress display of one run. Use as a context manager, or call `close()` at the end.

    `enabled=False` shows nothing (`logging.console: false`) but still times the phases. `seconds` is the wall time of
    every finished phase, for `summary.json`. Time in a nested phase counts there, not in the outer one.
    """

    def __init__(
        self,
        title: str = "hamr",
        *,
        enabled: bool = True,
        file: IO[str] | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title = title
        self.seconds: dict[str, float] = {}
        self._clock = clock
        self._start = clock()
        self._enabled = enabled
        self._out = RichConsole(file=file or sys.stdout, highlight=False)
        self._phases: list[_Phase] = []
        self._rows: list[_Row] = []
        self._curve: list[float] = []
        self._live: Live | None = None
        self._spoken = self._start
        self._closed = threading.Event()
        if enabled and (self._out.is_terminal if live is None else live):
            self._live = Live(get_renderable=self._render, console=self._out, refresh_per_second=4)
            self._live.start()
        elif enabled:
            threading.Thread(target=self._break_silence, daemon=True).start()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the body as a phase. An exception marks the phase as failed and propagates."""
        phase = _Phase(name=name, started=self._clock())
        self._phases.append(phase)
        self._line(f"{name} ...")
        try:
            yield
        except BaseException:
            phase.state = "failed"
            raise
        else:
            phase.state = "done"
        finally:
            phase.seconds = self._clock() - phase.started
            self.seconds[name] = self.seconds.get(name, 0.0) + phase.seconds - phase.inner
            if outer := self._running():
                outer.inner += phase.seconds
            self._line(f"{name}: {phase.state} in {duration(phase.seconds)}")

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show that step `step` of `total` of the running phase has ended (steps count from 1)."""
        phase = self._running()
        if phase is not None:
            phase.step, phase.total, phase.part = step, total, None
            phase.first = phase.first or (step, self._clock())
        row = _Row(phase=phase.name if phase else "", step=step, metrics=metrics)
        self._rows = [*self._rows[-_ROWS + 1 :], row]
        if "reward/total/mean" in metrics:
            self._curve.append(metrics["reward/total/mean"])
        cells = [f"{name} {value}" for name, value in _cells(metrics) if value]
        left = f", about {duration(eta)} left" if phase and (eta := self._eta(phase)) else ""
        self._line(f"{row.phase} step {step}/{total}: {', '.join(cells)}{left}")

    def progress(self, done: int, total: int, unit: str) -> None:
        """Show that the running phase, or its current step, has processed `done` of `total` units."""
        phase = self._running()
        if phase is not None:
            began = phase.part[3] if phase.part and phase.part[0] <= done else self._clock()
            phase.part = (done, total, unit, began)

    def pulse(self) -> None:
        """Without a terminal, print the phase's progress if nothing was printed for `SILENCE_S` seconds."""
        phase = self._running()
        if phase is None or self._clock() - self._spoken < SILENCE_S:
            return
        texts = [f"{phase.name}: running for {duration(self._clock() - phase.started)}"]
        if phase.total:
            texts.append(f"step {min(phase.step + 1, phase.total)}/{phase.total}")
        if phase.part:
            done, total, unit, _ = phase.part
            left = self._part_eta(phase)
            texts.append(f"{done}/{total} {unit}" + (f", about {duration(left)} left" if left is not None else ""))
        elif eta := self._eta(phase):
            texts.append(f"about {duration(eta)} left")
        self._line(", ".join(texts))

    def _break_silence(self) -> None:
        while not self._closed.wait(1.0):
            self.pulse()

    def evaluation(self, name: str, metrics: Mapping[str, float]) -> None:
        """Show held-out metrics of a stage. Keys may have their `eval/<stage>/` prefix."""
        short = {k.split("/", 2)[2] if k.startswith("eval/") else k: v for k, v in metrics.items()}
        # Reward components are in the report, and a failure rate of zero is not shown.
        dull = {k for k, v in short.items() if (k.startswith("reward/") and k != "reward/total") or k == "n"}
        dull |= {"failed_frac"} if not short.get("failed_frac") else set()
        dull |= {k for k in short if "_debiased/" in k} - {f"total_debiased/{k}" for k in ("mean", "low", "high")}
        shown = {k: v for k, v in short.items() if k not in dull}
        figures = ", ".join(
            f"{k.replace('_', ' ').replace('reward/total', 'reward').replace('total debiased/', 'by audits ')} {v:.3f}"
            for k, v in shown.items()
        )
        self.note(f"held out, {name}: {figures}")

    def note(self, text: str) -> None:
        """Print a line above the live display, without secrets."""
        text = redact_text(text)
        if self._live:
            self._live.console.print(Text(text))
        else:
            self._line(text)

    def show(self, *parts: RenderableType) -> None:
        """Print tables above the live display."""
        if self._enabled:
            self._out.print(*parts, sep="\n")

    @property
    def current(self) -> str:
        """Name of the innermost running phase; empty between phases."""
        phase = self._running()
        return phase.name if phase else ""

    def close(self) -> None:
        self._closed.set()
        if self._live:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Console:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _line(self, text: str) -> None:
        self._spoken = self._clock()
        if self._enabled and not self._live:
            self._out.print(Text(f"[{duration(self._clock() - self._start):>12}] {text}"), soft_wrap=True)
            self._out.file.flush()

    def _running(self) -> _Phase | None:
        return next((p for p in reversed(self._phases) if p.state == "running"), None)

    def _eta(self, phase: _Phase) -> float | None:
        """Return the seconds left at the pace so far, or None until two steps are known."""
        if phase.first is None or phase.step <= phase.first[0]:
            return None
        first_step, first_time = phase.first
        return (self._clock() - first_time) / (phase.step - first_step) * (phase.total - phase.step)

    def _part_eta(self, phase: _Phase) -> float | None:
        """Return the seconds left for the units of the current step, or None until one is done."""
        if phase.part is None or not phase.part[0]:
            return None
        done, total, _, began = phase.part
        return (self._clock() - began) / done * (total - done)

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [self._phase_table()]
        if self._rows:
            parts += [Text(), self._step_table()]
        if len(self._curve) > 1:
            curve = Text("reward  ", style="bold")
            curve.append(sparkline(self._curve), style="cyan")
            curve.append(f"  {self._curve[0]:.3f} to {self._curve[-1]:.3f}", style="dim")
            parts += [Text(), curve]
        elapsed = duration(self._clock() - self._start)
        return Panel(Group(*parts), title=Text(self.title, style="bold"), subtitle=elapsed, border_style="dim")

    def _phase_table(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False)
        marks = {"running": ("●", "cyan"), "done": ("✓", "green"), "failed": ("✗", "red")}
        for p in self._phases:
            mark, style = marks[p.state]
            seconds = p.seconds if p.seconds is not None else self._clock() - p.started
            bar: RenderableType = ""
            done, total = (p.step, p.total) if p.total else p.part[:2] if p.part else (0, 0)
            progress = f"{done}/{total}" if total else ""
            if p.state == "running" and total:
                bar = ProgressBar(total=total, completed=done, width=30)
                if eta := self._eta(p) or (self._part_eta(p) if not p.total else None):
                    progress += f"  about {duration(eta)} left"
            table.add_row(Text(mark, style=style), p.name, Text(duration(seconds), style="dim"), bar, progress)
        return table

    def _step_table(self) -> Table:
        shown = [name for name, _ in _cells({}) if any(dict(_cells(r.metrics))[name] for r in self._rows)]
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("step", justify="right")
        for name in shown:
            table.add_column(name, justify="right")
        for r in self._rows:
            cells = dict(_cells(r.metrics))
            table.add_row(f"{r.phase} {r.step}", *(cells[name] for name in shown))
        return table


def _cells(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return column and text of a step's line; the text is empty if the step lacks the metric."""

    def text(key: str, form: str) -> str:
        return format(metrics[key], form) if key in metrics else ""

    return [
        ("reward", text("reward/total/mean", ".3f")),
        ("escalated", text("router/escalated_frac", ".0%")),
        ("failed", text("reward/failed_frac", ".0%") if metrics.get("reward/failed_frac") else ""),
        ("entropy", text("policy/entropy", ".3f")),
        ("loss", text("sft/loss", ".3f")),
        ("grad norm", text("policy/grad_norm", ".2f") or text("sft/grad_norm", ".2f")),
        ("tokens/s", _tokens_per_second(metrics)),
        ("seconds", text("timing/step/total", ".1f")),
    ]


def _tokens_per_second(metrics: Mapping[str, float]) -> str:
    tokens = next((metrics[k] for k in _THROUGHPUT if k in metrics), None)
    seconds = metrics.get("timing/step/total")
    return f"{tokens / seconds:.0f}" if tokens is not None and seconds else ""
