"""One warm TRL GRPOTrainer that makes an optimiser step each time it is asked for one.

Runs in TRL's own environment; `step_time.py` starts it. The trainer is unmodified: a callback waits before a
step, and three of its methods are timed from outside.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from workload import Channel, Work, reward


class Timer:
    """Wall seconds by phase of the current step, and what the step produced."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.start = time.perf_counter()
        self.phases: dict[str, float] = {}
        self.lengths: list[int] = []
        self.prompt_lengths: list[int] = []

    def timed(self, phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - start

        return call

    def report(self) -> dict[str, Any]:
        """The phases of the step. Generation of the vLLM mode holds its weight sync, which is taken out of it."""
        total = time.perf_counter() - self.start
        sync = self.phases.get("sync", 0.0)
        generation = self.phases.get("generation", 0.0) - sync
        scoring = self.phases.get("scoring", 0.0)
        phases = {"generation": generation, "scoring": scoring, "sync": sync}
        return {"seconds": total, "phases": {**phases, "training": total - generation - scoring - sync}}


def build(work: Work, timer: Timer) -> Any:
    """TRL at its best settings on a CPU: bf16, no gradient checkpointing, large micro-batches, fused AdamW."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    shape, options = work.shape, work.options
    micro_batch = min(options["micro_batch"], shape.responses)
    steps = options["steps"]
    prompts = [p["text"] for step in range(steps) for p in work.prompts(step)]

    def score(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        timer.lengths += [len(ids) for ids in completion_ids]
        return [reward(text) for text in completions]

    vllm = options["mode"] == "vllm"
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="bench-trl-"),
        use_cpu=True,
        bf16=options["autocast"],
        model_init_kwargs={"dtype": options["dtype"]},
        gradient_checkpointing=False,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=shape.responses // micro_batch,
        num_generations=shape.samples,
        max_completion_length=shape.new_tokens,
        temperature=1.0,
        loss_type="dapo",
        beta=0.0,
        epsilon=work.clip_low,
        epsilon_high=work.clip_high,
        entropy_coef=work.entropy_coef,
        learning_rate=work.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        max_grad_norm=1.0,
        max_steps=steps,
        shuffle_dataset=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_transformers_continuous_batching=options["mode"] == "continuous",
        use_vllm=vllm,
        **({"vllm_mode": "colocate", "vllm_max_model_length": shape.prompt_tokens + shape.new_tokens} if vllm else {}),
    )
    trainer = GRPOTrainer(
        model=work.model, reward_funcs=score, args=config, train_dataset=Dataset.from_dict({"prompt": prompts})
    )
    generate = trainer._generate_single_turn

    def generate_and_count(prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        timer.prompt_lengths += [len(ids) for ids in prompt_ids]
        return generate(prompt_ids, *args, **kwargs)

    trainer._generate_single_turn = timer.timed("generation", generate_and_count)
    trainer._calculate_rewards = timer.timed("scoring", trainer._calculate_rewards)
    if vllm:
        trainer.vllm_generation.sync_weights = timer.timed("sync", trainer.vllm_generation.sync_weights)
    return trainer


def main() -> None:
    channel = Channel()
    work = Work.from_json(sys.argv[1])
    import torch
    import transformers
    import trl

    torch.set_num_threads(work.threads)
    timer = Timer()
    trainer = build(work, timer)

    class StepByStep(transformers.TrainerCallback):  # type: ignore[misc]
        """Holds the training loop between two optimiser steps until the next is asked for."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not channel.wait():
                raise KeyboardInterrupt
            timer.reset()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            report = timer.report()
            channel.send(**report, lengths=timer.lengths, prompt_lengths=timer.prompt_lengths)

    trainer.add_callback(StepByStep())
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    channel.send(ready=True, versions=versions)
    with contextlib.suppress(KeyboardInterrupt):
        trainer.train()


if __name__ == "__main__":
    main()
