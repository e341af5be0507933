"""`hamr data preview`: the exact prompts of some samples, with token counts and the reference answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from hamr.apps.shared.preparation import Codec, load_splits
from hamr.data.samples import read_samples
from hamr.errors import BadInput
from hamr.models.bundled import resolve_model
from hamr.models.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from hamr.apps.data.command import PreviewSamples
    from hamr.types import ServiceSample

TOOLS = {True: "tools: written by the chat template", False: "tools: hamr's compact form"}


def preview(command: PreviewSamples) -> int:
    """Print prompts and references. Raises BadInput like a training job."""
    config = command.config()
    samples: Sequence[ServiceSample]
    if command.split == "train" and config.data.train and not config.data.importer:
        samples = read_samples(config.data.train)  # a file may be too small to split
    else:
        samples = getattr(load_splits(config.data, config.experiment.seed), command.split)
    if not samples:
        raise BadInput("split", command.split, "has no samples; choose another split")
    codec = Codec(tokenizer=load_tokenizer(resolve_model(config.model.path)), config=config)
    console = Console(highlight=False, soft_wrap=True)
    most = config.rollout.max_new_tokens
    room = config.model.max_context - most
    console.print(escape(f"model.path={config.model.path}, {TOOLS[codec.chat.native]}, room for {room} prompt tokens"))
    for sample in samples[: command.n]:
        ids = codec.prompt(sample)
        fits = "" if len(ids) <= room else f", {len(ids) - room} too many"
        console.print(escape(f"sample {sample.id}: prompt of {len(ids)} tokens{fits}"), style="bold")
        console.print(_highlight(codec, ids))
        for reference in sample.references:
            ids = codec.answer(reference.action, codec.formats.of(sample))
            fits = "" if len(ids) <= most else f", {len(ids) - most} more than rollout.max_new_tokens={most}; raise it"
            console.print(f"reference of {len(ids)} tokens{fits}", style="bold")
            console.print(_highlight(codec, ids))
    return 0


def _highlight(codec: Codec, ids: tuple[int, ...]) -> Text:
    """Return the text of tokens with highlighted special tokens."""
    text = Text()
    for special, run in codec.tokenizer.pieces(ids):
        text.append(run, "magenta" if special else "")
    return text
