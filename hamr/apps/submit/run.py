"""`hamr submit`: run a job on a cluster."""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.apps.shared.commands import render
from hamr.apps.submit.batch import refuse_left_behind, send_batch
from hamr.apps.submit.package import pack
from hamr.apps.submit.request import (
    LEARNING,
    SubmitRequest,
    job_words,
    named_files,
    pipeline_folder,
    run_folder,
    secret_variables,
    wandb_place,
)
from hamr.cluster.job_cluster import JobCluster
from hamr.cluster.placement import describe_placement
from hamr.config.cluster_security import check_cluster_address, host_of, refuse_secrets
from hamr.config.load import dump_config
from hamr.config.overrides import CONFIG_DIR_FLAG
from hamr.config.schema import Config
from hamr.errors import BadInput, HamrError

if TYPE_CHECKING:
    from hamr.apps.submit.command import SubmitCommand

FOLDER = ".hamr-job"
EXPERIMENT = "submitted"
"""Name under which the resolved configuration is packaged, as a choice of the group `experiment`."""
STARTED_S = 120.0
POLL_S = 0.5
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


def start(command: SubmitCommand) -> int:
    """Check the job and send it to the cluster that it names, or run it here."""
    follow, dry, request = command.follow, command.dry_run, SubmitRequest.read(command.job)
    where = request.config.cluster.type
    if where in ("kuberay", "slurm"):
        return send_batch(request, follow=follow, dry=dry)
    if where == "ray":
        return send(request, follow=follow, dry=dry)
    if dry:
        raise BadInput("--dry-run", where, f"a local job is not submitted; check it with: hamr {request.job}")
    return request.local().run()


def send(request: SubmitRequest, *, follow: bool, dry: bool = False) -> int:
    """Check, package and submit the job, then print where to follow it."""
    config, run = locate_run(request)
    for each in request.configs:
        refuse_secrets(each, (*render(request.command), *request.where))
    there = config.cluster
    check_cluster_address(there.dashboard, allow_unauthenticated=there.allow_unauthenticated, key="cluster.dashboard")
    cluster = JobCluster(config.cluster.dashboard)
    print(cluster.describe_access(), flush=True)
    for each in request.stages or ((config,) if request.job == "train" else ()):
        print("\n".join(describe_placement(each, cluster.nodes())), flush=True)
    if needed := secret_variables(request.configs):
        print(f"set these variables on the nodes, they are not uploaded: {', '.join(needed)}")
    name = f"hamr-{re.sub(r'[^A-Za-z0-9_.-]+', '-', run.name if run else request.job)}-{secrets.token_hex(3)}"
    with tempfile.TemporaryDirectory(prefix="hamr-submit-") as aside:
        extra = {f"{FOLDER}/experiment/{EXPERIMENT}.yaml": f"# @package _global_\n{dump_config(config)}"}
        file = Path(aside) / "job.zip"
        package = pack(Path.cwd(), file, extra, most_mb=there.max_package_mb, also=there.package_also)
        print(f"package:   of {Path.cwd()}", *package.describe(), sep="\n  ")
        for each in request.stages or (config,):
            refuse_left_behind(each, package)
        line = command(request, run)
        if dry:
            print(f"nothing was submitted; the cluster would run: {line}")
            return 0
        job = cluster.submit(line, package.path, name)
    print(f"job:       {job}\ndashboard: {cluster.dashboard}/#/jobs/{job}")
    if run is not None:
        print(f"run:       {run} (hamr status {run})")
    print(f"W&B:       {wandb_place(config, None if request.job == 'scorer' else run)}", flush=True)
    if not follow:
        return wait_for_start(cluster, job)
    try:
        asyncio.run(cluster.follow(job, lambda text: print(text, end="", flush=True)))
    except KeyboardInterrupt:
        print(
            f"\nthe job keeps running; stop it with: ray job stop {job} --address {cluster.dashboard}", file=sys.stderr
        )
        raise
    return wait_for_exit(cluster, job)


def locate_run(request: SubmitRequest) -> tuple[Config, Path | None]:
    """Return the configuration for the job, and the run folder if the job has one."""
    config, cluster = request.config, request.config.cluster
    here = host_of(cluster.dashboard) in ("127.0.0.1", "localhost", "::1")
    joined = cluster.model_copy(update={"address": "auto", "type": "local"})
    if request.resume is not None:
        return config.model_copy(update={"cluster": joined}), request.resume
    for key, value, path in named_files(request.command):
        if not Path(path).is_absolute():
            raise BadInput(key, value, "the job runs in another folder; give an absolute path that its nodes see")
    if request.stages:
        folder = pipeline_folder(request, Path(cluster.run_root or "runs"))
        if not folder.is_absolute() and not here:
            remedy = "name a folder for the pipeline's that this machine and all nodes see"
            raise BadInput("cluster.run_root", cluster.run_root, remedy)
        return config, folder.absolute()
    if request.as_given or request.job not in LEARNING:
        return config.model_copy(update={"cluster": joined}), None
    if cluster.run_root is None and not here and not Path(request.run_name()).is_absolute():
        raise BadInput("cluster.run_root", None, "name a folder for run folders that this machine and all nodes see")
    run = run_folder(request)
    experiment = config.experiment.model_copy(update={"run_dir": str(run)})
    return config.model_copy(update={"cluster": joined, "experiment": experiment}), run


def command(request: SubmitRequest, run: Path | None = None) -> str:
    """Return the command to run in the package's folder. `run`: the folder of a pipeline or the like.

    `pools` is removed from the defaults first, because its keys are names and the resolved configuration is complete.
    """
    words, resolved = job_words(request, run)
    if resolved:
        words += [CONFIG_DIR_FLAG, FOLDER, f"experiment={EXPERIMENT}", "pools=null"]
    return shlex.join(["python", "-m", "hamr", *words])


def wait_for_start(cluster: JobCluster, job: str) -> int:
    """Wait until the job's process runs. Raises HamrError with the reason if it fails at start."""
    deadline = time.monotonic() + STARTED_S
    while time.monotonic() < deadline:
        state, _, _ = cluster.state(job)
        if state in ENDED:
            return wait_for_exit(cluster, job)
        if state == "RUNNING":
            return 0
        time.sleep(POLL_S)
    print(f"the job waits for resources; follow it with: ray job logs -f {job} --address {cluster.dashboard}")
    return 0


def wait_for_exit(cluster: JobCluster, job: str) -> int:
    """Return the job's exit code. Raises HamrError if it has none."""
    deadline = time.monotonic() + STARTED_S
    while (found := cluster.state(job))[0] not in ENDED and time.monotonic() < deadline:
        time.sleep(POLL_S)
    state, code, message = found
    if code is not None:
        return code
    if state == "SUCCEEDED":
        return 0
    raise HamrError(f"job {job} {state.lower()}: {' '.join(message.split())[:400]}")
