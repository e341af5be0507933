"""LoRA adapter of the policy in a vLLM engine: one adapter on the weights of the start, replaced in place."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args


def adapter_args(rank: int) -> dict[str, Any]:
    """Return vLLM's arguments for one adapter of at most this rank. vLLM rounds up to one of a few ranks."""
    from vllm.config.lora import MaxLoRARanks

    served = min(size for size in get_args(MaxLoRARanks) if size >= rank)
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": served}


def adapter_request(folder: str = "none", **options: Any) -> Any:
    """Return the request that selects the adapter, or loads it from a PEFT `folder`."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("policy", 1, folder, **options)


def load_adapter(engine: Any, files: Mapping[str, bytes]) -> None:
    """Replace the engine's adapter by that of a PEFT folder with these files.

    vLLM reads folders only. It keeps the adapter in memory, so the folder is removed.
    """
    with tempfile.TemporaryDirectory(prefix="hamr-adapter-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        engine.add_lora(adapter_request(folder, load_inplace=True))
