"""Losses on tensors of a few tokens, against hand-computed numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hamr.algorithms.losses import (  # noqa: E402
    Correction,
    LossTerms,
    TokenTerms,
    importance_weights,
    kl_divergence,
    policy_loss,
    sft_loss,
)
from hamr.algorithms.objectives import configured_objective  # noqa: E402
from hamr.algorithms.terms import token_means  # noqa: E402
from hamr.config.algorithm import AlgorithmConfig  # noqa: E402


def tensor(*values: float, grad: bool = False) -> Any:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def ones(n: int) -> Any:
    return torch.ones(n, dtype=torch.bool)


def test_each_kl_estimator_matches_hand_computed_values() -> None:
    p, q = tensor(-1.0, -2.0), tensor(-1.5, -1.0)  # d = 0.5, -1
    assert kl_divergence(p, q, "k1").tolist() == pytest.approx([0.5, -1.0])
    assert kl_divergence(p, q, "k2").tolist() == pytest.approx([0.125, 0.5])
    assert kl_divergence(p, q, "k3").tolist() == pytest.approx([math.exp(-0.5) - 0.5, math.e - 2.0])


def test_chi2_is_the_chi_squared_divergence_and_half_its_gradient() -> None:
    logits = torch.tensor([0.6, 0.4]).log().requires_grad_()
    reference = torch.tensor([0.3, 0.7])
    logprobs = logits.log_softmax(0)
    # 0.6^2 / 0.3 + 0.4^2 / 0.7 - 1
    estimate = (logprobs.exp().detach() * kl_divergence(logprobs, reference.log(), "chi2")).sum()
    assert estimate.item() == pytest.approx(3 / 7)
    (gradient,) = torch.autograd.grad(estimate, logits)
    exact = (logits.softmax(0).square() / reference).sum() - 1.0
    (whole,) = torch.autograd.grad(exact, logits)
    assert gradient.tolist() == pytest.approx((whole / 2).tolist())


def test_k3_of_a_very_unlikely_token_stays_finite() -> None:
    """In float32 exp(499) is infinite. The gradient of the token must not dominate the others."""
    hopeless = torch.tensor([-500.0], requires_grad=True)
    kl = kl_divergence(hopeless, torch.tensor([-1.0]), "k3").sum()
    kl.backward()
    assert math.isfinite(kl.item()) and abs(hopeless.grad.item()) <= 1.0


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.1, 1.0, -1.1, -1.1),  # inside the range: -r A, and d(-r A)/d log p = -r A
        (1.5, 1.0, -1.28, 0.0),  # a good token is not made likelier than 1 + clip_high
        (0.5, -1.0, 0.8, 0.0),  # a bad one not rarer than 1 - clip_low
        (1.5, -1.0, 1.5, 1.5),  # a bad token that got likelier is still pushed back
        (0.5, 1.0, -0.5, -0.5),  # a good one that got rarer still pulled up
    ],
)
def test_clipping_is_asymmetric_and_pessimistic(ratio: float, advantage: float, expected: float, slope: float) -> None:
    old = tensor(-2.0)
    new = tensor(-2.0 + math.log(ratio), grad=True)
    terms = policy_loss(new, old, tensor(advantage), ones(1), clip_low=0.2, clip_high=0.28)
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(expected)
    assert new.grad.item() == pytest.approx(slope, abs=1e-12)
    assert terms.sums["clipped"].item() == (slope == 0.0)
    assert terms.sums["ratio"].item() == pytest.approx(ratio)


def test_single_step_per_batch_needs_no_old_logprobs() -> None:
    """r = 1 exactly, so the gradient is that of the plain policy gradient: -A / tokens."""
    new = tensor(-1.0, -3.0, grad=True)
    terms = policy_loss(new, None, tensor(2.0, -1.0), ones(2))
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(-0.5)
    assert new.grad.tolist() == pytest.approx([-1.0, 0.5])
    assert terms.sums["ratio"].item() == 2.0


def test_importance_weights_are_capped_detached_and_off_without_a_cap() -> None:
    trainer = tensor(-1.0, -1.0, -1.0, grad=True)
    engine = tensor(-1.0 + math.log(2.0), -1.0 - math.log(1.5), -1.0 - math.log(4.0))
    weights = importance_weights(trainer, engine, 2.0)
    assert weights.tolist() == pytest.approx([0.5, 1.5, 2.0])
    assert not weights.requires_grad
    assert importance_weights(trainer, engine, None).tolist() == [1.0, 1.0, 1.0]


def test_importance_weight_of_zero_probability_token_is_the_cap() -> None:
    assert importance_weights(tensor(-5.0), tensor(-math.inf), 2.0).tolist() == [2.0]


def test_importance_weight_scales_the_token_loss() -> None:
    new = tensor(-1.0, -1.0, grad=True)
    engine = tensor(-1.0 + math.log(2.0), -1.0 - math.log(4.0))
    terms = policy_loss(new, None, tensor(1.0, 1.0), ones(2), behaviour_logprobs=engine, importance_cap=2.0)
    terms.loss.backward()
    assert new.grad.tolist() == pytest.approx([-0.25, -1.0])
    assert terms.sums["importance_weight"].item() == pytest.approx(2.5)
    assert terms.sums["importance_clipped"].item() == 1


def test_entropy_is_rewarded_and_kl_is_charged() -> None:
    new, entropies = tensor(-1.0, -2.0, grad=True), tensor(0.7, 0.9, grad=True)
    terms = policy_loss(
        new, None, tensor(0.0, 0.0), ones(2), entropies=entropies, entropy_coef=0.1,
        reference_logprobs=tensor(-1.5, -2.0), kl_coef=0.5, kl_estimator="k2",
    )  # fmt: skip
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx((0.5 * 0.125 - 0.1 * 1.6) / 2)
    assert entropies.grad.tolist() == pytest.approx([-0.05, -0.05])
    assert new.grad.tolist() == pytest.approx([0.5 * 0.5 / 2, 0.0])
    assert terms.sums["entropy"].item() == pytest.approx(1.6)
    assert terms.sums["kl_to_reference"].item() == pytest.approx(0.125)


def test_masked_tokens_are_excluded_from_loss_and_metrics() -> None:
    new = tensor(-1.0, -9.0, grad=True)
    mask = torch.tensor([True, False])
    terms = policy_loss(new, tensor(-1.0, -1.0), tensor(1.0, 100.0), mask, entropies=tensor(1.0, 5.0))
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(-1.0)
    assert new.grad.tolist() == [-1.0, 0.0]
    assert (terms.sums["tokens"].item(), terms.sums["entropy"].item()) == (1.0, 1.0)


def test_token_mean_and_sequence_mean_weight_long_responses_differently() -> None:
    """Sequences of 1 and 3 tokens with advantages 1 and 0: 1/4 of the tokens, half of the sequences."""
    new, advantages = tensor(-1.0, -1.0, -1.0, -1.0), tensor(1.0, 0.0, 0.0, 0.0)
    by_token = policy_loss(new, None, advantages, ones(4), normaliser=4.0)
    by_sequence = policy_loss(new, None, advantages, ones(4), normaliser=tensor(1, 3, 3, 3) * 2)
    assert by_token.loss.item() == pytest.approx(-0.25)
    assert by_sequence.loss.item() == pytest.approx(-0.5)


def test_micro_batch_losses_sum_to_the_batch_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    new, old, advantages = (torch.randn(10, generator=generator, dtype=torch.float64) for _ in range(3))
    whole = policy_loss(new, old, advantages, ones(10))
    parts = [
        policy_loss(new[part], old[part], advantages[part], ones(len(new[part])), normaliser=10.0)
        for part in (slice(0, 3), slice(3, 4), slice(4, 10))
    ]
    assert sum(p.loss.item() for p in parts) == pytest.approx(whole.loss.item())
    for name, value in whole.sums.items():
        assert sum(p.sums[name].item() for p in parts) == pytest.approx(value.item()), name


def test_empty_mask_gives_a_differentiable_zero() -> None:
    new = tensor(-1.0, grad=True)
    terms = policy_loss(new, None, tensor(1.0), torch.tensor([False]))
    terms.loss.backward()
    assert (terms.loss.item(), new.grad.item()) == (0.0, 0.0)


def test_own_objective_may_return_constants() -> None:
    logprobs, one = tensor([-1.0, -2.0], grad=True), tensor([1.0, 1.0])
    terms = policy_loss(
        logprobs, logprobs.detach(), one, one, objective=lambda tokens: torch.zeros_like(tokens.ratio.detach())
    )
    terms.loss.backward()
    assert not logprobs.grad.any() and terms.sums["clipped"] == 2


def test_own_objective_is_not_called_without_counted_tokens() -> None:
    """A rank without work gets a placeholder, for which a mean over the counted tokens is NaN."""
    new = tensor(-1.0, -2.0, grad=True)

    def centred(tokens: TokenTerms) -> Any:
        return -tokens.ratio * (tokens.advantages - tokens.advantages[tokens.mask].mean())

    terms = policy_loss(new, None, tensor(1.0, 1.0), torch.tensor([False, False]), objective=centred)
    terms.loss.backward()
    assert (terms.loss.item(), new.grad.tolist()) == (0.0, [0.0, 0.0])
    assert all(math.isfinite(value) for value in terms.sums.values())


def test_sft_loss_is_the_mean_negative_log_likelihood_of_counted_tokens() -> None:
    new = tensor(-1.0, -2.0, -4.0, grad=True)
    terms = sft_loss(new, torch.tensor([True, True, False]))
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(1.5)
    assert new.grad.tolist() == pytest.approx([-0.5, -0.5, 0.0])
    assert sft_loss(new, ones(3), normaliser=14.0).loss.item() == pytest.approx(0.5)


def test_importance_weight_of_unsampled_token_is_one() -> None:
    weights = importance_weights(tensor(-5.0, -1.0), tensor(math.nan, -1.5), 2.0)
    assert weights.tolist() == pytest.approx([1.0, math.exp(0.5)])


def test_unsampled_tokens_are_neither_masked_nor_capped() -> None:
    for correction in (Correction(mask_outside=(0.5, 5.0), cap=0.5), Correction(cap=1.0)):
        new = tensor(-1.0, -1.0, -1.0, grad=True)
        terms = policy_loss(
            new, None, tensor(1.0, 1.0, 1.0), ones(3), behaviour_logprobs=tensor(math.nan, -1.0, -2.0),
            correction=correction,
        )  # fmt: skip
        terms.loss.backward()
        assert new.grad[0].item() == pytest.approx(-1 / 3)
        assert terms.sums["importance_clipped"].item() == (2 if correction.cap == 0.5 else 1), "not a ratio of 1"


@pytest.mark.parametrize("objective", ["clip", "gspo", "cispo", "gmpo", "sapo", "dppo"])
def test_masked_token_has_no_gradient_with_any_objective(objective: str) -> None:
    new = tensor(-1.0, -1.0, -1.0, grad=True)
    terms = policy_loss(
        new, tensor(-1.0, -1.0, -1.0), tensor(1.0, 1.0, 1.0), ones(3), behaviour_logprobs=tensor(-1.0, -1.0, -4.0),
        correction=Correction(mask_outside=(0.5, 5.0)),
        objective=configured_objective(AlgorithmConfig(objective=objective)),  # type: ignore[arg-type]
    )  # fmt: skip
    terms.loss.backward()
    assert new.grad.tolist() == pytest.approx([-1 / 3, -1 / 3, 0.0])


def test_own_objective_replaces_the_clipped_loss_only() -> None:
    logprobs, old = tensor(-0.5, -1.0, -2.0, -3.0, grad=True), tensor(-0.9, -1.0, -1.0, -0.1)
    advantages, mask = tensor(1.0, 1.0, -1.0, -1.0), torch.tensor([True, True, True, False])
    terms = {
        "behaviour_logprobs": tensor(-0.8, -1.2, -1.0, -0.2),
        "importance_cap": 1.1,
        "entropies": tensor(0.1, 0.2, 0.3, 0.4),
        "entropy_coef": 0.01,
        "reference_logprobs": tensor(-1.0, -1.0, -1.0, -1.0),
        "kl_coef": 0.05,
    }

    def clipped(tokens: TokenTerms) -> Any:
        assert tokens.sequences.tolist() == [0, 0, 1, 1] and tokens.mask.tolist() == mask.tolist()
        ratio = torch.exp(tokens.logprobs - tokens.old_logprobs)
        gain = torch.minimum(ratio * tokens.advantages, ratio.clamp(0.8, 1.28) * tokens.advantages)
        return -tokens.importance_weights * gain

    own = policy_loss(logprobs, old, advantages, mask, objective=clipped, sequences=torch.tensor([0, 0, 1, 1]), **terms)
    builtin = policy_loss(logprobs, old, advantages, mask, **terms)
    assert own.loss.item() == builtin.loss.item()
    assert own.sums.keys() == builtin.sums.keys()
    first, second = (torch.autograd.grad(terms.loss, logprobs)[0].tolist() for terms in (own, builtin))
    assert first == second


def test_ratio_of_stale_responses_refers_to_the_start_of_the_step() -> None:
    """Decoupled PPO: the age of the engine's weights changes the importance weight, not the clip."""
    new, proximal = tensor(-1.0, -1.0, grad=True), tensor(-1.1, -1.0)
    stale = tensor(-2.0, -0.5)
    terms = policy_loss(new, proximal, tensor(1.0, 1.0), ones(2), behaviour_logprobs=stale, importance_cap=2.0)
    assert terms.loss.item() == pytest.approx(-(2.0 * math.exp(0.1) + math.exp(-0.5)) / 2)
    assert terms.sums["clipped"].item() == 0
    at_start = policy_loss(new, None, tensor(1.0, 1.0), ones(2), behaviour_logprobs=stale, importance_cap=2.0)
    assert at_start.sums["ratio"].item() == 2.0


def test_masked_and_rejected_tokens_have_no_loss_and_are_counted() -> None:
    new, engine = tensor(-1.0, -1.0, -1.0, -1.0, grad=True), tensor(-3.0, -1.1, -1.0, -4.0)
    correction = Correction(mask_outside=(0.5, 5.0), reject_above=3.0)
    terms = policy_loss(
        new, None, tensor(1.0, 1.0, 1.0, 1.0), ones(4), behaviour_logprobs=engine, correction=correction,
        sequences=torch.tensor([0, 0, 1, 1]),
    )  # fmt: skip
    terms.loss.backward()
    # The first token is outside the range; the k3 of the second response is (e^3 - 4) / 2.
    assert new.grad.tolist() == pytest.approx([0.0, -math.exp(0.1) / 4, 0.0, 0.0])
    assert (terms.sums["importance_masked"].item(), terms.sums["clipped"].item()) == (3, 0)
    kl = [math.exp(gap) - 1 - gap for gap in (2.0, 0.1, 0.0, 3.0)]
    assert terms.sums["engine_kl"].item() == pytest.approx(sum(kl))


def test_dppo_compares_with_the_engine_in_a_single_step() -> None:
    """The trainer's old probabilities are the present ones, and the engine had older weights."""
    p, q = (0.5, 0.5, 0.3, 0.02, 0.4), (0.2, 0.6, 0.6, 0.001, math.nan)
    new, engine = tensor(*map(math.log, p), grad=True), tensor(*map(math.log, q))
    objective = configured_objective(AlgorithmConfig(objective="dppo", clip_low=0.15, clip_high=0.15))
    terms = policy_loss(
        new, None, tensor(1.0, 1.0, -1.0, 1.0, 1.0), ones(5), behaviour_logprobs=engine, importance_cap=2.0,
        objective=objective,
    )  # fmt: skip
    terms.loss.backward()
    # Masked: 0.5 - 0.2 and 0.3 - 0.6. The rare token has the ratio 20, and the last one was not sampled by the engine.
    assert new.grad.tolist() == pytest.approx([0.0, -0.5 / 0.6 / 5, 0.0, -20.0 / 5, -1.0 / 5])
    assert terms.sums["clipped"].item() == 2


def test_dppo_has_no_gradient_for_tokens_that_the_correction_masks() -> None:
    new, engine = tensor(-3.0, -3.0, grad=True), tensor(-3.1, -1.0)
    objective = configured_objective(AlgorithmConfig(objective="dppo", clip_low=0.9, clip_high=0.9))
    correction = Correction(mask_outside=(0.5, 5.0))
    terms = policy_loss(
        new, None, tensor(-1.0, -1.0), ones(2), behaviour_logprobs=engine, correction=correction, objective=objective
    )
    terms.loss.backward()
    assert new.grad.tolist() == pytest.approx([math.exp(0.1) / 2, 0.0])


def test_own_objective_gets_the_logprobs_of_the_engine() -> None:
    def own(tokens: TokenTerms) -> Any:
        found.append(tokens.behaviour_logprobs.tolist())
        return tokens.logprobs

    found: list[list[float]] = []
    new = tensor(-2.0, -3.0, grad=True)
    for engine in (tensor(-1.0, math.nan), None):
        policy_loss(new, None, tensor(1.0, 1.0), ones(2), behaviour_logprobs=engine, objective=own)
    assert found[0] == [-1.0, -3.0] and found[-1] == [-2.0, -3.0]


def test_quantiles_are_those_of_the_ratio_before_the_cap() -> None:
    new, engine = tensor(*[-1.0] * 101), tensor(*[-1.0 - math.log(1 + i / 10) for i in range(101)])
    terms = policy_loss(new, None, torch.ones(101), ones(101), behaviour_logprobs=engine, importance_cap=2.0)
    found = [terms.sums[f"importance_ratio/{name}"].item() / 101 for name in ("p01", "p50", "p99")]
    assert found == pytest.approx([1.1, 6.0, 10.9])


@pytest.mark.parametrize(("level", "median"), [("token", 2.0), ("sequence", 16.0), ("geometric", 2.0 ** (4 / 3))])
def test_quantiles_are_those_of_the_ratio_of_the_level(level: Any, median: float) -> None:
    """Ratios 2, 2 and 4 of a response, and 8 of a shorter one."""
    engine = tensor(-1.0, -1.0, -1.0, -1.0) - tensor(2, 2, 4, 8).log()
    terms = policy_loss(
        tensor(-1.0, -1.0, -1.0, -1.0), None, torch.ones(4), torch.tensor([True, True, True, False]),
        behaviour_logprobs=engine, correction=Correction(level=level, cap=2.0), sequences=torch.tensor([0, 0, 0, 1]),
    )  # fmt: skip
    assert token_means(numbers(terms))["importance_ratio/p50"] == pytest.approx(median)


def test_tokens_without_an_engine_do_not_dilute_its_metrics() -> None:
    new, engine = tensor(-1.0, -1.0, -1.0, -1.0), tensor(-1.0 - math.log(2.0), math.nan, math.nan, math.nan)
    terms = policy_loss(new, None, torch.ones(4), ones(4), behaviour_logprobs=engine, importance_cap=4.0)
    means = token_means(numbers(terms))
    assert means["engine_kl"] == pytest.approx(1.0 - math.log(2.0))
    assert means["importance_ratio/p50"] == pytest.approx(2.0)
    assert means["importance_weight"] == pytest.approx(5 / 4)
    alone = token_means(numbers(policy_loss(new, None, torch.ones(4), ones(4))))
    assert "ratio" in alone and not {"engine_kl", "importance_ratio/p50", "sampled", "tokens"} & alone.keys()


def numbers(terms: LossTerms) -> dict[str, float]:
    return {name: value.item() for name, value in terms.sums.items()}


@pytest.mark.parametrize(
    ("objective", "clipped"), [("clip", 2), ("gspo", 2), ("cispo", 0), ("gmpo", 1), ("sapo", 0), ("dppo", 1)]
)
def test_share_of_clipped_tokens_is_that_of_the_objective(objective: str, clipped: int) -> None:
    """Ratios e^0.5 and e^0.3 of a response with a positive advantage; probabilities move by 0.24 and 0.01."""
    new, old = tensor(-0.5, -3.0, -3.0), tensor(-1.0, -3.3, -3.0)
    config = AlgorithmConfig(objective=objective, clip_low=0.2, clip_high=0.2)  # type: ignore[arg-type]
    if objective == "gmpo":
        config = config.model_copy(update={"clip_high": 0.4})
    terms = policy_loss(
        new, old, tensor(1.0, 1.0, 0.0), ones(3), objective=configured_objective(config),
        sequences=torch.tensor([0, 0, 1]),
    )  # fmt: skip
    assert terms.sums["clipped"].item() == clipped
