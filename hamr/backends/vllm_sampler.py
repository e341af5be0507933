"""Sampling for CPU engines. vLLM's own takes a fifth of a decoding step of a small model: two logarithms for each entry
of the vocabulary to make Gumbel noise, then passes to rank the drawn token, which nobody here asks for.

Legend: B sequences, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.sampler import Sampler

if TYPE_CHECKING:
    from vllm.v1.sample.metadata import SamplingMetadata


def draw(logits_BV: torch.Tensor, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverts the cumulative distribution of softmax(logits) at `uniform` in [0, 1).

    Returns the tokens (B, int64) and their log-probabilities (B, float32). A token of probability 0 is never drawn.
    """
    peak_B1 = logits_BV.amax(dim=-1, keepdim=True)
    weights_BV = (logits_BV - peak_B1).exp_()
    cumulative_BV = weights_BV.cumsum(dim=-1)
    total_B = cumulative_BV[:, -1]
    # Rounding must not push the threshold onto the total, behind the last token that has any weight.
    threshold_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    tokens_B = torch.searchsorted(cumulative_BV, threshold_B.unsqueeze(1), right=True).squeeze(1)
    chosen_B = logits_BV.gather(1, tokens_B.unsqueeze(1)).squeeze(1)
    return tokens_B, chosen_B - peak_B1.squeeze(1) - weights_BV.sum(dim=-1).log()


class LeanSampler(Sampler):
    """vLLM's sampler with a short way for what rollouts ask: a seed each, a temperature, the drawn token's
    log-probability. Anything else in the batch (greedy, top-p, label probabilities) takes vLLM's way."""

    def forward(self, logits: torch.Tensor, sampling_metadata: SamplingMetadata, *args: Any, **kwargs: Any) -> Any:
        asked = sampling_metadata
        lean = (
            asked.all_random
            and asked.top_p is None
            and asked.top_k is None
            and asked.max_num_logprobs == 0
            and not asked.logprob_token_ids
            and len(asked.generators) == logits.shape[0]
        )
        if not lean:
            return super().forward(logits, sampling_metadata, *args, **kwargs)
        # The engine's requests carry no penalties, masks or processors: VllmEngine sets none.
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
