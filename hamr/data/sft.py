"""Supervised batches: each sample's prompt once, with one or several of its references as completions."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hamr.protocols import AnswerEncoder, PromptEncoder
from hamr.types import Aggregation, ServiceSample, TrainBatch, TrainGroup, TrainSequence


def sft_batch(
    samples: Sequence[ServiceSample],
    encode: PromptEncoder,
    answer: AnswerEncoder,
    rng: random.Random,
    *,
    references: int = 1,
    aggregation: Aggregation = "token_mean",
) -> TrainBatch:
    """At most `references` distinct references per sample, drawn by `rng`; the prompt itself carries no loss."""
    groups = []
    for sample in samples:
        chosen = rng.sample(sample.references, min(references, len(sample.references)))
        sequences = tuple(TrainSequence(token_ids=answer(reference.action)) for reference in chosen)
        groups.append(TrainGroup(prompt_ids=encode(sample), sequences=sequences))
    return TrainBatch(groups=tuple(groups), loss="sft", aggregation=aggregation)
