"""SFT on packed rows against rows padded to the longest of a batch: the same steps, in tokens per second.

    python benchmarks/sft_packing.py                        # lengths by STAR's quantiles, which stand below
    HAMR_PUBLIC_DATA=FOLDER python benchmarks/sft_packing.py   # the decisions of FOLDER/star_steps.jsonl themselves
    python benchmarks/sft_packing.py --batch 16 --out result.json

Every step is taken by each layout in turn, so that the ratio is of neighbours in time. Tokens are those of prompts and
targets; padding does not count. CPU seconds are given with those of the clock: they hold on a machine that
others use too. `shared_prompt` is hamr's default: packed, and what prompts begin with alike
is computed once.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from results_json import write_results

from hamr.config.algorithm import AlgorithmConfig
from hamr.config.schema import TrainerConfig
from hamr.data.importers import IMPORTERS
from hamr.data.sft_encoding import EncodedItem, encode_item, items_batch
from hamr.data.sft_items import decision_item
from hamr.models.bundled import resolve_model
from hamr.models.cpu_env import ALLOCATOR_ENV, WAITING_ENV
from hamr.models.tokenizer import load_tokenizer
from hamr.types import TrainBatch

LAYOUTS = ("padded", "packed", "shared_prompt")
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
PROMPTS, TARGETS = (184, 292, 389, 548, 752, 1298, 2773), (3, 9, 15, 35, 72, 98, 130)
"""Tokens of STAR's 567 decisions at these quantiles, by the tokenizer of the model `tiny`."""

GOAL = 1.5


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8, help="items of a step, all in one micro-batch")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256, help="width of the model, whose weights are random")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON with every step's seconds")
    return parser.parse_args(argv)


def star_items(folder: Path) -> list[EncodedItem]:
    """The decisions of STAR as SFT items."""
    files = {"input": folder / "star_steps.jsonl", "policies": folder / "star_policies.json"}
    tokenizer = load_tokenizer(resolve_model("tiny"))
    samples = IMPORTERS["star"](files).samples
    return [encode_item(decision_item(s, s.references[0].action), tokenizer) for s in samples]


def drawn_items(count: int, rng: random.Random) -> list[EncodedItem]:
    """Random tokens, as many as STAR's quantiles say: between two of them the logarithm is uniform."""

    def draw(lengths: Sequence[int]) -> array[int]:
        place = rng.random()
        at = max(i for i, q in enumerate(QUANTILES[:-1]) if q <= place)
        share = (place - QUANTILES[at]) / (QUANTILES[at + 1] - QUANTILES[at])
        length = round(lengths[at] * (lengths[at + 1] / lengths[at]) ** share)
        return array("i", [rng.randrange(300) for _ in range(length)])

    items = []
    for _ in range(count):
        target = draw(TARGETS)
        items.append(EncodedItem(kind="decision", prompt_ids=draw(PROMPTS), token_ids=target, parts=bytes(len(target))))
    return items


def build_model(hidden: int, layers: int, folder: Path) -> Path:
    """A Qwen3 of random weights with the tokenizer of `tiny`."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"), trust_remote_code=False)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // 64),
        num_key_value_heads=max(1, hidden // 128),
        head_dim=min(64, hidden),
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Seconds(NamedTuple):
    clock: float
    cpu: float


def measure(options: argparse.Namespace, batches: Sequence[TrainBatch], model: Path) -> list[dict[str, Seconds]]:
    """Seconds of every step by layout. One trainer per layout, all of the same weights."""
    from hamr.trainer.deepspeed_trainer import DeepSpeedTrainer

    base = TrainerConfig(
        threads=options.threads, zero_stage=0, learning_rate=1e-5, tokens_per_microbatch=10**9, deadline_s=600
    )
    trainers = {
        layout: DeepSpeedTrainer(
            base.model_copy(update={"attention": layout}), AlgorithmConfig(), model, total_steps=len(batches)
        )
        for layout in LAYOUTS
    }
    rows = []
    for number, batch in enumerate(batches):
        seconds: dict[str, Seconds] = {}
        for layout in LAYOUTS if number % 2 else LAYOUTS[::-1]:
            begun, busy = time.perf_counter(), time.process_time()
            trainers[layout].train(batch)
            seconds[layout] = Seconds(clock=time.perf_counter() - begun, cpu=time.process_time() - busy)
        rows.append(seconds)
        shown = (f"{name} {s.clock:.2f} s (CPU {s.cpu:.2f})" for name, s in seconds.items())
        print(f"step {number}: {', '.join(shown)}", flush=True)
    return rows


def ratio(steps: Sequence[dict[str, Seconds]], layout: str, of: str) -> float:
    """Tokens per second of `layout` over those of padded rows."""
    return sum(getattr(s["padded"], of) for s in steps) / sum(getattr(s[layout], of) for s in steps)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    os.environ.update(
        {
            **WAITING_ENV,
            **ALLOCATOR_ENV,
            "DS_ACCELERATOR": "cpu",
            "TQDM_DISABLE": "1",
            "OMP_NUM_THREADS": str(options.threads),
        }
    )
    rng = random.Random(options.seed)
    public = os.environ.get("HAMR_PUBLIC_DATA")
    # The first step warms up: kernels are made for its shapes.
    count = options.batch * (options.steps + 1)
    items = rng.sample(star_items(Path(public)), count) if public else drawn_items(count, rng)
    cut = [items[i : i + options.batch] for i in range(0, count, options.batch)]
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(options.hidden, options.layers, Path(folder))
        seconds = measure(options, [items_batch(part) for part in cut], model)[1:]
    tokens = [sum(map(len, part)) for part in cut][1:]
    rows = [len(part) * max(map(len, part)) / sum(map(len, part)) for part in cut][1:]
    result: dict[str, Any] = {
        "lengths": "star_steps.jsonl" if public else "STAR's quantiles",
        "options": {k: v for k, v in vars(options).items() if k != "out"},
        "tokens": tokens,
        "seconds": [{name: s._asdict() for name, s in step.items()} for step in seconds],
        "padded_over_real_tokens": statistics.fmean(rows),
        "tokens_per_s": {name: sum(tokens) / sum(s[name].clock for s in seconds) for name in LAYOUTS},
        "ratio": {name: ratio(seconds, name, "clock") for name in LAYOUTS[1:]},
        "ratio_cpu": {name: ratio(seconds, name, "cpu") for name in LAYOUTS[1:]},
    }
    for name in LAYOUTS:
        print(f"{name:>14}: {result['tokens_per_s'][name]:8.0f} tokens/s")
    for name in LAYOUTS[1:]:
        by_clock, by_cpu = result["ratio"][name], result["ratio_cpu"][name]
        print(f"{name} over padded: {by_clock:.2f} by the clock, {by_cpu:.2f} by CPU time (goal {GOAL})")
    print(f"padded rows hold {result['padded_over_real_tokens']:.2f} times the real tokens (mean of the steps)")
    if options.out:
        write_results(options.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
