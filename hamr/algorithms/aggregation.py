"""Divisors of the sum of token losses: what has equal weight in the mean of a batch."""

from __future__ import annotations

from torch import Tensor

from hamr.algorithms.terms import response_sum
from hamr.types import TrainBatch


def divisors(whole: TrainBatch, mask: Tensor, sequences: Tensor) -> Tensor | float:
    """Return the divisor of every token's loss in a micro-batch of the batch `whole`, so that losses can be added.

    token_mean: the counted tokens of the batch (DAPO, Eq. 12). sequence_mean: the counted tokens of the response times
    the number of responses (GRPO). constant_length: `horizon` times the number of responses (Dr. GRPO), so that a
    token's weight depends neither on the length of its response nor on those of others. `mask` and `sequences` are as
    in TokenTerms; the divisors, 1 or more, have their shape unless one number holds for all tokens.
    """
    if whole.aggregation == "token_mean":
        return float(max(whole.tokens, 1))
    responses = sum(len(g.sequences) for g in whole.groups)
    if whole.aggregation == "constant_length":
        return float(responses * whole.horizon)
    return response_sum(mask.float(), sequences).clamp(min=1.0) * responses
