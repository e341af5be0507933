"""Commands of the tutorials that score with a judge or with rules, run as written except for the judge's address.
They join the session's Ray, since starting one takes seconds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs_pages import DOCS, TUTORIALS, documented, run_python, save_files
from tests.e2e.runs import hamr
from tests.integration.endpoints import ScorerEndpoint, scorer_endpoint

REWARD = TUTORIALS[1]
ADDRESS = "http://127.0.0.1:8001/v1"
HOOKS = "reference/hooks.md"


@pytest.fixture
def judge() -> Iterator[ScorerEndpoint]:
    with scorer_endpoint() as server:
        yield server


def score(folder: Path, words: list[str]) -> list[dict]:
    """Run `hamr score` in the folder and return its records."""
    done = subprocess.run(hamr(*words), cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [output] = [word.removeprefix("output=") for word in words if word.startswith("output=")]
    return [json.loads(line) for line in (folder / output).read_text().splitlines()]


def outcomes(record: dict) -> dict[str, float]:
    return {component["name"]: component["outcome"].get("value") for component in record["components"]}


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("tutorials/2-reward.md", documented("tutorials/2-reward.md", "my_rewards")),
        pytest.param(HOOKS, documented("reference/hooks.md", "hamr score"), marks=pytest.mark.deep),
    ],
    ids=["reward", "hooks"],
)
def test_custom_reward_function_scores_as_documented(
    page: str, command: list[str], tmp_path: Path, joined: tuple[str, ...]
) -> None:
    save_files(REWARD, tmp_path)
    save_files(DOCS / page, tmp_path)
    records = score(tmp_path, [*command, *joined])
    assert [outcomes(record)["politeness"] for record in records] == [1.0, 0.0]
    if page == HOOKS:
        assert [outcomes(record)["novelty"] for record in records] == [1.0, 1.0]
        assert [outcomes(record)["brevity"] for record in records] == [0.0, 1.0]


@pytest.mark.deep
def test_custom_rules_and_weights_score_as_documented(
    tmp_path: Path, joined: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_files(REWARD, tmp_path)
    records = score(tmp_path, [*documented("tutorials/2-reward.md", "rules.yaml"), *joined])
    assert [outcomes(record)["rules"] for record in records] == [1.0, 0.0]
    monkeypatch.chdir(tmp_path)
    assert run_python(REWARD, 1)["record"]["total"] == records[-1]["total"]


@pytest.mark.deep
def test_custom_judge_prompt_scores_as_documented(
    tmp_path: Path, joined: tuple[str, ...], judge: ScorerEndpoint
) -> None:
    save_files(REWARD, tmp_path)
    judge.says = 'Warm. {"reason": "short", "score": 5}'
    command = documented("tutorials/2-reward.md", "tone.yaml", {ADDRESS: judge.url})
    assert [outcomes(record)["tone"] for record in score(tmp_path, [*command, *joined])] == [1.0, 1.0]


def test_judge_behind_an_endpoint_scores_as_documented(
    tmp_path: Path, joined: tuple[str, ...], judge: ScorerEndpoint
) -> None:
    save_files(REWARD, tmp_path)
    command = documented("tutorials/3-endpoint-judge.md", "hamr score input=", {ADDRESS: judge.url})
    records = score(tmp_path, [*command, *joined])
    assert all(0.5 < record["s_j"] <= 1.0 for record in records)
    assert all(call["pool"] == "judge" for record in records for call in record["calls"])
