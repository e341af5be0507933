"""Fine-tunes a small scorer: next-token loss on what it should say, and on nothing else."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.backends.models import truncated_copy
from hamr.config.schema import ScorerTrainingConfig

if TYPE_CHECKING:
    import torch


SORTED_BATCHES = 3
"""Batches' worth of examples that are sorted by length together."""


@dataclass(frozen=True, kw_only=True)
class ScorerExample:
    """A rendered question and what the scorer should say to it, as token ids.

    `target_ids` ends in the verdict's token. `verdict` maps label tokens to the probability that each should get
    there (sums to 1): a partial agreement is {yes: 0.5, no: 0.5} to a scorer without a third label.
    """

    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    verdict: tuple[tuple[int, float], ...]


def finetune(
    base: Path,
    out: Path,
    examples: Sequence[ScorerExample],
    config: ScorerTrainingConfig,
    *,
    seed: int,
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> None:
    """Trains a copy of `base` (its first `config.layers` layers) on `examples` and puts it at `out`.

    Full fine-tuning: float32 weights, bf16 matrix products, AdamW, linear warm-up over a tenth of the steps and
    linear decay. Written aside and renamed, so that `out` is whole or absent.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(config.threads)
    torch.manual_seed(seed)
    scratch = out.with_name(f".{out.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    layers = config.layers
    if layers is None:
        shutil.copytree(base, scratch)
    else:
        truncated_copy(base, layers, scratch)
    # On the CPU the backward pass of fused attention costs more than all the rest of a short sequence's step.
    model = AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32, attn_implementation="eager")
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0, fused=True)
    batches = [b for epoch in range(config.epochs) for b in length_batches(examples, config.batch_size, seed + epoch)]
    warmup = max(1, len(batches) // 10)
    for step, batch in enumerate(batches):
        left = (len(batches) - step) / max(1, len(batches) - warmup)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, (step + 1) / warmup, left)
        loss = batch_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not math.isfinite(loss.item()):
            raise FloatingPointError(
                f"scorer training diverged at step {step}: loss {loss.item()}; lower finetune.learning_rate"
            )
        progress(step + 1, len(batches), loss.item())
    model.to(torch.bfloat16).save_pretrained(scratch)
    scratch.rename(out)


def verdict_scores(
    folder: Path, prompts: Sequence[tuple[int, ...]], values: Mapping[int, float], *, threads: int, batch_size: int = 16
) -> list[float]:
    """What the model at `folder` says to each prompt, asked for its verdict at once: the mean of `values` (label token
    to its worth) under the next token's probabilities, renormalised over the labels."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    worth = torch.tensor(list(values.values()))
    scores: list[float] = []
    with torch.inference_mode():
        for start in range(0, len(prompts), batch_size):
            batch = prompts[start : start + batch_size]
            ids = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.long)
            for i, prompt in enumerate(batch):
                ids[i, : len(prompt)] = torch.tensor(prompt)
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
            last = model.lm_head(hidden[torch.arange(len(batch)), torch.tensor([len(p) - 1 for p in batch])])
            scores += (last.float()[:, list(values)].softmax(-1) @ worth).tolist()
    return scores


def length_batches(examples: Sequence[ScorerExample], size: int, seed: int) -> list[list[ScorerExample]]:
    """Batches in random order, every example once: similar lengths together, but only within draws of a few batches.

    Sorting all of them would put one label into a batch wherever length tells it, and the steps would undo each other.
    """
    rng = random.Random(seed)
    drawn = rng.sample(list(examples), len(examples))
    batches: list[list[ScorerExample]] = []
    for start in range(0, len(drawn), SORTED_BATCHES * size):
        chunk = sorted(
            drawn[start : start + SORTED_BATCHES * size], key=lambda e: len(e.prompt_ids) + len(e.target_ids)
        )
        batches += [chunk[i : i + size] for i in range(0, len(chunk), size)]
    rng.shuffle(batches)
    return batches


def batch_loss(model: torch.nn.Module, batch: Sequence[ScorerExample]) -> torch.Tensor:
    """Mean over examples of (mean cross-entropy of the reasoning tokens) + (cross-entropy at the verdict).

    The verdict weighs as much as all the reasoning before it: it is one token, and it is the score.
    """
    import torch
    from torch.nn.functional import log_softmax

    # the CPU compiles its matrix kernels anew for every shape it meets: let there be few
    width = -(-max(len(e.prompt_ids) + len(e.target_ids) for e in batch) // 32) * 32
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    read: list[tuple[int, int, int, float]] = []  # row, column, the token that should come next, its weight
    for i, example in enumerate(batch):
        tokens = (*example.prompt_ids, *example.target_ids)
        ids[i, : len(tokens)] = torch.tensor(tokens)
        before = len(example.prompt_ids) - 1
        reasoning = len(example.target_ids) - 1
        read += [(i, before + j, token, 1.0 / reasoning) for j, token in enumerate(example.target_ids[:-1])]
        read += [(i, before + reasoning, token, probability) for token, probability in example.verdict]
    rows, columns, targets, weights = (torch.tensor(values) for values in zip(*read, strict=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        # right padding under a causal mask never reaches the positions that are read
        hidden = model.model(input_ids=ids).last_hidden_state
        logits = model.lm_head(hidden[rows, columns])
    chosen = log_softmax(logits.float(), -1).gather(-1, targets[:, None])[:, 0]
    return -(chosen * weights).sum() / len(batch)
