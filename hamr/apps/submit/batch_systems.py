"""KubeRay and Slurm backends of `hamr submit`, which call the system's own command-line tool.

The tools use the user's configuration, so existing clusters, accounts and logins apply.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hamr.errors import HamrError

POLL_S = 2.0
OVER = (
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
)
"""Slurm states of a job that will not run any more."""
KUBERAY_FAILS = ("Failed", "ValidationFailed")
KUBERAY_ENDS = ("Complete", *KUBERAY_FAILS)
"""States of a RayJob that KubeRay will not change any more."""


@dataclass(kw_only=True)
class Kuberay:
    """A RayJob. KubeRay starts a cluster for it, and a Kubernetes Job of the same name that submits it and shows its
    output. `files`: those of `launch_files.render` that it needs."""

    name: str
    namespace: str
    folder: Path
    tool: str = "kubectl"
    files: tuple[str, ...] = ("configmap.yaml", "rayjob.yaml")

    def _apply(self) -> list[str]:
        return ["kubectl", "apply", *(word for file in self.files for word in ("-f", str(self.folder / file)))]

    def line(self) -> str:
        """Return the shell command that submits the files."""
        return shlex.join(self._apply())

    def send(self) -> None:
        """Submit the files. Raises HamrError with the tool's message on failure."""
        _run_tool(self._apply())

    def where_to_look(self) -> list[str]:
        """Return lines that say where to follow the job. Call after `send`."""
        kubectl = f"kubectl -n {self.namespace}"
        cluster = f"$({kubectl} get rayjob {self.name} -o jsonpath='{{.status.rayClusterName}}')"
        return [
            f"job:       RayJob {self.name} in the namespace {self.namespace}",
            f"follow:    {kubectl} get rayjob {self.name} -w, and once it runs {kubectl} logs -f job/{self.name}",
            f"dashboard: {kubectl} port-forward service/{cluster}-head-svc 8265",
            f"stop:      {kubectl} delete rayjob {self.name}",
        ]

    def follow(self) -> int:
        """Show the job's output until it ends; return its exit code, or 1. Raises HamrError if it never ran."""
        while (state := self._state())[0] not in ("Running", *KUBERAY_ENDS):
            time.sleep(POLL_S)
        if state[0] not in KUBERAY_FAILS:
            subprocess.run(["kubectl", "-n", self.namespace, "logs", "-f", f"job/{self.name}"], check=False)
            while (state := self._state())[0] not in KUBERAY_ENDS:
                time.sleep(POLL_S)
        if state[1] == "SUCCEEDED":
            return 0
        raise HamrError(f"RayJob {self.name} {(state[1] or state[0]).lower()}: {state[2] or 'no reason given'}")

    def _state(self) -> tuple[str, str, str]:
        """Return (KubeRay's state, Ray's state, the reason), each empty until it is reported."""
        wanted = "{.status.jobDeploymentStatus}|{.status.jobStatus}|{.status.message}"
        words = ["kubectl", "-n", self.namespace, "get", "rayjob", self.name, "-o", f"jsonpath={wanted}"]
        deployment, status, message = (_run_tool(words) + "||").split("|")[:3]
        return deployment.strip(), status.strip(), " ".join(message.split())


@dataclass(kw_only=True)
class Slurm:
    """A batch job. `folder` contains its script, its configuration and a copy of the working folder."""

    name: str
    folder: Path
    tool: str = "sbatch"
    files: tuple[str, ...] = ("job.sbatch", "conf/experiment/launched.yaml")
    job: str = field(default="", init=False)

    def line(self) -> str:
        return f"cd {shlex.quote(str(self.folder))} && sbatch job.sbatch"

    def send(self) -> None:
        # sbatch passes on this process's environment. Put the folder of this Python on PATH, in case it was called by
        # path.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        output = _run_tool(["sbatch", "--parsable", "job.sbatch"], self.folder, {**os.environ, "PATH": path})
        self.job = output.strip().splitlines()[-1].partition(";")[0] if output.strip() else ""
        if not self.job.isdecimal():
            raise HamrError(f"sbatch printed no job id but {output.strip()!r}; check with squeue --me")

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}-{self.job}.log"

    def where_to_look(self) -> list[str]:
        return [
            f"job:       {self.job} ({self.name})",
            f"follow:    squeue -j {self.job}, and once it runs tail -F {shlex.quote(str(self.log))}",
            f"stop:      scancel --batch --signal=TERM {self.job} (the run keeps what it has learned)",
        ]

    def follow(self) -> int:
        shown = 0
        while True:
            state, code = self._state()
            shown = _show(self.log, shown)
            if state in OVER:
                break
            time.sleep(POLL_S)
        if state == "COMPLETED" or code:
            return code
        raise HamrError(f"job {self.job} {state.lower()}; its output is in {self.log}")

    def _state(self) -> tuple[str, int]:
        output = _run_tool(["scontrol", "show", "job", "--oneliner", self.job])
        found = dict(re.findall(r"(?:^|\s)(JobState|ExitCode)=(\S+)", output))
        return found.get("JobState", ""), int(found.get("ExitCode", "0:0").partition(":")[0])


BatchSystem = Kuberay | Slurm


def _show(log: Path, shown: int) -> int:
    """Print the log from byte `shown` on; return its current size."""
    if not log.is_file():
        return shown
    with log.open("rb") as file:
        file.seek(shown)
        text = file.read()
    print(text.decode("utf-8", "replace"), end="", flush=True)
    return shown + len(text)


def _run_tool(words: Sequence[str], folder: Path | None = None, environ: dict[str, str] | None = None) -> str:
    """Return the tool's output. Raises HamrError with the first line of its error message."""
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        message = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0]
        raise HamrError(f"{shlex.join(words[:2])}: {message}")
    return done.stdout
