"""Optimisation of a scorer that is fine-tuned: the loop that language models and cross-encoders share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from hamr.config.pools import ScorerTrainingConfig

if TYPE_CHECKING:
    import torch

Batch = TypeVar("Batch")


def optimise(
    model: torch.nn.Module,
    batches: Sequence[Batch],
    loss_of: Callable[[Batch], torch.Tensor],
    config: ScorerTrainingConfig,
    progress: Callable[[int, int, float], None],
) -> None:
    """Train the weights that require a gradient: one step per batch, AdamW, linear warm-up and linear decay.

    The optimiser has float32 master weights, and the norm of their gradient is at most 1. `progress` gets the step, the
    number of steps and the loss. Raises FloatingPointError for a loss that is not finite.
    """
    import torch

    weights = [weight for weight in model.parameters() if weight.requires_grad]
    masters = [weight.detach().float() for weight in weights]  # float32 weights themselves
    optimizer = torch.optim.AdamW(masters, lr=config.learning_rate, weight_decay=0.0, fused=True)
    warmup = max(1, int(len(batches) * config.warmup_frac))
    for step, batch in enumerate(batches):
        left = (len(batches) - step) / max(1, len(batches) - warmup)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (step + 1) / warmup, left)
        loss = loss_of(batch)
        loss.backward()
        for master, weight in zip(masters, weights, strict=True):
            master.grad, weight.grad = None if weight.grad is None else weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
        if not math.isfinite(loss.item()):
            raise FloatingPointError(
                f"scorer training diverged at step {step}: loss {loss.item()}; lower finetune.learning_rate"
            )
        progress(step + 1, len(batches), loss.item())
