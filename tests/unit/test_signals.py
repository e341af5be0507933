"""SIGTERM and Ctrl-C to a command, each in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hamr.security.processes import alive

pytestmark = pytest.mark.timeout(200)

COMMAND = """
import subprocess, sys, time
from hamr import cli, signals
from hamr.apps.shared.commands import Command

class Swallowing:
    def __del__(self):
        time.sleep(600)  # Python ignores an exception that is raised here

def work():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    signals.advise("go on with: hamr train resume=run")
    with signals.handle_signals(limit_s=float(words[2])), signals.cleaned_up(lambda: print("swept", flush=True)):
        try:
            print(child.pid, flush=True)
            if words[3] == "swallowing":
                Swallowing()
            time.sleep(600)
        finally:
            print("ending", flush=True)
            time.sleep(float(words[1]))
            print("ended", flush=True)

class Fake(Command):
    def run(self):
        work()

cli.JOBS["fake"] = ("__main__:Fake", "a fake")
words, sys.argv = sys.argv, ["hamr", "fake"]
cli.entry()
"""
"""A command with a child process. Arguments: seconds that its orderly end takes, and may take; what it does."""


def end(
    signum: int, *, takes: float, limit_s: float, again: bool = False, doing: str = "sleeping"
) -> tuple[int, str, str]:
    """Start the command, send the signal, and return exit code, output and errors. Its child is gone."""
    command = [sys.executable, "-c", COMMAND, str(takes), str(limit_s), doing]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(signum)
    if again:
        assert process.stdout.readline() == "ending\n"
        process.send_signal(signum)
    out, err = process.communicate(timeout=150)
    deadline = time.monotonic() + 30
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(child)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("signum", "code", "line"),
    [(signal.SIGTERM, 143, "hamr: stopped by SIGTERM\n"), (signal.SIGINT, 130, "hamr: interrupted\n")],
)
def test_first_signal_runs_finally_blocks_and_leaves_no_process(signum: int, code: int, line: str) -> None:
    assert end(signum, takes=0, limit_s=100) == (code, "ending\nended\n", line)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_swallowed_exception_is_raised_again(signum: int) -> None:
    code, out, _ = end(signum, takes=0, limit_s=100, doing="swallowing")
    assert (code, out) == (128 + signum, "ending\nended\n")


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")])
def test_second_signal_exits_without_finally_blocks(signum: int, name: str) -> None:
    code, out, err = end(signum, takes=600, limit_s=500, again=True)
    assert (code, out) == (128 + signum, "swept\n")
    assert err == f"hamr: {name} ended the process by a second signal; go on with: hamr train resume=run\n"


@pytest.mark.slow
def test_graceful_shutdown_is_limited_in_time() -> None:
    code, out, err = end(signal.SIGTERM, takes=600, limit_s=0.5)
    assert (code, out) == (143, "ending\nswept\n")
    assert "SIGTERM ended the process because the graceful shutdown took longer than 0.5 s; go on with" in err


CHILD = """
import os, sys, time
from hamr import signals

times = [0.0, float(sys.argv[1])]
with signals.handle_signals(limit_s=None, clock=lambda: times.pop(0)):
    try:
        print(os.getpid(), flush=True)
        time.sleep(600)
    finally:
        print("ending", flush=True)
        while times:
            time.sleep(0.01)
        print("ended", flush=True)
"""
"""Ends in an orderly way after it has received a second signal. Argument: seconds between the two, by its clock."""
PARENT = """
import sys
from hamr import signals
from hamr.apps.pipeline import run as pipeline
from hamr.apps.train import restarts

sys.executable = sys.argv[2]
with signals.handle_signals(limit_s=None):
    if sys.argv[1] == "restarts":
        restarts._run([])
    else:
        pipeline._run([], started=lambda pid: None, allowed=None)
"""
"""Runs a command as a supervised run or a stage of a pipeline. Arguments: which of them, and the command."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["restarts", "pipeline"])
@pytest.mark.parametrize(("between", "told"), [(0.9, "ending\nended\n"), (1.1, "ending\n")])
def test_signal_sent_and_forwarded_counts_once(tmp_path: Path, kind: str, between: float, told: str) -> None:
    """As systemd and Slurm do, which signal every process of a service or job."""
    command = tmp_path / "command"
    (tmp_path / "child.py").write_text(CHILD)
    command.write_text(f"#!/bin/sh\nexec {sys.executable} {tmp_path / 'child.py'} {between}\n")
    command.chmod(0o755)
    words = [sys.executable, "-c", PARENT, kind, str(command)]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert parent.stdout is not None
    os.kill(int(parent.stdout.readline()), signal.SIGTERM)
    assert parent.stdout.readline() == "ending\n"
    parent.send_signal(signal.SIGTERM)
    out, _ = parent.communicate(timeout=150)
    assert "ending\n" + out == told
