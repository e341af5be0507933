"""The command line: help, messages and exit codes."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from hamr import __version__, cli
from hamr.apps.jobs import names
from hamr.apps.shared.commands import Command
from hamr.errors import ConfigError, EngineDied
from tests.permissions import file_permissions_enforced


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Registers a job `fake` that does what it is given."""

    def register(work: Callable[[], int]) -> None:
        class Fake(Command):
            n: int = 1
            """Number."""

            def run(self) -> int:
                return work() + self.n

        monkeypatch.setattr("tests.unit.test_cli.Fake", Fake, raising=False)
        monkeypatch.setitem(cli.JOBS, "fake", (f"{__name__}:Fake", "a fake"))

    return register


def raising(job: Callable[[Callable[[], int]], None], error: BaseException) -> None:
    def work() -> NoReturn:
        raise error

    job(work)


def test_help_lists_all_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in names():
        assert f"  {name} " in out and cli.JOBS[name][1] in out


def test_no_arguments_shows_help_as_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: hamr" in capsys.readouterr().out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hamr {__version__}\n"


@pytest.mark.parametrize("name", cli.JOBS)
def test_every_command_has_its_own_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"hamr {name}: ")
    assert len(out.splitlines()) > 2


EACH_ALONE = """
import importlib, sys
from pathlib import Path
for file in sorted(Path("hamr/apps").rglob("*.py")):
    if file.name not in ("command.py", "run.py"):
        continue
    for name in [n for n in sys.modules if n.partition(".")[0] == "hamr"]:
        del sys.modules[name]
    importlib.import_module(".".join(file.with_suffix("").parts))
"""


@pytest.mark.slow
def test_every_command_module_can_be_imported_first() -> None:
    """All imports run in one process that keeps the libraries and drops hamr's own modules before each."""
    subprocess.run([sys.executable, "-c", EACH_ALONE], check=True, cwd=Path(cli.__file__).parents[1])


def test_job_receives_its_arguments_and_returns_its_code(job) -> None:
    job(lambda: 3)
    assert cli.main(["fake", "n=4"]) == 7


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("docter", "did you mean `hamr doctor`?"),
        ("zzz", "no such job; available jobs:"),
        ("experiment=smoke", "write `hamr train experiment=smoke`"),
    ],
)
def test_unknown_job_suggests_the_nearest(typed: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
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
        (RemoteError(PermissionError(errno.EACCES, "Permission denied", "/x")), 2, "hamr: /x: permission denied; give"),
        (KeyboardInterrupt(), 130, "hamr: interrupted\n"),
        (ModuleNotFoundError("No module named 'vllm'", name="vllm.engine"), 1, "vllm.engine is not installed"),
        (OSError(errno.ENOSPC, "No space left on device", "/runs/x"), 1, "/runs/x: no space left on the disk"),
        (
            OSError(errno.EROFS, "Read-only file system", "/runs/x"),
            1,
            "/runs/x: read-only file system; repair the disk",
        ),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300),
            2,
            "a part is longer than the file system allows",
        ),
    ],
    ids=[
        "bad-input",
        "run-time",
        "remote",
        "remote-file",
        "interrupt",
        "not-installed",
        "disk-full",
        "disk-read-only",
        "long-name",
    ],
)
def test_expected_errors_are_reported_in_one_line(
    error: BaseException, code: int, says: str, job, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(job, error)
    assert cli.main(["fake"]) == code
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["status", "RUN"],
        ["report", "RUN"],
        ["stop", "RUN"],
        ["scale", "RUN", "judge=2"],
        ["train", "resume=RUN"],
        ["sft", "resume=RUN"],
        ["export", "RUN", "output=policy"],
        ["train", "experiment=smoke", "data=RUN"],
        ["train", "experiment=smoke", "experiment.run_dir=RUN/new"],
        ["train", "experiment=smoke", "--config-dir", "RUN"],
        ["plan", "experiment=smoke", "launch=slurm", "output=RUN/plan"],
    ],
    ids=" ".join,
)
def test_denied_access_is_reported_in_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir(0o000)
    try:
        with file_permissions_enforced():
            assert cli.main([word.replace("RUN", str(run)) for word in words]) == 2
    finally:
        run.chmod(0o755)
    err = capsys.readouterr().err
    assert err.startswith(f"hamr: {run}")
    assert err.endswith(": permission denied; give this user access to it and to its folder, or name another\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "error", [RuntimeError("a defect"), ModuleNotFoundError("no", name="hamr.nowhere"), OSError(errno.EPERM, "no")]
)
def test_a_defect_shows_its_traceback(error: Exception, job, capsys: pytest.CaptureFixture[str]) -> None:
    raising(job, error)
    assert cli.main(["fake"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_python_m_hamr_runs() -> None:
    command = [sys.executable, "-m", "hamr", "trian"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(cli.__file__).parents[1])
    assert result.returncode == 2
    assert result.stderr.startswith("hamr: 'trian': no such job")


CLOSED_PIPE = """
import os, subprocess, sys
words = [sys.executable, "-m", "hamr", *sys.argv[1:]]
first = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
first.stdout.close()
error = first.stderr.read().decode()
print(first.wait(), error)
"""


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["data", "sage", "--help"], ["train", "pipeline=olamind_small", "dry_run=true"]],
)
def test_a_closed_pipe_ends_quietly(words: list[str]) -> None:
    """As `hamr --help | head -0`; the exit code is the shell's for SIGPIPE."""
    command = [sys.executable, "-c", CLOSED_PIPE, *words]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(cli.__file__).parents[1], check=True)
    assert result.stdout == "141 \n"


def test_broken_pipe_of_other_streams_is_a_defect(job, capsys: pytest.CaptureFixture[str]) -> None:
    raising(job, BrokenPipeError(errno.EPIPE, "a socket"))
    assert cli.main(["fake"]) == 1
    assert "BrokenPipeError" in capsys.readouterr().err
