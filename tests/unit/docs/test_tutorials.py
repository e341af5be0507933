"""Commands of the tutorials: all of them parse, and those without Ray run as written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from hamr import cli
from hamr.apps.jobs import find
from hamr.apps.shared.commands import help_text
from hamr.config.explain import known_keys
from hamr.config.load import load_config
from hamr.config.schema import Config
from tests.docs_pages import DOCS, PAGES, ROOT, TUTORIALS, blocks, commands, run_python, save_files

GROUPS = {folder.name for folder in (ROOT / "conf").iterdir() if folder.is_dir()}
KEYS = set(known_keys(Config, {"pools": {"NAME": {}}, "rewards": {"custom": {"NAME": {}}, "judged": {"NAME": {}}}}))
TICKETS, REWARD, _, CALIBRATE, _, SAGE, CLUSTER, _ = TUTORIALS
ELSEWHERE = {
    "hamr train experiment=own_data data=FOLDER": "tests/e2e/test_own_data.py",
    "hamr train experiment=dialogues": "tests/e2e/test_dialogues.py",
    "hamr score ": "tests/integration/test_tutorials.py",
    "hamr submit train experiment=smoke cluster=ray": "tests/e2e/test_cluster.py",
    "hamr submit train resume=RUN": "tests/e2e/test_cluster.py",
    "hamr status RUN": "tests/integration/test_scaling.py",
    "hamr scale RUN": "tests/integration/test_scaling.py",
    "hamr report RUN": "tests/unit/apps/report/test_report.py",
    "hamr evaluate benchmark=ecs run=": "tests/unit/bench/ecs",
    "hamr serve": "tests/integration/test_reward_system.py",
    "hamr chat": "tests/unit/apps/chat/test_chat.py",
    "hamr export": "tests/integration/test_serving.py",
    "hamr train experiment=quickstart rewards=calibrated": "tests/unit/docs/test_tutorials.py",
}
"""Tests of the commands that need an engine or a cluster, by the command's start."""
RUN_HERE = ("hamr data import", "hamr calibrate scores", "hamr evaluate benchmark=sage", "hamr plan", "--dry-run")


def every_command(pages: list[Path]) -> list[str]:
    return list(dict.fromkeys(command for page in pages for command in commands(page)))


@pytest.mark.parametrize("command", every_command(PAGES))
def test_every_option_in_a_tutorial_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As a group of conf/, a key of the configuration, or an option in the command's help."""
    _, job, *words = shlex.split(command)
    path, _ = find([job, *words])
    assert cli.main([job, "--help"]) == cli.main(["--help"]) == 0
    told = capsys.readouterr().out + help_text(path)
    for word in words:
        key = word.partition("=")[0]
        general = re.sub(r"^(pools|rewards\.(?:custom|judged))\.\w+", r"\1.NAME", key)
        general = re.sub(r"^(rewards\.consistency\.matching\.tools)\.\w+$", r"\1", general)
        assert (
            ("=" not in word and not word.startswith("--"))
            or key in GROUPS
            or general in KEYS
            or re.search(rf"(?<![\w.]){re.escape(key)}\b", told)
            or key.partition(".")[0] in ("inputs", "stages")
        ), word


@pytest.mark.parametrize(
    "command", [c for page in TUTORIALS for b in blocks(page, "bash") for c in b.text.splitlines()]
)
def test_every_command_of_a_tutorial_has_a_test(command: str) -> None:
    if command.startswith("hamr ") and not any(text in command for text in RUN_HERE):
        tests = [path for start, path in ELSEWHERE.items() if command.startswith(start)]
        assert tests and all((ROOT / path).exists() for path in tests)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(page: Path, start: str, *more: str) -> None:
    """Run the page's commands that begin so, with further arguments."""
    chosen = [command for command in commands(page) if command.startswith(start)]
    assert chosen
    for command in chosen:
        assert cli.main([*shlex.split(command)[1:], *more]) == 0


def test_an_export_becomes_samples_without_private_values(folder: Path) -> None:
    save_files(TICKETS, folder)
    run(TICKETS, "hamr data import")
    text = "".join((folder / f"data/mine/{split}.jsonl").read_text() for split in ("train", "validation", "test"))
    assert "[EMAIL_1]" in text and "ann.lee" not in text
    assert len(text.splitlines()) == 4
    sample = json.loads((folder / "sample").read_text())
    assert sample.keys() >= json.loads(text.splitlines()[0]).keys() - {"meta"}


def test_reward_files_are_valid(folder: Path) -> None:
    """`hamr score` checks the rule file, the reward configuration and the judge's prompt before it starts."""
    from hamr.rewards.judged import check_prompts
    from hamr.rewards.rules import load_rules, rule_match

    save_files(REWARD, folder)
    rules = load_rules("rules.yaml")
    assert rule_match("I guarantee it.", rules) == 0 == rule_match("It is $4.50.", rules)
    config = load_config(["experiment=smoke", "rewards=strict", "--config-dir", "mine"])
    assert (config.rewards.rules.weight, config.rewards.rules.file) == (2.0, "rules.yaml")
    [graded] = [c for c in commands(REWARD) if "tone.yaml" in c]
    words = [w for w in shlex.split(graded)[2:] if not w.startswith(("input=", "output="))]
    check_prompts(load_config(words).rewards)


@pytest.mark.slow
def test_scores_become_a_cascade_for_a_run(folder: Path) -> None:
    run_python(CALIBRATE)
    run(CALIBRATE, "hamr calibrate scores", "folds=2", "resamples=20")
    [train] = [c for c in commands(CALIBRATE) if c.startswith("hamr train")]
    config = load_config(shlex.split(train)[2:])
    fitted = yaml.safe_load((folder / "calibration/rewards/calibrated.yaml").read_text())
    assert config.rewards.consistency.cascade.model_dump() == fitted["consistency"]["cascade"]
    assert run_python(CALIBRATE, 1)["fit"].escalated_frac <= 0.5


@pytest.mark.slow
def test_scripted_agents_mark_the_ends_of_the_scale(folder: Path) -> None:
    [command] = [b.text.strip() for b in blocks(SAGE, "bash")]
    assert cli.main(shlex.split(command)[1:]) == 0
    metrics = json.loads((folder / "sage/metrics.json").read_text())
    assert "scripted:perfect" in json.dumps(metrics) and (folder / "sage/report.html").is_file()
    assert len(run_python(SAGE)["scenario"].paths()) == 12


def test_planning_and_dry_runs_need_no_cluster(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(CLUSTER, "hamr plan")
    assert (folder / "cluster/job.sbatch").is_file()
    [command] = [c for c in commands(CLUSTER) if "--dry-run" in c]
    assert cli.main(shlex.split(command)[1:]) == 0
    assert "to submit it" in capsys.readouterr().out
    assert list((folder / "runs").glob("*.job/job.sbatch"))


def test_every_tutorial_is_listed() -> None:
    listed = re.findall(r"\]\((\d[\w-]+\.md)\)", (DOCS / "tutorials" / "index.md").read_text())
    assert listed == [page.name for page in TUTORIALS]
