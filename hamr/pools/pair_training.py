"""Cross-encoder fine-tuning: two texts in, one logit out, binary cross-entropy against the label of the pair.

Numbers are anonymised: every number of a pair is replaced by a letter, the same letter for equal numbers. With this, a
small model learns within minutes whether two replies name the same amounts, including amounts not seen in training. It
cannot compare their magnitude. The model's config.json records the setting (`marked_numbers`).
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hamr.config.pools import ScorerTrainingConfig
from hamr.models.scorer_optimiser import optimise

SCORING_BATCH = 64
MARKED = "marked_numbers"
"""Key in config.json of a model whose input numbers are replaced by letters."""
_LETTERS = "αβγδεζηθικλμνξοπρστυφχψω"
_NUMBER = re.compile(r"\d+")


class PairExample(NamedTuple):
    """Two texts and the probability that they agree: 1, 0, or 0.5 if they agree in part."""

    a: str
    b: str
    target: float


def finetune_pairs(
    base: Path,
    out: Path,
    examples: Sequence[PairExample],
    config: ScorerTrainingConfig,
    *,
    seed: int,
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> None:
    """Train the encoder at `base` (its first `config.layers` layers) with one logit on `examples`; write it to `out`.

    `base` is any encoder that transformers can put a classification head on; a missing head is initialised randomly.
    Weights are float32, matrix products in `config.dtype`. The write is atomic: `out` is complete or absent.
    """
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(config.threads)
    torch.manual_seed(seed)
    scratch = out.with_name(f".{out.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(base, trust_remote_code=False)
    shape = AutoConfig.from_pretrained(base, num_labels=1, trust_remote_code=False)
    setattr(shape, MARKED, True)
    if config.layers is not None:
        shape.num_hidden_layers = min(config.layers, shape.num_hidden_layers)
    model = AutoModelForSequenceClassification.from_pretrained(
        base, config=shape, dtype=torch.float32, trust_remote_code=False
    ).train()
    model.get_input_embeddings().requires_grad_(config.train_embeddings)
    batches = [batch for epoch in range(config.epochs) for batch in _batches(examples, config.batch_size, seed + epoch)]

    def loss_of(batch: list[PairExample]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=config.dtype == "bfloat16"):
            logits = model(**_encode(tokenizer, batch)).logits[:, 0].float()
        targets = torch.tensor([example.target for example in batch])
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)

    optimise(model, batches, loss_of, config, progress)
    model.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    scratch.rename(out)


def pair_scores(folder: Path, pairs: Sequence[tuple[str, str]], *, threads: int) -> list[float]:
    """Return the sigmoid of the logit of the cross-encoder at `folder` for each pair, with numbers marked."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False
    ).eval()
    scores: list[float] = []
    with torch.inference_mode():
        for start in range(0, len(pairs), SCORING_BATCH):
            batch = [PairExample(a, b, 0.0) for a, b in pairs[start : start + SCORING_BATCH]]
            scores += model(**_encode(tokenizer, batch)).logits[:, 0].sigmoid().tolist()
    return scores


def mark_numbers(a: str, b: str) -> tuple[str, str]:
    """Replace every number in both texts by a letter; numbers beyond the 24th of a pair stay as they are.

    >>> mark_numbers("Talk 500min for $25", "$25 for Talk 600min")
    ('Talk αmin for $β', '$β for Talk γmin')
    """
    letters: dict[str, str] = {}

    def letter(found: re.Match[str]) -> str:
        if found[0] not in letters and len(letters) < len(_LETTERS):
            letters[found[0]] = _LETTERS[len(letters)]
        return letters.get(found[0], found[0])

    return _NUMBER.sub(letter, a), _NUMBER.sub(letter, b)


def _batches(examples: Sequence[PairExample], size: int, seed: int) -> list[list[PairExample]]:
    """Return batches in random order.

    Batches of pairs of equal length would save a third of the time. However, short pairs mostly have label 0, and a
    model that sees one label for many steps learns the label.
    """
    order = list(examples)
    random.Random(seed).shuffle(order)
    return [order[start : start + size] for start in range(0, len(order), size)]


def _encode(tokenizer, batch: Sequence[PairExample]):  # type: ignore[no-untyped-def]
    marked = [mark_numbers(example.a, example.b) for example in batch]
    return tokenizer([a for a, _ in marked], [b for _, b in marked], padding=True, truncation=True, return_tensors="pt")
