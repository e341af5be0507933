"""Scores a file of responses with whatever scores a group: streaming, in order, resumable."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hamr.apps.score.flow import in_order
from hamr.apps.score.output import ScoreOutput
from hamr.apps.score.summary import Tally
from hamr.data.responses import ResponseGroup, stream_groups
from hamr.telemetry.console import duration
from hamr.types import RewardRecord

CHECKED_BYTES = 256 << 20
"""An input of at most so many bytes is read and checked once before anything starts; of a larger one its first so many.
That takes seconds; a fault further on ends the work where it stands, and the work goes on when the line is mended."""
NEWS_S = 30.0
"""Seconds between lines of progress where the output is no terminal."""

ScoreGroup = Callable[[ResponseGroup], Awaitable[Sequence[RewardRecord]]]
Report = Callable[[int, int], None]
"""Told after every group: bytes of the input done, responses done by this process."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found in an input; `whole` is False if only its beginning was looked at."""

    groups: int
    responses: int
    whole: bool


def check_input(path: Path, limit: int = CHECKED_BYTES) -> Checked:
    """Reads the file once, a line at a time. Raises DataError at its first fault."""
    groups = responses = size = 0
    for group, raw in stream_groups(path):
        groups, responses, size = groups + 1, responses + len(group.responses), size + len(raw)
        if size >= limit:
            return Checked(groups=groups, responses=responses, whole=False)
    return Checked(groups=groups, responses=responses, whole=True)


async def score_file(
    output: ScoreOutput,
    groups: Iterator[tuple[ResponseGroup, bytes]],
    score: ScoreGroup,
    tally: Tally,
    *,
    at_once: int,
    report: Report,
) -> None:
    """Scores what `ScoreOutput.remaining` gave. A group is written when it and all before it are scored; at most
    `at_once` of them, and of their records, are held. Stopped at any point it leaves an output that can be resumed."""
    responses = 0

    async def work(item: tuple[ResponseGroup, bytes]) -> Sequence[RewardRecord]:
        return await score(item[0])

    async for (group, raw), records in in_order(groups, work, at_once=at_once):
        output.write(group, raw, records)
        tally.add(records)
        responses += len(records)
        report(output.done.bytes, responses)


@contextmanager
def progress(total: int, done: int, console: RichConsole) -> Iterator[Report]:
    """A bar over the input's bytes with the rate and an estimate of the rest; plain lines where there is no terminal.

    `done` bytes were scored before: they count into the share, not into the pace.
    """
    if not console.is_terminal:
        yield _lines(total, done, console)
        return
    columns = (
        TextColumn("scoring"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    started = time.monotonic()
    with Progress(*columns, console=console, speed_estimate_period=120.0) as bar:
        task = bar.add_task("", total=total, completed=done, rate="")

        def report(size: int, responses: int) -> None:
            bar.update(task, completed=size, rate=_rate(responses, time.monotonic() - started))

        yield report


def _lines(total: int, done: int, console: RichConsole, clock: Callable[[], float] = time.monotonic) -> Report:
    started = said = clock()

    def report(size: int, responses: int) -> None:
        nonlocal said
        now = clock()
        if now - said < NEWS_S:
            return
        said = now
        left = (now - started) * (total - size) / max(1, size - done)
        rate = _rate(responses, now - started)
        console.print(f"{size / total:.1%} of the input, {rate}, about {duration(left)} left", highlight=False)

    return report


def _rate(responses: int, seconds: float) -> str:
    return f"{responses} responses, {responses / seconds:.1f} a second" if seconds > 0 else f"{responses} responses"
