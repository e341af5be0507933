"""benchmarks/dialogues_ablations.py: one step of each way to group and draw customers."""

from __future__ import annotations

import pytest

from benchmarks.dialogues_ablations import train


@pytest.mark.parametrize("arm", ["curriculum", "unpaired"])
async def test_step_of_an_arm_trains_and_evaluates(arm: str) -> None:
    found = await train(arm, 0, [1], prompts=1, rate=1.0, skill=0.5)
    assert found[1].keys() == {"logic", "logic_by_path", "completion"} and 0.0 < found[1]["logic"] < 100.0
