"""The fast sampler against its target distribution."""

from __future__ import annotations

from typing import Any

import pytest

from hamr.errors import BadInput
from hamr.rollout.vllm_settings import check_engine_extra, check_sampling_extra

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


def test_nucleus_log_probabilities_are_renormalised() -> None:
    """top_p of 0.6 keeps the tokens of 0.4 and 0.3: their log-probabilities are those of 4/7 and 3/7."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    from hamr.config.schema import EngineConfig
    from hamr.rollout.vllm_settings import engine_args

    mode = engine_args("m", EngineConfig(), dtype="float32", max_context=64, seed=0)["logprobs_mode"]
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    _, logprobs = TopKTopPSampler(mode).forward_native(logits, {}, None, torch.tensor([0.6]))
    assert logprobs.exp().tolist() == [pytest.approx([4 / 7, 3 / 7, 0, 0], abs=1e-6)]


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"min_q": 0.1}, "x: 'min_q': did you mean 'min_p'? no such sampling parameter of vLLM"),
        ({"seed": 1}, "x.seed: 1: hamr sets it; use the keys next to this section"),
        ({"min_p": 2.0}, "x: {'min_p': 2.0}: vLLM rejects it: min_p must be in [0, 1]"),
        ({"min_p": "high"}, "x: {'min_p': 'high'}: vLLM rejects it: Expected `float`, got `str` - at `$.min_p`"),
    ],
)
def test_invalid_sampling_parameters_are_rejected(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        check_sampling_extra("x", extra)
    assert str(error.value).startswith(said)
    check_sampling_extra("x", {"min_p": 0.1, "bad_words": ["sorry"]})


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"quantisation": "fp8"}, "x: 'quantisation': did you mean 'quantization'? no such argument of vLLM's engine"),
        ({"max_model_len": 9}, "x.max_model_len: 9: hamr sets it; use the keys next to this section"),
        ({"trust_remote_code": "yes"}, "x.trust_remote_code: 'yes': must be of type bool, as in vLLM's EngineArgs"),
    ],
)
def test_invalid_engine_arguments_are_rejected(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as error:
        check_engine_extra("x", extra)
    assert str(error.value) == said
    check_engine_extra("x", {"quantization": "fp8"})
