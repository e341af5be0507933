"""Launch scripts for Slurm and for machines without a batch system, from the files in `templates/`."""

from __future__ import annotations

import math

from hamr.apps.submit.launch_job import (
    CONFIG_FILE,
    GivenCommand,
    command,
    experiment_file,
    fill_template,
    name_of,
    nodes,
)
from hamr.config.schema import Config

WORK = "work"
"""Folder next to a Slurm job's script with the copy of the working folder."""


def slurm(config: Config, resume: str | None = None, given: GivenCommand | None = None) -> dict[str, str]:
    """Return `job.sbatch`: Ray on every node of the allocation with a token of its own, then the run on the first
    node."""
    launch, wanted = config.launch, given.nodes if given is not None else nodes(config)
    minutes = math.ceil(launch.time_limit_h * 60)
    options = {
        "job-name": name_of(config),
        "nodes": wanted.least,
        "ntasks-per-node": 1,
        "cpus-per-task": launch.cpus_per_node,
        "mem": f"{launch.memory_gib_per_node}G",
        "time": f"{minutes // 60}:{minutes % 60:02d}:00",
        "output": "%x-%j.log",
        # Signal the script before the time limit. The script forwards the signal to the run, not to Ray's processes.
        "signal": "B:TERM@120",
    }
    if wanted.gpus:
        options["gpus-per-node"] = wanted.gpus
    options |= {key: value for key in ("partition", "account") if (value := getattr(launch, key))}
    run_line = command(config, '"$SLURM_SUBMIT_DIR/conf"', resume, program="python3 -m hamr", given=given)
    script = _fill("job.sbatch", config, wanted.gpus, options=options, command=run_line, work=WORK)
    return {"job.sbatch": script, CONFIG_FILE: experiment_file(config, f"runs/{name_of(config)}")}


def plain(config: Config, resume: str | None = None, given: GivenCommand | None = None) -> dict[str, str]:
    """Return `head.sh`, `worker.sh` (for each other machine, with the head's address) and `train.sh` (for the head)."""
    wanted = given.nodes if given is not None else nodes(config)
    values = {"machines": wanted.least, "command": command(config, "conf", resume, given=given)}
    scripts = {name: _fill(name, config, wanted.gpus, **values) for name in ("head.sh", "worker.sh", "train.sh")}
    return {**scripts, CONFIG_FILE: experiment_file(config, f"runs/{name_of(config)}")}


def _fill(template: str, config: Config, gpus: int, **values: object) -> str:
    cpus = config.launch.cpus_per_node
    resources = f"--num-cpus={cpus} --num-gpus={gpus}"
    return fill_template(template, cpus=cpus, resources=resources, **values)
