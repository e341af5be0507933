"""Commands of the tutorials that score with a judge or with rules, run as written except for the judge's address.
They join the session's Ray, since starting one takes seconds."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs_pages import DOCS, TUTORIALS, commands, run_python, save_files
from tests.e2e.runs import hamr
from tests.integration.endpoints import ScorerEndpoint, scorer_endpoint

REWARD, ENDPOINT = TUTORIALS[1:3]
HOOKS = DOCS / "reference" / "hooks.md"


@pytest.fixture
def judge() -> Iterator[ScorerEndpoint]:
    with scorer_endpoint() as server:
        yield server


def score(folder: Path, command: str, cluster: tuple[str, ...], judge: ScorerEndpoint | None = None) -> list[dict]:
    """Run `hamr score` in the folder, on a cluster that was started in another one, and return its records."""
    words = [*shlex.split(command)[1:], *cluster]
    if judge:
        words = [word.replace("127.0.0.1:8001", f"127.0.0.1:{judge.server_port}") for word in words]
    done = subprocess.run(hamr(*words), cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [output] = [word.removeprefix("output=") for word in words if word.startswith("output=")]
    return [json.loads(line) for line in (folder / output).read_text().splitlines()]


def outcomes(record: dict) -> dict[str, float]:
    return {component["name"]: component["outcome"].get("value") for component in record["components"]}


@pytest.mark.parametrize("page", [REWARD, pytest.param(HOOKS, marks=pytest.mark.deep)], ids=["reward", "hooks"])
def test_custom_reward_function_scores_as_documented(page: Path, tmp_path: Path, joined: tuple[str, ...]) -> None:
    save_files(REWARD, tmp_path)
    save_files(page, tmp_path)
    [command] = [command for command in commands(page) if command.startswith("hamr score ") and "my_rewards" in command]
    records = score(tmp_path, command, joined)
    assert [outcomes(record)["politeness"] for record in records] == [1.0, 0.0]
    if page == HOOKS:
        assert [outcomes(record)["novelty"] for record in records] == [1.0, 1.0]
        assert [outcomes(record)["brevity"] for record in records] == [0.0, 1.0]


@pytest.mark.deep
def test_custom_rules_and_weights_score_as_documented(
    tmp_path: Path, joined: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_files(REWARD, tmp_path)
    [rules] = [command for command in commands(REWARD) if "rules.yaml" in command]
    records = score(tmp_path, rules, joined)
    assert [outcomes(record)["rules"] for record in records] == [1.0, 0.0]
    monkeypatch.chdir(tmp_path)
    assert run_python(REWARD, 1)["record"]["total"] == records[-1]["total"]


@pytest.mark.deep
def test_custom_judge_prompt_scores_as_documented(
    tmp_path: Path, joined: tuple[str, ...], judge: ScorerEndpoint
) -> None:
    save_files(REWARD, tmp_path)
    judge.says = 'Warm. {"reason": "short", "score": 5}'
    [graded] = [command for command in commands(REWARD) if "tone.yaml" in command]
    assert [outcomes(record)["tone"] for record in score(tmp_path, graded, joined, judge)] == [1.0, 1.0]


def test_judge_behind_an_endpoint_scores_as_documented(
    tmp_path: Path, joined: tuple[str, ...], judge: ScorerEndpoint
) -> None:
    save_files(REWARD, tmp_path)
    [command] = [command for command in commands(ENDPOINT) if command.startswith("hamr score ")]
    records = score(tmp_path, command, joined, judge)
    assert all(0.5 < record["s_j"] <= 1.0 for record in records)
    assert all(call["pool"] == "judge" for record in records for call in record["calls"])
