"""The built wheel in an environment of its own, with what it declares and nothing else. `make test-wheel` runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs_pages import blocks
from tests.requirements import LEFT_OUT, ROOT, closure, locked

BUILD, VENV, DEPENDENCIES, INSTALL, RUN = next(
    block.text.splitlines() for block in blocks(ROOT / "docs/get-started.md", "bash") if "pip wheel" in block.text
)
OWN_INDEX = DEPENDENCIES.replace(" --extra-index-url https://download.pytorch.org/whl/cpu", "")
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"DS_BUILD_OPS": "0"}
IMPORT_ALL = """
import importlib, json, pkgutil, hamr
failed = []
for module in pkgutil.walk_packages(hamr.__path__, "hamr."):
    try:
        importlib.import_module(module.name)
    except ImportError as error:
        failed.append(f"{module.name}: {error}")
print(json.dumps([hamr.__file__, failed]))
"""


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    for name in ("python3.11 ", "python "):
        if command.startswith(name):
            command = f"{sys.executable} {command.removeprefix(name)}"
    return subprocess.run(command, shell=True, cwd=folder, env=CLEAN, capture_output=True, text=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the checkout in which the page's commands have run. What the wheel does not declare is removed again."""
    source = tmp_path_factory.mktemp("source")
    for name in ("hamr", "conf", "prompts", "locks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    for command in (BUILD, VENV, OWN_INDEX, INSTALL):
        done = run(command, source)
        if done.returncode and command == OWN_INDEX:
            done = run(DEPENDENCIES, source)
        assert done.returncode == 0, done.stdout + done.stderr
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared, _ = closure([*project["dependencies"], *project["optional-dependencies"]["cpu"]], locked("cpu.txt"))
    others = sorted(locked("cpu.txt").keys() - declared)
    done = run(f"elsewhere/bin/python -m pip uninstall -q -y {' '.join(others)}", source)
    assert done.returncode == 0, done.stderr
    return source


def test_declared_requirements_are_met(source: Path) -> None:
    done = run("elsewhere/bin/python -m pip check", source)
    wrong = [line for line in done.stdout.splitlines() if " requires " in line or " has requirement " in line]
    assert not [line for line in wrong if not any(f" {name}," in line or f" {name} " in line for name in LEFT_OUT)]


def test_every_module_is_importable(source: Path, tmp_path: Path) -> None:
    done = run(f"{source}/elsewhere/bin/python -c '{IMPORT_ALL}'", tmp_path)
    assert done.returncode == 0, done.stderr
    where, failed = json.loads(done.stdout.splitlines()[-1])  # DeepSpeed logs to stdout before it
    assert where.startswith(str(source / "elsewhere"))
    assert not failed


def test_installed_hamr_trains_in_an_empty_folder(source: Path, tmp_path: Path) -> None:
    assert run(RUN, source).stdout.splitlines()[-1] == "conf/experiment/smoke.yaml"
    done = run(f"{source}/elsewhere/bin/hamr train experiment=smoke experiment.run_dir=run", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "run" / "summary.json").is_file()
