"""TRL's GRPOTrainer with hamr as its reward, each in an environment of its own, HTTP between them.

The reward system, in hamr's environment (the tiny random models: it runs anywhere, and no reward of it means anything):

    hamr data sage output=data/example data.sage.train=24 data.sage.validation=8 data.sage.test=8 \\
        data.sage.procedure=false
    hamr serve experiment=smoke rewards.length.weight=0.1

The trainer, in an environment with TRL 1.16 and `pip install --no-deps <checkout>` (or PYTHONPATH at it):

    python examples/trl_grpo.py --samples data/example/train.jsonl --model <folder or name of a small instruct model>

`benchmarks/trl_env.py` makes such an environment from `benchmarks/trl.lock.txt`. With `--in-process` the scorers run
beside the trainer instead, which takes one environment that holds TRL, Ray and vLLM.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from hamr.adapters.client import RewardClient
from hamr.adapters.trl import TrlReward
from hamr.data.rendering import policy_messages
from hamr.data.samples import read_samples, to_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=Path, required=True, help="JSONL in hamr's sample format")
    parser.add_argument("--model", required=True, help="the policy: a folder, or a name on the hub")
    parser.add_argument("--url", default="http://localhost:8711", help="where `hamr serve` listens")
    parser.add_argument(
        "--in-process", nargs="*", metavar="OVERRIDE", help="no server: hamr's pools, with these settings"
    )
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--generations", type=int, default=4, help="responses to a prompt: a group")
    parser.add_argument("--new-tokens", type=int, default=32)
    args = parser.parse_args()
    if args.in_process is None:
        train(args, RewardClient(args.url))
        return
    from hamr import RewardSystem

    with RewardSystem.from_config(args.in_process) as rewards:
        train(args, rewards)


def train(args: argparse.Namespace, rewards: Any) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    # The policy reads messages; what only judges may know stays in `sample`, which TRL hands to the reward alone.
    rows = [
        {"prompt": policy_messages(sample), "sample": json.dumps(to_json(sample))}
        for sample in read_samples(args.samples)
    ]
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl-hamr-"),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=2 * args.generations,
        num_generations=args.generations,
        max_completion_length=args.new_tokens,
        max_steps=args.steps,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=args.model,
        reward_funcs=TrlReward(rewards, group_size=args.generations),
        args=config,
        train_dataset=Dataset.from_list(rows),
    )
    trainer.train()
    for row in trainer.state.log_history:
        shown = {k: round(float(v), 4) for k, v in row.items() if k in ("step", "reward", "reward_std") or "hamr" in k}
        if "reward" in row:
            print(json.dumps(shown))


if __name__ == "__main__":
    main()
