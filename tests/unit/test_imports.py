"""Import rules: the order of the packages, no cycles, and which modules may import which heavy library.

Every import statement in hamr/ is read, those inside functions too; those under `if TYPE_CHECKING:` are not.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hamr"

LAYERS: tuple[set[str], ...] = (
    {"types", "errors", "hardware", "garbage"},
    {"security"},
    {"protocols", "signals", "adapters", "files"},
    {"config"},
    {"prompting"},
    {"procedures"},
    {"algorithms", "data"},
    {"rewards", "experience"},
    {"calibration"},
    {"cascade", "models"},
    {"telemetry"},
    {"cluster"},
    {"rollout"},
    {"pools", "trainer"},
    {"controller", "report"},
    {"bench"},
    {"apps"},
    {"cli"},
    {"__main__", "__init__"},
)
"""A package imports packages of lower layers only."""
LAYER = {package: i for i, layer in enumerate(LAYERS) for package in layer}
ONLY: dict[str, set[str]] = {
    "adapters": {"types", "errors", "protocols", "security"},
    "cli": {"errors", "security", "signals", "garbage", "apps"},
    "experience": {"types", "protocols", "data"},
    "controller": {"types", "errors", "protocols", "config", "data", "algorithms", "rewards", "experience", "cascade"}
    | {"telemetry"},
}
"""Packages that import even less: other trainers' environments have the standard library only, help is instant, and the
controller runs in one process without Ray."""

ONLY_IN: dict[str, set[str]] = {
    "ray": {"cluster", "rollout.workers", "trainer.actors", "trainer.weight_sync"}
    | {"pools.client", "pools.deployment", "pools.hedge_router", "pools.router_actor"}
    | {"apps.score.reward_system", "apps.shared.pool_room"},
    "vllm": {"rollout.vllm_adapter", "rollout.vllm_core", "rollout.vllm_engine", "rollout.vllm_kernels"}
    | {"rollout.vllm_reload", "rollout.vllm_sampler", "rollout.vllm_settings", "models.weights"},
    "deepspeed": {"trainer.deepspeed_checkpoint", "trainer.deepspeed_engine", "trainer.deepspeed_weights"}
    | {"trainer.resharding", "trainer.state_files"},
    "transformers": {"models", "pools.pair_training", "pools.scorer_pairs"}
    | {"trainer.deepspeed_engine", "trainer.policy_model", "trainer.scorer_training"},
    "openai": {"pools.scorer_openai"},
    "sentence_transformers": {"models.embedding", "pools.scorer_pairs"},
    "wandb": {"telemetry.wandb_sink"},
    "hydra": {"config.load"},
    "omegaconf": {"config.load"},
}
"""The packages and modules that import a heavy library."""
NO_TORCH = {
    "rewards",
    "cascade",
    "calibration",
    "procedures",
    "prompting",
    "types",
    "errors",
    "protocols",
    "security",
    "config",
    "cli",
    "data",
    "adapters",
}


def imported(source: str, module: str) -> Iterator[str]:
    """Dotted names that `source` (of `module`, itself dotted) imports; `from a import b` gives `a.b`."""
    package = module.split(".")[:-1]
    for node in _at_runtime(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            base = (start + (node.module or "")).rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str))


def _at_runtime(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        only_types = isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING"
        if not only_types:
            yield from _at_runtime(child)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def violations(source: str, module: str) -> list[str]:
    """Return the imports in `source`, the code of `module` (e.g. `hamr.rewards.length`), that the rules forbid."""
    inside = module.split(".")[1:]
    package, name = inside[0], ".".join(inside)
    found = []
    for target in imported(source, module):
        top, *rest = target.split(".")
        if top == "hamr":
            # A name that is not a package is one of hamr itself: `from hamr import __version__`.
            other = rest[0] if rest and rest[0] in LAYER else package
            above = other != package and LAYER[other] >= LAYER[package]
            if above or other not in ONLY.get(package, LAYER.keys()) | {package}:
                found.append(f"{module} imports {target}: {package} may not import {other}")
        elif top in ("hydra", "omegaconf") and any(part.startswith("_") for part in rest):
            found.append(f"{module} imports {target}: only the public API of {top}")
        elif top == "torch" and package in NO_TORCH:
            found.append(f"{module} imports {target}: no torch in {package}")
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
def test_module_follows_the_import_rules(module: str) -> None:
    assert violations(MODULES[module].read_text(encoding="utf-8"), module) == []


@pytest.mark.parametrize("library", ONLY_IN)
def test_every_module_that_may_import_a_library_does(library: str) -> None:
    users = [
        module.removeprefix("hamr.")
        for module, file in MODULES.items()
        if any(target.partition(".")[0] == library for target in imported(file.read_text(), module))
    ]
    unused = [p for p in ONLY_IN[library] if not any(name == p or name.startswith(f"{p}.") for name in users)]
    assert unused == []


def test_every_top_level_name_has_a_layer() -> None:
    assert {module.split(".")[1] for module in MODULES} <= set(LAYER)


def cycle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, if there are any."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_modules_have_no_import_cycles() -> None:
    imports = {
        module: {known for target in imported(file.read_text(), module) if (known := _module(target)) != module} - {""}
        for module, file in MODULES.items()
    }
    assert sum(map(len, imports.values())) > len(MODULES), "the imports are read"
    assert cycle(imports) == []
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []


def _module(target: str) -> str:
    """The module of hamr that `target`, a module or a name in one, comes from; "" for other libraries."""
    parents = (target, target.rpartition(".")[0])
    return next((name for name in parents if name in MODULES), "")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hamr.controller", "import ray"),
        ("hamr.controller", "from hamr.pools.router_actor import Router"),
        ("hamr.rewards.length", "def f():\n    import torch.nn.functional as F"),
        ("hamr.rewards.length", "from hamr.models import bundled"),
        ("hamr.rewards.length", "from ..apps.train import command"),
        ("hamr.trainer.actors", "from hamr.pools import client"),
        ("hamr.rollout.vllm_engine", "from hamr.pools import client"),
        ("hamr.rollout.vllm_engine", "import wandb"),
        ("hamr.rollout.workers", "import vllm"),
        ("hamr.telemetry.recorder", "import wandb"),
        ("hamr.apps.train.command", "import ray"),
        ("hamr.pools.client", "from openai import OpenAI"),
        ("hamr.trainer.policy_model", "import deepspeed"),
        ("hamr.data.samples", "from transformers import AutoTokenizer"),
        ("hamr.data.samples", "from hamr.rewards.truth import ExactAct"),
        ("hamr.config.overrides", "from hydra import compose"),
        ("hamr.config.load", "from hydra._internal.hydra import Hydra"),
        ("hamr.apps.pipeline.sweep", "from omegaconf import OmegaConf"),
        ("hamr.config.schema", "import hamr.rewards.length"),
        ("hamr.bench.ecs.score", "import importlib\nimportlib.import_module('openai')"),
        ("hamr.types", "from hamr.config import schema"),
        ("hamr.cli", "from hamr.config.load import load_config"),
        ("hamr.apps.jobs", "from hamr.cli import main"),
    ],
)
def test_forbidden_imports_are_detected(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hamr.apps.shared.pool_room", "import ray\nfrom hamr.pools import router_actor"),
        ("hamr.trainer.actors", "import ray\nfrom hamr.models import bundled"),
        ("hamr.config.load", "from omegaconf import OmegaConf\nfrom hamr.errors import ConfigError"),
        ("hamr.algorithms.losses", "import torch\nfrom .advantages import group"),
        ("hamr.trainer.policy_model", "import torch, transformers, peft\nfrom hamr.algorithms import losses"),
        ("hamr.telemetry.wandb_sink", "import wandb"),
        ("hamr.config.load", "if TYPE_CHECKING:\n    from hamr.apps.train import command"),
    ],
)
def test_allowed_imports_are_accepted(module: str, source: str) -> None:
    assert violations(source, module) == []


HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "sentence_transformers", "wandb")
NOT_FOR_HELP = (*HEAVY, "hydra", "omegaconf", "matplotlib", "scipy", "sklearn", "openai")


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import hamr, hamr.types, hamr.errors, hamr.protocols", NOT_FOR_HELP),
        ("import hamr.cli; assert hamr.cli.main(['--help']) == 0", (*NOT_FOR_HELP, "pydantic", "yaml")),
        (
            "import hamr.cli; assert all(hamr.cli.main([*job.split(), '--help']) == 0 for job in hamr.cli.JOBS)",
            NOT_FOR_HELP,
        ),
        ("from hamr.config.load import load_config; load_config(['experiment=quickstart'])", HEAVY),
    ],
)
def test_light_entry_points_import_no_heavy_libraries(code: str, heavy: tuple[str, ...]) -> None:
    check = f"{code}\nimport sys\nprint('HEAVY', sorted(set({heavy!r}) & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=PACKAGE.parent, check=True
    )
    assert result.stdout.splitlines()[-1] == "HEAVY []"
