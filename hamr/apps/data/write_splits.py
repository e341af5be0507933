"""Writes the splits of `hamr data sage` and prints what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from hamr.apps.data.recipes.thought import ORDERS, Rendering
from hamr.data.rendering import policy_messages
from hamr.data.sage_thoughts import thought_of
from hamr.data.samples import act_of, write_samples
from hamr.data.sft_items import decision_item, write_items
from hamr.data.splits import Splits
from hamr.types import ServiceSample, ToolCall

SPLITS = ("train", "validation", "test")
ITEMS = ("items", "held_out_items")


def write_thoughts(folder: Path, splits: Splits, rendering: Rendering) -> None:
    """Write every sample with each of its references, after or before the thought that leads to it.

    The training split is written as items.jsonl, the validation split as held_out_items.jsonl.
    """
    for name, samples in zip(ITEMS, (splits.train, splits.validation), strict=True):
        items = [
            decision_item(sample, reference.action, thought_of(sample), answer_first=order)
            for sample in samples
            for reference in sample.references
            for order in ORDERS[rendering]
        ]
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
    console = Console()
    console.print(_overview(splits))
    console.print(_kinds(splits))
    print(f"written: {', '.join(str(folder / f'{name}.jsonl') for name in SPLITS)}")


def _overview(splits: Splits) -> Table:
    table = Table("split", "samples", "dialogues", "turns", "words", "longest", "references", "tool calls")
    table.title = "samples (turns, words of the prompt and references: mean)"
    for name in SPLITS:
        table.add_row(name, *_figures(getattr(splits, name)))
    return table


def _figures(samples: Sequence[ServiceSample]) -> list[str]:
    if not samples:
        return ["0"] + ["-"] * 6
    calls = sum(isinstance(s.references[0].action, ToolCall) for s in samples)
    words = [len(" ".join(m["content"] for m in policy_messages(s)).split()) for s in samples]
    return [
        str(len(samples)),
        str(len({s.meta.get("dialogue", s.id) for s in samples})),
        f"{mean(len(s.history) for s in samples):.1f}",
        f"{mean(words):.0f}",
        str(max(words)),
        f"{mean(len(s.references) for s in samples):.1f}",
        f"{calls / len(samples):.0%}",
    ]


def _kinds(splits: Splits) -> Table:
    """Count the gold actions by kind: the act where the builder names it, else reply or the tool."""
    table = Table("gold action", *SPLITS, title="gold actions")
    counts = {name: Counter(_kind(s) for s in getattr(splits, name)) for name in SPLITS}
    for kind in sorted(set().union(*counts.values())):
        table.add_row(kind, *(str(counts[name][kind]) for name in SPLITS))
    return table


def _kind(sample: ServiceSample) -> str:
    action = sample.references[0].action
    return f"call {action.name}" if isinstance(action, ToolCall) else f"reply: {act_of(sample)}".removesuffix(": reply")
