"""Tensors on the host and back."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hamr.config.schema import TrainerConfig
from hamr.trainer import host_memory
from hamr.trainer.deepspeed_trainer import DeepSpeedTrainer
from hamr.trainer.host_memory import Parked, activations_on_host


def test_parked_tensors_hold_no_memory_and_return_with_their_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "PIECE", 48)
    whole, other = torch.arange(40.0), torch.ones(3, dtype=torch.bfloat16)
    part, again = whole[4:8].view(2, 2), whole[:0]
    parked = Parked([whole, part, other, again, torch.empty(0)])
    assert sum(piece.nbytes for _, _, pieces in parked._parked for piece in pieces) == 40 * 4 + 3 * 2
    assert whole.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
    parked.restore()
    assert torch.equal(whole, torch.arange(40.0)) and torch.equal(other, torch.ones(3, dtype=torch.bfloat16))
    part[0, 0] = -1.0
    assert whole[4] == -1.0


def test_reference_returns_to_the_host_after_an_error() -> None:
    reference = torch.nn.Linear(4, 4)
    trainer = DeepSpeedTrainer.__new__(DeepSpeedTrainer)
    trainer.device, trainer.config, trainer.reference = "cuda:0", TrainerConfig(zero_stage=2), reference
    trainer._park_reference(reference)

    def fail() -> None:
        with trainer._reference_at_hand():
            assert reference.weight.untyped_storage().nbytes() == 64
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fail()
    assert reference.weight.untyped_storage().nbytes() == 0
    with trainer._reference_at_hand():
        assert reference.weight.untyped_storage().nbytes() == 64


def test_layers_save_their_inputs_on_the_host_and_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])
    hidden = torch.randn(1, 5, 8, requires_grad=True)
    moved: list[tuple[int, ...]] = []
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda t, **k: moved.append(tuple(t.shape)) or empty_like(t, **k))

    def gradient(offload: bool) -> torch.Tensor:
        x = hidden
        with activations_on_host() if offload else torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False)
        (found,) = torch.autograd.grad(x.sin().sum(), hidden)
        return found

    plain = gradient(False)
    assert not moved
    assert torch.equal(gradient(True), plain)
    assert moved == [(1, 5, 8)] * 3
