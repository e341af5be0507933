"""Commands of the tutorials: all have valid options and a test that runs them; those without Ray run here."""

from __future__ import annotations

import ast
import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml

from hamr import cli
from hamr.apps.jobs import find
from hamr.apps.shared.commands import help_text
from hamr.config.explain import known_keys
from hamr.config.load import load_config
from hamr.config.schema import Config
from tests.docs_pages import DOCS, PAGES, ROOT, TUTORIALS, commands, documented, run_python, save_files

GROUPS = {folder.name for folder in (ROOT / "conf").iterdir() if folder.is_dir()}
KEYS = set(known_keys(Config, {"pools": {"NAME": {}}, "rewards": {"custom": {"NAME": {}}, "judged": {"NAME": {}}}}))
TICKETS, REWARD, _, CALIBRATE, _, SAGE, _, _ = TUTORIALS


@cache
def commands_in_tests() -> frozenset[tuple[str, str]]:
    """Return the page and the command of every call `documented("page", "part")` in the tests."""
    found = set()
    for file in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "documented":
                page, part = (argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant))
                found |= {(page, command) for command in commands(DOCS / page) if part in command}
    return frozenset(found)


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
    ("page", "command"), [(f"tutorials/{page.name}", command) for page in TUTORIALS for command in commands(page)]
)
def test_every_command_of_a_tutorial_is_run_by_a_test(page: str, command: str) -> None:
    """A test takes the command from the page by `documented`, so that another command is what it runs."""
    assert (page, command) in commands_in_tests()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_export_becomes_samples_without_private_values(folder: Path) -> None:
    save_files(TICKETS, folder)
    assert cli.main(documented("tutorials/1-own-tickets.md", "--preview")) == 0
    assert cli.main(documented("tutorials/1-own-tickets.md", "mapping=map.yaml")) == 0
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
    _, *graded = documented("tutorials/2-reward.md", "tone.yaml")
    words = [word for word in graded if not word.startswith(("input=", "output="))]
    check_prompts(load_config(words).rewards)


@pytest.mark.slow
def test_scores_become_a_cascade_for_a_run(folder: Path) -> None:
    run_python(CALIBRATE)
    assert cli.main([*documented("tutorials/4-calibrate.md", "scores=triples.jsonl"), "folds=2", "resamples=20"]) == 0
    _, *overrides = documented("tutorials/4-calibrate.md", "hamr train")
    config = load_config(overrides)
    fitted = yaml.safe_load((folder / "calibration/rewards/calibrated.yaml").read_text())
    assert config.rewards.consistency.cascade.model_dump() == fitted["consistency"]["cascade"]
    assert run_python(CALIBRATE, 1)["fit"].escalated_frac <= 0.5


@pytest.mark.slow
def test_scripted_agents_mark_the_ends_of_the_scale(folder: Path) -> None:
    assert cli.main(documented("tutorials/6-sage.md", "agent=scripted:perfect")) == 0
    metrics = json.loads((folder / "sage/metrics.json").read_text())
    assert "scripted:perfect" in json.dumps(metrics) and (folder / "sage/report.html").is_file()
    assert len(run_python(SAGE)["scenario"].paths()) == 12


def test_planning_and_dry_runs_need_no_cluster(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(documented("tutorials/7-cluster.md", "experiment=paper_hrm")) == 0
    assert cli.main(documented("tutorials/7-cluster.md", "launch=slurm")) == 0
    assert (folder / "cluster/job.sbatch").is_file()
    assert cli.main(documented("tutorials/7-cluster.md", "--dry-run")) == 0
    assert "to submit it" in capsys.readouterr().out
    assert list((folder / "runs").glob("*.job/job.sbatch"))


def test_every_tutorial_is_listed() -> None:
    listed = re.findall(r"\]\((\d[\w-]+\.md)\)", (DOCS / "tutorials" / "index.md").read_text())
    assert listed == [page.name for page in TUTORIALS]
