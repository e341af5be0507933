"""DESIGN's rules of dependency, held by reading every import in hamr/ (those inside functions too).

jobs -> {controller, actors, observability} -> {rewards, routing, ...} -> config -> {types, errors}, with backends
beside actors: actors may import backends, and backends whatever lies below actors.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hamr"

BASE = {"types", "errors", "protocols", "endpoints", "redact", "hardware"}
PURE = {"rewards", "routing", "algorithms", "augmentation", "evaluation", "data", "planning"}
MAY_IMPORT: dict[str, set[str]] = {
    "types": set(),
    "errors": set(),
    "protocols": BASE,
    "endpoints": {"errors"},
    "redact": set(),
    "processes": set(),
    "signals": {"processes"},
    "hardware": set(),
    "garbage": set(),
    "config": BASE,
    **{room: BASE | PURE | {"config"} for room in PURE},
    "backends": BASE | PURE | {"config", "processes"},
    "observability": BASE | PURE | {"config", "processes", "signals"},
    # Speaks to protocols, so that it runs in one process without Ray.
    "controller": BASE | PURE | {"config", "observability"},
    "actors": BASE | PURE | {"config", "backends", "observability", "processes", "signals", "garbage"},
    # For other trainers' environments: nothing but the vocabulary and the sample format, standard library only.
    "adapters": BASE,
    "cli": {"errors", "redact", "signals", "garbage"},
    "__main__": {"cli"},
}
COMPOSITION_ROOTS = {"jobs", "__init__"}
"""May import anything of hamr."""

ONLY_IN: dict[str, set[str]] = {
    "ray": {"actors", "jobs"},
    "vllm": {"backends"},
    "deepspeed": {"backends"},
    "transformers": {"backends"},
    "openai": {"backends"},
    "sentence_transformers": {"backends"},
    "wandb": {"observability"},
    "hydra": {"config.load", "jobs"},
    "omegaconf": {"config.load", "jobs"},
}
NO_TORCH = {
    "rewards",
    "routing",
    "planning",
    "types",
    "errors",
    "protocols",
    "endpoints",
    "config",
    "cli",
    "data",
    "adapters",
}


def imported(source: str, module: str) -> Iterator[str]:
    """Dotted names that `source` (of `module`, itself dotted) imports; `from a import b` gives `a.b`."""
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            base = (start + (node.module or "")).rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str))


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def violations(source: str, module: str) -> list[str]:
    """What `source`, the code of `module` (e.g. `hamr.rewards.length`), may not import."""
    inside = module.split(".")[1:]
    room, name = inside[0], ".".join(inside)
    found = []
    for target in imported(source, module):
        top, *rest = target.split(".")
        if top == "hamr":
            wanted = rest[0] if rest else ""
            # A name that is no room is one of the package itself: `from hamr import __version__`.
            is_room = wanted in MAY_IMPORT or wanted in COMPOSITION_ROOTS
            if is_room and room not in COMPOSITION_ROOTS and wanted not in MAY_IMPORT[room] | {room}:
                found.append(f"{module} imports {target}: {room} may not know {wanted}")
        elif top == "torch" and room in NO_TORCH:
            found.append(f"{module} imports {target}: no torch in {room}")
        elif top in ONLY_IN and not any(name == p or name.startswith(f"{p}.") for p in ONLY_IN[top]):
            found.append(f"{module} imports {target}: {top} only in {sorted(ONLY_IN[top])}")
    return found


def modules() -> dict[str, Path]:
    named = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = ("hamr", *file.relative_to(PACKAGE).with_suffix("").parts)
        named[".".join(parts)] = file
    return named


MODULES = modules()


@pytest.mark.parametrize("module", MODULES)
def test_module_keeps_the_rules(module: str) -> None:
    assert violations(MODULES[module].read_text(encoding="utf-8"), module) == []


def test_every_top_level_name_has_a_place() -> None:
    rooms = {module.split(".")[1] for module in MODULES}
    assert rooms <= set(MAY_IMPORT) | COMPOSITION_ROOTS


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hamr.controller", "import ray"),
        ("hamr.controller", "from hamr.pools.router_actor import Router"),
        ("hamr.rewards.length", "def f():\n    import torch.nn.functional as F"),
        ("hamr.rewards.length", "from hamr.backends import models"),
        ("hamr.rewards.length", "from ..jobs import train"),
        ("hamr.trainer.actors", "from vllm import LLM"),
        ("hamr.backends.engine", "from hamr.actors import pools"),
        ("hamr.backends.engine", "import wandb"),
        ("hamr.data.samples", "from transformers import AutoTokenizer"),
        ("hamr.config.overrides", "from hydra import compose"),
        ("hamr.config.schema", "import hamr.rewards.length"),
        ("hamr.bench.ecs.score", "import importlib\nimportlib.import_module('openai')"),
        ("hamr.types", "from hamr.config import schema"),
        ("hamr.cli", "from hamr.config.load import load_config"),
    ],
)
def test_the_rules_bite(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hamr.apps.train.command", "import ray, hydra\nfrom hamr.actors import router"),
        ("hamr.trainer.actors", "import ray\nfrom hamr.backends import models"),
        ("hamr.config.load", "from omegaconf import OmegaConf\nfrom hamr.errors import ConfigError"),
        ("hamr.algorithms.losses", "import torch\nfrom .advantages import group"),
        ("hamr.backends.trainer", "import torch, deepspeed, peft, safetensors\nfrom hamr.algorithms import losses"),
        ("hamr.telemetry.wandb_sink", "import wandb"),
    ],
)
def test_the_rules_allow(module: str, source: str) -> None:
    assert violations(source, module) == []


HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "sentence_transformers", "wandb")


@pytest.mark.parametrize(
    "code",
    [
        "import hamr, hamr.types, hamr.errors, hamr.protocols",
        "import hamr.cli; assert hamr.cli.main(['--help']) == 0",
        "import hamr.cli; assert all(hamr.cli.main([j, '--help']) == 0 for j in hamr.cli.available_jobs())",
        "from hamr.config.load import load_config; load_config(['experiment=quickstart'])",
    ],
)
def test_light_entry_points_import_nothing_heavy(code: str) -> None:
    check = f"{code}\nimport sys\nprint('HEAVY', sorted(set({HEAVY!r}) & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=PACKAGE.parent, check=True
    )
    assert result.stdout.splitlines()[-1] == "HEAVY []"
