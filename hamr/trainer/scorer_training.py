"""Fine-tuning of a small scorer: next-token loss on its target answer only."""

from __future__ import annotations

import dataclasses
import itertools
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.config.pools import ScorerTrainingConfig
from hamr.errors import BadInput
from hamr.models.scorer_optimiser import optimise
from hamr.types import TrainGroup, TrainSequence

if TYPE_CHECKING:
    import torch

    from hamr.trainer.policy_model import PolicyModel


@dataclass(frozen=True, kw_only=True)
class ScorerExample:
    """Rendered question and target answer, as token ids.

    `target_ids` has `behind` tokens after that of the verdict, which are trained like reasoning. `verdict` maps label
    tokens to their target probabilities (sum 1): for a scorer without a third label, partial agreement is {yes: 0.5,
    no: 0.5}. Examples of one `family` (those about one reference) have a common prefix, which is computed once.
    Reasoning that is not `sound` is in the input but not in the loss; the verdict is trained nevertheless.
    """

    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    verdict: tuple[tuple[int, float], ...]
    family: str = ""
    sound: bool = True
    behind: int = 0


def finetune(
    base: Path,
    out: Path,
    examples: Sequence[ScorerExample],
    config: ScorerTrainingConfig,
    *,
    seed: int,
    progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> None:
    """Train a copy of `base` (its first `config.layers` layers) on `examples` and write it to `out`.

    All weights are trained, or all but the embeddings, or an adapter that is merged at the end. Computation is in
    `config.dtype`, and on a GPU with activation checkpointing. The write is atomic: `out` is complete or absent.
    """
    import torch

    from hamr.trainer.policy_kernels import use_cpu_kernels
    from hamr.trainer.policy_model import load_policy

    torch.set_num_threads(config.threads)
    scratch = out.with_name(f".{out.name}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(base, scratch)
    if config.layers is not None:
        keep_layers(scratch, config.layers)
    torch.manual_seed(seed)
    model = load_policy(
        scratch,
        dtype=getattr(torch, config.dtype),
        layout="shared_prompt",
        lora=config.lora,
        gradient_checkpointing=config.num_gpus > 0,
    ).train()
    device = device_of(config)
    if device == "cpu":
        use_cpu_kernels(model)
    model.to(device)
    if config.lora is None:
        model.causal_lm.get_input_embeddings().requires_grad_(config.train_embeddings)
    batches = [b for epoch in range(config.epochs) for b in family_batches(examples, config.batch_size, seed + epoch)]
    optimise(model, batches, lambda batch: batch_loss(model, batch, device), config, progress)
    whole = model.causal_lm if config.lora is None else model.causal_lm.merge_and_unload()
    whole.save_pretrained(scratch)
    scratch.rename(out)


def keep_layers(folder: Path, layers: int) -> None:
    """Remove all but the first `layers` decoder layers of the model in a folder. Raises BadInput if it has fewer."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", trust_remote_code=False)
    config = model.config
    if not 1 <= layers <= config.num_hidden_layers:
        remedy = f"the model has {config.num_hidden_layers} decoder layers; keep between 1 and all of them"
        raise BadInput("finetune.layers", layers, remedy)
    model.model.layers = model.model.layers[:layers]
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    model.save_pretrained(folder)


def device_of(config: ScorerTrainingConfig) -> str:
    """Return the torch device that a scorer is trained on."""
    return "cuda" if config.num_gpus else "cpu"


def verdict_scores(
    folder: Path,
    prompts: Sequence[tuple[int, ...]],
    values: Mapping[int, float],
    *,
    dtype: str,
    threads: int,
    device: str = "cpu",
    batch_size: int = 16,
) -> list[float]:
    """Return the direct verdict of the model at `folder` on each prompt.

    The score is the mean of `values` (label token to value) under the next token's probabilities, renormalised over the
    labels.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), trust_remote_code=False)
        .to(device)
        .eval()
    )
    worth = torch.tensor(list(values.values()), device=device)
    scores: list[float] = []
    with torch.inference_mode():
        for start in range(0, len(prompts), batch_size):
            batch = prompts[start : start + batch_size]
            ids = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.long)
            for i, prompt in enumerate(batch):
                ids[i, : len(prompt)] = torch.tensor(prompt)
            hidden = model.model(input_ids=ids.to(device), use_cache=False).last_hidden_state
            last = model.lm_head(hidden[torch.arange(len(batch)), torch.tensor([len(p) - 1 for p in batch])])
            scores += (last.float()[:, list(values)].softmax(-1) @ worth).tolist()
    return scores


def family_batches(examples: Sequence[ScorerExample], size: int, seed: int) -> list[list[ScorerExample]]:
    """Return batches of about `size` in random order, every example once, families together.

    A family is split only if it alone is larger than a batch.
    """
    families = _by_family(examples)
    parts = [members[i : i + size] for members in families for i in range(0, len(members), size)]
    random.Random(seed).shuffle(parts)
    batches: list[list[ScorerExample]] = []
    for part in parts:
        if batches and len(batches[-1]) + len(part) <= size:
            batches[-1] += part
        else:
            batches.append(list(part))
    return batches


def batch_loss(model: PolicyModel, batch: Sequence[ScorerExample], device: str = "cpu") -> torch.Tensor:
    """Return the mean over examples of (mean cross-entropy around the verdict) + (cross-entropy at the verdict).

    The verdict weighs as much as all the reasoning before it, because the score is that one token.
    """
    import torch

    from hamr.algorithms.packing import Piece
    from hamr.trainer.policy_batch import build_batch

    families = _by_family(batch)
    groups = [_group(members) for members in families]
    pieces = tuple(Piece(group=i, sequences=tuple(range(len(g.sequences)))) for i, g in enumerate(groups))
    laid_out = build_batch(groups, pieces, model.layout, device)
    read: list[tuple[int, int, float]] = []  # completion token, its target, its weight
    end = 0
    for e, length in zip(itertools.chain(*families), laid_out.lengths, strict=True):
        end += length
        start, at = end - len(e.target_ids), len(e.target_ids) - 1 - e.behind
        learnt = [j for j in range(len(e.target_ids)) if j > at or (j < at and e.sound)]
        read += [(start + j, e.target_ids[j], 1.0 / len(learnt)) for j in learnt]
        read += [(start + at, token, probability) for token, probability in e.verdict]
    rows, targets, weights = (torch.tensor(values, device=device) for values in zip(*read, strict=True))
    logprobs, _ = model(dataclasses.replace(laid_out, read_N=laid_out.read_N[rows], targets_N=targets))
    return -(logprobs * weights).sum() / len(batch)


def _by_family(examples: Sequence[ScorerExample]) -> list[list[ScorerExample]]:
    """Group examples by family, in the given order. An example without a family forms its own."""
    families: dict[str, list[ScorerExample]] = {}
    for i, e in enumerate(examples):
        families.setdefault(e.family or f" {i}", []).append(e)
    return list(families.values())


def _group(members: Sequence[ScorerExample]) -> TrainGroup:
    """Return a family as a prompt (the common beginning of its questions) and completions (the rest and the answer)."""
    shortest = min(len(e.prompt_ids) for e in members)
    common = next((i for i in range(shortest) if len({e.prompt_ids[i] for e in members}) > 1), shortest)
    return TrainGroup(
        prompt_ids=members[0].prompt_ids[:common],
        sequences=tuple(TrainSequence(token_ids=e.prompt_ids[common:] + e.target_ids) for e in members),
    )
