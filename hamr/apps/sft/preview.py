"""Preview of `hamr sft`: the mix as a table, items as coloured text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from hamr.apps.sft.sets import PreparedSft, prepare_sft
from hamr.config.schema import Config
from hamr.data.sft_encoding import EncodedItem, part_names
from hamr.models.tokenizer import Tokenizer
from hamr.report.terminal import show
from hamr.report.values import Column, Table, number_columns

STYLES = {"rationale": "yellow", "action": "green", "environment": "cyan", "next_action": "bright_green"}
PROMPT_SHOWN = 1200
"""Maximum number of prompt characters shown; the middle of a longer prompt is omitted."""


def preview(config: Config, number: int) -> int:
    """Show the mix and `number` items of every set. Raises BadInput like the training job."""
    prepared = prepare_sft(config)
    console = Console(highlight=False, soft_wrap=True)
    show(mix_table(prepared), console=console)
    for entry in prepared.sets:
        shown = (entry.train or entry.validation)[:number]
        for i, item in enumerate(shown, start=1):
            console.rule(escape(f"{entry.name} {i}: {item.kind}"), align="left")
            console.print(item_text(item, prepared.tokenizer))
    return 0


def mix_table(prepared: PreparedSft) -> Table:
    """Return a table of the sets with the items, computed tokens and trained tokens of one epoch."""
    epochs = prepared.config.sft.epochs
    taken = Counter(which for e in range(epochs) for which, _ in prepared.order.epoch(e))
    columns = ("weight", "items", "per epoch", "tokens", "with loss", "held out", "too long", "other kinds")
    rows = tuple(
        (
            s.name,
            f"{s.weight:g}",
            len(s.train),
            f"{taken[i] / epochs:g}",
            sum(map(len, s.train)),
            sum(len(item.token_ids) for item in s.train),
            s.held_out,
            s.too_long,
            s.other_kinds,
        )
        for i, s in enumerate(prepared.sets)
    )
    title = f"{prepared.items_in_all} items in {prepared.steps} steps of {prepared.config.sft.batch_size}"
    return Table(title, (Column("set"), *number_columns("{}", *columns)), rows)


def item_text(item: EncodedItem, tokenizer: Tokenizer) -> Text:
    """Return the prompt dimmed, then each span of the target with its part and token count."""
    text = Text()
    prompt = tokenizer.decode(item.prompt_ids)
    if len(prompt) > PROMPT_SHOWN:
        prompt = f"{prompt[: PROMPT_SHOWN // 2]} [...] {prompt[-PROMPT_SHOWN // 2 :]}"
    text.append(f"prompt, {len(item.prompt_ids)} tokens, no loss\n", "bold dim")
    text.append(prompt.strip() + "\n", "dim")
    for name, ids in stretches(item):
        words = tokenizer.decode(ids) + ("<end>" if ids[-1] == tokenizer.eos_id else "")
        text.append(f"{name}, {len(ids)} tokens, loss\n", f"bold {STYLES[name]}")
        text.append(words + "\n", STYLES[name])
    text.append(f"{len(item.token_ids)} of {len(item)} tokens carry loss", "bold")
    return text


def stretches(item: EncodedItem) -> Iterator[tuple[str, list[int]]]:
    """Yield (part, its tokens), in order."""
    names = part_names(item.kind)
    for part, run in groupby(zip(item.parts, item.token_ids, strict=True), key=lambda row: row[0]):
        yield names[part], [token for _, token in run]
