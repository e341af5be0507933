"""Trainer state that another number of ranks, or another ZeRO stage from 1 to 3, wrote.

DeepSpeed's universal checkpoint does the same in two steps, of which the first writes all states again and the second
gives every parameter group the settings of the first one. Here each rank maps the old files into memory and copies its
own parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MOMENTS = ("exp_avg", "exp_avg_sq")


class OldStates:
    """Files of a checkpoint by parameter. `step`: the optimiser's count."""

    def __init__(self, folder: Path, ranks: int, zero_stage: int) -> None:
        def read(pattern: str) -> Any:
            [path] = folder.glob(pattern)
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)

        def of_rank(kind: str, rank: int) -> Any:
            return read(f"*zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt")

        self._partitioned = zero_stage == 3
        self._states = [of_rank("optim", rank)["optimizer_state_dict"] for rank in range(ranks)]
        if self._partitioned:
            self._models = [of_rank("model", rank) for rank in range(ranks)]
            moments = [state["optimizer_state_dict"]["state"] for state in self._states]
            shapes = self._models[0]["param_shapes"]
            self._places = {name: group for group, names in enumerate(shapes) for name in names}
        else:
            self._models = [read("mp_rank_00_model_states.pt")]
            moments = [state["base_optimizer_state"]["state"] for state in self._states]
            slices = [state["param_slice_mappings"] for state in self._states]
            self._places = {name: group for rank in slices for group, names in enumerate(rank) for name in names}
        self._moments = moments
        self.step = next((float(state["step"]) for state in moments[0].values()), None)
        """Number of the last optimiser step, None before the first: there are no moments then."""

    def trained_state(self, name: str, key: str) -> Tensor:
        """Return a trained parameter's float32 weight (`fp32`) or a moment, whole and flat."""
        group = self._places[name]
        return torch.cat([part for rank in range(len(self._states)) for part in self._parts(rank, group, name, key)])

    def frozen_weight(self, name: str) -> Tensor:
        """Return the whole flat weight of a parameter that is not trained."""
        if not self._partitioned:
            return self._models[0]["module"][name].flatten()
        size = math.prod(self._models[0]["frozen_param_shapes"][name])
        return torch.cat([model["frozen_param_fragments"][name].flatten() for model in self._models])[:size]

    def _parts(self, rank: int, group: int, name: str, key: str) -> Iterator[Tensor]:
        state = self._states[rank]
        weights = "fp32_flat_groups" if self._partitioned else "single_partition_of_fp32_groups"
        whole = state[weights][group] if key == "fp32" else self._moments[rank][group][key]
        if not self._partitioned:
            place = state["param_slice_mappings"][group].get(name)
            if place is not None:
                yield whole.narrow(0, place.start, place.numel)
            return
        start = 0
        for other, shape in self._models[0]["param_shapes"][group].items():
            size = math.prod(shape)
            share = math.ceil(size / len(self._states))
            if other == name:
                yield whole.narrow(0, start, max(0, min(share, size - rank * share)))
                return
            start += share


def load_resharded(engine: Any, old: OldStates, rank: int) -> None:
    """Copy this rank's parts of the old states into the engine."""
    from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

    zero = engine.optimizer
    base = zero.optimizer
    flats = getattr(zero, "fp32_partitioned_groups_flat", None) or [p for g in base.param_groups for p in g["params"]]
    kept = MOMENTS if old.step is not None else ()
    for flat in flats if kept else ():  # DeepSpeed creates them with the first step
        moments = {key: torch.zeros_like(flat) for key in MOMENTS}
        base.state[flat] = {"step": torch.tensor(old.step, device=flat.device), **moments}

    partitioned = hasattr(zero, "fp32_partitioned_groups_flat")
    if partitioned:
        zero.checkpoint_event_prologue()  # small parameters are whole between steps
    for name, parameter in engine.module.named_parameters():
        trained = parameter.requires_grad
        weight = old.trained_state(name, "fp32") if trained else old.frozen_weight(name)
        if partitioned:
            parameter.ds_tensor.data.copy_(_share(parameter, weight, rank))
            if trained:
                safe_set_local_fp32_param(parameter, _share(parameter, weight, rank))
                for key in kept:
                    safe_set_local_optimizer_state(
                        parameter, _share(parameter, old.trained_state(name, key), rank), key
                    )
            continue
        parameter.data.copy_(weight.view(parameter.shape))
        mapping = getattr(parameter, "_hp_mapping", None)  # None where this rank has no part of it
        if mapping is not None:
            here, there = mapping.get_hp_fragment_address(), mapping.lp_fragment_address
            [flat] = base.param_groups[mapping.param_group_index]["params"]
            for to, whole in [
                (flat.data, weight),
                *((base.state[flat][key], old.trained_state(name, key)) for key in kept),
            ]:
                to.narrow(0, here.start, here.numel).copy_(whole.narrow(0, there.start, there.numel))
    if partitioned:
        zero.checkpoint_event_epilogue()


def _share(parameter: Any, whole: Tensor, rank: int) -> Tensor:
    """Return the part of a flat tensor that ZeRO-3 keeps on this rank, with its padding."""
    size = parameter.ds_tensor.numel()
    piece = whole[rank * size : (rank + 1) * size]
    return torch.cat([piece, piece.new_zeros(size - piece.numel())])
