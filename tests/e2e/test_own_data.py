"""The sample and the command of the first tutorial, trained on the kinds of data that users provide."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hamr.apps.evaluate.ecs.responses import read_policy
from hamr.config.load import load_config, load_dumped
from tests.docs_pages import DOCS, TUTORIALS, documented, run_python, save_files
from tests.e2e.own_data import samples, train

COMMAND = documented("tutorials/1-own-tickets.md", "hamr train")
HOOKS = DOCS / "reference" / "hooks.md"


def test_forty_samples_with_one_reference_train(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """The bundled embedding model scores the replies without a judge, reference clusters replace acts, and an importer,
    a reward, a loss and callbacks of the user's own take part, as the page on them has them."""
    rows = samples(1)
    save_files(HOOKS, tmp_path)
    own = documented("reference/hooks.md", "data.importer.path")
    more = ["scorers.check_every=1", "rewards.custom.politeness.path=my_rewards.py:politeness", *joined]
    more += ["rewards.consistency.repeated_words=3"]
    said, summary = train(own, tmp_path, [*rows, {**rows[0], "id": "again"}], *more)
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
    used = load_dumped(tmp_path / "run/config.yaml").rewards.consistency
    assert used.allowed_repetitions == ("would you like",), "as a reference repeats them"
    (tmp_path / "my_job.py").unlink()
    evaluated = read_policy(tmp_path / "run", load_config(["experiment=smoke"]), "rl")
    assert evaluated.groups, "hamr evaluate run= needs no path of the importer"


@pytest.mark.deep
def test_labelled_pairs_fine_tune_cross_encoders(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """The training is short, so the scorers may be at chance."""
    sizes = ["pools.reranker.finetune.examples=16", "pools.judge.finetune.examples=16", "data.held_out_frac=0.3"]
    said, summary = train(COMMAND, tmp_path, samples(2, n=120), *sizes, "scorers.accept_chance=true", *joined)
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
    said, summary = train(documented("how-to/rewards.md", "gdpo"), tmp_path, rows, *joined)
    assert summary["stages"]["rl"]["reward"].keys() >= {"consistency", "politeness"}
    assert load_dumped(tmp_path / "run/config.yaml").rewards.normalise == "gdpo"
    assert "every reference is a tool call" in said and "no scorer is asked" in said
    assert summary["scorers"] == summary["scorer_gate"] == {} and summary["stages"]["rl"]
    monkeypatch.chdir(tmp_path)
    loaded = run_python(TUTORIALS[-1])
    assert loaded["folder"] == Path("run/checkpoints/step_1/policy")
    assert loaded["model"].num_parameters() > 0 and len(loaded["tokenizer"]) > 0
