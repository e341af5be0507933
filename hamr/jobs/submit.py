"""`hamr submit`: the same command on a Ray cluster."""

from __future__ import annotations

import asyncio
import importlib
import re
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from hamr.actors.job_cluster import JobCluster
from hamr.actors.placement import planned
from hamr.config.cluster_security import check_cluster_address
from hamr.config.load import dump_config, load_config, load_dumped
from hamr.config.overrides import CONFIG_DIR_FLAG, nearest_first
from hamr.config.schema import Config
from hamr.errors import BadInput, HamrError
from hamr.jobs.package import pack
from hamr.observability.run_folder import RunFolder

HELP = "sends the same command to a Ray cluster as a job"

JOBS = ("train", "sft", "score", "calibrate", "evaluate", "scorer")
FOLDER = ".hamr-job"
EXPERIMENT = "submitted"
"""The resolved configuration travels as a choice of `experiment` in a config folder of the package's own."""
STARTED_S = 120.0
POLL_S = 0.5
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


def main(args: list[str]) -> int:
    """`hamr submit <job> [what the job takes] cluster=ray cluster.dashboard=URL [--follow]`.

    First the configuration and the cluster are checked: the plan says which node holds what, and what does not fit is
    one line. Then the working folder (what .gitignore leaves, no file that looks like a key) and the resolved
    configuration are sent, and the job runs there as it would here: `hamr <job>`. Secrets never travel: variables such
    as WANDB_API_KEY have to be set on the nodes.

    `--follow` shows the job's output and returns its exit code; Ctrl-C leaves the job running. `cluster=local` runs it
    here. `hamr submit train resume=<run folder> cluster=ray` goes on with a run on another cluster, under the same
    W&B id.
    """
    follow = "--follow" in args
    given = [arg for arg in args if arg != "--follow"]
    if not given or given[0] not in JOBS:
        named = given[0] if given else None
        known = ", ".join(nearest_first(named, JOBS) if named else JOBS)
        raise BadInput("submit", named, f"name a job that can run on a cluster: {known}")
    request = Request.read(given[0], given[1:])
    if request.config.cluster.type == "local":
        module = importlib.import_module(_module(request.job))
        return int(module.main([*request.own, *request.settings]))
    return send(request, follow=follow)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A command, taken apart. `own`: what the job takes beside the configuration; `settings`: what it was made of."""

    job: str
    own: tuple[str, ...]
    settings: tuple[str, ...]
    config: Config
    resume: Path | None = None

    @classmethod
    def read(cls, job: str, args: Sequence[str]) -> Request:
        own, settings = split(args)
        config = load_config(settings)
        resumed = [arg.partition("=")[2] for arg in own if arg.startswith("resume=")] if job == "train" else []
        if not resumed:
            return cls(job=job, own=tuple(own), settings=tuple(settings), config=config)
        others = [s for s in settings if not s.startswith("cluster")]
        if others:
            raise BadInput("resume", others, "a resumed run keeps its configuration; drop all but cluster settings")
        folder = RunFolder.open(resumed[0]).path
        kept = load_dumped(folder / "config.yaml")
        config = kept.model_copy(update={"cluster": config.cluster})
        return cls(job=job, own=(f"resume={folder}",), settings=(), config=config, resume=folder)


def split(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """(what the job takes itself, the overrides of the configuration)."""
    own: list[str] = []
    settings: list[str] = []
    rest = iter(args)
    for arg in rest:
        if arg == CONFIG_DIR_FLAG:
            settings += [arg, next(rest, "")]
            continue
        key = arg.lstrip("~+").partition("=")[0].split(".")[0]
        known = key in Config.model_fields or arg.startswith(CONFIG_DIR_FLAG)
        (settings if known else own).append(arg)
    return own, settings


def send(request: Request, *, follow: bool) -> int:
    """Checks, packs, submits; then says where to look."""
    config, run = located(request)
    there = config.cluster
    check_cluster_address(there.dashboard, allow_unauthenticated=there.allow_unauthenticated, key="cluster.dashboard")
    cluster = JobCluster(config.cluster.dashboard)
    if request.job == "train":
        print("\n".join(planned(config, cluster.nodes())), flush=True)
    for line in needed_variables(config):
        print(line)
    name = f"hamr-{re.sub(r'[^A-Za-z0-9_.-]+', '-', run.name if run else request.job)}-{secrets.token_hex(3)}"
    with tempfile.TemporaryDirectory(prefix="hamr-submit-") as aside:
        extra = {f"{FOLDER}/experiment/{EXPERIMENT}.yaml": f"# @package _global_\n{dump_config(config)}"}
        package = pack(Path.cwd(), Path(aside) / "job.zip", extra, most_mb=config.cluster.max_package_mb)
        print(f"package: {package.files} files, {package.megabytes:.1f} MB, of {Path.cwd()}")
        if package.kept_back:
            print(f"kept back, as they look like keys: {', '.join(package.kept_back)}")
        job = cluster.submit(command(request), package.path, name, variables={})
    print(f"job:       {job}\ndashboard: {cluster.dashboard}/#/jobs/{job}")
    if run is not None:
        print(f"run:       {run} (hamr status {run})")
    print(f"W&B:       {wandb_place(config, run)}", flush=True)
    if not follow:
        return begun(cluster, job)
    try:
        asyncio.run(cluster.follow(job, lambda text: print(text, end="", flush=True)))
    except KeyboardInterrupt:
        print(f"\nthe job goes on; stop it with: ray job stop {job} --address {cluster.dashboard}", file=sys.stderr)
        raise
    return ended(cluster, job)


def located(request: Request) -> tuple[Config, Path | None]:
    """The configuration as the job is to have it, and the run folder of a training run."""
    config, cluster = request.config, request.config.cluster
    here = urlsplit(cluster.dashboard).hostname in ("127.0.0.1", "localhost", "::1")
    joined = cluster.model_copy(update={"address": "auto", "type": "local"})
    if request.resume is not None:
        return config.model_copy(update={"cluster": joined}), request.resume
    for arg in request.own:
        key, _, value = arg.partition("=")
        if key in ("input", "output", "scores") and not Path(value).is_absolute():
            raise BadInput(key, value, "the job runs in another folder; give an absolute path that its nodes see")
    if request.job != "train":
        return config.model_copy(update={"cluster": joined}), None
    named = Path(config.experiment.run_dir or f"{config.experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    if not named.is_absolute():
        if cluster.run_root is None and not here:
            raise BadInput(
                "cluster.run_root",
                None,
                "name a folder for run folders that this machine and all nodes see",
            )
        root = (
            Path(cluster.run_root) if cluster.run_root else Path.cwd() / ("" if config.experiment.run_dir else "runs")
        )
        named = root.absolute() / named
    RunFolder.refuse_if_used(named)
    experiment = config.experiment.model_copy(update={"run_dir": str(named)})
    return config.model_copy(update={"cluster": joined, "experiment": experiment}), named


def command(request: Request) -> str:
    """What runs in the package's folder. `pools` is taken out of the defaults first: its keys are names, and the
    resolved configuration has all that is wanted."""
    words = ["python", "-m", "hamr", request.job, *request.own]
    if request.resume is None:
        words += [CONFIG_DIR_FLAG, FOLDER, f"experiment={EXPERIMENT}", "pools=null"]
    return shlex.join(words)


def needed_variables(config: Config) -> list[str]:
    """Secrets that the nodes have to have in their own environment."""
    names = {pool.api_key_env for pool in config.pools.values() if pool.api_key_env}
    names |= {"WANDB_API_KEY"} if config.logging.wandb.mode == "online" else set()
    return [f"the nodes need these variables set, they are not sent: {', '.join(sorted(names))}"] if names else []


def wandb_place(config: Config, run: Path | None) -> str:
    wandb = config.logging.wandb
    if wandb.mode == "disabled" or run is None:
        return "off"
    if wandb.mode == "offline":
        return f"offline, in {run / 'wandb'}"
    return f"https://wandb.ai/{wandb.entity}/{wandb.project}" if wandb.entity else f"https://wandb.ai ({wandb.project})"


def begun(cluster: JobCluster, job: str) -> int:
    """Waits until the job's process runs; one that ends at once has failed, and its reason is shown."""
    deadline = time.monotonic() + STARTED_S
    while time.monotonic() < deadline:
        state, _, _ = cluster.state(job)
        if state in ENDED:
            return ended(cluster, job)
        if state == "RUNNING":
            return 0
        time.sleep(POLL_S)
    print(f"the job waits for its place; follow it with: ray job logs -f {job} --address {cluster.dashboard}")
    return 0


def ended(cluster: JobCluster, job: str) -> int:
    """The job's own exit code. Raises HamrError where it never came to have one."""
    deadline = time.monotonic() + STARTED_S
    while (found := cluster.state(job))[0] not in ENDED and time.monotonic() < deadline:
        time.sleep(POLL_S)
    state, code, message = found
    if code is not None:
        return code
    if state == "SUCCEEDED":
        return 0
    raise HamrError(f"job {job} {state.lower()}: {' '.join(message.split())[:400]}")


def _module(job: str) -> str:
    from hamr.cli import JOBS as ENTRIES

    return ENTRIES[job][0].partition(":")[0]
