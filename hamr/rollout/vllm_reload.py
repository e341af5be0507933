"""In-place weight reload for a model that vLLM runs on a CPU, faster than vLLM's own reload.

vLLM rebuilds every layer: it creates empty tensors, loads the file's pieces, packs them for its kernels, and copies the
result over the old one. Here the pieces are loaded into one buffer, and the layer packs that into the memory of its old
packed form, which takes half the time. This requires that every layer is the file's pieces concatenated along the first
dimension (no quantisation, no tensor parallelism). Otherwise vLLM reloads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """A parameter and the names of its pieces in the file, concatenated along the first dimension."""

    module: nn.Module
    parameter: str
    sources: tuple[str, ...]
    packs: bool
    """The module keeps a packed form of the parameter."""


class InPlaceReload:
    """Reload plan for one model and one set of names. `of` returns None if vLLM has to reload."""

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = pieces

    @classmethod
    def of(cls, model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> InPlaceReload | None:
        """Build the plan from the file's tensor `shapes`: they must cover every parameter, and each must be used."""
        packed = dict(getattr(model, "packed_modules_mapping", None) or {})
        pieces: list[_Piece] = []
        used: set[str] = set()
        idle = set(map(id, idle_embeddings(model)))
        for path, module in model.named_modules():
            parent, _, own = path.rpartition(".")
            for name, parameter in module.named_parameters(recurse=False):
                parts = [f"{parent}.{part}" if parent else part for part in packed.get(own, [own])]
                sources = tuple(f"{part}.{name}" for part in parts)
                if not all(source in shapes for source in sources):
                    return None
                packs = name == "weight" and hasattr(module, "cpu_linear") and id(module) not in idle
                rows = sum(shapes[source][0] for source in sources)
                held, *width = _size(module, parameter, packs)
                padded = rows == getattr(module, "org_vocab_size", None) and rows < held
                if not (rows == held or padded) or any(shapes[source][1:] != tuple(width) for source in sources):
                    return None
                pieces.append(_Piece(module=module, parameter=name, sources=sources, packs=packs))
                used.update(sources)
        whole = used == set(shapes) and all(p.device.type == "cpu" for p in model.parameters())
        return cls(pieces) if whole and _plain(model) else None

    @torch.no_grad()
    def load(self, get: Callable[[str], Tensor]) -> None:
        """Replace every weight by `get(name)`."""
        scratch: Tensor | None = None
        laid: set[int] = set()
        for piece in self._pieces:
            module, old = piece.module, getattr(piece.module, piece.parameter)
            parts = [get(source) for source in piece.sources]
            if old.numel() and old.data_ptr() not in laid:
                _lay(parts, old.data)
                laid.add(old.data_ptr())
                if piece.packs:
                    _pack(module)
            elif piece.packs:  # only the packed form is kept, or (a tied head) it is the module's only own tensor
                size = _size(module, old, packs=True)
                if scratch is None or scratch.numel() < math.prod(size):
                    scratch = old.new_empty(math.prod(size))
                whole = scratch[: math.prod(size)].view(size)
                _lay(parts, whole)
                module.weight = nn.Parameter(whole, requires_grad=False)
                _pack(module)
                if old.numel():
                    module.weight = old
                elif module.weight.numel():
                    raise RuntimeError("vLLM keeps a weight that it previously dropped after packing")


def drop_idle_packing(model: nn.Module) -> None:
    """Drop the packed form of embeddings next to a head, which vLLM packs although it never multiplies by them."""
    for module in idle_embeddings(model):
        module.cpu_linear = None  # type: ignore[assignment]


def idle_embeddings(model: nn.Module) -> list[nn.Module]:
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

    headed = any(isinstance(module, ParallelLMHead) for module in model.modules())
    return [module for module in model.modules() if headed and type(module) is VocabParallelEmbedding]


def _size(module: Any, parameter: Tensor, packs: bool) -> tuple[int, ...]:
    if packs and not parameter.numel():  # packed, and dropped
        return (int(module.output_size_per_partition), int(module.input_size_per_partition))
    return tuple(parameter.shape)


def _lay(parts: Sequence[Tensor], whole: Tensor) -> None:
    """Concatenate the parts along the first dimension; padding after them is zero."""
    start = 0
    for part in parts:
        whole[start : start + len(part)].copy_(part)
        start += len(part)
    whole[start:] = 0


def _pack(module: Any) -> None:
    # Free the old form first, so that the new one reuses its memory.
    module.cpu_linear = None
    module.quant_method.process_weights_after_loading(module)


def _plain(model: nn.Module) -> bool:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    plain = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
    return all(type(m.quant_method) in plain for m in model.modules() if getattr(m, "quant_method", None) is not None)
