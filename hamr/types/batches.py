"""Training batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainSequence:
    """One completion to train on.

    `advantage` weights its tokens. `old_logprobs` are those of the engine (empty for supervised fine-tuning). `mask[i]`
    is False for tokens without loss.
    """

    token_ids: tuple[int, ...]
    advantage: float = 1.0
    old_logprobs: tuple[float, ...] = ()
    mask: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainGroup:
    """Completions that share one prompt. The trainer computes the prompt once for all of them."""

    prompt_ids: tuple[int, ...]
    sequences: tuple[TrainSequence, ...]


Aggregation = Literal["token_mean", "sequence_mean"]
PolicyAggregation = Literal["token_mean", "sequence_mean", "constant_length"]
"""Means of the loss over a batch (`hamr.algorithms.aggregation`); supervised batches have the first two."""
ImportanceLevel = Literal["token", "sequence", "geometric"]
Credit = Literal["outcome", "turn", "turn_normalised"]
"""Share of a dialogue's rewards that its turns get (`hamr.algorithms.credit`)."""
SftKind = Literal["decision", "decision_dra", "patm", "patm_dra", "decision_post"]
"""Kinds of supervised targets (`hamr.data.sft_items`)."""


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """Data of one optimiser step.

    `loss` names the loss. `aggregation` sets the unit that has equal weight: each completion token (`token_mean`) or
    each completion regardless of its length (`sequence_mean`). With `constant_length` the sum over a completion is
    divided by `horizon`, the maximum length in tokens.
    """

    groups: tuple[TrainGroup, ...]
    loss: Literal["policy", "sft"] = "policy"
    aggregation: PolicyAggregation = "token_mean"
    horizon: int = 1

    @property
    def tokens(self) -> int:
        """Number of completion tokens with loss."""
        return sum(sum(s.mask) if s.mask else len(s.token_ids) for g in self.groups for s in g.sequences)
