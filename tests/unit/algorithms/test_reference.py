"""Losses, gradients, advantages and weights of random batches equal those of TRL and verl (`fixtures/`)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hamr.algorithms.advantages import decoupled_advantages, group_advantages, unit_scale  # noqa: E402
from hamr.algorithms.aggregation import divisors  # noqa: E402
from hamr.algorithms.estimators import configured_estimator  # noqa: E402
from hamr.algorithms.importance import Correction, corrected_weights, log_ratio  # noqa: E402
from hamr.algorithms.losses import policy_loss  # noqa: E402
from hamr.algorithms.objectives import OBJECTIVES, configured_objective  # noqa: E402
from hamr.algorithms.reinforce_pp import whiten  # noqa: E402
from hamr.config.algorithm import AlgorithmConfig  # noqa: E402
from hamr.types import TrainBatch, TrainGroup, TrainSequence  # noqa: E402

REFERENCE, SECOND = (
    json.loads((Path(__file__).parent / "fixtures" / f"{name}.json").read_text())
    for name in ("reference", "reference_second")
)
SIZE, WIDTH = REFERENCE["group_size"], 7
MASK = torch.tensor(REFERENCE["mask"], dtype=torch.bool)
INSIDE = torch.arange(WIDTH) < torch.tensor(REFERENCE["lengths"]).unsqueeze(1)
OWNER = torch.arange(len(MASK)).unsqueeze(1).expand(MASK.shape)
REWARDS = [REFERENCE["rewards"][:SIZE], REFERENCE["rewards"][SIZE:]]


def packed(rows: list[list[float]], lengths: list[int] = REFERENCE["lengths"]) -> Any:
    """Return the tokens of the responses, without padding, as in a micro-batch."""
    values = torch.tensor(rows, dtype=torch.float64)
    return values[torch.arange(values.shape[1]) < torch.tensor(lengths).unsqueeze(1)]


def whole_batch(aggregation: str, reference: dict[str, Any] = REFERENCE) -> TrainBatch:
    sequences = [
        TrainSequence(token_ids=(0,) * n, mask=tuple(map(bool, row[:n])))
        for n, row in zip(reference["lengths"], reference["mask"], strict=True)
    ]
    group = TrainGroup(prompt_ids=(1,), sequences=tuple(sequences))
    return TrainBatch(groups=(group,), aggregation=aggregation, horizon=reference["horizon"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reference", "name"), [(batch, name) for batch in (REFERENCE, SECOND) for name in batch["losses"]]
)
def test_loss_and_gradient_equal_those_of_the_reference(reference: dict[str, Any], name: str) -> None:
    settings, lengths = dict(reference["losses"][name]), reference["lengths"]
    expected, gradient, cap = settings.pop("loss"), settings.pop("gradient"), settings.pop("cap", None)
    kl = {key: settings.pop(key) for key in ("kl_coef", "kl_estimator") if key in settings}
    batch, mask = whole_batch(settings.pop("aggregation"), reference), packed(reference["mask"], lengths).bool()
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    logprobs = packed(reference["logprobs"], lengths).requires_grad_()
    # DPPO has one other policy, the one that sampled; verl calls it old.
    sampled = "old_logprobs" if settings["objective"] == "dppo" else "engine_logprobs"
    terms = policy_loss(
        logprobs,
        packed(reference["old_logprobs"], lengths),
        torch.tensor(reference["advantages"], dtype=torch.float64)[owner],
        mask,
        normaliser=divisors(batch, mask, owner),
        behaviour_logprobs=packed(reference[sampled], lengths),
        correction=Correction(cap=cap),
        objective=configured_objective(AlgorithmConfig(**settings)),
        sequences=owner,
        reference_logprobs=packed(reference["reference_logprobs"], lengths) if kl else None,
        **kl,
    )
    terms.loss.backward()
    assert terms.loss.item() == pytest.approx(expected, abs=1e-6)
    assert logprobs.grad.tolist() == pytest.approx(packed(gradient, lengths).tolist(), abs=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant_length"])
def test_losses_of_micro_batches_add_up(objective: str, aggregation: str) -> None:
    """Whole responses are dealt to two micro-batches, and numbered from 0 in each."""
    batch, function = whole_batch(aggregation), configured_objective(AlgorithmConfig(objective=objective))  # type: ignore[arg-type]

    def loss(rows: slice) -> float:
        inside, owner = INSIDE[rows], OWNER[: len(INSIDE[rows])][INSIDE[rows]]
        columns = [
            torch.tensor(REFERENCE[name][rows], dtype=torch.float64)[inside]
            for name in ("logprobs", "old_logprobs", "engine_logprobs")
        ]
        advantages = torch.tensor(REFERENCE["advantages"][rows], dtype=torch.float64)[owner]
        return policy_loss(
            *columns[:2],
            advantages,
            MASK[rows][inside],
            normaliser=divisors(batch, MASK[rows][inside], owner),
            behaviour_logprobs=columns[2],
            correction=Correction(level="sequence", cap=3.0, reject_above=0.5),
            objective=function,
            sequences=owner,
        ).loss.item()

    assert loss(slice(0, 3)) + loss(slice(3, 8)) == pytest.approx(loss(slice(0, 8)), abs=1e-12)


def test_every_objective_has_a_reference() -> None:
    assert {settings["objective"] for settings in REFERENCE["losses"].values()} == set(OBJECTIVES)
    assert set(get_args(AlgorithmConfig.model_fields["objective"].annotation)) == set(OBJECTIVES)


@pytest.mark.parametrize("name", REFERENCE["weights"])
def test_importance_weights_equal_those_of_the_reference(name: str) -> None:
    settings = dict(REFERENCE["weights"][name])
    expected = packed(settings.pop("weights"))
    gap = log_ratio(packed(REFERENCE["old_logprobs"]), packed(REFERENCE["engine_logprobs"]))
    mask = MASK[INSIDE].double()
    weights = corrected_weights(gap, Correction(**settings), mask, OWNER[INSIDE], torch.ones_like(gap)) * mask
    assert weights.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert len(set(expected[mask > 0].tolist())) > 1


@pytest.mark.parametrize(
    ("advantage", "name"),
    [
        ({"advantage": "group", "normalize_std": False}, "verl/dr_grpo"),
        ({"advantage": "leave_one_out"}, "verl/rloo"),
        ({"advantage": "maxrl"}, "maxrl/maxrl"),
        ({"advantage": "reinforce_pp"}, "verl/reinforce_pp"),
        ({"advantage": "reinforce_pp_baseline"}, "verl/reinforce_pp_baseline"),
    ],
)
def test_advantages_equal_those_of_the_reference(advantage: dict[str, Any], name: str) -> None:
    config = AlgorithmConfig(**advantage)
    estimator = configured_estimator(config)
    estimated = iter([a for group in REWARDS for a in estimator(group)])
    sequences = tuple(TrainSequence(token_ids=(0,) * n, advantage=next(estimated)) for n in REFERENCE["lengths"])
    groups = [TrainGroup(prompt_ids=(1,), sequences=sequences)]
    if config.advantage.startswith("reinforce_pp"):
        groups = whiten(groups)
    assert [s.advantage for s in groups[0].sequences] == pytest.approx(REFERENCE["estimates"][name], abs=1e-6)


def test_grpo_advantages_differ_from_the_reference_by_the_estimator_of_std_only() -> None:
    """hamr has the standard deviation of the group, which is complete; TRL and verl that of a sample."""
    ours = [a for group in REWARDS for a in group_advantages(group, eps=0.0)]
    factor = math.sqrt((SIZE - 1) / SIZE)
    assert [a * factor for a in ours] == pytest.approx(REFERENCE["estimates"]["verl/grpo"], abs=1e-6)


def test_gdpo_advantages_equal_those_of_the_reference() -> None:
    second = [REFERENCE["second_rewards"][:SIZE], REFERENCE["second_rewards"][SIZE:]]
    sums = [
        a for pair in zip(REWARDS, second, strict=True) for a in decoupled_advantages([(1.0, pair[0]), (0.5, pair[1])])
    ]
    tokens = len(sums) * WIDTH
    factor = unit_scale(sums) * math.sqrt((tokens - 1) / tokens)  # verl divides by the deviation of a sample of tokens
    assert [a * factor for a in sums] == pytest.approx(REFERENCE["estimates"]["verl/gdpo"], abs=1e-6)


def test_maxrl_is_the_mean_gradient_of_the_successes_minus_that_of_all() -> None:
    """The paper's estimator of the gradient of log p: the sum over successes of S_i / K, minus the sum of S_i / N."""
    rewards, scores = np.array([1.0, 0.0, 0.0, 1.0, 0.0]), np.random.default_rng(0).normal(size=(5, 3))
    expected = scores[rewards == 1].mean(axis=0) - scores.mean(axis=0)
    advantages = configured_estimator(AlgorithmConfig(advantage="maxrl"))(rewards.tolist())
    assert (np.array(advantages) @ scores / len(rewards)).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_geometric_weight_is_the_geometric_mean_of_the_ratios() -> None:
    old, engine = np.array(REFERENCE["old_logprobs"]), np.array(REFERENCE["engine_logprobs"])
    mask = np.array(REFERENCE["mask"], dtype=bool)
    means = np.array([np.prod(np.exp((o - e)[m])) ** (1 / m.sum()) for o, e, m in zip(old, engine, mask, strict=True)])
    gap = log_ratio(packed(REFERENCE["old_logprobs"]), packed(REFERENCE["engine_logprobs"]))
    weights = corrected_weights(
        gap, Correction(level="geometric", cap=9.0), MASK[INSIDE].double(), OWNER[INSIDE], torch.ones_like(gap)
    )
    assert weights.tolist() == pytest.approx(means[OWNER[INSIDE].numpy()].tolist(), abs=1e-9)


@pytest.mark.parametrize("name", ["group", "leave_one_out", "maxrl", "reinforce_pp", "reinforce_pp_baseline"])
def test_unscored_response_does_not_change_the_advantages_of_the_others(name: str) -> None:
    estimator = configured_estimator(AlgorithmConfig(advantage=name))  # type: ignore[arg-type]
    scored = [1.0, 0.0, 0.25]
    *rest, last = estimator([*scored, None])
    assert (rest, last) == (estimator(scored), sum(scored) / 3 if name == "reinforce_pp" else 0.0)
    assert estimator([None, None]) == [0.0, 0.0]


def test_estimators_of_the_schema_exist() -> None:
    names = get_args(AlgorithmConfig.model_fields["advantage"].annotation)
    assert all(
        callable(configured_estimator(SimpleNamespace(advantage=n, normalize_std=True, std_floor=0.0))) for n in names
    )  # type: ignore[arg-type]
