"""New weights for a model that vLLM runs on a CPU, without the detour of its own reload.

vLLM makes every layer anew: an empty copy of its tensors, the file's pieces loaded into it, the packed form that its
kernels read, and the result copied over the old one. Here the pieces go into one buffer, and the layer packs that in
the place of its old packed form: half the time. Done only where every layer has the shape of the file's pieces laid one
below the other (no quantisation, no tensor parallelism); anything else is left to vLLM.
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
    """A parameter and the names in the file that it is made of, one below the other."""

    module: nn.Module
    parameter: str
    sources: tuple[str, ...]
    packs: bool
    """The module keeps a packed form of it."""


class InPlaceReload:
    """The plan for one model and one set of names; `of` returns None where vLLM has to do it."""

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = pieces

    @classmethod
    def of(cls, model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> InPlaceReload | None:
        """`shapes` of the file's tensors by name: every parameter must be made of them, every one of them be used."""
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
        """Replaces every weight by `get(name)`."""
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
            elif piece.packs:  # only the packed form is kept, or (a tied head) it is all that is the module's own
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
                    raise RuntimeError("vLLM now keeps a weight that it used to drop once packed")


def drop_idle_packing(model: nn.Module) -> None:
    """An embedding beside a head is packed as if it were one, and never asked for a product."""
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
    """The parts one below the other; padding below them is zero."""
    start = 0
    for part in parts:
        whole[start : start + len(part)].copy_(part)
        start += len(part)
    whole[start:] = 0


def _pack(module: Any) -> None:
    # The old form goes first: its memory is what the new one gets.
    module.cpu_linear = None
    module.quant_method.process_weights_after_loading(module)


def _plain(model: nn.Module) -> bool:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    plain = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
    return all(type(m.quant_method) in plain for m in model.modules() if getattr(m, "quant_method", None) is not None)
