"""`hamr submit` for clusters that are started for the job and end with it: KubeRay and Slurm."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from hamr.apps.shared.commands import render as render_command
from hamr.apps.shared.input_files import relative_files
from hamr.apps.shared.training_command import changes_hardware
from hamr.apps.submit.batch_systems import BatchSystem, Kuberay, Slurm
from hamr.apps.submit.launch_files import CLAIM, WORK, render
from hamr.apps.submit.launch_job import GivenCommand, name_of, nodes, nodes_for, nodes_to_be
from hamr.apps.submit.package import Package, pack
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
from hamr.cluster.placement import describe_placement
from hamr.config.cluster_security import refuse_secrets
from hamr.config.overrides import CONFIG_DIR_FLAG, split_flags
from hamr.config.schema import ClusterConfig, Config
from hamr.errors import BadInput, HamrError

NAME_LENGTH = 40


def send_batch(request: SubmitRequest, *, follow: bool, dry: bool) -> int:
    """Check the job against the nodes that `launch` describes, write its files, submit them and print how to follow it.

    Where the system's tool is not installed, nothing is submitted: BadInput names the files and the command to run. The
    files are also kept when the tool rejects them (HamrError).
    """
    kind = request.config.cluster.type
    config, run = resolve_for_pods(request) if kind == "kuberay" else resolve_for_slurm(request)
    given = given_command(request, run)
    for each in request.stages or (config,):
        refuse_secrets(each, tuple(render_command(request.command)))
        if given is None or request.stages:
            print("\n".join(describe_placement(each, nodes_to_be(each))))
    wanted = nodes(config, given)
    count = f"{wanted.least}"
    if wanted.most > wanted.least:  # Slurm's allocation cannot grow
        count += f" to {wanted.most}" if kind == "kuberay" else f", not the {wanted.most} of the pools' largest size,"
    print(f"nodes:     {count} as described by launch", flush=True)
    system = write(request, config, run, given)
    if dry:
        print(f"nothing was submitted; to submit it: {system.line()}")
        return 0
    if shutil.which(system.tool) is None:
        raise BadInput(
            "cluster.type",
            kind,
            f"{system.tool} is not installed, so nothing was submitted; the files are in {system.folder}. Where it is "
            f"installed, run: {system.line()}",
        )
    try:
        system.send()
    except HamrError as e:
        raise HamrError(
            f"{e}; nothing was submitted, the files are in {system.folder}; retry with: {system.line()}"
        ) from None
    has_run = given is None or bool(request.stages) or request.job in LEARNING
    where = f"{run}, on the claim {config.launch.claim}" if kind == "kuberay" else f"{run} (hamr status {run})"
    print(*system.where_to_look(), f"run:       {where if has_run else 'as the command says'}", sep="\n")
    print(f"W&B:       {wandb_place(config, run if has_run else None)}", flush=True)
    return system.follow() if follow else 0


def given_command(request: SubmitRequest, run: Path) -> GivenCommand | None:
    """Return the command of a job that runs as it was given; None for the training run of a configuration.

    Its nodes hold the pools of the configuration, and its trainers and rollout engines if it trains.
    """
    if request.command.words == "train" and not request.stages:
        return None
    words, resolved = job_words(request, run)
    trains = bool(request.stages) or request.job in LEARNING
    return GivenCommand(
        words=tuple(words),
        resolved=resolved,
        nodes=nodes_for([each if trains else without_training(each) for each in request.configs]),
    )


def without_training(config: Config) -> Config:
    """Return the configuration with only the resources of its pools."""
    nothing = {"num_cpus": 0.0, "num_gpus": 0.0, "custom_resources": {}, "node_labels": {}}
    engine = config.rollout.engine.model_copy(update=nothing)
    trainer = config.trainer.model_copy(update={"ranks": 1, **nothing})
    rollout = config.rollout.model_copy(update={"workers": 1, "engine": engine})
    return config.model_copy(update={"trainer": trainer, "rollout": rollout})


def resolve_for_pods(request: SubmitRequest) -> tuple[Config, Path]:
    """Return the configuration and the run folder as pods see them.

    Pods see only the image and the claim, so settings that depend on this machine are refused.
    """
    config, launch = request.config, request.config.launch
    if launch.claim is None:
        raise BadInput(
            "launch.claim",
            None,
            "the run folder would be lost with the pods; name a ReadWriteMany PersistentVolumeClaim",
        )
    needed = secret_variables(request.configs)
    if needed and launch.secret is None:
        raise BadInput(
            "launch.secret",
            None,
            f"the pods need {', '.join(needed)}; name a Secret that contains them (kubectl create secret generic NAME "
            "--from-env-file=FILE)",
        )
    for each in request.configs:
        if unseen := relative_files(each):
            key, file = next(iter(unseen.items()))
            raise BadInput(key, file, f"pods do not see this folder; copy it to the claim and set {CLAIM}/...")
    for word in getattr(request.command, "overrides", ()):
        group, _, given = word.partition("=")  # data=PATH names files of this machine
        place = Path(given).expanduser().resolve()
        if group == "data" and Path(CLAIM) not in place.parents and Path(config.data.train or "").is_relative_to(place):
            remedy = f"is on this machine; copy it to the claim and set data.type=jsonl data.train={CLAIM}/..."
            raise BadInput(group, given, remedy)
    for key, value, path in named_files(request.command):
        if Path(CLAIM) not in Path(path).parents:
            raise BadInput(key, value, f"pods see only files on the claim; name a path below {CLAIM}")
    if request.resume is not None:
        refuse_changed_hardware(request)
    if request.as_given and request.resume is None:
        _, folder = split_flags(getattr(request.command, "overrides", ()))
        if folder is not None and Path(CLAIM) not in Path(folder).parents:
            raise BadInput(CONFIG_DIR_FLAG, str(folder), f"pods see only folders on the claim; name one below {CLAIM}")
        run = pipeline_folder(request, Path(CLAIM) / "runs")
        return _with_job_name(config, run), run
    run = request.resume or Path(CLAIM) / ("" if config.experiment.run_dir else "runs") / request.run_name()
    if Path(CLAIM) not in run.parents:
        key = "resume" if request.resume else "experiment.run_dir"
        raise BadInput(key, str(run), f"pods keep only files below {CLAIM}, on the claim; name a folder there")
    # Nothing would run under the name of a finished RayJob that still exists.
    again = request.resume or config.experiment.run_dir
    return _with_job_name(config, run, time.strftime("-%m%d-%H%M%S") if again else ""), run


def resolve_for_slurm(request: SubmitRequest) -> tuple[Config, Path]:
    """Return the same for Slurm, whose nodes see this machine's folders and get its environment."""
    config = request.config
    missing = [name for name in secret_variables(request.configs) if not os.environ.get(name)]
    if missing:
        raise BadInput(
            "environment", missing, "the job needs these variables; export them here, Slurm passes the environment on"
        )
    if request.resume is not None:
        refuse_changed_hardware(request)
        return _with_job_name(config, request.resume), request.resume
    for key, value, path in named_files(request.command):
        if not Path(path).is_absolute():
            raise BadInput(
                key, value, "the job works in a copy of this folder; give an absolute path that its nodes see"
            )
    if request.as_given:
        run = pipeline_folder(request, Path(config.cluster.run_root or "runs").absolute()).absolute()
        return _with_job_name(config, run), run
    # The job works in a copy, which lacks everything that .gitignore excludes, often the data.
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


def refuse_changed_hardware(request: SubmitRequest) -> None:
    """Raise BadInput for hardware that a resumed run would not get, because its command names the run folder only."""
    if changed := [o for o in getattr(request.command, "overrides", ()) if changes_hardware(o)]:
        remedy = f"the job's command does not carry it; set it in {request.resume}/config.yaml"
        raise BadInput("resume", changed, remedy)


def refuse_left_behind(config: Config, package: Package) -> None:
    """Raise BadInput for a configuration file with a relative path that is not in the package."""
    for key, file in relative_files(config).items():
        if not package.has(file):
            remedy = "is not in the package (see .gitignore and above); give an absolute path that its nodes see"
            raise BadInput(key, file, remedy)


def _with_job_name(config: Config, run: Path, when: str = "") -> Config:
    """Name the job after its run folder, truncated to the length that Kubernetes allows."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{run.name.lower()}{when}").strip("-")
    if len(name) > NAME_LENGTH:
        name = f"{name[: NAME_LENGTH - 7]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    experiment = config.experiment.model_copy(update={"run_dir": str(run)})
    launch = config.launch.model_copy(update={"name": name})
    return config.model_copy(update={"experiment": experiment, "launch": launch})


def write(request: SubmitRequest, config: Config, run: Path, given: GivenCommand | None) -> BatchSystem:
    """Write the job's files into a new folder.

    For Slurm: `<run>.job` next to the run folder, with a copy of the working folder, so that later edits do not affect
    a queued job. For KubeRay: `runs/<run>.job` here.
    """
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
    resume = str(request.resume) if request.resume else None
    files = render(config, "kuberay" if kuberay else "slurm", resume, given)
    if kuberay:
        print(f"code:      the image's, {config.launch.image}; this folder is not uploaded")
    else:
        _copy_work(folder / WORK, config.cluster, request.stages or (config,))
    # Keep this folder out of the packages of later jobs.
    for file, text in {".gitignore": "*\n", **{file: files[file] for file in system.files}}.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    print(f"files:     {folder}", flush=True)
    return system


def _copy_work(target: Path, there: ClusterConfig, configs: Sequence[Config]) -> None:
    with tempfile.TemporaryDirectory(prefix="hamr-submit-") as aside:
        package = pack(Path.cwd(), Path(aside) / "job.zip", {}, most_mb=there.max_package_mb, also=there.package_also)
        for each in configs:
            refuse_left_behind(each, package)
        target.mkdir(parents=True)
        with zipfile.ZipFile(package.path) as archive:
            for info in archive.infolist():
                Path(archive.extract(info, target)).chmod(info.external_attr >> 16)
    print(f"code:      copied from {Path.cwd()}", *package.describe(), sep="\n  ")
