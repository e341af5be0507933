"""Files that start a cluster: they follow from the job and are valid for their readers."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import socket
import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest
import yaml

from hamr import cli
from hamr.apps.submit.launch_files import KINDS, entrypoint_of, render
from hamr.apps.submit.launch_job import CONFIG_FILE, count_nodes, nodes
from hamr.cluster.resource_requests import demands
from hamr.config.load import load_config
from hamr.config.schema import Config
from hamr.errors import BadInput, CapacityError
from tests.requirements import find_tool


def _schemas() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kuberay_schema", Path(__file__).with_name("kuberay.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paper(*more: str) -> Config:
    return load_config(["experiment=paper_hrm", *more])


def manifests(config: Config) -> dict[str, Any]:
    return {name: yaml.safe_load(text) for name, text in render(config, "kuberay").items()}


# --- nodes -------------------------------------------------------------------------------------


def test_node_count_fits_every_actor() -> None:
    # 4 rerankers x 1, 1 judge x 4, 8 workers, 8 ranks: 24 GPUs; at their maxima 8 + 16 + 8 + 8 = 40.
    assert sum(d.count * d.gpus for d in demands(paper())) == 24
    assert nodes(paper()).least == 3
    assert nodes(paper()).most == 5


def test_actor_is_not_split_across_nodes() -> None:
    # Four judges of 3 GPUs and three actors of one: 15 GPUs would be in three nodes of 5, but each judge needs its own.
    judge = {"autoscaling": "null", "replicas": 4, "engine.num_gpus": 3, "engine.tensor_parallel_size": 3}
    judges = [f"pools.judge.{key}={value}" for key, value in judge.items()]
    others = ["pools.reranker.autoscaling=null", "pools.reranker.replicas=1", "rollout.workers=1", "trainer.ranks=1"]
    assert count_nodes(paper(*judges, *others, "launch.gpus_per_node=5")) == 4
    with pytest.raises(CapacityError, match=r"pools.judge.*one needs 4 GPUs .* a node has 3"):
        count_nodes(paper("launch.gpus_per_node=3"))


# --- KubeRay -----------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", ["paper_hrm", "quickstart", "smoke"])
@pytest.mark.parametrize("more", [[], ["launch.secret=keys", "launch.claim=shared"]], ids=["plain", "with volumes"])
def test_manifests_are_valid(experiment: str, more: list[str]) -> None:
    made = manifests(load_config([f"experiment={experiment}", *more]))
    assert set(made) == {"configmap.yaml", "rayjob.yaml", "raycluster.yaml"}
    texts = made.pop("configmap.yaml")
    assert (texts["apiVersion"], texts["kind"]) == ("v1", "ConfigMap")
    assert all(isinstance(text, str) for text in texts["data"].values())
    for manifest in made.values():
        assert manifest["apiVersion"] == "ray.io/v1"
        jsonschema.Draft202012Validator(_schemas().schema(manifest["kind"])).validate(manifest)


@pytest.mark.parametrize(
    ("file", "keys", "value"),
    [
        ("rayjob", ["spec", "shutdownAfterJobFinish"], True),
        ("rayjob", ["spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "volume"], []),
        ("raycluster", ["spec", "workerGroupSpecs"], [{"groupName": "workers"}]),
        ("raycluster", ["spec", "authOptions", "mode"], "password"),
        ("raycluster", ["metadata", "name"], "x" * 48),
    ],
)
def test_schema_rejects_what_the_operator_does_not_know(file: str, keys: list[str], value: object) -> None:
    made = manifests(paper())[f"{file}.yaml"]
    section = made
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, _schemas().schema(made["kind"]))


def test_cluster_requires_a_token_and_shuts_down_after_the_job() -> None:
    made = manifests(paper())
    for spec in (made["rayjob.yaml"]["spec"]["rayClusterSpec"], made["raycluster.yaml"]["spec"]):
        assert spec["authOptions"] == {"mode": "token"}
        assert tuple(map(int, spec["rayVersion"].split(".")[:2])) >= (2, 52)
    assert made["rayjob.yaml"]["spec"]["shutdownAfterJobFinishes"] is True


def test_resources_match_the_job_and_its_nodes() -> None:
    spec = manifests(paper("launch.cpus_per_node=64"))["raycluster.yaml"]["spec"]
    (group,) = spec["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"]) == (3, 5)
    assert spec["enableInTreeAutoscaling"] is True
    assert yaml.safe_load(manifests(paper())["configmap.yaml"]["data"]["launched.yaml"])["cluster"]["elastic"] is True
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert container["resources"]["requests"]["cpu"] == "64"
    small = manifests(load_config(["experiment=smoke"]))["raycluster.yaml"]["spec"]
    assert "nvidia.com/gpu" not in str(small)
    assert "enableInTreeAutoscaling" not in small
    text = manifests(load_config(["experiment=smoke"]))["configmap.yaml"]["data"]["launched.yaml"]
    assert yaml.safe_load(text)["cluster"]["elastic"] is False


# --- the job that runs there -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=paper_hrm", "experiment.seed=5"],
        ["experiment=smoke", "trainer=lora", "algorithm=grpo"],
        ["experiment=quickstart", "pools=null", "pools.one={role: reranker, prompt: reranker.en}",
         "rewards.consistency.mode=reranker", "rewards.consistency.reranker=one"],
    ],
)  # fmt: skip
def test_launched_configuration_equals_the_resolved_one(kind: Any, overrides: list[str], tmp_path: Path) -> None:
    config = load_config(overrides)
    files = render(config, kind)
    text = files[CONFIG_FILE] if kind != "kuberay" else yaml.safe_load(files["configmap.yaml"])["data"]["launched.yaml"]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "launched.yaml").write_text(text)
    there = load_config(["--config-dir", str(tmp_path), "experiment=launched", "pools=null"])
    assert there.cluster.address == "auto"
    assert there.experiment.run_dir
    same = {"cluster": config.cluster, "experiment": config.experiment}
    assert there.model_copy(update=same) == config


def test_job_command_reads_the_launched_configuration() -> None:
    job = manifests(paper())["rayjob.yaml"]["spec"]
    assert job["entrypoint"] == "hamr train --config-dir /etc/hamr experiment=launched pools=null"
    (group,) = job["rayClusterSpec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    config = next(v for v in pod["volumes"] if v["name"] == "config")["configMap"]
    assert config["items"] == [{"key": "launched.yaml", "path": "experiment/launched.yaml"}]
    assert config["name"] == manifests(paper())["configmap.yaml"]["metadata"]["name"]


def test_retried_job_has_a_name_of_its_own() -> None:
    """By which the run knows its own earlier start."""
    jobs = [
        manifests(paper("launch.claim=shared", "experiment.max_restarts=2"))["rayjob.yaml"]["spec"] for _ in range(2)
    ]
    assert [job["backoffLimit"] for job in jobs] == [2, 2]
    names = {re.match(r"env HAMR_JOB=([0-9a-f]{16}) hamr train --config-dir ", job["entrypoint"])[1] for job in jobs}  # type: ignore[index]
    assert len(names) == 2
    assert manifests(paper("experiment.max_restarts=2"))["rayjob.yaml"]["spec"]["backoffLimit"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ["hamr", "train", "experiment=launched"],
        ["hamr", "train", "data=/mnt/my data", "x=[a,b]", "y={a: 1}"],
        ["hamr", "x=a;b", "y=$HOME", "z=it's", 'q="two words" and $HOME `ls`', "p=a&b|c>(d)", "star=*"],
    ],
)
def test_entrypoint_arrives_word_by_word(words: list[str]) -> None:
    """KubeRay puts it into the command line of its submitter, and Ray's job driver runs what that passes on."""
    assert read_entrypoint(entrypoint_of(words)) == words


def test_line_break_in_an_entrypoint_is_refused() -> None:
    with pytest.raises(BadInput, match="has a line break"):
        entrypoint_of(["hamr", "train", "note=a\ntouch"])


def read_entrypoint(entrypoint: str) -> list[str]:
    """Return the words that the job driver runs, after the submitter's shell, `ray job submit` and its own shell."""
    submitter = f"if ! false >/dev/null 2>&1 ; then printf '%s\\0' -- {entrypoint} ; fi ;"
    passed = subprocess.run(["/bin/bash", "-c", submitter], check=True, capture_output=True, text=True).stdout
    driver = f"printf '%s\\0' {subprocess.list2cmdline(passed.split(chr(0))[1:-1])}"
    found = subprocess.run(["/bin/sh", "-c", driver], check=True, capture_output=True, text=True).stdout
    return found.split(chr(0))[:-1]


# --- scripts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "scripts"), [("slurm", ["job.sbatch"]), ("ray", ["head.sh", "worker.sh", "train.sh"])]
)
def test_scripts_are_valid_bash_without_tokens(kind: Any, scripts: list[str], tmp_path: Path) -> None:
    files = render(paper("launch.partition=gpu"), kind)
    assert set(files) == {*scripts, CONFIG_FILE}
    for name in scripts:
        (tmp_path / name).write_text(files[name])
        subprocess.run(["bash", "-n", str(tmp_path / name)], check=True)
        assert "RAY_AUTH_MODE=token" in files[name]
        # A command line can be read by everyone on the machine.
        assert not re.search(r"(ray start|hamr train|srun)[^\n]*TOKEN", files[name])


@pytest.mark.parametrize("kind", ["slurm", "ray"])
def test_shellcheck_finds_nothing(kind: Any, tmp_path: Path) -> None:
    shellcheck, files = find_tool("shellcheck"), render(paper("launch.partition=gpu"), kind)
    scripts = [name for name in files if name != CONFIG_FILE]
    for name in scripts:
        (tmp_path / name).write_text(files[name])
    done = subprocess.run([shellcheck, *scripts], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_slurm_job_requests_its_nodes() -> None:
    script = render(paper("launch.partition=gpu", "launch.time_limit_h=1.5"), "slurm")["job.sbatch"]
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", script, re.MULTILINE))
    assert (options["nodes"], options["gpus-per-node"], options["partition"]) == ("3", "8", "gpu")
    assert options["time"] == "1:30:00"
    assert "account" not in options


def test_slurm_job_forwards_sigterm_and_returns_the_exit_code(tmp_path: Path) -> None:
    script = render(paper(), "slurm")["job.sbatch"]
    end = script[script.index("run=$!") :]
    # In srun's place what answers TERM a moment later with a code of its own.
    run, ready = tmp_path / "end.sh", tmp_path / "ready"
    stand_in = f"(trap 'sleep 0.5; exit 7' TERM; touch {ready}; while :; do sleep 0.1; done) &"
    run.write_text(f"set -euo pipefail\n{stand_in}\n{end}")
    process = subprocess.Popen(["bash", "-x", str(run)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("+ wait "):
        pass
    while not ready.exists():
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 7


STAND_INS = {
    "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@"',
    "scontrol": "printf 'one\\ntwo\\n'",
    "hostname": "echo 127.0.0.1",
    "ray": 'echo "$PWD|ray $*|$RAY_AUTH_TOKEN" >> "$LOG"',
    "python3": """case $1 in
-c) echo of-this-job ;;
-) cat > /dev/null; echo "wait for $3 nodes at $2" >> "$LOG" ;;
-m) echo "$PWD|$RAY_ADDRESS|$SRUN_CPUS_PER_TASK|$*" >> "$LOG"; exit 3 ;;
esac""",
}


def test_slurm_job_starts_ray_and_runs_in_its_folder_copy(tmp_path: Path) -> None:
    """Stand-ins for Slurm, Ray and Python record their arguments."""
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "work").mkdir()
    (tmp_path / "job.sbatch").write_text(render(paper("launch.cpus_per_node=8"), "slurm")["job.sbatch"])
    held = None
    for port in range(20000, 40000):  # one that the script will choose
        with contextlib.suppress(OSError):
            held = socket.create_server(("127.0.0.1", port))
            break
    assert held is not None
    job = {"SLURM_JOB_ID": str(port - 20000), "SLURM_JOB_NODELIST": "x", "SLURM_SUBMIT_DIR": str(tmp_path)}
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(tmp_path / "log"), "RAY_ADDRESS": "of-another", **job}
    with held:
        done = subprocess.run(["bash", "job.sbatch"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    resources, address = "--num-cpus=8 --num-gpus=8 --block|of-this-job", f"127.0.0.1:{port}"
    assert sorted((tmp_path / "log").read_text().splitlines()) == sorted(
        [
            f"{tmp_path}/work|ray start --head --node-ip-address=127.0.0.1 --port={port} --include-dashboard=false "
            f"{resources}",
            f"{tmp_path}/work|ray start --address={address} {resources}",
            f"wait for 2 nodes at {address}",
            f"{tmp_path}/work|{address}|8|-m hamr train --config-dir {tmp_path}/conf experiment=launched pools=null",
        ]
    )


def test_script_without_a_token_prints_the_remedy(tmp_path: Path) -> None:
    script = tmp_path / "head.sh"
    script.write_text(render(paper(), "ray")["head.sh"])
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(["bash", str(script), "10.0.0.1"], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "ray get-auth-token --generate" in done.stderr


def test_files_are_written_without_overwriting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plan", "experiment=smoke", "launch=ray", f"output={tmp_path / 'files'}"]
    assert cli.main(args) == 0
    assert (tmp_path / "files" / "head.sh").stat().st_mode & 0o100
    assert (tmp_path / "files" / CONFIG_FILE).is_file()
    assert cli.main(args) == 2
    assert "already contains head.sh, worker.sh, train.sh" in capsys.readouterr().err


def test_models_are_stored_on_the_shared_volume() -> None:
    """The head downloads them and has no actors; the other pods read them at the same path."""
    wanted = [{"name": "HF_HOME", "value": "/mnt/hamr/hf"}, {"name": "HAMR_CACHE", "value": "/mnt/hamr/cache"}]
    mine = containers(paper("launch.claim=shared"))
    assert [c["env"] for c in mine] == [wanted] * len(mine) and len(mine) >= 2
    assert all("env" not in c for c in containers(paper())), "without a claim there is no such place"


def containers(config: Config) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            found.extend(value.get("containers", []))
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(manifests(config))
    return found
