"""Small runs of `experiment=own_data` on the sample of the first tutorial."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.docs_pages import TUTORIALS, blocks
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
FEE = ("That costs a fee of ${0}. Shall I go on?", "There is a fee of ${0}. Would you like to continue?")
ASK = ("Would you like data, or would you like calls?", "What package do you want to have?")
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


def write_data(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "mine").mkdir()
    (folder / "mine/train.jsonl").write_text("\n".join(map(json.dumps, rows)))


def train(command: list[str], folder: Path, rows: list[dict[str, Any]], *more: str) -> tuple[str, dict[str, Any]]:
    """Run a documented command on the rows; return what it prints, and its summary.json."""
    write_data(folder, rows)
    (folder / "samples.json").write_text(json.dumps(rows))
    words = [word.replace("FOLDER", "mine") for word in command]
    done = subprocess.run(
        hamr(*words, *SMALL, *more, "experiment.run_dir=run"), cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads((folder / "run/summary.json").read_text())
