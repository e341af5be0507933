"""Splitting a command for a cluster into job and settings, without a cluster."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path

import pytest

from hamr.apps.jobs import JOBS, load, names
from hamr.apps.pipeline.log import LOCK
from hamr.apps.pipeline.plan import plan_pipeline
from hamr.apps.pipeline.sweep import plan_sweep
from hamr.apps.score.command import ScoreCommand
from hamr.apps.shared.commands import ConfiguredCommand, parse, parse_command
from hamr.apps.shared.training_job import Job, how_to_resume
from hamr.apps.submit.launch_job import command as launch_command
from hamr.apps.submit.package import pack
from hamr.apps.submit.request import ONLY_HERE, RESOLVED, SubmitRequest, secret_variables
from hamr.apps.submit.run import FOLDER, command, locate_run, refuse_left_behind
from hamr.apps.train.command import TrainCommand
from hamr.cluster.nodes import refuse_unlike
from hamr.config.load import dump_config, load_config
from hamr.errors import BadInput, RunFolderError
from hamr.pools.function_pool import read_sources
from hamr.security.processes import identity
from hamr.telemetry.live import LiveStatus, RunState
from hamr.telemetry.run_folder import RunFolder

CLUSTER = ("cluster=ray", "cluster.dashboard=http://10.0.0.1:8265")
OPEN = "cluster.allow_unauthenticated=true"  # whatever token of Ray's this machine has


def submit(words: list[str]) -> int:
    return parse_command(["submit", *words]).run()


def job(words: list[str]) -> Job:
    return Job.of(parse(TrainCommand, words))


def test_cluster_settings_are_separated_from_the_job() -> None:
    request = SubmitRequest.read(
        [
            "score",
            "input=/a",
            "output=/o",
            "experiment=smoke",
            "--config-dir",
            ".",
            *CLUSTER,
            "trainer.ranks=2",
            "launch=none",
        ]
    )
    assert request.where == (*CLUSTER, "launch=none")
    assert isinstance(request.command, ScoreCommand)
    assert request.command.overrides == ("experiment=smoke", "--config-dir", ".", "trainer.ranks=2")


def test_job_runs_the_same_command_on_the_resolved_configuration(tmp_path: Path) -> None:
    request = SubmitRequest.read(
        ["train", "experiment=smoke", "experiment.steps=7", f"cluster.run_root={tmp_path}", *CLUSTER]
    )
    config, run = locate_run(request)
    assert run is not None and run.parent == tmp_path and run.name.startswith("smoke-")
    assert (config.experiment.run_dir, config.cluster.address, config.cluster.type) == (str(run), "auto", "local")
    assert command(request) == "python -m hamr train --config-dir .hamr-job experiment=submitted pools=null"
    folder = tmp_path / ".hamr-job" / "experiment"
    folder.mkdir(parents=True)
    (folder / "submitted.yaml").write_text(f"# @package _global_\n{dump_config(config)}")
    there = load_config(["--config-dir", str(folder.parent), "experiment=submitted", "pools=null"])
    assert there == config


def test_run_folder_must_be_on_shared_storage() -> None:
    with pytest.raises(BadInput, match=r"cluster\.run_root: None: name a folder"):
        locate_run(SubmitRequest.read(["train", "experiment=smoke", *CLUSTER]))
    _, run = locate_run(SubmitRequest.read(["train", "experiment=smoke", "cluster=ray"]))
    assert run is not None and run.parent == Path.cwd() / "runs", "a cluster on this machine sees this folder"


def test_resumed_run_keeps_its_configuration_on_another_cluster(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(load_config(["experiment=smoke", "experiment.steps=9"])))
    request = SubmitRequest.read(["train", f"resume={tmp_path}", *CLUSTER])
    config, run = locate_run(request)
    assert (config.experiment.steps, run) == (9, tmp_path)
    assert config.cluster.dashboard == "http://10.0.0.1:8265"
    assert command(request) == f"python -m hamr train resume={tmp_path}"
    with pytest.raises(BadInput, match="a resumed run keeps its configuration"):
        SubmitRequest.read(["train", f"resume={tmp_path}", "experiment.seed=2", *CLUSTER])
    more = SubmitRequest.read(["train", f"resume={tmp_path}", "trainer.ranks=2", *CLUSTER])
    assert more.config.trainer.ranks == 2
    assert command(more) == f"python -m hamr train resume={tmp_path} trainer.ranks=2"


@pytest.mark.parametrize("to", [CLUSTER, ("cluster=slurm",), ("cluster=kuberay", "launch.claim=c")], ids=str)
@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["train", "experimnt=smoke"], "experiment"),
        (["train", "trainr.ranks=2"], "trainer"),
        (["train", "foo"], "foo"),
        (["train", "--folow"], "--folow"),
        (["sft", "sftt.epochs=1"], "sft"),
        (["train", "pipeline=olamind_smal"], "olamind_small"),
        (["sft", "--multirun", "trainer.ranks=1"], "nothing has several values"),
        (["chat", "runs/a"], "submit: 'chat': name a job that can run on a cluster"),
    ],
    ids=str,
)
def test_invalid_configuration_is_not_submitted(args: list[str], says: str, to: tuple[str, ...]) -> None:
    with pytest.raises(BadInput, match=re.escape(says)) as refused:
        submit([*args, *to, "--dry-run"])
    assert "\n" not in str(refused.value)


def check_resume(folder: Path, host: str | None) -> None:
    """Check that the folder is resumed, or refused because it still runs on a host that matches the pattern."""
    words = ["train", f"resume={folder}", *CLUSTER]
    if host is None:
        assert SubmitRequest.read(words).resume == folder
        return
    with pytest.raises(RunFolderError, match=rf"resume: .* still runs \(process \d+ on {host}\); stop it first"):
        SubmitRequest.read(words)


@pytest.mark.parametrize(
    ("state", "age_s", "refused"), [("running", 0, True), ("running", 99, False), ("failed", 0, False)]
)
def test_a_run_that_still_runs_is_not_resumed(tmp_path: Path, state: RunState, age_s: float, refused: bool) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(load_config(["experiment=smoke"])))
    now = time.time()
    LiveStatus(run="r", state=state, phase="rl", started=now - 200, time=now - age_s, host="other").write(tmp_path)
    check_resume(tmp_path, "other" if refused else None)


def test_sft_job_has_a_remote_run_folder_and_resumes(tmp_path: Path) -> None:
    request = SubmitRequest.read(["sft", "experiment=smoke", f"cluster.run_root={tmp_path}", *CLUSTER])
    config, run = locate_run(request)
    assert run is not None and run.parent == tmp_path and config.experiment.run_dir == str(run)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    again = SubmitRequest.read(["sft", f"resume={tmp_path}", *CLUSTER])
    assert (command(again), locate_run(again)[1]) == (f"python -m hamr sft resume={tmp_path}", tmp_path)


@pytest.mark.parametrize(
    ("given", "runs"),
    [
        ("calibrate scores=/a.jsonl output=/o", "calibrate output=/o scores=/a.jsonl"),
        (
            "calibrate pairs=/a.jsonl output=/o experiment=smoke",
            "calibrate output=/o pairs=/a.jsonl experiment=smoke cluster.dashboard=http://10.0.0.1:8265 "
            "cluster.address=auto",
        ),
        (
            "evaluate benchmark=olabench data=/bench policy=judge output=/o pools=ecs",
            "evaluate benchmark=olabench output=/o data=/bench policy=judge pools=ecs "
            "cluster.dashboard=http://10.0.0.1:8265 cluster.address=auto",
        ),
        (
            "evaluate benchmark=ecs scores=soft input=/a.jsonl output=/o",
            "evaluate benchmark=ecs output=/o scores=soft input=/a.jsonl cluster.dashboard=http://10.0.0.1:8265 "
            "cluster.address=auto",
        ),
    ],
)
def test_job_without_configuration_is_submitted_as_typed(given: str, runs: str) -> None:
    request = SubmitRequest.read([*given.split(), *CLUSTER])
    assert command(request) == f"python -m hamr {runs}"
    assert locate_run(request)[0].cluster.dashboard == "http://10.0.0.1:8265"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A pipeline of two quick stages."""
    file = tmp_path / "small.yaml"
    file.write_text(
        "name: small\nstages:\n"
        "  - {name: made, job: data sage, args: [data.sage.train=8]}\n"
        "  - {name: rl, job: train, args: [experiment=smoke, 'data=@made.folder', trainer.ranks=2]}\n"
    )
    return file


def test_pipeline_is_submitted_with_its_folder(small: Path) -> None:
    request = SubmitRequest.read(["train", f"pipeline={small}", "cluster.run_root=/shared", *CLUSTER])
    assert {config.trainer.ranks for config in request.stages} == {1, 2}
    _, run = locate_run(request)
    assert run is not None and re.fullmatch(r"/shared/small-\d{8}-\d{6}", str(run))
    assert command(request, run) == (
        f"python -m hamr train pipeline={small} experiment.run_dir={run} cluster.run_root=/shared "
        "cluster.dashboard=http://10.0.0.1:8265 cluster.address=auto"
    )
    given = SubmitRequest.read(["train", f"pipeline={small}", "experiment.run_dir=/runs/mine", *CLUSTER])
    assert locate_run(given)[1] == Path("/runs/mine")
    with pytest.raises(BadInput, match=r"cluster\.run_root: None: name a folder"):
        locate_run(SubmitRequest.read(["train", f"pipeline={small}", *CLUSTER]))


def test_sweep_is_submitted_below_the_run_root() -> None:
    words = ["train", "--multirun", "experiment=smoke", "experiment.seed=1,2", "cluster.run_root=/shared", *CLUSTER]
    request = SubmitRequest.read(words)
    assert [config.experiment.seed for config in request.stages] == [1, 2]
    assert command(request, locate_run(request)[1]) == (
        "python -m hamr train --multirun experiment=smoke experiment.seed=1,2 cluster.dashboard=http://10.0.0.1:8265 "
        "cluster.run_root=/shared cluster.address=auto"
    )
    plan = plan_sweep(parse_command(shlex.split(command(request, locate_run(request)[1]))[3:]))
    assert plan.folder.parent == Path("/shared")


def test_pipeline_of_a_folder_is_resumed_with_the_needs_of_its_stages(small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plan_pipeline(parse_command(["train", f"pipeline={small}", f"experiment.run_dir={folder}"])).create()
    request = SubmitRequest.read(["train", f"resume={folder}", *CLUSTER])
    assert max(config.trainer.ranks for config in request.stages) == 2
    config, run = locate_run(request)
    assert (run, command(request, run)) == (folder, f"python -m hamr train resume={folder}")
    assert config.cluster.dashboard == "http://10.0.0.1:8265"


@pytest.mark.parametrize(
    ("owner", "stage_age_s", "refused"),
    [
        ({}, None, True),
        ({"pid": 2**22 + 1}, None, False),
        ({"host": "other"}, 0, True),
        ({"host": "other"}, 99, False),
        ({"pids": "pid:[1]"}, 99, False),
    ],
    ids=["here", "ended", "elsewhere", "lost machine", "lost container"],
)
def test_a_pipeline_that_still_runs_is_not_resumed(
    small: Path, tmp_path: Path, owner: dict[str, object], stage_age_s: float | None, refused: bool
) -> None:
    folder = tmp_path / "run"
    plan_pipeline(parse_command(["train", f"pipeline={small}", f"experiment.run_dir={folder}"])).create()
    (folder / LOCK).write_text(json.dumps(identity() | owner))
    if stage_age_s is not None:
        stage, now = folder / "stage", time.time()
        stage.mkdir()
        (stage / "config.yaml").touch()
        LiveStatus(run="r", state="running", phase="rl", started=now - 200, time=now - stage_age_s, host="other").write(
            stage
        )
    check_resume(folder, r"\S+" if refused else None)


@pytest.mark.parametrize("name", sorted({*names()} - {*RESOLVED, *ONLY_HERE, "calibrate", "evaluate"}))
def test_every_other_command_is_submitted_as_typed(name: str) -> None:
    example = next((e for path in JOBS if path.split()[0] == name and JOBS[path][0] for e in load(path).examples), name)
    given = shlex.split(example.removeprefix("hamr "))
    runs = shlex.split(command(SubmitRequest.read([*given, *CLUSTER])))[3:]
    joins = {CLUSTER[1], "cluster.address=auto"} & {*runs}
    assert sorted({*runs} - joins) == sorted(given)
    assert len(joins) == (2 if issubclass(type(parse_command(given)), ConfiguredCommand) else 0)


def test_numbers_of_replicas_are_no_files() -> None:
    request = SubmitRequest.read(["scale", "/runs/x", "judge=4", *CLUSTER])
    locate_run(request)
    assert command(request) == "python -m hamr scale /runs/x judge=4"


@pytest.mark.parametrize(
    "given",
    [
        "evaluate benchmark=olabench data=bench policy=judge output=/o",
        "evaluate benchmark=olabench labels=/people.jsonl,more.jsonl output=/o",
        "evaluate benchmark=olabench data=/bench policy=judge,runs/a output=/o",
        "evaluate benchmark=ecs run=runs/a output=/o",
        "evaluate benchmark=sage scenario=telecom_package,mine.yaml agent=judge simulator=judge judges=judge output=/o",
        "calibrate samples=a.jsonl output=/o",
        "calibrate scores=a.jsonl output=/o",
    ],
)
def test_file_arguments_must_be_absolute_paths(given: str) -> None:
    with pytest.raises(BadInput, match="give an absolute path"):
        locate_run(SubmitRequest.read([*given.split(), *CLUSTER]))


@pytest.mark.parametrize(
    ("given", "pools"),
    [
        ("evaluate benchmark=ecs input=/a.jsonl output=/o", 5),
        ("evaluate benchmark=ecs input=/a.jsonl output=/o judges=judge", 2),
        ("evaluate benchmark=ecs input=/a.jsonl output=/o experiment=smoke", 2),
        ("evaluate benchmark=olabench data=/bench policy=judge output=/o pools=ecs", 5),
        ("evaluate benchmark=sage scenario=all agent=judge output=/o rejudge=true", 2),
        ("calibrate pairs=/a.jsonl output=/o pools=ecs", 5),
        ("score input=/a.jsonl output=/o pools=ecs", 5),
        ("scorer pools=ecs cluster.run_root=/runs", 5),
        ("sft experiment=smoke cluster.run_root=/runs", 2),
    ],
)
def test_submitted_configuration_equals_the_checked_one(given: str, pools: int, tmp_path: Path) -> None:
    request = SubmitRequest.read([*given.split(), *CLUSTER])
    config, _ = locate_run(request)
    assert len(config.pools) == pools
    experiment = tmp_path / FOLDER / "experiment"
    experiment.mkdir(parents=True)
    (experiment / "submitted.yaml").write_text(f"# @package _global_\n{dump_config(config)}")
    sent = [str(tmp_path / FOLDER) if word == FOLDER else word for word in shlex.split(command(request))[3:]]
    read = parse_command(sent)
    assert isinstance(read, ConfiguredCommand)
    assert read.config().model_copy(update={"cluster": config.cluster}) == config


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("evaluate benchmark=ecs input=/a.jsonl outptu=/o", "did you mean output=...?"),
        ("evaluate benchmark=sgae", "did you mean 'sage'"),
        ("calibrate pairs=/a.jsonl outptu=/o", "did you mean output=...?"),
        ("calibrate scores=/a.jsonl output=/o trainer.ranks=2", "unknown option; usage: hamr calibrate scores=FILE"),
        ("scorer resume=/runs/a", "resume: unknown key"),
    ],
)
def test_unknown_job_settings_are_rejected_locally(given: str, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        SubmitRequest.read([*given.split(), *CLUSTER])


def test_data_outside_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {".gitignore": "data/\n", "data/train.jsonl": "{}", "kept/train.jsonl": "{}", "kept/my.py": ""}
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    package = pack(tmp_path, tmp_path.with_suffix(".zip"), {}, most_mb=1)
    for folder in ("kept", str(tmp_path / "data")):
        refuse_left_behind(load_config([f"data.train={folder}/train.jsonl", "data.type=jsonl"]), package)
    with pytest.raises(BadInput, match=r"data\.train: 'data/train\.jsonl': is not in the package"):
        refuse_left_behind(load_config(["data.train=data/train.jsonl", "data.type=jsonl"]), package)
    function = "rewards.custom.mine.path"
    for path in ("kept/my.py:f", "installed_module:f", "/elsewhere/my.py:f"):
        refuse_left_behind(load_config(["experiment=smoke", f"{function}={path}"]), package)
    with pytest.raises(BadInput, match=r"rewards\.custom\.mine\.path: 'data/my\.py': is not in the package"):
        refuse_left_behind(load_config(["experiment=smoke", f"{function}=data/my.py:f"]), package)
    with pytest.raises(BadInput, match=r"rewards\.judged\.tone\.prompt: 'data/tone\.yaml': is not in the package"):
        refuse_left_behind(load_config(["experiment=smoke", "rewards.judged.tone.prompt=data/tone.yaml"]), package)


def test_resumed_run_must_repeat_custom_function_paths(tmp_path: Path) -> None:
    path = "rewards.custom.mine.path=my.py:f"
    config = load_config(["experiment=smoke", path])
    (tmp_path / "config.yaml").write_text(dump_config(config))
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(BadInput, match=f"repeat it on the command line: {path}"):
        SubmitRequest.read(["train", f"resume={tmp_path}", *CLUSTER])
    request = SubmitRequest.read(["train", f"resume={tmp_path}", path, *CLUSTER])
    assert command(request) == f"python -m hamr train resume={tmp_path} {path}"
    assert launch_command(request.config, "conf", "/run") == f"hamr train resume=/run {path}"
    there = f"continue with: cd {Path.cwd()} && hamr train resume={tmp_path} {path}"
    assert how_to_resume(tmp_path, request.config) == there
    with pytest.raises(BadInput, match="repeat it"):
        read_sources(job([f"resume={tmp_path}"]).config.rewards)
    job([path, f"resume={tmp_path}"]).config.rewards.custom["mine"].refuse_recorded("mine")
    with pytest.raises(BadInput, match="the run has no such function"):
        job([f"resume={tmp_path}", "rewards.custom.other.path=my.py:f"])
    with pytest.raises(BadInput, match="a resumed run keeps its configuration"):
        job([f"resume={tmp_path}", path, "rewards.custom.mine.weight=2"])


def test_secret_in_a_command_argument_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789abcdef")
    given = ["evaluate", "benchmark=olabench", "policy=judge", "data=/b/sk-0123456789abcdef", "output=/o"]
    with pytest.raises(BadInput, match="argument: .* would be sent with the job"):
        submit([*given, *CLUSTER, OPEN])


def test_scorer_job_has_a_remote_run_folder(tmp_path: Path) -> None:
    config, run = locate_run(SubmitRequest.read(["scorer", f"cluster.run_root={tmp_path}", *CLUSTER]))
    assert run is not None and run.parent == tmp_path and config.experiment.run_dir == str(run)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["tarin"], "submit: 'tarin': name a job that can run on a cluster: train"),
        ([], "submit: None"),
        (["score", "input=a.jsonl", "output=/o", *CLUSTER], "input: 'a.jsonl': the job runs in another folder"),
        (
            ["train", "experiment=smoke", "cluster=ray", "cluster.dashboard=head:8265", "cluster.run_root=/tmp", OPEN],
            "is not the URL of a dashboard",
        ),
        (
            [
                "train",
                "experiment=smoke",
                "cluster=ray",
                "cluster.dashboard='http://[::1'",
                "cluster.run_root=/tmp",
                OPEN,
            ],
            "is not the URL of a dashboard",
        ),
        (["train", "experiment=smoke", "cluster=ray", "cluster.dashboard=http://127.0.0.1:9"], "connection failed"),
        (["train", "experiment=smoke", "cluster=ry"], "no such choice"),
    ],
)
def test_bad_input_is_reported_in_one_line(args: list[str], says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)) as refused:
        submit(args)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_command_on_a_local_cluster_runs_locally(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ScoreCommand] = []
    monkeypatch.setattr(ScoreCommand, "run", lambda self: seen.append(self) or 5)
    assert submit(["score", "input=a", "output=b", "experiment=smoke", "cluster.address=auto"]) == 5
    assert seen == [
        ScoreCommand(input=Path("a"), output=Path("b"), overrides=("experiment=smoke", "cluster.address=auto"))
    ]


def test_secrets_are_named_and_not_submitted() -> None:
    config = load_config(
        ["experiment=smoke", "logging=online", "pools.judge.type=openai", "pools.judge.endpoint=http://127.0.0.1:1/v1",
         "pools.judge.model=m", "pools.judge.api_key_env=JUDGE_KEY"]
    )  # fmt: skip
    assert secret_variables([config]) == ["JUDGE_KEY", "WANDB_API_KEY"]
    assert secret_variables([load_config(["experiment=smoke"])]) == []


def test_nodes_must_have_equal_versions() -> None:
    here = {"python": "3.11", "ray": "2.60.0", "hamr": "1.0"}
    refuse_unlike(here, {"a": here, "b": here})
    with pytest.raises(BadInput, match=r"node b: 'hamr 0\.9': the run itself has 1\.0; install the same"):
        refuse_unlike(here, {"a": here, "b": {**here, "hamr": "0.9"}})
    with pytest.raises(BadInput, match=r"node c: 'python 3\.12'"):
        refuse_unlike(here, {"c": {**here, "python": "3.12", "hamr": "0.9"}})
    with pytest.raises(BadInput, match=r"node d: 'No module named hamr': cannot report its versions"):
        refuse_unlike(here, {"d": "No module named hamr"})


def test_resumed_run_joins_the_current_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(load_config(["experiment=smoke"])))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert Job.from_folder(tmp_path).config.cluster.address is None, "where it began: a Ray of its own"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert Job.from_folder(tmp_path).config.cluster.address == "auto"


def test_resumed_run_may_continue_on_other_hardware(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", dump_config(load_config(["experiment=smoke"])))
    run.close()
    command = parse_command(["train", f"resume={run.path}", "trainer.ranks=2", "trainer.zero_stage=3"])
    job = Job.from_folder(run.path, command.overrides)  # type: ignore[attr-defined]
    assert (job.config.trainer.ranks, job.config.trainer.zero_stage) == (2, 3)
    assert Job.from_folder(run.path).config.trainer.ranks == 1, "nothing is written before the run begins"
    job.open().close()
    again = Job.from_folder(run.path).config
    assert again == job.config
