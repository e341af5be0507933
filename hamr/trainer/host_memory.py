"""Device memory that is moved to the host while it is not needed: states of the optimiser, a reference policy,
activations."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

PIECE = 256 << 20
"""Bytes per host buffer. torch rounds a pinned buffer up to a power of two, which a single large one would double."""
_BUFFERS = ("fp32_partitioned_groups_flat", "grad_partitions_flat_buffer", "fp32_groups_gradients_flat")
"""Float32 master weights and gradient buffers of DeepSpeed's optimisers that are not among their parameter groups."""


class Parked:
    """Tensors moved to the host until `restore`.

    Storages are emptied and refilled in place. DeepSpeed keeps views of its states, and views of a replaced tensor
    would hold the old memory and its values.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        storages = {s.data_ptr(): s for s in (t.untyped_storage() for t in tensors) if s.nbytes()}
        self._parked = []
        for storage in storages.values():
            pieces = [
                torch.empty_like(piece, device="cpu", pin_memory=piece.is_cuda).copy_(piece, non_blocking=True)
                for piece in _bytes_of(storage).split(PIECE)
            ]
            self._parked.append((storage, storage.nbytes(), pieces))
        _synchronize()
        for storage, _, _ in self._parked:
            storage.resize_(0)

    def restore(self) -> None:
        """Move the tensors back to where they were."""
        for storage, size, pieces in self._parked:
            storage.resize_(size)
            for there, here in zip(_bytes_of(storage).split(PIECE), pieces, strict=True):
                there.copy_(here, non_blocking=True)
        _synchronize()
        self._parked = []


def optimizer_states(engine: Any) -> list[Tensor]:
    """Return the tensors on the device that only an optimiser step needs: moments, master weights, gradient buffers."""
    zero = engine.optimizer
    base = getattr(zero, "optimizer", zero)
    found = [value for state in base.state.values() for value in state.values()]
    found += [parameter for group in base.param_groups for parameter in group["params"]]
    for name in _BUFFERS:
        buffers = getattr(zero, name, None)
        found += buffers if isinstance(buffers, list) else [buffers]
    weights = list(engine.module.parameters())
    kept = {_address(w) for w in weights} | {_address(w.ds_tensor) for w in weights if hasattr(w, "ds_tensor")}
    device = engine.device.type
    return [t for t in found if torch.is_tensor(t) and t.device.type == device and _address(t) not in kept]


def activations_on_host() -> AbstractContextManager[Any]:
    """Keep the hidden states that a checkpointed layer saves on the host until the backward pass needs them.

    Only tensors [batch, tokens, width] move. Weights, which some operations save too, stay.
    """

    def pack(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        if tensor.dim() != 3 or not tensor.is_floating_point():
            return tensor
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        return tensor.device, host.copy_(tensor, non_blocking=True)

    def unpack(saved: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        return saved if isinstance(saved, Tensor) else saved[1].to(saved[0], non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
