"""RL with real engines on a task whose best policy is known: one of five equally likely replies is rewarded."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.runs import hamr

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.timeout(300)]

REPLIES = (
    "What do you need most, data or minutes?",
    "There is a fee of 60. Shall I go on?",
    "Thank you for your call, goodbye!",
    "I understand. I put you through to a human.",
    "Surf 40GB costs 29 a month. Would you like it?",
)
RULES = "name: goodbyes\nversion: 1\nterms: []\npatterns: {no_goodbye: '^(?!.*goodbye)'}\n"
SETTINGS = {
    "model": "compact",
    "data": "mine",
    "rewards.consistency.weight": 0,
    "rewards.rules.weight": 1,
    "experiment.run_dir": "run",
    "experiment.steps": 20,
    "experiment.prompts_per_step": 5,
    "experiment.evaluation.temperature": 1.0,
    "experiment.sft.steps": 60,
    "experiment.sft.samples_per_step": 10,
    "experiment.sft.learning_rate": 4e-3,
    "rollout.samples_per_prompt": 8,
    "rollout.max_new_tokens": 20,
    "trainer.threads": 1,
    "trainer.learning_rate": 5e-4,
    "trainer.embedding_rate": 0.1,
    "logging": "offline",
}


def test_rl_converges_to_the_rewarded_reply(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """SFT learns each reply with probability 1/5; the optimal policy has reward 1."""
    samples = [
        {
            "id": f"s{i}",
            "ticket": {},
            "policy": "Be brief.",
            "tools": [],
            "history": [{"role": "customer", "content": "Hello"}],
            "references": [{"action": "reply", "content": REPLIES[i % len(REPLIES)]}],
        }
        for i in range(80)
    ]
    (tmp_path / "mine").mkdir()
    (tmp_path / "rules.yaml").write_text(RULES)
    for name, rows in (("train", samples[:40]), ("validation", samples[40:]), ("test", samples[40:])):
        (tmp_path / "mine" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = subprocess.run(
        hamr("train", *joined, **SETTINGS, **{"rewards.rules.file": tmp_path / "rules.yaml"}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    stages = json.loads((tmp_path / "run" / "summary.json").read_text())["stages"]
    assert 0.05 <= stages["sft"]["reward"]["total"] <= 0.5
    assert stages["rl"]["reward"]["total"] >= 0.9
