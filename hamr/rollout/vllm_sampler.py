"""Fast sampler for CPU engines.

vLLM's own takes a fifth of a decoding step of a small model: two logarithms per vocabulary entry for Gumbel noise, then
passes to rank the drawn token, which hamr does not use.

Legend: B sequences, V vocabulary, N blocks of the vocabulary with K entries each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import (
    LogitBiasLogitsProcessor,
    LogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.sampler import Sampler

if TYPE_CHECKING:
    from vllm.v1.sample.metadata import SamplingMetadata

BLOCK = 256
"""Entries whose weights are summed together. Accumulating over the whole vocabulary took half of the sampling time."""


def draw(logits_BV: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Invert the cumulative distribution of softmax(logits) at `uniform` in [0, 1).

    Returns the tokens (B, int64) and their log-probabilities (B, float32). A token of probability 0 is never drawn.
    """
    peak_B1 = logits_BV.amax(dim=-1, keepdim=True)
    weights_BV = (logits_BV - peak_B1).exp_()
    weights_BNK = pad(weights_BV, (0, -weights_BV.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    blocks_BN = weights_BNK.sum(dim=-1)
    cumulative_BN = blocks_BN.cumsum(dim=-1)
    total_B1 = cumulative_BN[:, -1:]
    threshold_B1 = _below(uniform_B.unsqueeze(1) * total_B1, total_B1)
    block_B1 = torch.searchsorted(cumulative_BN, threshold_B1, right=True)
    rest_B1 = threshold_B1 - (cumulative_BN - blocks_BN).gather(1, block_B1)
    within_BK = weights_BNK.take_along_dim(block_B1.unsqueeze(-1), dim=1).squeeze(1).cumsum(dim=-1)
    # The sums over blocks and within a block may differ in the last digit.
    entry_B1 = torch.searchsorted(within_BK, _below(rest_B1.clamp_min(0), within_BK[:, -1:]), right=True)
    tokens_B1 = block_B1 * BLOCK + entry_B1
    logprobs_B1 = logits_BV.gather(1, tokens_B1) - peak_B1 - total_B1.log()
    return tokens_B1.squeeze(1), logprobs_B1.squeeze(1)


def _below(threshold: Tensor, total: Tensor) -> Tensor:
    """Clip a threshold that rounding moved onto the total, past the last entry with a positive weight."""
    return torch.minimum(threshold, torch.nextafter(total, torch.zeros_like(total)))


def is_idle(processor: LogitsProcessor) -> bool:
    """Return whether no request of the batch uses the processor."""
    match processor:
        case MinPLogitsProcessor():
            return not processor.min_p_count
        case LogitBiasLogitsProcessor():
            return not processor.biases
        case MinTokensLogitsProcessor():
            return not processor.min_toks
    return False


class LeanSampler(Sampler):
    """vLLM's sampler with a fast path for rollouts: per-sequence seed, temperature, the drawn token's log-probability.

    Other batches (greedy, top-p, label probabilities, penalties and other `sampling_extra`) use vLLM's implementation.
    """

    def forward(self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, *args: Any, **kwargs: Any) -> Any:
        asked = sampling_metadata
        lean = (
            asked.all_random
            and asked.top_p is None
            and asked.top_k is None
            and asked.max_num_logprobs == 0
            and not asked.logprob_token_ids
            and asked.no_penalties
            and asked.allowed_token_ids_mask is None
            and not asked.bad_words_token_ids
            and all(map(is_idle, asked.logitsprocs.all))
            and len(asked.generators) == logits.shape[0]
        )
        if not lean:
            return super().forward(logits, sampling_metadata, *args, **kwargs)
        temperature_B = asked.temperature
        logits_BV = logits.float() if bool((temperature_B == 1).all()) else logits.float() / temperature_B.unsqueeze(1)
        uniform_B = torch.cat([torch.rand(1, generator=asked.generators[i]) for i in range(logits.shape[0])])
        tokens_B, logprobs_B = draw(logits_BV, uniform_B)
        tokens_B1 = tokens_B.to(torch.int32).unsqueeze(1)
        return SamplerOutput(
            sampled_token_ids=tokens_B1,
            logprobs_tensors=LogprobsTensors(
                logprob_token_ids=tokens_B1,
                logprobs=logprobs_B.unsqueeze(1),
                selected_token_ranks=torch.zeros_like(tokens_B),
            ),
        )
