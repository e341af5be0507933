"""The images install only locked packages and name no registry."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.requirements import find_tool

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "docker").glob("Dockerfile.*"))


def instructions(file: Path) -> list[tuple[str, str]]:
    """(instruction, rest), comments out and continued lines joined."""
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines())]


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_hadolint_finds_nothing(file: Path) -> None:
    done = subprocess.run([find_tool("hadolint"), str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_lock_file_has_a_dockerfile() -> None:
    assert [f.name for f in FILES] == ["Dockerfile.cpu", "Dockerfile.cuda"]


def test_image_for_gpus_has_the_scripts_that_try_them() -> None:
    [copied] = [rest.split()[:-1] for word, rest in instructions(FILES[1]) if word == "COPY" and "launch/" in rest]
    assert copied == ["launch/gpu_bench.py", "launch/gpu_check.py"]
    assert {f"!{name}" for name in copied} <= set((ROOT / ".dockerignore").read_text().splitlines())


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_packages_come_only_from_the_lock_file(file: Path) -> None:
    runs = [rest for word, rest in instructions(file) if word == "RUN"]
    installs = [part.strip() for rest in runs for part in rest.split("&&") if "pip install" in part]
    lock = f"locks/{file.suffix[1:]}.txt"
    assert any(part.endswith(f"-r {lock}") for part in installs)
    for part in installs:
        assert "--no-deps" in part
        what = part.split()[-1]
        assert what == "." or (what.startswith("locks/") and (ROOT / what).is_file()), part


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_no_registry_is_named_except_for_the_base_image(file: Path) -> None:
    for word, rest in instructions(file):
        if word != "FROM":
            assert not re.search(r"https?://|--index-url [^\"$]|--extra-index-url", rest), rest
    assert [word for word, _ in instructions(file)].count("FROM") == 1


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_base_images_are_pinned_and_jobs_do_not_run_as_root(file: Path) -> None:
    words = instructions(file)
    base = dict(words)["FROM"]
    assert ":" in base and not base.endswith(":latest")
    users = [rest for word, rest in words if word == "USER"]
    assert users == ["1000"]
    # The pods of the manifests run as this number.
    assert any("--uid 1000" in rest for word, rest in words if word == "RUN")


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.suffix[1:])
def test_copied_files_exist_and_are_not_ignored(file: Path) -> None:
    through = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for word, rest in instructions(file):
        if word == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert any(source == t or source.startswith(f"{t}/") for t in through), source


def test_python_version_matches_the_lock_files() -> None:
    assert all("FROM python:3.11-" in file.read_text() for file in FILES)


def test_compilers_find_the_toolkit_of_the_lock_file() -> None:
    """The wheels of CUDA 13 share the folder nvidia/cu13, with bin/nvcc; those of another version have another one."""
    settings = " ".join(rest for word, rest in instructions(ROOT / "docker" / "Dockerfile.cuda") if word == "ENV")
    [home] = re.findall(r"CUDA_HOME=(\S+)", settings)
    lock = (ROOT / "locks" / "cuda.txt").read_text()
    [major] = re.findall(r"^nvidia-cuda-nvcc==(\d+)\.", lock, re.MULTILINE)
    assert home == f"/usr/local/lib/python3.11/site-packages/nvidia/cu{major}"
