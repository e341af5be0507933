"""TRL 1.16: its AsyncGRPOTrainer's own scoring of a group, and its part of gpu_bench. `make test-trainers`."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("trl")

from hamr.adapters.client import RewardClient
from hamr.adapters.trl import TrlReward
from tests.trainers.scorer import SAMPLE, Scorer


async def test_response_without_a_reward_gets_advantage_zero_in_the_asynchronous_trainer() -> None:
    from accelerate import PartialState
    from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

    PartialState(cpu=True)  # TRL's logger needs it, and its worker process has it
    texts = ["four", "hang", "sevenxx"]
    sequence = SimpleNamespace(input_ids=[1], completion_mask=[1], old_log_probs=[0.0])
    group = SimpleNamespace(
        prompts=["p"] * 3, completions=texts, completions_ids=[[1]] * 3, completions_sequences=[[sequence]] * 3,
        reward_kwargs={"sample": [SAMPLE] * 3}, env_rewards=[None] * 3, tool_call_counts=[0] * 3,
        tool_failure_counts=[0] * 3, model_version=0, group_id=0,
    )  # fmt: skip
    with Scorer() as scorer:
        reward = pickle.loads(pickle.dumps(TrlReward(RewardClient(scorer.url))))
        loop = SimpleNamespace(
            reward_funcs=[reward], reward_func_names=["hamr"], _env_reward_types=[], _provides_rollout_reward=False
        )
        samples = await _AsyncRolloutLoop._score_group(loop, group)
    assert [round(s.advantage, 3) for s in samples] == [-1.0, 0.0, 1.0]
    assert samples[0].metrics["rewards/hamr"] == 0.4


def test_bench_measures_the_training_part_of_trl() -> None:
    script = Path(__file__).parents[2] / "launch" / "gpu_bench.py"
    done = subprocess.run([sys.executable, str(script), "--part", "trl", "--small"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [row] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert row["shape"] == "tiny" and row["tokens_per_s"] > 0
