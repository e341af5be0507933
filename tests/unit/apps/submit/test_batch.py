"""Jobs for KubeRay and Slurm, passed to stand-ins that record their arguments."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hamr.apps.shared.commands import parse_command
from hamr.apps.submit import batch_systems
from hamr.apps.submit.batch import resolve_for_pods
from hamr.apps.submit.launch_job import name_of, nodes
from hamr.apps.submit.request import SubmitRequest
from hamr.config.load import dump_config, load_config
from hamr.errors import BadInput, HamrError
from hamr.telemetry.ledger import Ledger
from tests.unit.apps.submit import kuberay as schemas
from tests.unit.apps.submit.test_launch_files import read_entrypoint


def submit(words: list[str]) -> int:
    return parse_command(["submit", *words]).run()


KUBERAY = ["train", "experiment=smoke", "cluster=kuberay", "launch.claim=shared"]
SLURM = ["train", "experiment=smoke", "cluster=slurm"]

TOOL = """#!/usr/bin/env bash
# Writes down its words and its folder; answers with the next line of what it was told to say.
here=$(dirname "$0")
me=$(basename "$0")
printf '%s|%s %s\\n' "$PWD" "$me" "$*" >> "$here/called"
if [[ $1 == apply ]]; then
  while (( $# )); do
    [[ $1 == -f ]] && cp "$2" "$here/applied-$(basename "$2")"
    shift
  done
fi
[[ -e $here/$me.fails ]] && { cat "$here/$me.fails" >&2; exit 1; }
[[ -s $here/$me.says ]] && { head -n 1 "$here/$me.says"; sed -i 1d "$here/$me.says"; }
exit 0
"""
SBATCH_OPTIONS = {
    "job-name": r"hamr-[a-z0-9-]{1,40}",
    "nodes": r"[1-9]\d*",
    "ntasks-per-node": "1",
    "cpus-per-task": r"[1-9]\d*",
    "mem": r"[1-9]\d*[KMGT]",
    "time": r"\d+:[0-5]\d:[0-5]\d",
    "output": r"%x-%j\.log",
    "signal": r"B:TERM@\d+",
    "gpus-per-node": r"[1-9]\d*",
    "partition": r"\S+",
    "account": r"\S+",
}
"""Patterns of the sbatch options that hamr writes."""


class Tools:
    """A folder on PATH. `says`: a line for each call."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, *names: str) -> None:
        for name in names:
            (self.folder / name).write_text(TOOL)
            (self.folder / name).chmod(0o755)

    def says(self, name: str, *lines: str) -> None:
        (self.folder / f"{name}.says").write_text("".join(f"{line}\n" for line in lines))

    def called(self) -> list[tuple[str, str]]:
        """(folder, words) of every call."""
        log = self.folder / "called"
        lines = log.read_text().splitlines() if log.exists() else []
        return [(folder, words) for folder, _, words in (line.partition("|") for line in lines)]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """No kubectl and no sbatch but those that a test adds; the working folder is a tree of its own."""
    made = Tools(tmp_path / "bin")
    made.folder.mkdir()
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("mine")
    (work / "run.sh").write_text("#!/bin/sh\n")
    (work / "run.sh").chmod(0o755)
    (work / ".env").write_text("KEY=1")
    monkeypatch.chdir(work)
    plain = tmp_path / "plain"
    plain.mkdir()
    for name in ("bash", "basename", "cat", "cp", "dirname", "env", "git", "head", "sed"):
        (plain / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", f"{made.folder}:{plain}")
    monkeypatch.setattr(batch_systems, "POLL_S", 0.0)
    return made


def job_folder(work: Path) -> Path:
    [folder] = [path for path in (work / "runs").iterdir() if ".job" in path.name]
    return folder


# --- KubeRay -----------------------------------------------------------------------------------


def test_configured_rayjob_is_applied(tools: Tools, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tools.add("kubectl")
    assert submit([*KUBERAY, "experiment.seed=7", "launch.namespace=ml"]) == 0
    [(_, words)] = tools.called()
    folder = job_folder(Path.cwd())
    assert words == f"kubectl apply -f {folder}/configmap.yaml -f {folder}/rayjob.yaml"
    sent = {
        name: yaml.safe_load((tools.folder / f"applied-{name}").read_text())
        for name in ("configmap.yaml", "rayjob.yaml")
    }
    assert sent["configmap.yaml"]["kind"] == "ConfigMap"
    jsonschema.Draft202012Validator(schemas.schema("RayJob")).validate(sent["rayjob.yaml"])
    assert {manifest["metadata"]["namespace"] for manifest in sent.values()} == {"ml"}
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "launched.yaml").write_text(sent["configmap.yaml"]["data"]["launched.yaml"])
    there = load_config(["--config-dir", str(tmp_path / "conf"), "experiment=launched", "pools=null"])
    name = sent["rayjob.yaml"]["metadata"]["name"]
    assert re.fullmatch(r"hamr-smoke-\d{8}-\d{6}", name)
    assert there.experiment.run_dir == f"/mnt/hamr/runs/{name.removeprefix('hamr-')}"
    assert (there.experiment.seed, there.cluster.address, there.cluster.type) == (7, "auto", "local")
    said = capsys.readouterr().out
    assert "plan: 1 node; free after it: node 1:" in said
    assert "code:      the image's, hamr:cuda; this folder is not uploaded" in said
    assert f"kubectl -n ml logs -f job/{name}" in said
    assert f"run:       {there.experiment.run_dir}, on the claim shared" in said


def test_followed_rayjob_returns_its_exit_code(tools: Tools, capfd: pytest.CaptureFixture[str]) -> None:
    tools.add("kubectl")
    tools.says(
        "kubectl", "applied", "||", "Initializing||", "Running|RUNNING|", "step 1 of 2", "Running|SUCCEEDED|",
        "Complete|SUCCEEDED|Job finished",
    )  # fmt: skip
    assert submit([*KUBERAY, "--follow"]) == 0
    assert "step 1 of 2" in capfd.readouterr().out
    tools.says("kubectl", "applied", "Running|RUNNING|", "step 1", "Failed|FAILED|exit  code\t1")
    with pytest.raises(HamrError, match=r"RayJob hamr-again-\d{4}-\d{6} failed: exit code 1") as failed:
        submit([*KUBERAY, "experiment.run_dir=again", "--follow"])
    assert failed.value.exit_code == 1
    tools.says("kubectl", "applied", "||", "ValidationFailed||no such image")
    with pytest.raises(HamrError, match="validationfailed: no such image"):
        submit([*KUBERAY, "experiment.run_dir=third", "--follow"])


# --- Slurm -------------------------------------------------------------------------------------


def test_batch_job_includes_a_copy_of_the_folder(tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    tools.add("sbatch")
    tools.says("sbatch", "4711;cluster")
    assert submit([*SLURM, "launch.partition=cpu"]) == 0
    folder = job_folder(Path.cwd())
    assert tools.called() == [(str(folder), "sbatch --parsable job.sbatch")]
    assert (folder / "work" / "notes.txt").read_text() == "mine"
    assert os.access(folder / "work" / "run.sh", os.X_OK) and not os.access(folder / "work" / "notes.txt", os.X_OK)
    assert not (folder / "work" / ".env").exists()
    run = folder.with_name(folder.name.removesuffix(".job"))
    there = load_config(["--config-dir", str(folder / "conf"), "experiment=launched", "pools=null"])
    assert there.experiment.run_dir == str(run)
    said = capsys.readouterr().out
    assert "excluded, because they look like keys: .env (by name)" in said
    assert f"job:       4711 (hamr-{run.name})" in said
    assert f"tail -F {folder}/hamr-{run.name}-4711.log" in said
    tools.says("sbatch", "4712")
    Path("mine").mkdir()
    Path("rules.yaml").write_text("")
    theirs = ["data.type=jsonl", "data.train=mine/a.jsonl", "model.path=mine", "rewards.rules.file=rules.yaml"]
    assert submit([*SLURM, "experiment.run_dir=second", *theirs]) == 0
    there = load_config(["--config-dir", "second.job/conf", "experiment=launched", "pools=null"])
    assert there.data.train == str(Path.cwd() / "mine" / "a.jsonl"), "the copy need not have it"
    assert there.model.path == str(Path.cwd() / "mine")
    assert there.rewards.rules.file == str(Path.cwd() / "rules.yaml")
    assert sorted(p.name for p in Path("second.job/work").iterdir()) == ["notes.txt", "rules.yaml", "run.sh"], (
        "no job in a job"
    )


@pytest.mark.parametrize("experiment", ["smoke", "paper_hrm"])
def test_batch_script_is_valid_bash_with_valid_options(experiment: str, tools: Tools) -> None:
    tools.add("sbatch")
    tools.says("sbatch", "1")
    nccl = [] if experiment == "smoke" else ["launch.account=lab"]
    assert submit(["train", f"experiment={experiment}", "logging=off", "cluster=slurm", *nccl]) == 0
    script = job_folder(Path.cwd()) / "job.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    options = re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script.read_text(), re.MULTILINE)
    assert len(options) == script.read_text().count("#SBATCH") >= 8
    for key, value in options:
        assert re.fullmatch(SBATCH_OPTIONS[key], value), (key, value)


def test_followed_batch_job_returns_its_exit_code(tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    tools.add("sbatch", "scontrol")
    tools.says("sbatch", "7")
    tools.says("scontrol", "JobId=7 JobState=PENDING ExitCode=0:0", "JobId=7 JobState=RUNNING ExitCode=0:0 Foo=1",
               "JobId=7 JobState=FAILED ExitCode=2:0")  # fmt: skip
    folder = Path.cwd() / "a.job"
    code: list[int] = []

    def started(*args: Any) -> tuple[str, int]:
        (folder / "hamr-a-7.log").write_text("hamr: no such thing\n")
        return original(*args)

    original: Callable[..., tuple[str, int]] = batch_systems.Slurm._state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_systems.Slurm, "_state", started)
        code.append(submit([*SLURM, "experiment.run_dir=a", "--follow"]))
    assert code == [2]
    assert capsys.readouterr().out.count("hamr: no such thing") == 1
    tools.says("sbatch", "8")
    tools.says("scontrol", "JobId=8 JobState=NODE_FAIL ExitCode=0:0")
    with pytest.raises(HamrError, match="job 8 node_fail; its output is in"):
        submit([*SLURM, "experiment.run_dir=b", "--follow"])


# --- other commands ----------------------------------------------------------------------------


def job_command(tools: Tools, kind: str) -> list[str]:
    if kind == "slurm":
        script = (job_folder(Path.cwd()) / "job.sbatch").read_text()
        line = re.findall(r"^  python3 -m hamr (.*) &$", script, re.MULTILINE)[0]
    else:
        line = yaml.safe_load((tools.folder / "applied-rayjob.yaml").read_text())["spec"]["entrypoint"]
        line = line.removeprefix("hamr ")
    return shlex.split(line)


WHERE = {"slurm": ["cluster=slurm"], "kuberay": ["cluster=kuberay", "launch.claim=shared"]}


@pytest.mark.parametrize("kind", ["slurm", "kuberay"])
def test_command_runs_as_given_on_nodes_for_its_pools(kind: str, tools: Tools) -> None:
    tools.add("kubectl", "sbatch")
    tools.says("sbatch", "1")
    given = ["evaluate", "benchmark=olabench", "labels=/mnt/hamr/a.jsonl", "judge=judge", "output=/mnt/hamr/o"]
    needs = ["pools.judge.engine.num_cpus=40", "pools.judge.replicas=3", "trainer.num_cpus=90"]
    assert submit([*given, *needs, *WHERE[kind]]) == 0
    words = job_command(tools, kind)
    assert set(words) >= {*given, *needs, "cluster.address=auto"}
    assert not any(word.startswith("cluster=") for word in words)
    text = "".join(path.read_text() for path in job_folder(Path.cwd()).iterdir() if path.suffix in (".sbatch", ".yaml"))
    nodes = re.search(r"#SBATCH --nodes=(\d+)|minReplicas: (\d+)", text)
    assert nodes is not None and next(filter(None, nodes.groups())) == "2", "three judges of 40 CPUs, no trainer"


@pytest.mark.parametrize(
    ("kind", "says"), [("slurm", "1, not the 3 of the pools' largest size, as described"), ("kuberay", "1 to 3 as")]
)
def test_nodes_for_autoscaling_are_added_by_kuberay_only(
    kind: str, says: str, tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.add("kubectl", "sbatch")
    tools.says("sbatch", "1")
    growing = ["pools.judge.autoscaling={min_replicas: 1, max_replicas: 3}", "pools.judge.engine.num_cpus=60"]
    assert submit(["train", "experiment=smoke", *growing, *WHERE[kind]]) == 0
    assert f"nodes:     {says}" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["slurm", "kuberay"])
def test_score_runs_with_the_resolved_configuration(kind: str, tools: Tools) -> None:
    tools.add("kubectl", "sbatch")
    tools.says("sbatch", "1")
    given = ["score", "input=/mnt/hamr/a.jsonl", "output=/mnt/hamr/o"]
    assert submit([*given, "experiment=smoke", *WHERE[kind]]) == 0
    words = job_command(tools, kind)
    assert words[:3] == given and words[-2:] == ["experiment=launched", "pools=null"]


@pytest.mark.parametrize("kind", ["slurm", "kuberay"])
def test_pipeline_gets_nodes_for_its_largest_stage(
    kind: str, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.add("kubectl", "sbatch")
    tools.says("sbatch", "1")
    monkeypatch.setattr("hamr.apps.submit.batch.CLAIM", str(tmp_path))
    file = tmp_path / "small.yaml"
    file.write_text(
        "name: small\nstages:\n"
        "  - {name: made, job: data sage, args: [data.sage.train=8]}\n"
        "  - {name: rl, job: train, args: [experiment=smoke, 'data=@made.folder',"
        " pools.judge.replicas=3, pools.judge.engine.num_cpus=60]}\n"
    )
    assert submit(["train", f"pipeline={file}", *WHERE[kind]]) == 0
    words = job_command(tools, kind)
    assert words[:2] == ["train", f"pipeline={file}"] and "cluster.address=auto" in words
    [folder] = [word.partition("=")[2] for word in words if word.startswith("experiment.run_dir=")]
    assert Path(folder).is_absolute() and Path(folder).name.startswith("small-")
    assert "nodes:     3 as described by launch" in capsys.readouterr().out


# --- both --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("args", "tool"), [(KUBERAY, "kubectl"), (SLURM, "sbatch")])
def test_missing_tool_is_reported_with_files_and_command(args: list[str], tool: str, tools: Tools) -> None:
    with pytest.raises(BadInput, match=f"{tool} is not installed, so nothing was submitted") as refused:
        submit(args)
    folder = job_folder(Path.cwd())
    assert str(folder) in str(refused.value) and "\n" not in str(refused.value)
    line = str(refused.value).rpartition("installed, run: ")[2]
    tools.add(tool)
    subprocess.run(["bash", "-c", line], check=True, env={"PATH": os.environ["PATH"]})
    assert len(tools.called()) == 1


@pytest.mark.parametrize(("args", "tool"), [(KUBERAY, "kubectl"), (SLURM, "sbatch")])
def test_dry_run_submits_nothing(args: list[str], tool: str, tools: Tools, capsys: pytest.CaptureFixture[str]) -> None:
    tools.add(tool)
    assert submit([*args, "--dry-run"]) == 0
    assert tools.called() == []
    assert (
        f"nothing was submitted; to submit it: {'kubectl apply' if tool == 'kubectl' else 'cd '}"
        in capsys.readouterr().out
    )
    assert job_folder(Path.cwd()).is_dir()


@pytest.mark.parametrize(("args", "tool"), [(KUBERAY, "kubectl"), (SLURM, "sbatch")])
def test_files_are_kept_after_a_failed_submission(args: list[str], tool: str, tools: Tools) -> None:
    tools.add(tool)
    (tools.folder / f"{tool}.fails").write_text("error: You must be logged in\nmore\n")
    with pytest.raises(
        HamrError, match=r"error: You must be logged in; nothing was submitted, the files are in"
    ) as failed:
        submit(args)
    assert failed.value.exit_code == 1
    assert job_folder(Path.cwd()).is_dir()


@pytest.mark.parametrize("args", [KUBERAY, SLURM])
def test_no_file_holds_a_secret(args: list[str], tools: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    tools.add("kubectl", "sbatch")
    tools.says("sbatch", "1")
    for name in ("WANDB_API_KEY", "JUDGE_KEY", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "canary4f1d9ce2".ljust(40, "0"))
    judge = {"type": "openai", "endpoint": "http://127.0.0.1:9/v1", "model": "m", "api_key_env": "JUDGE_KEY"}
    online = ["logging=online", "launch.secret=keys", *(f"pools.judge.{key}={value}" for key, value in judge.items())]
    assert submit([*args, *online]) == 0
    files = [path for path in [*Path.cwd().rglob("*"), *tools.folder.iterdir()] if path.is_file()]
    assert len(files) > 4
    assert [path.name for path in files if b"canary" in path.read_bytes()] == []


@pytest.mark.parametrize("kind", ["kuberay", "slurm"])
def test_submitted_job_resumes_from_its_run_folder(
    kind: str, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools.add("kubectl", "sbatch")
    tools.says("sbatch", "1")
    monkeypatch.setattr("hamr.apps.submit.batch.CLAIM", str(tmp_path))  # replaces a claim that is mounted here
    run = tmp_path / "runs" / "it's"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(load_config(["experiment=smoke"])))
    Ledger(run / "ledger.sqlite").close()
    assert submit(["train", f"resume={run}", f"cluster={kind}", "launch.claim=c", "launch.time_limit_h=2"]) == 0
    if kind == "slurm":
        script = (run.parent / "it's.job" / "job.sbatch").read_text()
        assert "#SBATCH --time=2:00:00" in script
        command = re.findall(r"^  (python3 -m hamr .*) &$", script, re.MULTILINE)[0]
    else:
        entrypoint = yaml.safe_load((tools.folder / "applied-rayjob.yaml").read_text())["spec"]["entrypoint"]
        command = shlex.join(read_entrypoint(entrypoint))
    words = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True
    ).stdout
    assert words.splitlines()[-2:] == ["train", f"resume={run}"]
    with pytest.raises(BadInput, match="the job's command does not carry it"):
        submit(["train", f"resume={run}", f"cluster={kind}", "launch.claim=c", "trainer.ranks=2", "rollout.workers=2"])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([*KUBERAY[:-1]], "launch.claim: None: the run folder would be lost with the pods"),
        ([*KUBERAY, "logging=online"], "launch.secret: None: the pods need WANDB_API_KEY"),
        ([*KUBERAY, "data.type=jsonl", "data.train=a.jsonl"], "data.train: 'a.jsonl': pods do not see this folder"),
        (
            [*KUBERAY, "data.type=jsonl", "data.train=/mnt/hamr/a.jsonl", "data.sft=b.jsonl"],
            "data.sft: 'b.jsonl': pods do not see this folder",
        ),
        ([*KUBERAY, "pools.judge.model=../", "model.path=/m"], "pools.judge.model: '../': pods do not see this folder"),
        ([*KUBERAY, "experiment.run_dir=/home/me/run"], "pods keep only files below /mnt/hamr"),
        ([*KUBERAY, "launch.cpus_per_node=1", "trainer.num_cpus=2"], "one needs 0 GPUs and 2 CPUs, and a node has 8"),
        ([*KUBERAY, "pools.judge.engine.node_labels.zone=a"], "no node has these labels"),
        (["score", "input=/a", "output=/o", *KUBERAY[2:]], "input: '/a': pods see only files on the claim"),
        (["data", "sage", "output=o", "cluster=slurm"], "output: 'o': the job works in a copy of this folder"),
        (
            ["data", "sage", "output=/mnt/hamr/o", "--config-dir", ".", *KUBERAY[2:]],
            "pods see only folders on the claim",
        ),
        ([*SLURM, "logging=online"], "environment: ['WANDB_API_KEY']: the job needs these variables"),
        ([*SLURM, "cluster.max_package_mb=1e-6"], "cluster.max_package_mb"),
        (["train", "experiment=smoke", "--dry-run"], "--dry-run: 'local': a local job is not submitted"),
    ],
)
def test_bad_input_is_reported_in_one_line_without_files(
    args: list[str], says: str, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    tools.add("kubectl", "sbatch")
    with pytest.raises(BadInput, match=re.escape(says)) as refused:
        submit(args)
    assert "\n" not in str(refused.value)
    assert tools.called() == []
    assert not Path("runs").exists()


def test_data_of_this_machine_are_refused_for_pods(tools: Tools) -> None:
    tools.add("kubectl")
    Path("train.jsonl").touch()
    for place in ("train.jsonl", "../" + Path.cwd().name):
        with pytest.raises(BadInput, match=re.escape(f"data: {place!r}: is on this machine; copy it to the claim")):
            submit([*KUBERAY, f"data={place}"])


def test_truncated_long_names_stay_distinct() -> None:
    names = set()
    for end in ("a", "b"):
        request = SubmitRequest.read([*KUBERAY, f"experiment.run_dir=runs/{'x' * 60}{end}"])
        names.add(name_of(resolve_for_pods(request)[0]))
    assert len(names) == 2
    assert all(len(name) <= 47 for name in names), "KubeRay's limit for a RayJob"


def test_node_count_respects_replicas_per_node() -> None:
    config = load_config(["experiment=smoke", "pools.judge.replicas=3", "pools.judge.max_replicas_per_node=1"])
    assert nodes(config).least == 3
