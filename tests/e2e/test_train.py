"""The whole job with the tiny model: one run that is observed, one that lost its cluster, their folders and ledgers."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from hamr.apps.score.command import replay_run
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import read_metrics
from hamr.trainer.checkpoints import Checkpoints
from hamr.types import Failure
from tests.e2e.observed import KEYS, Observed, observe
from tests.e2e.runs import COMPARED, hamr
from tests.integration.endpoints import judge_endpoint
from tests.integration.heads import ROOT, Head, environment, head

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


TOKEN = "a-token-for-this-test-alone-0123456789"


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """It is finished: read its folder, change nothing there."""
    return observe(tmp_path_factory.mktemp("observed"))


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was sent to a cluster, lost its head and all that ran there behind its second step, and went on to its
    end on a fresh cluster, sent there from a folder that is not the checkout."""
    cwd = tmp_path_factory.mktemp("lost")
    run = cwd / "out"
    env = environment(TOKEN)
    with judge_endpoint() as judge:
        judge.holds = (run / "checkpoints" / "step_2").is_dir  # so that it cannot end before its cluster does
        with head(env) as first:
            settings = COMPARED | judge.settings | {"experiment.run_dir": run}
            sent = _submit(first, cwd, env, **settings)
            assert sent.returncode == 0, sent.stdout + sent.stderr
            deadline = time.monotonic() + 300
            while not judge.holds():
                assert time.monotonic() < deadline, f"no second step: {sent.stdout}"
                time.sleep(0.1)
        judge.holds = lambda: False
        newest = Checkpoints(run / "checkpoints").newest()
        assert newest is not None and newest.step == 2
        with head(env) as second:
            done = _submit(second, cwd, env, "--follow", resume=run)
    assert done.returncode == 0, done.stdout + done.stderr
    return run


def _submit(
    cluster: Head, cwd: Path, env: dict[str, str], *flags: str, **settings: object
) -> subprocess.CompletedProcess[str]:
    where = {"cluster": "ray", "cluster.dashboard": cluster.dashboard}
    command = hamr("submit", "train", *flags, **settings | where)
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=500)


@pytest.fixture(params=["unbroken", "lost"])
def finished(request: pytest.FixtureRequest) -> Path:
    """A finished run: what holds for one that was never disturbed holds for the other."""
    if request.param == "lost":
        return request.getfixturevalue("lost")
    observed: Observed = request.getfixturevalue("observed")
    return observed.folder


def test_a_run_leaves_a_whole_folder(finished: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl", "ledger.sqlite", "summary.json", "report.html", "samples.jsonl"):
        assert (finished / name).stat().st_size > 0, name
    assert (finished / "checkpoints" / "step_4" / "policy" / "model.safetensors").is_file()
    assert list((finished / "plots").glob("*.png"))
    assert list((finished / "wandb").rglob("*.wandb"))
    summary = json.loads((finished / "summary.json").read_text())
    assert set(summary["stages"]) == {"base", "sft", "rl"}
    assert set(summary["scorers"]) == {"reranker"}, "an endpoint's model is not prepared here"


def test_every_step_is_measured(finished: Path) -> None:
    rows = [row for row in read_metrics(finished / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["rollout/logprob_diff/max"] < 1e-3, "trainer and engine disagree about the same tokens"
        assert row["timing/step/total"] >= row["timing/step/train"] >= 0


def test_every_response_has_one_record_and_replays_to_its_number(finished: Path) -> None:
    with Ledger(finished / "ledger.sqlite", readonly=True) as ledger:
        records = list(ledger.rows())
    assert len({record.key for record in records}) == len(records) > 0
    assert not any(isinstance(record.total, Failure) for record in records)
    assert replay_run(finished) == 0


def test_a_lost_run_goes_on_under_its_id_of_wandb(lost: Path) -> None:
    parts = [path.name.rpartition("-")[2] for path in (lost / "wandb").glob("offline-run-*")]
    assert parts == [(lost / "wandb" / "id").read_text().strip()] * 2, "one part from each cluster"


def test_a_lost_run_goes_on_where_it_stood(lost: Path, observed: Observed) -> None:
    """It ends with the prompts and the place in the stream of the unbroken one."""

    def draws(folder: Path) -> dict[int, set[tuple[str, int]]]:
        with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
            keys = [r.key for r in ledger.rows() if "/eval" not in r.key.run]
        return {step: {(k.prompt, k.sample) for k in keys if k.step == step} for step in range(1, 5)}

    assert draws(lost) == draws(observed.folder)
    assert all(len(drawn) == 16 for drawn in draws(lost).values())
    ours, theirs = (Checkpoints(folder / "checkpoints").newest() for folder in (lost, observed.folder))
    assert ours is not None and theirs is not None
    assert (ours.step, ours.state["stream"]) == (4, theirs.state["stream"])


def test_its_secrets_are_in_no_file(observed: Observed) -> None:
    assert observed.asked_with == {f"Bearer {KEYS['JUDGE_API_KEY']}"}, "the key was there, and was used"
    files = {path.name for path in observed.folder.rglob("*")}
    assert {"config.yaml", "ledger.sqlite", "metrics.jsonl", "samples.jsonl", "report.html", "summary.json"} <= files
    assert any(name.endswith(".wandb") for name in files)
    assert "group: of-[redacted]" in (observed.folder / "config.yaml").read_text()
    assert observed.logs > 5, "the logs of Ray's processes were searched"
    assert observed.holders == []


def test_prometheus_is_told_all_that_the_dashboard_shows(observed: Observed) -> None:
    dashboard = json.loads((ROOT / "launch" / "grafana.json").read_text())
    wanted = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {re.match(r"ray_\w+", expression)[0] for expression in wanted}
    assert len(names) > 20
    assert names - observed.scraped.keys() == set()
    for expression in wanted:
        name, labels = re.fullmatch(r"(\w+)\{(.*)\}", expression).groups()
        fixed = [label for label in re.findall(r'\w+="[^"]*"', labels) if "$" not in label]
        assert any(all(label in seen for label in fixed) for seen in observed.scraped[name]), expression
    assert any('run="run"' in seen and 'stage="rl"' in seen for seen in observed.scraped["ray_hamr_timing_step_total"])
