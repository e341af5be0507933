"""`hamr submit` where the cluster is started for the job and ends with it: by KubeRay or by Slurm."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
import zipfile
from pathlib import Path

from hamr.apps.submit.batch_systems import BatchSystem, Kuberay, Slurm, is_installed
from hamr.apps.submit.launch_files import CLAIM, render
from hamr.apps.submit.launch_job import name_of, nodes, nodes_to_be
from hamr.apps.submit.launch_scripts import WORK
from hamr.apps.submit.package import pack
from hamr.apps.submit.request import SubmitRequest, run_folder, secret_variables, wandb_place
from hamr.cluster.placement import describe_placement
from hamr.config.schema import Config
from hamr.config.secrets_check import refuse_secrets
from hamr.errors import BadInput, HamrError

NAME_LENGTH = 40


def send_batch(request: SubmitRequest, *, follow: bool, dry: bool) -> int:
    """Checks against the nodes that `launch` describes, writes the job's files beside the run folder, hands them over
    and says how to follow.

    Where the system's tool is not installed nothing is sent: BadInput then names the files and the line to run. They
    stay, too, when the tool refuses them (HamrError).
    """
    kind = request.config.cluster.type
    if request.job != "train":
        raise BadInput(
            "cluster.type",
            kind,
            f"starts a cluster for hamr train alone; send {request.job} with cluster=ray to one that is there",
        )
    config, run = in_pods(request) if kind == "kuberay" else beside(request)
    refuse_secrets(config)
    least, most = (n := nodes(config)).least, n.most
    print("\n".join(describe_placement(config, nodes_to_be(config))))
    print(f"nodes:     {least}{f' to {most}' if most > least else ''} as launch describes them", flush=True)
    system = write(request, config, run)
    if dry:
        print(f"nothing was sent; to send it: {system.line()}")
        return 0
    if not is_installed(system.tool):
        raise BadInput(
            "cluster.type",
            kind,
            f"there is no {system.tool} here, so nothing was sent; the files are in {system.folder}, and where there "
            f"is one it takes: {system.line()}",
        )
    try:
        system.send()
    except HamrError as e:
        raise HamrError(f"{e}; nothing was sent, the files are in {system.folder}; again: {system.line()}") from None
    where = f"{run}, on the claim {config.launch.claim}" if kind == "kuberay" else f"{run} (hamr status {run})"
    print(
        "\n".join([*system.where_to_look(), f"run:       {where}", f"W&B:       {wandb_place(config, run)}"]),
        flush=True,
    )
    return system.follow() if follow else 0


def in_pods(request: SubmitRequest) -> tuple[Config, Path]:
    """The configuration and the run folder as pods see them. They see the image and the claim, and nothing of this
    machine: whatever is lost or missing there is refused here."""
    config, launch = request.config, request.config.launch
    if launch.claim is None:
        raise BadInput(
            "launch.claim",
            None,
            "the run folder would go with the pods; name a PersistentVolumeClaim that takes writers on many nodes",
        )
    needed = secret_variables(config)
    if needed and launch.secret is None:
        raise BadInput(
            "launch.secret",
            None,
            f"the pods need {', '.join(needed)}; name a Secret that has them (kubectl create secret generic NAME "
            "--from-env-file=FILE)",
        )
    if unseen := relative_files(config):
        key, file = next(iter(unseen.items()))
        raise BadInput(key, file, f"pods do not see this folder; put it on the claim and name it {CLAIM}/...")
    run = request.resume or Path(CLAIM) / ("" if config.experiment.run_dir else "runs") / request.run_name()
    if Path(CLAIM) not in run.parents:
        key = "resume" if request.resume else "experiment.run_dir"
        raise BadInput(key, str(run), f"pods keep what lies below {CLAIM}, on the claim; name a folder there")
    # Under the name of a RayJob that is over, but still there, nothing would run.
    again = request.resume or config.experiment.run_dir
    return _with_job_name(config, run, time.strftime("-%m%d-%H%M%S") if again else ""), run


def beside(request: SubmitRequest) -> tuple[Config, Path]:
    """The same for Slurm, whose nodes see this machine's folders and get its environment."""
    config = request.config
    missing = [name for name in secret_variables(config) if not os.environ.get(name)]
    if missing:
        raise BadInput(
            "environment", missing, "the job needs these variables; export them here, Slurm takes the environment along"
        )
    if request.resume is not None:
        return _with_job_name(config, request.resume), request.resume
    # The job works in a copy, which has nothing that .gitignore names: often just the data.
    found = {key: str(Path(file).absolute()) for key, file in relative_files(config).items()}
    data = {key.partition(".")[2]: file for key, file in found.items() if key.startswith("data.")}
    rules = config.rewards.rules.model_copy(update={"file": found.get("rewards.rules.file", config.rewards.rules.file)})
    there = config.model_copy(
        update={
            "data": config.data.model_copy(update=data),
            "rewards": config.rewards.model_copy(update={"rules": rules}),
            "model": config.model.model_copy(update={"path": found.get("model.path", config.model.path)}),
        }
    )
    run = run_folder(request)
    return _with_job_name(there, run), run


def relative_files(config: Config) -> dict[str, str]:
    """Setting -> file or folder, of those that are named from the working folder."""
    named = {f"data.{key}": getattr(config.data, key) for key in ("train", "validation", "test", "labelled_pairs")}
    named |= {"rewards.rules.file": config.rewards.rules.file}
    if Path(config.model.path).is_dir():  # not the name of a bundled or published model
        named["model.path"] = config.model.path
    return {key: file for key, file in named.items() if file is not None and not Path(file).is_absolute()}


def _with_job_name(config: Config, run: Path, when: str = "") -> Config:
    """The job is called after its run folder, in as many letters as Kubernetes grants."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{run.name.lower()}{when}").strip("-")
    if len(name) > NAME_LENGTH:
        name = f"{name[: NAME_LENGTH - 7]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    experiment = config.experiment.model_copy(update={"run_dir": str(run)})
    launch = config.launch.model_copy(update={"name": name})
    return config.model_copy(update={"experiment": experiment, "launch": launch})


def write(request: SubmitRequest, config: Config, run: Path) -> BatchSystem:
    """The job's files, in a new folder: for Slurm `<run>.job` beside the run folder, with a copy of the working folder
    as the job is to have it, however long it waits; for KubeRay `runs/<run>.job` here."""
    kuberay = config.cluster.type == "kuberay"
    folder = (Path("runs").absolute() if kuberay else run.parent) / f"{run.name}.job"
    if folder.exists():
        folder = folder.with_name(f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    name = name_of(config)
    system: BatchSystem = (
        Kuberay(name=name, namespace=config.launch.namespace, folder=folder)
        if kuberay
        else Slurm(name=name, folder=folder)
    )
    files = render(config, "kuberay" if kuberay else "slurm", str(request.resume) if request.resume else None)
    if kuberay:
        print(f"code:      the image's, {config.launch.image}; this folder is not sent")
    else:
        _copy_work(folder / WORK, config.cluster.max_package_mb)
    # No package of a later job takes it along.
    for file, text in {".gitignore": "*\n", **{file: files[file] for file in system.files}}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    print(f"files:     {folder}", flush=True)
    return system


def _copy_work(target: Path, most_mb: float) -> None:
    with tempfile.TemporaryDirectory(prefix="hamr-submit-") as aside:
        package = pack(Path.cwd(), Path(aside) / "job.zip", {}, most_mb=most_mb)
        target.mkdir(parents=True)
        with zipfile.ZipFile(package.path) as archive:
            for info in archive.infolist():
                Path(archive.extract(info, target)).chmod(info.external_attr >> 16)
    print(f"code:      {package.files} files, {package.megabytes:.1f} MB, copied from {Path.cwd()}")
    if package.kept_back:
        print(f"kept back, as they look like keys: {', '.join(package.kept_back)}")
