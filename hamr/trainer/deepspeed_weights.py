"""Export of whole weights from a trainer, for any ZeRO stage and adapter."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from hamr.trainer.policy_model import PolicyModel

GATHER_BYTES = 1 << 30
"""Bytes gathered at a time under ZeRO-3. Only rank 0 keeps them."""

_SAFETENSORS_TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}

_SIDE_FILES = ("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json",
               "vocab*", "merges.txt", "*.jinja", "chat_template*")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """Parameter under its name in the plain model, with the LoRA layer that modifies it, if any."""

    name: str
    parameter: nn.Parameter
    lora: Any = None


def _entries(model: PolicyModel) -> list[_Entry]:
    """List every name of the plain model, the tied head under its own name too. Adapters are merged, not listed."""
    adapted = hasattr(model.causal_lm, "get_base_model")
    base = model.causal_lm.get_base_model() if adapted else model.causal_lm  # type: ignore[operator]
    found = []
    for prefix, module in base.named_modules(remove_duplicate=False):
        if ".lora_" in f".{prefix}":
            continue
        lora = None
        if prefix.endswith(".base_layer"):
            prefix = prefix.removesuffix(".base_layer")
            lora = base.get_submodule(prefix)
        for name, parameter in module.named_parameters(prefix=prefix, recurse=False, remove_duplicate=False):
            found.append(_Entry(name=name, parameter=parameter, lora=lora if name.endswith(".weight") else None))
    return found


def weight_metadata(model: PolicyModel, dtype: torch.dtype) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Return (name, dtype, shape) of the tensors that `full_weights` yields, without gathering."""
    return [(e.name, dtype, tuple(getattr(e.parameter, "ds_shape", e.parameter.shape))) for e in _entries(model)]


def full_weights(model: PolicyModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, full tensor) of every weight in `dtype`, including a tied `lm_head.weight`.

    Without the tied head, an engine that keeps a repacked copy of it would use the old weights without an error.

    Collective under ZeRO-3: every rank must iterate to the end. A tensor is valid until the next one is requested.
    """
    for chunk in _chunks(_entries(model)):
        with gather([p for e in chunk for p in _needed_parameters(e)]), torch.no_grad():
            for entry in chunk:
                weight = entry.parameter.detach()
                if entry.lora is not None:
                    for adapter in entry.lora.active_adapters:
                        weight = (weight.float() + entry.lora.get_delta_weight(adapter).float()).to(weight.dtype)
                yield entry.name, weight.to(dtype)


def _needed_parameters(entry: _Entry) -> list[nn.Parameter]:
    if entry.lora is None:
        return [entry.parameter]
    return [entry.parameter, *(p for n, p in entry.lora.named_parameters() if "lora_" in n)]


def _chunks(entries: list[_Entry]) -> Iterator[list[_Entry]]:
    chunk: list[_Entry] = []
    size = 0
    for entry in entries:
        cost = getattr(entry.parameter, "ds_numel", entry.parameter.numel()) * entry.parameter.element_size()
        if chunk and size + cost > GATHER_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += cost
    if chunk:
        yield chunk


def gather(parameters: list[nn.Parameter]) -> Any:
    """Return a context in which parameters that ZeRO-3 has partitioned are whole. Collective."""
    import deepspeed

    partitioned = [p for p in dict.fromkeys(parameters) if hasattr(p, "ds_id")]
    return deepspeed.zero.GatheredParameters(partitioned, modifier_rank=None, enabled=bool(partitioned))


def overwrite_weight_file(model: PolicyModel, path: Path, dtype: torch.dtype, rank: int) -> None:
    """Write all weights over the existing file, with a tied head under its own name too.

    In shared memory this reuses the file's pages, while a new file allocates new ones (0.1 s instead of up to 1.5 s for
    325 MB). The file must not be read during the write.
    """
    _write_weights(model, lambda: overwritten(path), dtype, rank, frozenset())


def _write_weights(
    model: PolicyModel,
    create: Callable[[], AbstractContextManager[Any]],
    dtype: torch.dtype,
    rank: int,
    without: Collection[str],
) -> None:
    """Write the weights one by one, so that the host never holds all of them besides the file. Rank 0 writes."""
    weights = ((name, weight) for name, weight in full_weights(model, dtype) if name not in without)
    if rank == 0:
        metadata = [entry for entry in weight_metadata(model, dtype) if entry[0] not in without]
        with create() as file:
            write_safetensors(metadata, weights, file)
    else:
        for _ in weights:
            pass


@contextmanager
def overwritten(path: Path) -> Iterator[BinaryIO]:
    """Open a file to be written over the existing one at `path`, if any. It ends where the body stops to write."""
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        yield file
        file.truncate()


def write_safetensors(
    metadata: Sequence[tuple[str, torch.dtype, Sequence[int]]], tensors: Iterable[tuple[str, Tensor]], file: Any
) -> None:
    """Write tensors in the safetensors format to an open file.

    `metadata` lists name, dtype and shape of the tensors in their order.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in metadata:
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _SAFETENSORS_TYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    file.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in tensors:
        file.write(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def _tied_names(model: PolicyModel) -> set[str]:
    """Return names whose parameter has an earlier name."""
    first: dict[int, str] = {}
    return {e.name for e in _entries(model) if first.setdefault(id(e.parameter), e.name) != e.name}


def side_files(folder: Path) -> Mapping[str, bytes]:
    """Read a model folder's config and tokenizer files into memory, since the folder may be removed later."""
    return {f.name: f.read_bytes() for pattern in _SIDE_FILES for f in sorted(folder.glob(pattern)) if f.is_file()}


def write_model_folder(
    model: PolicyModel,
    folder: Path,
    dtype: torch.dtype,
    rank: int,
    files: Mapping[str, bytes],
    create: Callable[[Path], AbstractContextManager[Any]],
) -> None:
    """Write a Hugging Face folder: config, tokenizer, safetensors. Collective under ZeRO-3; rank 0 writes.

    As in transformers, the weights lack the name of a tied head. `create` opens their file.
    """
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        config = json.loads(files["config.json"])
        config.pop("torch_dtype", None)
        config["dtype"] = str(dtype).removeprefix("torch.")
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    _write_weights(model, lambda: create(folder / "model.safetensors"), dtype, rank, _tied_names(model))
