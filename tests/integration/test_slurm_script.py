"""The batch job of `hamr submit cluster=slurm`, run for real with stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import psutil
import pytest

from hamr.telemetry.metrics import read_metrics
from tests.e2e.runs import hamr
from tests.integration.heads import environment
from tests.killing import kill_all

pytestmark = [pytest.mark.integration, pytest.mark.deep, pytest.mark.timeout(300)]

COMMANDS = {
    # Run the script directly, as Slurm does on the first node of the allocation.
    "sbatch": """\
[[ $1 == --parsable ]] && shift
export SLURM_JOB_ID=77 SLURM_JOB_NODELIST=here SLURM_SUBMIT_DIR=$PWD
bash "$1" > "hamr-run-77.log" 2>&1
echo $? > "$(dirname "$0")/code"
echo 77
""",
    "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "scontrol": """\
[[ $2 == hostnames ]] && { echo here; exit; }
code=$(cat "$(dirname "$0")/code")
echo "JobId=77 JobState=$([[ $code == 0 ]] && echo COMPLETED || echo FAILED) ExitCode=$code:0"
""",
    "hostname": "echo 127.0.0.1\n",
}


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in COMMANDS.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (folder / name).chmod(0o755)
    env = environment(None)
    return env | {"PATH": f"{folder}:{env['PATH']}"}


def test_batch_job_trains_on_its_own_ray_and_returns_its_code(tmp_path: Path, slurm: dict[str, str]) -> None:
    """One step without scorers, which would need more actors."""
    work = tmp_path / "work"
    work.mkdir()
    small = ("experiment=smoke", "experiment.steps=1", "rewards.consistency.weight=0", "experiment.run_dir=run")
    try:
        command = hamr("submit", "train", *small, "--follow", cluster="slurm", **{"launch.cpus_per_node": 4})
        done = subprocess.run(command, cwd=work, env=slurm, capture_output=True, text=True, timeout=280)
    finally:
        # Slurm ends the job's other steps; here the test does.
        mine = [
            p
            for p in psutil.process_iter(["environ"])
            if (p.info["environ"] or {}).get("SLURM_SUBMIT_DIR") == str(work / "run.job")
        ]
        kill_all(mine)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report: " in done.stdout, "the job's own words"
    assert [row["step"] for row in read_metrics(work / "run" / "metrics.jsonl") if row["stage"] == "rl"] == [1]
    assert re.search(r"^  address: auto$", (work / "run" / "config.yaml").read_text(), re.MULTILINE)
    assert not os.listdir(work / "run.job" / "work"), "an empty folder was copied; the job worked in it"
