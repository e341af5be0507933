"""The fast sampler against its target distribution."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.integration  # it imports vLLM


def test_draw_inverts_the_cumulative_distribution() -> None:
    """softmax of the logs of (1, 0, 3, 4) / 8: the token changes at 1/8 and 4/8, and the zero-probability token is
    never drawn.
    """
    import torch

    from hamr.rollout.vllm_sampler import draw

    uniform = torch.tensor([0.0, 0.1249, 0.1251, 0.4999, 0.5001, 1 - 2**-24])
    logits = torch.tensor([1.0, 0.0, 3.0, 4.0]).log().expand(len(uniform), 4)
    tokens, logprobs = draw(logits, uniform)
    assert tokens.tolist() == [0, 0, 2, 2, 3, 3]
    expected = torch.tensor([1 / 8, 1 / 8, 3 / 8, 3 / 8, 1 / 2, 1 / 2]).log()
    torch.testing.assert_close(logprobs, expected)


def test_last_token_with_probability_is_the_last_drawn() -> None:
    import torch

    from hamr.rollout.vllm_sampler import draw

    logits = torch.full((1, 1000), float("-inf"))
    logits[0, :3] = torch.tensor([0.3, 0.1, 0.2])
    tokens, _ = draw(logits, torch.tensor([1 - 2**-24]))
    assert tokens.tolist() == [2]


def test_sampled_frequencies_match_the_probabilities() -> None:
    """Evenly spaced draws over a vocabulary of 50,000: frequencies of the most likely tokens match their
    probabilities, and log-probabilities equal log-softmax.
    """
    import torch

    from hamr.rollout.vllm_sampler import draw

    logits = 4 * torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    n = 2_000
    uniform = (torch.arange(n) + 0.5) / n
    tokens, logprobs = draw(logits.expand(n, -1), uniform)
    exact = torch.log_softmax(logits.double(), -1)
    torch.testing.assert_close(logprobs.double(), exact[tokens], atol=1e-5, rtol=0)
    likeliest = exact.topk(20).indices
    counts = torch.bincount(tokens, minlength=len(logits))[likeliest]
    assert ((counts - n * exact[likeliest].exp()).abs() <= 1.5).all()
