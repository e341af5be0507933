"""The sample and the command of the first tutorial, trained on the kinds of data that users provide."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.evaluate.ecs.responses import read_policy
from hamr.config.load import load_config, load_dumped
from tests.docs_pages import DOCS, TUTORIALS, blocks, commands, run_python, save_files
from tests.e2e.runs import hamr

SMALL = [
    "model=tiny",
    "experiment.steps=1",
    "experiment.sft.steps=2",
    "experiment.prompts_per_step=2",
    "rollout.samples_per_prompt=2",
    "rollout.max_new_tokens=12",
    "trainer.threads=1",
    "scorers.contexts=6",
    "logging=offline",
]
SAMPLE: dict[str, Any] = json.loads(next(block.text for block in blocks(TUTORIALS[0], "json")))
COMMAND = next(line for line in commands(TUTORIALS[0]) if line.startswith("hamr train"))
HOOKS = DOCS / "reference" / "hooks.md"
FEE = ("That costs a fee of ${0}. Shall I go on?", "There is a fee of ${0}. Would you like to continue?")
ASK = ("Which package would you like?", "What package do you want to have?")
BYE = ("Thank you for calling. Goodbye!", "Goodbye, have a nice day!")


def samples(references: int, n: int = 40) -> list[dict[str, Any]]:
    """The tutorial's sample with other replies, `references` each."""
    return [
        {
            **SAMPLE,
            "id": f"t{i}",
            "history": [{"role": "customer", "content": f"Move me to the {i}GB plan."}],
            "references": [
                {"action": "reply", "content": text.format(30 + i)} for text in (FEE, ASK, BYE)[i % 3][:references]
            ],
        }
        for i in range(n)
    ]


def train(folder: Path, rows: list[dict[str, Any]], *more: str, command: str = COMMAND) -> tuple[str, dict[str, Any]]:
    """Run the tutorial's command, or another one; return what it prints, and its summary.json."""
    (folder / "mine").mkdir()
    (folder / "mine/train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "samples.json").write_text(json.dumps(rows))
    words = [word.replace("FOLDER", "mine") for word in shlex.split(command)[1:]]
    done = subprocess.run(
        hamr(*words, *SMALL, *more, "experiment.run_dir=run"), cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "run/summary.json").read_text())


def test_forty_samples_with_one_reference_train(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """The bundled embedding model scores the replies without a judge, reference clusters replace acts, and an importer,
    a reward, a loss and callbacks of the user's own take part, as the page on them has them."""
    rows = samples(1)
    save_files(HOOKS, tmp_path)
    [own] = [command for command in commands(HOOKS) if "data.importer.path" in command]
    more = ["scorers.check_every=1", "rewards.custom.politeness.path=my_rewards.py:politeness", *joined]
    said, summary = train(tmp_path, [*rows, {**rows[0], "id": "again"}], *more, command=own)
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["step"]) for row in steps] == [("sft", 1), ("sft", 2), ("rl", 1)]
    assert "all-minilm-l6-v2 as reranker, no judge" in said and "1 samples repeat others" in said
    assert said.count("Better: ") == 1 and "pools.judge.endpoint" in said and "hamr data multigt" in said
    assert "the meanings of 16 different replies" in said and "clusters, which stand for acts" in said
    assert summary["scorers"]["reranker"]["auc"].keys() == {"easy"}
    assert summary["scorer_gate"]["reranker"]["contexts"] == 6
    assert 0 <= summary["stages"]["rl"]["reward"]["politeness"] <= 1
    assert (tmp_path / "worst-rl.txt").is_file()
    assert "politeness" in (tmp_path / "run/report.html").read_text()
    (tmp_path / "my_job.py").unlink()
    evaluated = read_policy(tmp_path / "run", load_config(["experiment=smoke"]), "rl")
    assert evaluated.groups, "hamr evaluate run= needs no path of the importer"


@pytest.mark.deep
def test_labelled_pairs_fine_tune_cross_encoders(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """The training is short, so the scorers may be at chance."""
    sizes = ["pools.reranker.finetune.examples=16", "pools.judge.finetune.examples=16", "data.held_out_frac=0.3"]
    said, summary = train(tmp_path, samples(2, n=120), *sizes, "scorers.accept_chance=true", *joined)
    assert "compact-encoder as reranker and all-minilm-l6-v2 as judge, fine-tuned on labelled pairs" in said
    assert all(summary["scorers"][role]["finetuned"] for role in ("reranker", "judge"))
    assert {"reranker", "judge", "cascade"} <= summary["scorer_gate"].keys()


@pytest.mark.deep
def test_data_with_tool_calls_only_trains_without_scorers(
    tmp_path: Path, joined: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the documented run with GDPO. The policy is then loaded as in the last tutorial."""
    rows = samples(1, n=12)
    for i, row in enumerate(rows):
        row["references"] = [{"action": "call_tool", "name": "change_order", "parameters": {"package": f"{i}GB"}}]
    save_files(HOOKS, tmp_path)
    [gdpo] = [command for command in commands(DOCS / "how-to" / "rewards.md") if "gdpo" in command]
    said, summary = train(tmp_path, rows, *joined, command=gdpo)
    assert summary["stages"]["rl"]["reward"].keys() >= {"consistency", "politeness"}
    assert load_dumped(tmp_path / "run/config.yaml").rewards.normalise == "gdpo"
    assert "every reference is a tool call" in said and "no scorer is asked" in said
    assert summary["scorers"] == summary["scorer_gate"] == {} and summary["stages"]["rl"]
    monkeypatch.chdir(tmp_path)
    loaded = run_python(TUTORIALS[-1])
    assert loaded["folder"] == Path("run/checkpoints/step_1/policy")
    assert loaded["model"].num_parameters() > 0 and len(loaded["tokenizer"]) > 0
