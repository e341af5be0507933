"""What a trainer learns from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TrainSequence:
    """One completion to learn from. `advantage` weighs its tokens; `old_logprobs` are the engine's
    (empty for supervised fine-tuning). `mask[i]` is False for tokens that carry no loss."""

    token_ids: tuple[int, ...]
    advantage: float = 1.0
    old_logprobs: tuple[float, ...] = ()
    mask: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainGroup:
    """Completions that share one prompt: the trainer computes the prompt once for all of them."""

    prompt_ids: tuple[int, ...]
    sequences: tuple[TrainSequence, ...]


Aggregation = Literal["token_mean", "sequence_mean"]
SftKind = Literal["decision", "decision_dra", "patm", "patm_dra", "decision_post"]
SftPart = Literal["rationale", "action", "environment"]
"""What a supervised target is, and what it is made of (`hamr.data.sft_items`)."""


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """One optimiser step's data. `loss` names the loss; `aggregation` says what counts alike in it: every completion
    token (`token_mean`), or every completion whatever its length (`sequence_mean`)."""

    groups: tuple[TrainGroup, ...]
    loss: Literal["policy", "sft"] = "policy"
    aggregation: Aggregation = "token_mean"

    @property
    def tokens(self) -> int:
        """Completion tokens that carry loss."""
        return sum(sum(s.mask) if s.mask else len(s.token_ids) for g in self.groups for s in g.sequences)
