"""Files that a run reads, when it begins and when it is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hamr.apps.shared.input_files import FILE
from hamr.apps.shared.training_job import Job, how_to_resume
from hamr.config.load import load_config
from hamr.data.samples import write_samples
from hamr.errors import RunFolderError
from tests.factories import sample


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new run that reads a training file, relative rules and a prompt of its own."""
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path / "train.jsonl", [sample(i) for i in range(4)])
    (tmp_path / "rules.yaml").write_text("name: mine\nversion: 1\nterms: [never]\npatterns: {}\n")
    shipped = Path(__file__).parents[4] / "prompts" / "policy_compared.en.yaml"
    (tmp_path / "compared.yaml").write_text(shipped.read_text())
    own = ["rewards.rules.file=rules.yaml", "rewards.policy.prompt_compared=compared.yaml", "rewards.policy.weight=1"]
    config = load_config(["experiment=smoke", "data=train.jsonl", *own])
    Job(config=config, path=tmp_path / "run", resume=False).open().close()
    return tmp_path / "run"


def test_unchanged_inputs_allow_a_resume(run: Path) -> None:
    keys = {"data.train", "rewards.rules.file", "rewards.policy.prompt_compared"}
    assert json.loads((run / FILE).read_text()).keys() == keys
    config = Job.from_folder(run).config
    assert how_to_resume(run, config) == f"continue with: cd {run.parent} && hamr train resume={run}"
    (run / FILE).unlink()
    (run.parent / "rules.yaml").write_text("name: mine\nversion: 2\nterms: []\npatterns: {}\n")
    Job.from_folder(run)  # of a version that wrote no digests


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("rules.yaml", "rewards.rules.file"),
        ("train.jsonl", "data.train"),
        ("compared.yaml", "rewards.policy.prompt_compared"),
    ],
)
def test_changed_input_is_refused_with_its_key(run: Path, file: str, key: str) -> None:
    path = run.parent / file
    path.write_text(path.read_text() + "\n")
    with pytest.raises(RunFolderError, match=rf"^{key}: '.*{file}': has changed since the run began; restore it"):
        Job.from_folder(run)
