"""Jobs on clusters behind Ray's token, among them a run that loses its cluster and is resumed on another one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

import pytest

from hamr import __version__ as hamr_version
from hamr.apps.score.run import replay_run
from hamr.apps.shared.preparation import prepare
from hamr.config.load import dump_config, load_config
from hamr.data.stream import PromptStream
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import read_metrics
from hamr.trainer.checkpoints import Checkpoints
from hamr.types import Failure
from tests.docs_pages import documented
from tests.e2e.runs import hamr
from tests.integration.endpoints import scorer_endpoint
from tests.integration.heads import ROOT, Head, environment, head, holders
from tests.killing import kill_family

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DASHBOARD = "http://127.0.0.1:8265"
"""Address in the tutorial."""
SECRET = "canary7b3e"
"""Part of every secret, so that one search finds them all."""
KEYS = {
    "JUDGE_API_KEY": f"sk-{SECRET}-judge",
    "HF_TOKEN": f"hf_{SECRET}",
    "WANDB_API_KEY": SECRET.ljust(40, "0"),
    "DB_PASSWORD": f"pass-{SECRET}",
}
TOKEN = f"token-{SECRET}-0123456789abcdef0123456789"
COMPARED = {
    "experiment": "smoke",
    "experiment.steps": 4,
    "experiment.prompts_per_step": 4,
    "experiment.sft.steps": 1,
    "experiment.checkpoint.every": 1,
    "rollout.samples_per_prompt": 4,
    "algorithm.dynamic_sampling.enabled": False,
    "logging": "offline",
}
"""The run's settings. With a filter on groups the rewards would decide which prompts it draws."""


@pytest.fixture(scope="module")
def ray_head() -> Iterator[Head]:
    """Node whose environment has the judge's key and which accepts jobs."""
    with head(environment(TOKEN, **KEYS), dashboard=True) as started:
        yield started


@pytest.fixture
def cluster(ray_head: Head) -> str:
    return ray_head.dashboard


def run_hamr(*args: str, cwd: Path, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    env = environment(token, **KEYS)
    return subprocess.run(hamr(*args), cwd=cwd, env=env, capture_output=True, text=True, timeout=400)


def test_submitted_job_is_followed_and_returns_its_exit_code(cluster: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(load_config(["experiment=smoke"])))
    Ledger(run / "ledger.sqlite").close()
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("mine")
    (work / ".env").write_text("KEY=1")
    where = ("cluster=ray", f"cluster.dashboard={cluster}", "--follow")
    judge = {"type": "openai", "endpoint": "http://127.0.0.1:9/v1", "model": "m", "api_key_env": "JUDGE_API_KEY"}
    done = run_hamr(
        "submit", "score", f"input={run}", *(f"pools.judge.{k}={v}" for k, v in judge.items()), *where, cwd=work
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"access:    {cluster} requires a token\n" in done.stdout
    assert f"package:   of {work}\n  2 files" in done.stdout
    assert "excluded, because they look like keys: .env" in done.stdout
    assert f"dashboard: {cluster}/#/jobs/hamr-score-" in done.stdout
    assert "0 records replayed, 0 differ" in done.stdout, "the job's own words"
    failed = run_hamr("submit", "score", f"input={tmp_path}/absent.jsonl", *where, "output=/tmp/o.jsonl", cwd=work)
    assert failed.returncode == 2, "the job's own code"
    assert "absent.jsonl" in failed.stdout


@pytest.mark.parametrize(
    ("token", "changes", "says"),
    [
        (
            "another-token-that-is-wrong-0123456789",
            (),
            "rejects the token of this process; export RAY_AUTH",
        ),
        (TOKEN, ("pools.judge.replicas=500",), "pools.judge.replicas: 500: 500 x 0.25 CPU"),
        (TOKEN, ("pools.judge.engine.num_cpus=8",), "pools.judge.engine.num_cpus: 8.0: no node has that much CPU free"),
    ],
    ids=["token", "sum", "unit"],
)
def test_impossible_submission_is_reported_in_one_line(
    cluster: str, tmp_path: Path, token: str, changes: tuple[str, ...], says: str
) -> None:
    where = ("cluster=ray", f"cluster.dashboard={cluster}")
    refused = run_hamr("submit", "train", "experiment=smoke", *changes, *where, cwd=tmp_path, token=token)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert says in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_run_with_a_wrong_token_is_rejected_in_one_line(ray_head: Head, tmp_path: Path) -> None:
    refused = run_hamr(
        "train", "experiment=smoke", f"cluster.address={ray_head.address}", cwd=tmp_path, token=TOKEN[::-1]
    )
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "rejects the token of this process" in refused.stderr
    assert refused.stderr.count("\n") == 1, "Ray prints nothing in addition"
    assert not any(tmp_path.iterdir()), "nothing was begun"


def test_node_with_another_hamr_version_is_named(ray_head: Head, tmp_path: Path) -> None:
    """The head, the only node, has the installed version; the job has one that does not exist."""
    args = ["train", "experiment=smoke", f"cluster.address={ray_head.address}"]
    job = f"import hamr, sys; hamr.__version__ = '0.0.9'; from hamr.cli import main; sys.exit(main({args}))"
    command = [sys.executable, "-c", job]
    refused = subprocess.run(command, cwd=tmp_path, env=environment(TOKEN), capture_output=True, text=True, timeout=200)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert f": 'hamr {hamr_version}': the run itself has 0.0.9; install the same on every node" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.deep
def test_submitted_run_is_watched_and_resized_as_documented(ray_head: Head, tmp_path: Path) -> None:
    run = tmp_path / "run"
    given = {"RUN": str(run), DASHBOARD: ray_head.dashboard}
    with scorer_endpoint() as scorers:
        scorers.holds = (run / "checkpoints" / "step_1").is_dir  # so that the run is there to be resized
        settings = COMPARED | scorers.both | {"experiment.run_dir": run}
        submit = documented("tutorials/7-cluster.md", "experiment=smoke cluster=ray", given)
        command = hamr(*submit, **{key: value for key, value in settings.items() if key != "experiment"})
        job = subprocess.Popen(command, cwd=tmp_path, env=environment(TOKEN, **KEYS))
        deadline = time.monotonic() + 400
        while not scorers.holds():
            assert job.poll() is None and time.monotonic() < deadline
            time.sleep(0.5)
        resized = run_hamr(*documented("tutorials/7-cluster.md", "hamr scale", given), cwd=tmp_path)
        scorers.holds = lambda: False
        watched = run_hamr(*documented("tutorials/7-cluster.md", "hamr status", given), cwd=tmp_path)
        assert job.wait(400) == 0
    assert resized.returncode == 0, resized.stdout + resized.stderr
    assert watched.returncode == 0 and "finished" in watched.stdout
    reported = run_hamr(*documented("tutorials/7-cluster.md", "hamr report", given), cwd=tmp_path)
    assert reported.returncode == 0 and list((run / "plots").glob("*.png"))


# --- a run that loses its cluster -----------------------------------------------------------------


def dashboard_expressions() -> list[str]:
    """Return the expressions that the Grafana dashboard sends to Prometheus."""
    dashboard = json.loads((ROOT / "launch" / "grafana.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


WANTED = {re.match(r"ray_\w+", expression)[0] for expression in dashboard_expressions()}  # type: ignore[index]


@dataclass(kw_only=True)
class Observed:
    """The run's folder and what was seen from outside while it ran on its first cluster.

    Attributes:
        asked_with: the Authorization headers that its scorers received.
        scraped: metric name -> the labels of its samples, as Prometheus gets them.
        logs: number of log files of the first cluster.
        holders: files that contain a secret.
    """

    folder: Path
    asked_with: set[str | None]
    scraped: dict[str, set[str]] = field(default_factory=dict)
    logs: int = 0
    holders: list[str] = field(default_factory=list)

    def scrape(self, metrics: str) -> None:
        try:
            with urllib.request.urlopen(metrics, timeout=5) as answer:
                text = answer.read().decode()
        except (OSError, HTTPException):  # not up yet, or too busy to answer
            return
        for name, labels in re.findall(r"^(ray_hamr_\w+)\{(.*)\} \S+", text, re.MULTILINE):
            self.scraped.setdefault(name, set()).add(labels)


@pytest.fixture(scope="module")
def resumed(ray_head: Head, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """A run that lost its cluster and all that ran there after its second step, and was resumed to its end on another
    cluster, submitted there from a folder that is not the checkout."""
    cwd = tmp_path_factory.mktemp("resumed")
    run = cwd / "run"
    with scorer_endpoint() as scorers:
        found = Observed(folder=run, asked_with=scorers.asked_with)
        scorers.holds = (run / "checkpoints" / "step_2").is_dir  # so that it cannot end before its cluster does
        _lose_cluster(found, scorers.both, scorers.holds)
        scorers.holds = lambda: False
        newest = Checkpoints(run / "checkpoints").newest()
        assert newest is not None and newest.step == 2
        given = {"RUN": str(run), DASHBOARD: ray_head.dashboard}
        done = run_hamr(*documented("tutorials/7-cluster.md", "resume=RUN", given), "--follow", cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    found.holders += holders(cwd, SECRET)
    return found


def _lose_cluster(found: Observed, scorers: dict[str, str], is_held: Callable[[], bool]) -> None:
    """Run on a cluster of its own, with every kind of secret, until `is_held`; then kill the cluster and the run."""
    cwd = found.folder.parent
    env = environment(TOKEN, **KEYS, RAY_metrics_report_interval_ms="500")
    with head(env) as cluster, (cwd / "output").open("wb") as output:
        settings = COMPARED | scorers | {
            "experiment.run_dir": found.folder, "logging.sinks": "[prometheus]", "cluster.address": cluster.address,
            "logging.wandb.group": f"of-{KEYS['DB_PASSWORD']}", "pools.reranker.api_key_env": "JUDGE_API_KEY",
            "pools.judge.api_key_env": "JUDGE_API_KEY",
        }  # fmt: skip
        process = subprocess.Popen(hamr("train", **settings), cwd=cwd, env=env, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 400
        try:
            while not is_held() or WANTED - found.scraped.keys():
                assert process.poll() is None, (cwd / "output").read_text()[-4000:]
                if time.monotonic() > deadline:
                    break
                found.scrape(cluster.metrics)
                time.sleep(0.5)
        finally:
            cluster.kill()
            kill_family(process)
        found.logs = len(list(cluster.folder.rglob("*.log")))
        found.holders = holders(cluster.folder, SECRET)


@pytest.mark.deep
def test_resumed_run_has_a_complete_folder(resumed: Observed) -> None:
    run = resumed.folder
    for name in ("config.yaml", "metrics.jsonl", "ledger.sqlite", "summary.json", "report.html", "samples.jsonl"):
        assert (run / name).stat().st_size > 0, name
    assert (run / "checkpoints" / "step_4" / "policy" / "model.safetensors").is_file()
    assert list((run / "plots").glob("*.png"))
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["stages"]) == {"base", "sft", "rl"}
    assert summary["scorers"] == {}, "an endpoint's model is not prepared here"


@pytest.mark.deep
def test_resumed_run_records_every_step_once(resumed: Observed) -> None:
    rows = [row for row in read_metrics(resumed.folder / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["rollout/logprob_diff/max"] < 1e-3, "trainer and engine disagree about the same tokens"
        assert row["timing/step/total"] >= row["timing/step/train"] >= 0


@pytest.mark.deep
def test_resumed_run_has_one_replayable_record_per_response(resumed: Observed) -> None:
    with Ledger(resumed.folder / "ledger.sqlite", readonly=True) as ledger:
        records = list(ledger.rows())
    assert len({record.key for record in records}) == len(records) > 0
    assert not any(isinstance(record.total, Failure) for record in records)
    assert replay_run(resumed.folder) == 0


@pytest.mark.deep
def test_resumed_run_uses_the_prompts_of_an_uninterrupted_stream(resumed: Observed) -> None:
    config = load_config([f"{key}={value}" for key, value in COMPARED.items()])
    stream = PromptStream(prepare(config).splits.train, config.experiment.seed + 1)
    expected = {
        step: {(sample.id, i) for sample in stream.take(config.experiment.prompts_per_step) for i in range(4)}
        for step in range(1, config.experiment.steps + 1)
    }
    with Ledger(resumed.folder / "ledger.sqlite", readonly=True) as ledger:
        keys = [r.key for r in ledger.rows() if "/eval" not in r.key.run]
    assert {step: {(k.prompt, k.sample) for k in keys if k.step == step} for step in expected} == expected
    assert len({*keys}) == 4 * 16
    newest = Checkpoints(resumed.folder / "checkpoints").newest()
    assert newest is not None
    assert (newest.step, newest.state["stream"]) == (4, stream.state())


@pytest.mark.deep
def test_resumed_run_keeps_its_wandb_id(resumed: Observed) -> None:
    parts = [path.name.rpartition("-")[2] for path in (resumed.folder / "wandb").glob("offline-run-*")]
    assert parts == [(resumed.folder / "wandb" / "id").read_text().strip()] * 2, "one part from each cluster"


@pytest.mark.deep
def test_prometheus_has_every_metric_of_the_dashboard(resumed: Observed) -> None:
    assert len(WANTED) > 20
    assert WANTED - resumed.scraped.keys() == set()
    for expression in dashboard_expressions():
        name, labels = re.fullmatch(r"(\w+)\{(.*)\}", expression).groups()
        fixed = [label for label in re.findall(r'\w+="[^"]*"', labels) if "$" not in label]
        assert any(all(label in seen for label in fixed) for seen in resumed.scraped[name]), expression
    assert any('run="run"' in seen and 'stage="rl"' in seen for seen in resumed.scraped["ray_hamr_timing_step_total"])


@pytest.mark.deep
def test_no_file_contains_a_secret(resumed: Observed, ray_head: Head) -> None:
    """After all jobs above: searches the run folder, its output, both clusters' files and the job descriptions."""
    assert resumed.asked_with == {f"Bearer {KEYS['JUDGE_API_KEY']}"}, "the key was there, and was used"
    assert any(path.name.endswith(".wandb") for path in resumed.folder.rglob("*"))
    assert "group: of-[redacted]" in (resumed.folder / "config.yaml").read_text()
    assert resumed.logs > 5, "the logs of Ray's processes were searched"
    assert len(list(ray_head.folder.rglob("submitted.yaml"))) >= 1, "so were the packages of the jobs"
    assert resumed.holders + holders(ray_head.folder, SECRET) == []
    list_jobs = (
        "from ray.job_submission import JobSubmissionClient as C\n"
        f"jobs = C({ray_head.dashboard!r}).list_jobs()\n"
        "print(len(jobs), [(j.entrypoint, j.runtime_env, j.metadata) for j in jobs])"
    )
    done = subprocess.run(
        [sys.executable, "-c", list_jobs], env=environment(TOKEN), capture_output=True, text=True, timeout=100
    )
    assert "working_dir" in done.stdout and "hamr" in done.stdout, done.stderr
    assert SECRET not in done.stdout
