"""Summary of `hamr score`: component statistics, outcomes, the judge's share and histograms.

Records are counted as they arrive and are not stored, so the file may have any length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.cascade.audit import DebiasedRewards, reward_rows
from hamr.errors import printable
from hamr.report.values import Cell, Column, Table, number_columns
from hamr.telemetry.metrics import is_escalated
from hamr.types import CASCADE_BANDS, AuditBy, Failure, RewardRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BIN = 0.05
"""Width of the counted bins; the shown width is a multiple of it."""
SHOWN = 24
LARGEST = 1e15
"""Values beyond it are counted as this one, so that the summary stays readable and nothing overflows."""
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass
class ValueSpread:
    """Count, mean, deviation, extremes and histogram of values that are not kept (Welford's update).

    >>> s = ValueSpread()
    >>> for v in (0.0, 1.0, 0.5): s.add(v)
    >>> s.count, s.mean, round(s.std, 3), s.low, s.high
    (3, 0.5, 0.408, 0.0, 1.0)
    """

    count: int = 0
    mean: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    bins: Counter[int] = field(default_factory=Counter)
    """Bin i counts the values in [i * BIN, (i + 1) * BIN)."""
    _squares: float = 0.0

    def add(self, value: float) -> None:
        value = max(-LARGEST, min(value, LARGEST))
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self._squares += delta * (value - self.mean)
        self.low, self.high = min(self.low, value), max(self.high, value)
        # Add a thousandth of a bin, because 0.15 / 0.05 is slightly less than 3 in floating point.
        self.bins[math.floor(value / BIN + 1e-3)] += 1

    @property
    def std(self) -> float:
        """Population standard deviation; 0 for fewer than two values."""
        return math.sqrt(max(0.0, self._squares / self.count)) if self.count else 0.0

    def histogram(self, most: int = SHOWN) -> tuple[float, float, list[int]]:
        """Return (left edge, bin width, counts from the lowest to the highest non-empty bin), with at most `most`
        counts."""
        if not self.bins:
            return 0.0, BIN, []
        first, last = min(self.bins), max(self.bins)
        merged = max(1, -(-(last - first) // (most - 1)))
        start = first // merged
        counts = [0] * (last // merged - start + 1)
        for index, count in self.bins.items():
            counts[index // merged - start] += count
        return start * merged * BIN, merged * BIN, counts


def bars(counts: list[int]) -> str:
    """Render a histogram as a row of blocks; an empty bin is a blank.

    >>> bars([4, 0, 1, 2])
    '█ ▂▄'
    """
    most = max(counts, default=0)
    return "".join(_BLOCKS[math.ceil(c / most * len(_BLOCKS)) - 1] if c else " " for c in counts)


@dataclass
class Tally:
    """Streaming statistics of the summary. A failure is counted and never averaged."""

    audit_by: AuditBy = "judge"
    groups: int = 0
    responses: int = 0
    failed: int = 0
    debiased: DebiasedRewards = field(default_factory=DebiasedRewards)
    spreads: dict[str, ValueSpread] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    """Counts of the total rewards' outcomes, by kind."""
    unscored: dict[str, Counter[str]] = field(default_factory=dict)
    """Kinds of outcomes without a value, by component."""
    causes: dict[str, Failure] = field(default_factory=dict)
    """First failure by component. `total` stands for responses whose components have none."""
    cascaded: int = 0
    escalated: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    """Number of calls by pool; an answer shared with another response of the group is not counted again."""
    tokens: Counter[str] = field(default_factory=Counter)
    cost: float = 0.0

    def add(self, records: Iterable[RewardRecord]) -> None:
        """Add the records of one group."""
        self.groups += 1
        for record in records:
            self._add(record)

    def _add(self, record: RewardRecord) -> None:
        self.responses += 1
        self.outcomes[record.total.kind] += 1
        if isinstance(record.total, Failure):
            self.failed += 1
        else:
            self.spreads.setdefault("total", ValueSpread()).add(record.total.value)
        failing = [(c.name, c.outcome) for c in record.components if not c.outcome.ok]
        for name, outcome in failing or [("total", record.total)]:
            if isinstance(outcome, Failure):
                self.causes.setdefault(name, outcome)
        for component in record.components:
            if component.value is not None:
                self.spreads.setdefault(component.name, ValueSpread()).add(component.value)
            else:
                self.unscored.setdefault(component.name, Counter())[component.outcome.kind] += 1
        self.debiased.add(reward_rows(record, self.audit_by))
        self.cascaded += record.band in CASCADE_BANDS
        self.escalated += is_escalated(record)
        for call in record.calls:
            self.calls[call.pool] += call.attempts > 0
            self.tokens[call.pool] += call.prompt_tokens + call.output_tokens
            self.cost += call.cost

    def names(self) -> list[str]:
        """Components with a value or an outcome; the total reward comes first."""
        known = dict.fromkeys([*self.spreads, *self.unscored])
        return sorted(known, key=lambda name: name != "total")


def summary_tables(tally: Tally, title: str) -> tuple[Table, ...]:
    """Return the summary; two tables for the components, so that both fit into the 80 columns of a log."""
    values: list[tuple[Cell, ...]] = []
    shapes: list[tuple[Cell, ...]] = []
    for name in tally.names():
        spread = tally.spreads.get(name, ValueSpread())
        known = (spread.mean, spread.std, spread.low, spread.high) if spread.count else ("",) * 4
        left, width, counts = spread.histogram()
        drawn = f"{left:.2f} {bars(counts)} {left + width * len(counts):.2f}" if counts else ""
        unscored: Mapping[str, int] = {} if name == "total" else tally.unscored.get(name, {})
        values.append((name, spread.count, *known))
        shapes.append((name, drawn, _counts(unscored)))
    rest: dict[str, Cell] = {"outcomes": _counts(tally.outcomes) or "none"}
    if tally.cascaded:
        share = tally.escalated / tally.cascaded
        rest["escalated"] = f"{share:.1%} of {tally.cascaded} replies in the cascade went to the judge"
    for name, found in tally.debiased.estimates().items():
        interval = f"95 %: {found['low']:.4f} to {found['high']:.4f}"
        rest[f"{name}, by audits"] = f"{found['mean']:.4f} ({interval}; {found['audits']:.0f} audits)"
    for pool, count in sorted(tally.calls.items()):
        rest[f"calls of {pool}"] = f"{count} ({tally.tokens[pool]} tokens)"
    if tally.cost:
        rest["cost"] = f"{tally.cost:.4f}"
    component = Column("component")
    return (
        Table(
            title,
            (component, Column("scored", "{}"), *number_columns("{:.4f}", "mean", "std", "min", "max")),
            tuple(values),
        ),
        Table("", (component, Column("histogram", "{}"), Column("without a value")), tuple(shapes)),
        Table.pairs("", rest),
    )


def cause_lines(tally: Tally) -> Iterator[str]:
    """Yield one line per failing component, with its first failure. Control characters of a response are removed."""
    for name, failure in tally.causes.items():
        if failure.detail:
            yield f"first failure of {name}: {failure.kind}: {printable(failure.detail)}"


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def plot(tally: Tally, path: Path) -> Path | None:
    """Plot a histogram per component as one PNG; return None and write no file where nothing was scored."""
    from hamr.report.drawing import BLUE, MUTED, TEXT, draw_png, new_figure

    names = [name for name in tally.names() if name in tally.spreads]
    if not names:
        path.unlink(missing_ok=True)
        return None
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)

    def make() -> Figure:
        figure = new_figure((3.6 * columns, 2.5 * rows))
        axes = list(figure.subplots(rows, columns, squeeze=False).flat)
        for ax, name in zip(axes, names, strict=False):
            spread = tally.spreads[name]
            left, width, counts = spread.histogram()
            edges = [left + i * width for i in range(len(counts))]
            ax.bar(edges, counts, width=width * 0.94, align="edge", color=BLUE)
            ax.set_title(f"{name}  mean {spread.mean:.3f}, n {spread.count}", fontsize=TEXT, color=MUTED, loc="left")
        for ax in axes[len(names) :]:
            ax.set_axis_off()
        return figure

    path.write_bytes(draw_png(make))
    return path
