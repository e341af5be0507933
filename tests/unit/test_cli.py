"""The command line: what it offers, how it answers, and what it returns."""

from __future__ import annotations

import errno
import subprocess
import sys
import types
from pathlib import Path
from typing import NoReturn

import pytest

from hamr import __version__, cli
from hamr.errors import ConfigError, EngineDied


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Registers a job `fake` with the given source as a real module on disk."""
    monkeypatch.syspath_prepend(tmp_path)
    names = iter(range(100))

    def register(source: str) -> None:
        name = f"hamr_fake_job_{next(names)}"
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.setitem(cli.JOBS, "fake", (f"{name}:main", "a fake"))

    return register


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def main(args: list[str]) -> NoReturn:
        raise error

    module = types.ModuleType("hamr.apps.doctor.command")
    module.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hamr.apps.doctor.command", module)
    monkeypatch.setattr(cli, "available_jobs", lambda: {"doctor": "hamr.apps.doctor.command:main"})


def test_help_lists_the_jobs_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    root = Path(cli.__file__).parents[1]
    for name, (target, line) in cli.JOBS.items():
        exists = (root / f"{target.partition(':')[0].replace('.', '/')}.py").is_file()
        assert (line in out) == exists, name


def test_no_arguments_shows_help_as_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: hamr" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hamr {__version__}\n"


@pytest.mark.parametrize("name", list(cli.available_jobs()))
def test_every_job_s_help_is_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"hamr {name}" in out
    assert len(out.splitlines()) > 2


EACH_ALONE = """
import importlib, sys
for target in sys.argv[1:]:
    for name in [n for n in sys.modules if n.partition(".")[0] == "hamr"]:
        del sys.modules[name]
    module, _, function = target.partition(":")
    found = importlib.import_module(module)
    assert callable(getattr(found, function)), target
    assert isinstance(found.HELP, str) and found.HELP.strip(), target
"""


@pytest.mark.slow
def test_every_job_has_main_and_help_and_can_be_imported_first() -> None:
    """In one process, for the libraries' sake; before each job all that is hamr's is forgotten."""
    command = [sys.executable, "-c", EACH_ALONE, *cli.available_jobs().values()]
    subprocess.run(command, check=True, cwd=Path(cli.__file__).parents[1])


def test_help_of_one_line_is_filled_up_with_main_s_docstring(job, capsys: pytest.CaptureFixture[str]) -> None:
    job('import no_such_library\nHELP = "does it"\ndef main(args):\n    """Takes `n=1`."""\n')
    assert cli.main(["fake", "-h"]) == 0
    out = capsys.readouterr().out
    assert "hamr fake: does it" in out
    assert "Takes `n=1`." in out


def test_a_job_gets_its_arguments_and_returns_its_code(job) -> None:
    job("def main(args):\n    return 7 if args == ['a=1', '--config-dir', 'x'] else 1\n")
    assert cli.main(["fake", "a=1", "--config-dir", "x"]) == 7


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("docter", "did you mean `hamr doctor`?"),
        ("zzz", "no such job; available jobs:"),
        ("experiment=smoke", "write `hamr train experiment=smoke`"),
    ],
)
def test_an_unknown_job_names_the_nearest(typed: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([typed]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


class RemoteError(Exception):
    """As Ray hands an actor's error over: the text is a remote traceback, the error itself is `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("Traceback (remote)\n  many lines")
        self.cause = cause


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ConfigError("a.b", 3, "lower it"), 2, "hamr: a.b: 3: lower it\n"),
        (EngineDied("judge-1\nis gone"), 1, "hamr: judge-1 is gone\n"),
        (RemoteError(EngineDied("judge-1 is gone")), 1, "hamr: judge-1 is gone\n"),
        (KeyboardInterrupt(), 130, "hamr: interrupted\n"),
        (ModuleNotFoundError("No module named 'vllm'", name="vllm.engine"), 1, "vllm.engine is not installed"),
        (OSError(errno.ENOSPC, "No space left on device", "/runs/x"), 1, "/runs/x: no space left on the disk"),
    ],
    ids=["bad-input", "run-time", "remote", "interrupt", "not-installed", "disk-full"],
)
def test_expected_errors_are_one_line(
    error: BaseException, code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, error)
    assert cli.main(["doctor"]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "error", [RuntimeError("a defect"), ModuleNotFoundError("no", name="hamr.nowhere"), OSError(errno.EPERM, "no")]
)
def test_a_defect_shows_its_traceback(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, error)
    assert cli.main(["doctor"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_python_m_hamr_answers() -> None:
    command = [sys.executable, "-m", "hamr", "trian"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(cli.__file__).parents[1])
    assert result.returncode == 2
    assert result.stderr.startswith("hamr: 'trian': no such job")
