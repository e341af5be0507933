"""The README's own sample and command train."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

from tests.e2e.runs import hamr

README = Path(__file__).parents[2] / "README.md"
SMALL = [
    "model=tiny",
    "experiment.steps=1",
    "experiment.sft.steps=2",
    "experiment.prompts_per_step=2",
    "rollout.samples_per_prompt=2",
    "rollout.max_new_tokens=12",
    "trainer.threads=1",
    "logging=offline",
]


def test_the_example_of_the_readme_trains(tmp_path: Path) -> None:
    """With one reference per sample the bundled embedding model scores the replies, and no judge is asked."""
    text = README.read_text().partition("## Your own tickets")[2]
    sample = json.loads(re.search(r"```json\n(.*?)```", text, re.S)[1])
    command = shlex.split(re.search(r"^ +(hamr train .*data=FOLDER)$", text, re.M)[1])
    (tmp_path / "mine").mkdir()
    rows = [json.dumps({**sample, "id": f"t{i}"}) for i in range(6)]
    (tmp_path / "mine/train.jsonl").write_text("\n".join(rows))
    words = hamr(*(word.replace("FOLDER", "mine") for word in command[1:]), *SMALL, "experiment.run_dir=run")
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "all-minilm-l6-v2 as reranker, no judge" in done.stdout and "5 samples repeat others" in done.stdout
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["scorers"]["reranker"]["auc"] == {"easy": 1.0}
    assert summary["stages"]["rl"]
