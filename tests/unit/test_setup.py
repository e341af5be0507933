"""The set-up script as far as possible without installing anything, and the entry point of continuous integration."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copytree(ROOT / "locks", tmp_path / "locks")
    for name in ("pyproject.toml", "setup.py", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def clean_environment(**more: str) -> dict[str, str]:
    """Without what an outer `make` hands down."""
    outer = ("PYTHON", "VENV", "TORCH_INDEX", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "TEST_REPORTS")
    return {k: v for k, v in os.environ.items() if k not in outer} | more


def setup(checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(checkout / "scripts" / "setup.sh")],
        capture_output=True,
        text=True,
        env=clean_environment(**environment),
    )


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_wrong_python_version_is_rejected_with_the_command(checkout: Path, tmp_path: Path) -> None:
    old = program(tmp_path / "bin" / "python3.9", "echo 3.9")
    result = setup(checkout, PYTHON=str(old))
    assert result.returncode == 1
    assert "is Python 3.9, the lock files are for 3.11" in result.stderr
    assert "make setup PYTHON=" in result.stderr
    assert not (checkout / ".venv").exists()


def test_python_without_venv_support_is_named(checkout: Path, tmp_path: Path) -> None:
    # Answers the question for its version, and fails at everything else.
    broken = program(tmp_path / "bin" / "python3.11", '[ "$1" = -c ] && echo 3.11')
    result = setup(checkout, PYTHON=str(broken))
    assert result.returncode == 1
    assert "python3.11-venv" in result.stderr


def finished(checkout: Path, log: Path) -> None:
    """A .venv in which every command answers immediately, and is recorded."""
    body = f'echo "$@" >> {log}; [ "$1" = -c ] && echo 3.11; exit 0'
    program(checkout / ".venv" / "bin" / "python", body)
    program(checkout / ".venv" / "bin" / "hamr", "exit 0")


def test_repeated_setup_installs_only_after_a_lock_change(checkout: Path, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    python = program(tmp_path / "bin" / "python3.11", "echo 3.11")
    finished(checkout, log)
    assert setup(checkout, PYTHON=str(python)).returncode == 0
    installs = log.read_text().count("pip install")
    assert installs == 3
    second = setup(checkout, PYTHON=str(python))
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert log.read_text().count("pip install") == installs
    with (checkout / "locks" / "cpu.txt").open("a") as lock:
        lock.write("one-more==1.0\n")
    assert setup(checkout, PYTHON=str(python)).returncode == 0
    assert log.read_text().count("pip install") == 2 * installs


def test_interrupted_setup_resumes(checkout: Path, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    python = program(tmp_path / "bin" / "python3.11", "echo 3.11")
    finished(checkout, log)
    failing = f'echo "$@" >> {log}; case "$*" in *cpu.txt*) exit 1;; -c*) echo 3.11;; esac'
    program(checkout / ".venv" / "bin" / "python", failing)
    assert setup(checkout, PYTHON=str(python)).returncode != 0
    assert not (checkout / ".venv" / ".hamr-installed").exists()
    finished(checkout, log)
    assert setup(checkout, PYTHON=str(python)).returncode == 0
    assert (checkout / ".venv" / ".hamr-installed").is_file()


def test_torch_is_installed_from_its_own_index_as_a_fallback(checkout: Path, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    python = program(tmp_path / "bin" / "python3.11", "echo 3.11")
    finished(checkout, log)
    body = f'echo "$@" >> {log}; case "$*" in *index-url*) exit 0;; *torch==*) exit 1;; -c*) echo 3.11;; esac'
    program(checkout / ".venv" / "bin" / "python", body)
    assert setup(checkout, PYTHON=str(python), TORCH_INDEX="file:///somewhere").returncode == 0
    torch = (ROOT / "locks" / "cpu-torch.txt").read_text().strip()
    assert f"--index-url file:///somewhere {torch}" in log.read_text()


@pytest.mark.parametrize("code", [0, 1, 2])
def test_ci_returns_the_exit_code_of_the_tests(code: int, checkout: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / ".ci", checkout / ".ci")
    program(tmp_path / "bin" / "make", f'echo "make $* CI=$CI"; cat; test "$1" = setup || exit {code}')
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", str(checkout / ".ci" / "run")],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=clean_environment(PATH=path),
    )
    assert result.returncode == code
    prepare, tools, first, deep = result.stdout.splitlines()
    assert prepare == "make setup CI=true"
    assert tools == "hadolint and shellcheck are not available: their tests are skipped"
    assert first == "make test CI=true"
    assert deep.startswith("make test-deep ARGS=-m deep ") and deep.endswith(" CI=true")


def test_make_test_fails_when_a_test_fails(checkout: Path) -> None:
    finished(checkout, checkout / "asked")
    program(checkout / ".venv" / "bin" / "python", 'case "$*" in *pytest*) exit 1;; -c*) echo 3.11;; esac')
    command = ["make", "-C", str(checkout), "test"]
    result = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
    assert result.returncode == 2
    assert "Error 1" in result.stderr


def test_trainer_tests_fail_without_a_trainer(checkout: Path) -> None:
    """In its own environment a missing package is an error; elsewhere its tests are skipped."""
    own = checkout / ".trainers"
    program(own / "bin" / "python", '[ "$*" != "-c import verl" ]')
    shutil.copy(checkout / "locks" / "trainers.txt", own / "installed.txt")
    script = ["bash", str(checkout / "scripts" / "test_trainers.sh")]
    assert subprocess.run(script, env=clean_environment()).returncode == 1
    program(own / "bin" / "python", "exit 0")
    assert subprocess.run(script, env=clean_environment()).returncode == 0
