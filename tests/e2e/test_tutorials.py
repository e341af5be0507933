"""Commands of the tutorials that train, or ask models: as written, with small sizes and a judge on this machine."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hamr.adapters.client import RewardClient
from hamr.models.bundled import resolve_model
from hamr.telemetry.ledger import Ledger
from tests.docs_pages import DOCS, ROOT, documented, run_python, save_files
from tests.e2e.own_data import SAMPLE, SMALL, samples, train, write_data
from tests.e2e.runs import hamr
from tests.integration.endpoints import ScorerEndpoint, scorer_endpoint
from tests.tool_models import run_of

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.timeout(900)]

ADDRESS = "http://127.0.0.1:8001/v1"
"""Endpoint of the pages."""
CALIBRATE = DOCS / "tutorials" / "4-calibrate.md"
FIT = ["folds=0", "resamples=0"]
FEW = ["pools.reranker.finetune.examples=16", "pools.judge.finetune.examples=16"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[ScorerEndpoint]:
    with scorer_endpoint() as server:
        yield server


@pytest.fixture
def judge(endpoint: ScorerEndpoint) -> ScorerEndpoint:
    endpoint.says = "Verdict: Yes"
    return endpoint


def run(folder: Path, words: list[str]) -> str:
    done = subprocess.run(hamr(*words), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(endpoint: ScorerEndpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the third tutorial, in `run`. It starts a Ray of its own, whose replicas have the judge's key."""
    folder = tmp_path_factory.mktemp("trained")
    command = documented("tutorials/3-endpoint-judge.md", "hamr train", {ADDRESS: endpoint.url})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUDGE_KEY", "secret-of-the-judge")
        train(command, folder, samples(1), "scorers.accept_chance=true")
    return folder


def test_run_asks_the_endpoint_with_its_key(trained: Path, judge: ScorerEndpoint) -> None:
    assert "Bearer secret-of-the-judge" in judge.asked_with
    with Ledger(trained / "run/ledger.sqlite", readonly=True) as ledger:
        assert any(call.pool == "judge" for record in ledger.rows() for call in record.calls)


def test_judge_is_graded_on_planted_faults(tmp_path: Path, judge: ScorerEndpoint, joined: tuple[str, ...]) -> None:
    run(tmp_path, documented("how-to/own-agent.md", "hamr data olabench"))
    command = documented("tutorials/3-endpoint-judge.md", "benchmark=olabench", {"=URL": f"={judge.url}"})
    none = {False: '{"reason": "", "types": [], "risk": "no"}', True: '{"reason": "", "judgment": "none"}'}
    judge.says = lambda asked: none["judgment" in asked]
    run(tmp_path, [*command, *joined])
    grading = json.loads((tmp_path / "graded/summary.json").read_text())["grading"]["bench/planted.jsonl"]
    assert 0 < grading["hallucination"]["accuracy"]["mean"] < 1, "it says that no response has a fault"


def test_judge_is_checked_for_wrong_replies_that_please_it(
    trained: Path, judge: ScorerEndpoint, joined: tuple[str, ...]
) -> None:
    command = documented("tutorials/3-endpoint-judge.md", "scorer check", {"FOLDER": "mine", "=URL": f"={judge.url}"})
    said = run(trained, [*command, "contexts=6", *joined])
    assert "judge: " in said


def test_finished_run_is_evaluated(trained: Path, judge: ScorerEndpoint, joined: tuple[str, ...]) -> None:
    run(trained, [*documented("tutorials/8-result.md", "benchmark=ecs", {ADDRESS: judge.url}), *joined])
    assert json.loads((trained / "ecs/metrics.json").read_text())["policies"]


def test_training_starts_from_the_policy_of_a_run(trained: Path, joined: tuple[str, ...]) -> None:
    command = documented("tutorials/8-result.md", "hamr train", {"FOLDER": "mine", "step_2": "step_1"})
    run(trained, [*command, *SMALL[1:], "experiment.run_dir=further", *joined])
    assert json.loads((trained / "further/summary.json").read_text())["stages"]["rl"]


def test_reward_of_own_data_is_served(tmp_path: Path, joined: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = documented("tutorials/8-result.md", "hamr serve", {"FOLDER": "mine", "8711": str(port)})
    write_data(tmp_path, samples(2, n=120))
    with subprocess.Popen(hamr(*command, *FEW, *joined), cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert any(str(port) in line for line in process.stdout)
        rewards = RewardClient(f"http://127.0.0.1:{port}").rewards([(SAMPLE, ["There is a fee of $40.", "No."])])
        process.terminate()
        process.communicate()
    assert process.returncode == 0
    assert all(isinstance(value, float) for value in rewards[0])


def test_pairs_are_scored_by_pools_and_teachers(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """The pools are untrained cross-encoders, whose scores differ from reply to reply."""
    pool = "{{role: {role}, type: cross_encoder, model: compact-encoder, dtype: float32, engine: {{num_cpus: 0.2}}}}"
    roles = {"reranker": "reranker", "judge": "judge", "teacher_a": "judge", "teacher_b": "judge"}
    (tmp_path / "conf/pools").mkdir(parents=True)
    (tmp_path / "conf/pools/mine.yaml").write_text(
        "".join(f"{name}: {pool.format(role=role)}\n" for name, role in roles.items())
    )
    texts = [f"That costs a fee of ${i}." for i in range(30)]
    labels = ("consistent", "partial", "inconsistent")
    rows = [{"content_A": texts[i], "content_B": texts[i * 7 % 30], "label": labels[i % 3]} for i in range(30)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(tmp_path, [*documented("tutorials/4-calibrate.md", "pairs=pairs.jsonl"), *FIT, *joined])
    assert (tmp_path / "calibration/rewards/calibrated.yaml").is_file()


def test_calibrated_cascade_trains(tmp_path: Path, joined: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_python(CALIBRATE)
    run(tmp_path, [*documented("tutorials/4-calibrate.md", "scores=triples.jsonl"), *FIT])
    sizes = ["data.sage.train=48", "data.sage.test=8", "data.sage.validation=8", "experiment.run_dir=run"]
    command = documented("tutorials/4-calibrate.md", "hamr train")
    run(tmp_path, [*command, *SMALL[1:], *FEW, "scorers.accept_chance=true", *sizes, *joined])
    fitted = json.loads((tmp_path / "calibration/calibration.json").read_text())["cascade"]
    with Ledger(tmp_path / "run/ledger.sqlite", readonly=True) as ledger:
        cascades = {record.cascade for record in ledger.rows() if record.cascade}
    assert cascades == {tuple(fitted.values())}


def test_recorded_items_become_a_cascade(tmp_path: Path, judge: ScorerEndpoint, joined: tuple[str, ...]) -> None:
    """Reranker and judge agree on the item that describes an error, and on every second response on the other one."""
    items = [{"title": "Fee", "description": "Names the fee.", "weight": 5}]
    items.append({"title": "Guess", "description": "Guesses.", "weight": -2})
    responses = [f"<think>Hm.</think><answer>It is ${i}.</answer>" for i in range(12)]
    row = {**SAMPLE, "privileged": {"rubric": items}, "responses": responses}
    (tmp_path / "responses.jsonl").write_text(json.dumps(row))

    def check(asked: str) -> str:
        if "checks" not in asked:
            return "Verdict: Yes"  # the reranker
        named = "met" if re.search(r"It is \$\d*[02468]\.", asked) else "unmet"
        return json.dumps({"reason": "", "checks": {"I1": named, "I2": "violated"}})

    judge.says = check
    there = ("type=openai", "model=m", f"endpoint={judge.url}")
    pools = [f"pools.{name}.{key}" for name in ("judge", "small") for key in there]
    others = [f"rewards.{name}.weight=0" for name in ("dialogue", "policy", "tool")]
    command = documented("tutorials/4-calibrate.md", "experiment=olamind_stage1")
    run(tmp_path, [*command, "model.path=tiny", *pools, *others, *joined])
    run(tmp_path, [*documented("tutorials/4-calibrate.md", "items=records.jsonl"), *FIT])
    assert (tmp_path / "items/rewards/calibrated.yaml").is_file()


def test_procedure_of_the_examples_trains(tmp_path: Path, joined: tuple[str, ...]) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    sizes = ["experiment.steps=1", "experiment.prompts_per_step=2", "experiment.sft.steps=2", "trainer.threads=1"]
    sizes += ["rollout.samples_per_prompt=2", "rollout.max_turns=3", "logging=offline", "experiment.run_dir=run"]
    sizes += ["data.sage.train=48", "data.sage.test=8", "data.sage.validation=8"]
    run(tmp_path, [*documented("tutorials/5-dialogues.md", "hotel_booking.yaml"), *sizes, *joined])
    with Ledger(tmp_path / "run/ledger.sqlite", readonly=True) as ledger:
        assert any(record.key.prompt.startswith("hotel_booking") for record in ledger.rows())


def test_environment_of_your_own_trains_on_your_samples(tmp_path: Path, joined: tuple[str, ...]) -> None:
    save_files(DOCS / "reference" / "hooks.md", tmp_path)
    command = documented("tutorials/5-dialogues.md", "my_environment.py")
    _, summary = train(command, tmp_path, samples(1), "experiment.eval_every=0", *joined)
    assert summary["stages"]["rl"]
    with Ledger(tmp_path / "run/ledger.sqlite", readonly=True) as ledger:
        assert any("Where is my parcel" in record.observation for record in ledger.rows() if record.episode is not None)


def test_pools_are_agent_customer_and_judges_of_sage(tmp_path: Path, joined: tuple[str, ...]) -> None:
    names = {"POOL": "talk", "A,B,C": "talk,talk,talk", "FOLDER": "sage"}
    command = documented("tutorials/6-sage.md", "agent=POOL", names)
    small = ["limit=1", "max_turns=1", "top_up=0", "resamples=10", "faulty_customers=kept", "pools=sage_small"]
    small += ["pools.talk.model=tiny", "pools.talk.max_context=4096"]
    run(tmp_path, [*command, *small, *joined])
    assert (tmp_path / "sage/report.html").is_file()


def test_policy_of_a_run_is_the_agent_of_sage(tmp_path: Path, joined: tuple[str, ...]) -> None:
    run_of(resolve_model("tiny"), tmp_path / "run")
    names = {"RUN": "run", "step_N": "step_1", "FOLDER": "sage"}
    command = documented("tutorials/6-sage.md", "agent=policy", names)
    run(tmp_path, [*command, "limit=1", "max_turns=2", "top_up=0", "pools.policy.max_context=4096", *joined])
    assert (tmp_path / "sage/report.html").is_file()
