"""Writes the splits of `hamr data sage` and prints what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from hamr.apps.data.recipes.thought import ORDERS, Rendering
from hamr.data.rendering import policy_messages
from hamr.data.sage_samples import thought_of
from hamr.data.samples import act_of, write_samples
from hamr.data.sft_items import decision_item, write_items
from hamr.data.splits import Splits
from hamr.procedures import Scenario
from hamr.procedures.words import SPLITS
from hamr.report.terminal import show
from hamr.report.values import Cell, Column, Table, number_columns
from hamr.types import ServiceSample, ToolCall

ITEMS = ("items", "held_out_items")


def write_thoughts(folder: Path, splits: Splits, rendering: Rendering, scenarios: Mapping[str, Scenario]) -> None:
    """Write every sample with each of its references, after or before the thought that leads to it.

    The training split is written as items.jsonl, the validation split as held_out_items.jsonl.
    """
    made = [
        [
            decision_item(sample, reference.action, thought_of(sample, scenarios), answer_first=order)
            for sample in samples
            for reference in sample.references
            for order in ORDERS[rendering]
        ]
        for samples in (splits.train, splits.validation)
    ]
    for name, items in zip(ITEMS, made, strict=True):
        write_items(folder / f"{name}.jsonl", items)
        print(f"written: {folder / name}.jsonl, {len(items)} SFT items", flush=True)


def write_splits(folder: Path, splits: Splits) -> None:
    for name in (*SPLITS, *(("sft",) if splits.sft else ())):
        write_samples(folder / f"{name}.jsonl", getattr(splits, name))
    show_splits(folder, splits)
    if not splits.sft:
        (folder / "sft.jsonl").unlink(missing_ok=True)  # an outdated file of an earlier call would be trained on
    else:
        wrong = sum("references" in sample.privileged for sample in splits.sft)
        print(f"written: {folder / 'sft.jsonl'}, the same {len(splits.sft)} training samples, {wrong} of them wrong")


def show_splits(folder: Path, splits: Splits) -> None:
    show(_overview(splits), _kinds(splits))
    print(f"written: {', '.join(str(folder / f'{name}.jsonl') for name in SPLITS if getattr(splits, name))}")


def _overview(splits: Splits) -> Table:
    columns = (
        Column("split"),
        *number_columns("{}", "samples", "dialogues"),
        Column("turns", "{:.1f}"),
        Column("words", "{:.0f}"),
        Column("longest", "{}"),
        Column("references", "{:.1f}"),
        Column("tool calls", "{:.0%}"),
    )
    rows = tuple((name, *_figures(getattr(splits, name))) for name in SPLITS)
    return Table("samples (turns, words of the prompt and references: mean)", columns, rows)


def _figures(samples: Sequence[ServiceSample]) -> tuple[float | None, ...]:
    if not samples:
        return 0, *(None,) * 6
    calls = sum(isinstance(s.references[0].action, ToolCall) for s in samples)
    words = [len(" ".join(m["content"] for m in policy_messages(s)).split()) for s in samples]
    return (
        len(samples),
        len({s.meta.get("dialogue", s.id) for s in samples}),
        mean(len(s.history) for s in samples),
        mean(words),
        max(words),
        mean(len(s.references) for s in samples),
        calls / len(samples),
    )


def _kinds(splits: Splits) -> Table:
    """Count the gold actions by kind: the act where the builder names it, else reply or the tool."""
    counts = {name: Counter(_kind(s) for s in getattr(splits, name)) for name in SPLITS}
    kinds = sorted({kind for count in counts.values() for kind in count})
    rows: tuple[tuple[Cell, ...], ...] = tuple((kind, *(counts[name][kind] for name in SPLITS)) for kind in kinds)
    return Table("gold actions", (Column("gold action"), *number_columns("{}", *SPLITS)), rows)


def _kind(sample: ServiceSample) -> str:
    action = sample.references[0].action
    return f"call {action.name}" if isinstance(action, ToolCall) else f"reply: {act_of(sample)}".removesuffix(": reply")
