"""TRL's side of learning_duel.py: its unmodified GRPOTrainer on the prompts, the start and the reward that it is given.

Runs in TRL's own environment; the reward is hamr's rule, imported from the checkout of this folder.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from hamr.config.schema import DataConfig
from hamr.data.actions import parse_action
from hamr.data.sage_samples import generate_samples
from hamr.rewards.truth import ExactAct
from hamr.types import MalformedResponse


class Steps(transformers.TrainerCallback):  # type: ignore[misc]
    """Wall seconds of every step, without those of saving."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter() - self.began)
        print(f"trl step {state.global_step}: {self.seconds[-1]:.2f} s", flush=True)


def main() -> None:
    work = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(work["threads"])
    splits = generate_samples(DataConfig.model_validate(work["data"]).sage)
    everyone = (*splits.train, *splits.validation, *splits.test)
    known, rule = {sample.id: sample for sample in everyone}, ExactAct.of(everyone)
    assert rule is not None

    def exact(completions: list[str], sample_id: list[str], **_: Any) -> list[float]:
        values = []
        for text, identity in zip(completions, sample_id, strict=True):
            action = parse_action(text)
            right = not isinstance(action, MalformedResponse) and rule.is_exact(action, known[identity])
            values.append(float(right))
        print(f"mean reward {sum(values) / len(values):.3f}", flush=True)
        return values

    responses = work["prompts_per_step"] * work["samples"]
    config = GRPOConfig(
        output_dir=work["folder"],
        use_cpu=True,
        bf16=False,
        seed=work["seed"],
        model_init_kwargs={"dtype": "float32"},
        gradient_checkpointing=False,
        per_device_train_batch_size=responses,
        num_generations=work["samples"],
        max_completion_length=work["max_new_tokens"],
        temperature=1.0,
        loss_type="dapo",
        beta=0.0,
        epsilon=work["clip"][0],
        epsilon_high=work["clip"][1],
        entropy_coef=work["entropy_coef"],
        learning_rate=work["learning_rate"],
        warmup_steps=round(work["warmup_frac"] * work["steps"]),
        lr_scheduler_type="constant_with_warmup",
        adam_beta1=work["betas"][0],
        adam_beta2=work["betas"][1],
        weight_decay=work["weight_decay"],
        max_grad_norm=1.0,
        max_steps=work["steps"],
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="steps",
        save_steps=work["every"],
        save_only_model=True,
        report_to="none",
        disable_tqdm=True,
    )
    rows = {"prompt": [work["texts"][i] for i in work["order"]], "sample_id": work["order"]}
    steps = Steps()
    trainer = GRPOTrainer(
        model=work["model"],
        reward_funcs=exact,
        args=config,
        train_dataset=Dataset.from_dict(rows),
        callbacks=[steps],
    )
    generate, expected = trainer._generate_single_turn, {tuple(ids) for ids in work["ids"].values()}

    def checked(prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        assert {tuple(ids) for ids in prompt_ids} <= expected, "TRL's prompts are not hamr's"
        return generate(prompt_ids, *args, **kwargs)

    trainer._generate_single_turn = checked
    trainer.train()
    Path(work["folder"], "steps.json").write_text(json.dumps(steps.seconds))


if __name__ == "__main__":
    main()
