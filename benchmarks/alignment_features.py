"""Features of the aligned tokens of two texts, and a scorer of them: an experiment, not a pool of hamr.

A reply and its negation are close as a whole; what differs between them are a few tokens. Every token of one text is
aligned with the most similar token of the other, and the features say how much of each text remains without a partner.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hamr.pools.scorer_pairs import EmbeddingModel, Pair

WEIGHTS = Path(__file__).parent / "results" / "alignment.json"
FEATURES = (
    "cosine", "context_a", "context_b", "word_a", "word_b", "unmatched_a", "unmatched_b", "words_left_a",
    "words_left_b", "negation", "length", "overlap", "question", "numbers_a", "numbers_b",
)  # fmt: skip
TOPIC = 0.5
"""Cosine of the whole texts above which they are about the same thing, so that a higher one says nothing more."""
TOPIC_WEIGHT = 20.0
_SAME_WORD = 0.9
_NEGATION = re.compile(
    r"\b(not|no|never|cannot|unable|nothing|none|without|unfortunately|impossible|declined?|refused?|neither|nor)\b"
    r"|n't\b",
    re.I,
)


class EmbeddedText(NamedTuple):
    """A text with its tokens, without special ones: ids (n), contextual and word embeddings (n, d) and the mean of the
    contextual ones (d), all of length 1."""

    text: str
    ids: NDArray[np.int64]
    context: NDArray[np.float32]
    words: NDArray[np.float32]
    whole: NDArray[np.float32]


def agreement(a: EmbeddedText, b: EmbeddedText, weights: NDArray[np.float64]) -> float:
    """Return the probability that two texts agree; 0 if one has no tokens. `weights`: intercept, then FEATURES."""
    if not len(a.ids) or not len(b.ids):
        return 0.0
    found = features(a, b)
    logit = weights @ np.array([1.0, *found]) + TOPIC_WEIGHT * (min(found[0], TOPIC) - TOPIC)
    return 1.0 / (1.0 + math.exp(-float(np.clip(logit, -50.0, 50.0))))


def features(a: EmbeddedText, b: EmbeddedText) -> list[float]:
    """Return the values of FEATURES. Tokens count by their rarity."""
    weights_a, weights_b = _rarity(a.ids), _rarity(b.ids)
    context, word = a.context @ b.context.T, a.words @ b.words.T
    left_a, left_b = word.max(1) < _SAME_WORD, word.max(0) < _SAME_WORD
    words_a, words_b = (set(re.findall(r"\w+", text.lower())) for text in (a.text, b.text))
    numbers_a, numbers_b = (set(re.findall(r"\d+", text)) for text in (a.text, b.text))
    values = (
        a.whole @ b.whole,
        context.max(1) @ weights_a,
        context.max(0) @ weights_b,
        word.max(1) @ weights_a,
        word.max(0) @ weights_b,
        left_a @ weights_a,
        left_b @ weights_b,
        left_a.sum(),
        left_b.sum(),
        bool(_NEGATION.search(a.text)) != bool(_NEGATION.search(b.text)),
        math.log(len(b.ids) / len(a.ids)),
        2 * len(words_a & words_b) / max(1, len(words_a) + len(words_b)),
        ("?" in a.text) != ("?" in b.text),
        len(numbers_a - numbers_b),
        len(numbers_b - numbers_a),
    )
    return [float(value) for value in values]


def _rarity(ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return weights of sum 1. A WordPiece vocabulary is ordered by frequency: a higher id is a rarer word."""
    weights = np.maximum(np.log1p(ids / 1000), 0.05)
    return weights / weights.sum()


class AlignmentModel(EmbeddingModel):
    """Agreement of aligned tokens, by the weights of alignment.py."""

    def scores(self, pairs: Sequence[Pair]) -> list[float]:
        by_text = self.embedded(list(dict.fromkeys(text for pair in pairs for text in pair)))
        fitted = json.loads(WEIGHTS.read_text())
        weights = np.array([fitted["intercept"], *(fitted["weights"][name] for name in FEATURES)])
        return [agreement(by_text[a], by_text[b], weights) for a, b in pairs]

    def embedded(self, texts: Sequence[str]) -> dict[str, EmbeddedText]:
        import torch

        rows = self.encoder.encode(
            list(texts), batch_size=self.config.batch_size, show_progress_bar=False, output_value=None
        )
        word_embeddings = self.encoder[0].auto_model.get_input_embeddings().weight.detach()
        found = {}
        for text, row in zip(texts, rows, strict=True):
            inner = slice(1, int(row["attention_mask"].sum()) - 1)  # between [CLS] and [SEP]
            ids = row["input_ids"][inner]
            parts = (row["token_embeddings"][inner], word_embeddings[ids], row["sentence_embedding"])
            unit = (torch.nn.functional.normalize(part.float(), dim=-1).cpu().numpy() for part in parts)
            found[text] = EmbeddedText(text, ids.cpu().numpy(), *unit)
        return found
