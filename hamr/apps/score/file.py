"""Streaming, ordered and resumable scoring of a file of responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console as RichConsole

from hamr.apps.score.flow import in_order
from hamr.apps.score.output import ScoreOutput
from hamr.apps.score.summary import Tally
from hamr.apps.shared.progress import progress
from hamr.data.responses import ResponseGroup, stream_groups
from hamr.errors import DataError
from hamr.types import Failure, RewardRecord

CHECKED_BYTES = 256 << 20
"""Number of input bytes that are read and checked before scoring starts, which takes seconds. An error further on stops
the job at that point; it can be resumed after the line is fixed."""
SHOWN_FAULTS = 10
"""Number of skipped lines that are named; the others are only counted."""

Item = tuple[ResponseGroup, bytes, Sequence[RewardRecord]]
"""A group with its bytes, and its records from an earlier run (empty: none)."""
ScoreGroup = Callable[[ResponseGroup], Awaitable[Sequence[RewardRecord]]]
ReportBytes = Callable[[int, int], None]
"""Callback after every group: bytes of the input done, responses done by this process."""


class SkippedRows:
    """Invalid lines of the input, which is read several times. The first ones are printed."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.places: set[str] = set()
        self._note = note

    def __call__(self, error: DataError) -> None:
        if error.where not in self.places:
            self.places.add(error.where)
            if len(self.places) <= SHOWN_FAULTS:
                self._note(f"skipped {error}")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Result of checking an input; `whole` is False if only its beginning was checked."""

    groups: int
    responses: int
    whole: bool


def check_input(path: Path, limit: int = CHECKED_BYTES, skip: Callable[[DataError], None] | None = None) -> Checked:
    """Read the file once, line by line. Raises DataError at the first error, or passes each to `skip`."""
    groups = responses = size = 0
    for group, raw in stream_groups(path, skip):
        groups, responses, size = groups + 1, responses + len(group.responses), size + len(raw)
        if size >= limit:
            return Checked(groups=groups, responses=responses, whole=False)
    return Checked(groups=groups, responses=responses, whole=True)


async def score_file(
    output: ScoreOutput,
    groups: Iterator[Item],
    score: ScoreGroup,
    tally: Tally,
    *,
    at_once: int,
    report: ReportBytes,
) -> None:
    """Score the groups of `ScoreOutput.remaining`.

    A group is written when it and all groups before it are scored. At most `at_once` groups and their records are held
    in memory. The output can be resumed after an interruption at any point. Earlier records of a group are kept if none
    of them failed; otherwise the whole group is scored again, because comparing judges see it together.
    """
    responses = 0

    async def work(item: Item) -> Sequence[RewardRecord]:
        group, _, earlier = item
        return await score(group) if needs_scoring(earlier) else earlier

    async for (group, raw, _), records in in_order(groups, work, at_once=at_once):
        output.write(group, raw, records)
        tally.add(records)
        responses += len(records)
        report(output.done.bytes, responses)


def needs_scoring(records: Sequence[RewardRecord]) -> bool:
    return not records or any(isinstance(record.total, Failure) for record in records)


@contextmanager
def scoring_progress(total: int, done: int, console: RichConsole) -> Iterator[ReportBytes]:
    """Show the share of the input's bytes, the rate and the remaining time. `done` bytes were scored before."""
    scored = 0

    def rate(seconds: float) -> str:
        return f"{scored} responses, {scored / seconds:.1f} a second" if seconds > 0 else f"{scored} responses"

    with progress({"input": total}, console, "scoring", begun=done, percent=True, note=rate) as advance:

        def report(size: int, responses: int) -> None:
            nonlocal scored
            scored = responses
            advance("input", size)

        yield report
