"""A side as a process that is measured from outside, and the arithmetic of paired comparisons."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from workload import Work

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "2",
}
"""glibc keeps freed memory instead of handing it back: otherwise a third of a CPU training step is page faults.
Given to both sides alike."""

WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000"}
"""A thread that waits for the others of its process spins for a moment, then sleeps: what hamr's own processes do, and
TRL's step is faster with it, too. Given to both sides alike."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One measured step. `seconds` wall inside the side; `cpu_seconds` of its whole process tree;
    `others_cores`: cores that the rest of the machine kept busy meanwhile; `memory_gb`: unique memory after it."""

    seconds: float
    cpu_seconds: float
    others_cores: float
    memory_gb: float
    phases: dict[str, float]
    metrics: dict[str, float]


class Side:
    """A long-lived process that makes one step at a time and sleeps in between."""

    def __init__(
        self, name: str, command: Sequence[str], work: Work, log: Path, timeout_s: float, environment: dict[str, str]
    ) -> None:
        self.name, self.work, self.log, self.timeout_s = name, work, log, timeout_s
        environment = {
            **os.environ,
            **environment,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [*command, work.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self._tree = psutil.Process(self._process.pid)
        self.versions: dict[str, str] = {}

    def wait_ready(self) -> None:
        self.versions = self._read()["versions"]

    def step(self) -> Step:
        """Asks for a step, waits for it, and checks that it did the work: every length, prompts and responses."""
        assert self._process.stdin is not None
        busy, cpu, start = _busy(), self._cpu(), time.perf_counter()
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        message = self._read()
        wall, own = time.perf_counter() - start, self._cpu() - cpu
        shape = self.work.shape
        _check(self.name, "responses", message["lengths"], [shape.new_tokens] * shape.responses)
        _check(self.name, "prompts", message["prompt_lengths"], [shape.prompt_tokens] * shape.responses)
        return Step(
            seconds=message["seconds"],
            cpu_seconds=own,
            others_cores=max(0.0, _busy() - busy - own) / wall,
            memory_gb=self._memory_gb(),
            phases=message["phases"],
            metrics=message.get("metrics", {}),
        )

    def close(self) -> None:
        """Waits for the process to end by itself, then ends its remaining members."""
        tree = self._members()
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.terminate()
        _, alive = psutil.wait_procs(tree, timeout=15)
        for process in alive:
            process.kill()

    def _read(self) -> dict[str, Any]:
        """The next message. A side that dies or says nothing for `timeout_s` ends the benchmark with its last words."""
        import select

        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], self.timeout_s)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            said = self.log.read_text(errors="replace").strip().splitlines()[-15:]
            what = "died" if ready else f"said nothing for {self.timeout_s:g} s"
            raise SystemExit("\n".join([f"the {self.name} side {what}; the end of {self.log}:", *said]))
        return json.loads(line)

    def _members(self) -> list[psutil.Process]:
        try:
            return [self._tree, *self._tree.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _cpu(self) -> float:
        """CPU-seconds so far of every process of the tree that lives."""
        total = 0.0
        for process in self._members():
            try:
                times = process.cpu_times()
                total += times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return total

    def _memory_gb(self) -> float:
        total = 0
        for process in self._members():
            try:
                total += process.memory_full_info().uss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return total / 2**30


def _busy() -> float:
    """CPU-seconds that the machine has spent on anything since it started."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + getattr(times, "steal", 0.0)


def _check(side: str, what: str, got: list[int], wanted: list[int]) -> None:
    if got != wanted:
        raise SystemExit(
            f"the {side} side did other work: {len(got)} {what} of {sorted(set(got))} tokens, "
            f"wanted {len(wanted)} of {sorted(set(wanted))}; a ratio would mean nothing"
        )


# --- arithmetic --------------------------------------------------------------------------------


def order(pairs: int) -> list[str]:
    """A B B A A B ...: each pair has both, and neither side always goes first.

    >>> "".join(order(3))
    'ABBAAB'
    """
    return [side for pair in range(pairs) for side in ("AB" if pair % 2 == 0 else "BA")]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median, smallest and largest of some numbers (at least one)."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """
        >>> Spread.of([3.0, 1.0, 2.0])
        Spread(median=2.0, low=1.0, high=3.0)
        """
        return cls(median=median(values), low=min(values), high=max(values))

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f} .. {self.high:.3f}]"


def ratios(a: Sequence[Step], b: Sequence[Step], what: str) -> list[float]:
    """a / b of attribute `what`, pair by pair."""
    return [getattr(x, what) / getattr(y, what) for x, y in zip(a, b, strict=True)]


def quiet_pairs(a: Sequence[Step], b: Sequence[Step], most_others: float) -> list[int]:
    """Indices of the pairs during which the rest of the machine used at most `most_others` cores."""
    pairs = enumerate(zip(a, b, strict=True))
    return [i for i, (x, y) in pairs if max(x.others_cores, y.others_cores) <= most_others]


def phase_medians(steps: Sequence[Step]) -> dict[str, float]:
    return {phase: median(s.phases[phase] for s in steps) for phase in steps[0].phases}
