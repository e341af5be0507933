"""Learning of hamr and of TRL's unmodified GRPOTrainer: same start, prompts, reward, algorithm, samples per step.

    .venv/bin/python benchmarks/learning_duel.py --seeds 0 1 2

One warm-up of `experiment=quickstart` gives both sides their policy. Both then make the same number of DAPO steps on
the prompts of hamr's stream, in its order, 12 prompts x 8 samples a step. The reward is Python: 1 for a response with
the expected act and the right facts (`hamr.rewards.truth`), else 0. It is hamr's only scorer and TRL's reward function.
What has no counterpart in TRL is off in hamr: dynamic sampling, and references for groups that are all wrong.
Checkpoints of both are evaluated alike: 120 held-out points, `--samples` responses each, sampled by transformers. Wall
time is the sum of the steps' own times, without start-up, checkpoints and evaluation.

Writes benchmarks/results/learning_duel.json and docs/images/learning_duel.svg (again: learning_curve.py). A finished
run folder is read instead of run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from learning import RULE_POOL, crossed
from learning_curve import draw_picture
from results_json import write_results
from trl_env import ensure_environment

from hamr.apps.shared.machine import machine, versions
from hamr.apps.shared.preparation import load_splits, prepare
from hamr.config.load import load_config, load_dumped
from hamr.data.actions import parse_action
from hamr.rewards.truth import ExactAct
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import read_metrics
from hamr.telemetry.record_json import record_from_json
from hamr.types import MalformedResponse, ServiceSample

HERE = Path(__file__).resolve().parent
EQUAL = (
    "algorithm.dynamic_sampling.enabled=false",
    "algorithm.all_wrong.reference=false",
    "rewards.format.weight=0",
    "rewards.length.weight=0",
    "rewards.rules.weight=0",
    "trainer.embedding_rate=1.0",
    "trainer.schedule=constant",
    "experiment.prompts_per_step=12",
    "rollout.samples_per_prompt=8",
    "scorers.check_every=0",
    "experiment.eval_every=0",
)
"""Settings that make hamr's steps those of TRL: one reward, one learning rate, every group of 12 x 8 trained on."""


def warm_up(out: Path) -> Path:
    """Return the folder of the policy that both sides start from."""
    folder = out / "warm_up"
    if not (folder / "summary.json").is_file():
        _hamr(folder, 0, "experiment.steps=0")
    return max((folder / "checkpoints").glob("step_*")) / "policy"


def hamr_run(out: Path, seed: int, start: Path, args: argparse.Namespace) -> Path:
    folder = out / f"hamr_{seed}"
    if not (folder / "summary.json").is_file():
        steps = [f"experiment.steps={args.steps}", "experiment.sft.steps=0", f"model.path={start}"]
        keep = [f"experiment.checkpoint.every={args.every}", "experiment.checkpoint.keep=1000"]
        _hamr(folder, seed, *steps, *keep, *EQUAL)
    return folder


def _hamr(folder: Path, seed: int, *overrides: str) -> None:
    """`hamr train` with the rule as its only scorer."""
    own = ["experiment=quickstart", f"experiment.seed={seed}", f"experiment.run_dir={folder}", *RULE_POOL]
    subprocess.run([sys.executable, str(HERE / "learning.py"), "--here", "true", *own, *overrides], check=True)


def prompts_of(folder: Path, sides: tuple[ServiceSample, ...]) -> list[ServiceSample]:
    """The prompts of a run's RL steps in their order. Raises if a response was rewarded otherwise than by the rule."""
    known, rule = {sample.id: sample for sample in sides}, ExactAct.of(sides)
    assert rule is not None, "generated samples name their acts"
    seen: dict[tuple[int, str], None] = {}
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        rows = ledger.query("SELECT record FROM records WHERE run NOT LIKE '%/%' ORDER BY step, rowid")
        for record in (record_from_json(text) for (text,) in rows):
            sample = known[record.key.prompt]
            value = getattr(record.total, "value", None)
            assert value == rule.is_exact(record.action, sample), (record, sample)
            seen[record.key.step, sample.id] = None
    return [known[prompt] for _, prompt in sorted(seen, key=lambda key: key[0])]


def trl_run(out: Path, seed: int, start: Path, hamr_folder: Path, args: argparse.Namespace) -> Path:
    folder = out / f"trl_{seed}"
    if (folder / "steps.json").is_file():
        return folder
    config = load_dumped(hamr_folder / "config.yaml")
    splits = load_splits(config.data, seed)
    everyone = (*splits.train, *splits.validation, *splits.test)
    codec = prepare(config).codec
    ordered = [sample.id for sample in prompts_of(hamr_folder, everyone)]
    texts = {s.id: codec.tokenizer.core.decode(list(codec.prompt(s)), skip_special_tokens=False) for s in splits.train}
    folder.mkdir(parents=True, exist_ok=True)
    work = {
        "model": str(start),
        "folder": str(folder),
        "seed": seed,
        "steps": args.steps,
        "every": args.every,
        "prompts_per_step": config.experiment.prompts_per_step,
        "samples": config.rollout.samples_per_prompt,
        "max_new_tokens": config.rollout.max_new_tokens,
        "learning_rate": config.trainer.learning_rate,
        "warmup_frac": config.trainer.warmup_frac,
        "betas": config.trainer.betas,
        "weight_decay": config.trainer.weight_decay,
        "clip": [config.algorithm.clip_low, config.algorithm.clip_high],
        "entropy_coef": config.algorithm.entropy_coef,
        "threads": config.trainer.threads,
        "ids": {s.id: list(codec.prompt(s)) for s in splits.train},
        "texts": texts,
        "order": ordered,
        "data": config.data.model_dump(mode="json"),
    }
    (folder / "work.json").write_text(json.dumps(work))
    python = ensure_environment("transformers")
    env = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}", "HF_HUB_OFFLINE": "1"}
    subprocess.run([str(python), str(HERE / "duel_trl.py"), str(folder / "work.json")], check=True, env=env)
    return folder


def evaluated(policy: Path, samples: tuple[ServiceSample, ...], rule: ExactAct, n: int, codec: Any) -> list[float]:
    """Per held-out sample the share of its `n` responses that are exact, sampled by transformers at temperature 1."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32, trust_remote_code=False).eval()
    prompts = [codec.prompt(sample) for sample in samples for _ in range(n)]
    width, eos = max(map(len, prompts)), codec.tokenizer.eos_id
    ids = torch.tensor([[eos] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    with torch.no_grad():
        out = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=48,
            eos_token_id=eos, pad_token_id=eos,
        )  # fmt: skip
    found: list[float] = []
    for i, sample in enumerate(samples):
        texts = [codec.tokenizer.decode(row[width:].tolist()) for row in out[i * n : (i + 1) * n]]
        actions = [parse_action(text) for text in texts]
        right = [not isinstance(a, MalformedResponse) and rule.is_exact(a, sample) for a in actions]
        found.append(float(np.mean(right)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=20, help="steps between evaluated checkpoints")
    parser.add_argument("--samples", type=int, default=2, help="responses per held-out point")
    parser.add_argument("--out", type=Path, default=Path("runs/learning_duel"))
    args = parser.parse_args()
    out = args.out.absolute()
    start = warm_up(out)
    config = load_config(["experiment=quickstart"])
    splits, codec = load_splits(config.data, 0), prepare(config).codec
    rule = ExactAct.of((*splits.train, *splits.validation, *splits.test))
    assert rule is not None
    test = tuple(splits.test)
    begin = evaluated(start, test, rule, args.samples, codec)
    sides: dict[str, dict[int, dict[str, Any]]] = {"hamr": {}, "trl": {}}
    for seed in args.seeds:
        ours = hamr_run(out, seed, start, args)
        theirs = trl_run(out, seed, start, ours, args)
        rows = [row for row in read_metrics(ours / "metrics.jsonl") if row["stage"] == "rl"]
        seconds = {"hamr": [row["timing/step/total"] for row in rows]}
        seconds["trl"] = json.loads((theirs / "steps.json").read_text())
        policies = {
            "hamr": lambda step, folder=ours: folder / "checkpoints" / f"step_{step}" / "policy",
            "trl": lambda step, folder=theirs: folder / f"checkpoint-{step}",
        }
        for side, policy in policies.items():
            steps = range(args.every, args.steps + 1, args.every)
            exact = {s: evaluated(policy(s), test, rule, args.samples, codec) for s in steps}
            sides[side][seed] = {
                "exact_act": {0: float(np.mean(begin)), **{s: float(np.mean(v)) for s, v in exact.items()}},
                "seconds": {s: float(np.sum(seconds[side][:s])) for s in (0, *steps)},
                "last": exact[args.steps],
            }
        write(sides, args)


def write(sides: dict[str, dict[int, dict[str, Any]]], args: argparse.Namespace) -> None:
    last = {side: np.array([run["last"] for run in runs.values()]) for side, runs in sides.items()}
    final = {side: [run["seconds"][args.steps] for run in runs.values()] for side, runs in sides.items()}
    found = {
        "machine": machine(),
        "versions": versions(),
        "steps": args.steps,
        "responses_per_step": 96,
        "samples_per_point": args.samples,
        "hamr_minus_trl": crossed(last["hamr"] - last["trl"]),
        "seconds_hamr_over_trl": [h / t for h, t in zip(final["hamr"], final["trl"], strict=True)],
        "sides": {
            side: {seed: {k: v for k, v in run.items() if k != "last"} for seed, run in runs.items()}
            for side, runs in sides.items()
        },
    }
    write_results(HERE / "results" / "learning_duel.json", found)
    draw_picture("learning_duel")
    print(json.dumps({k: found[k] for k in ("hamr_minus_trl", "seconds_hamr_over_trl")}))
    for side, runs in sides.items():
        for seed, run in runs.items():
            print(
                side,
                seed,
                {s: round(v, 3) for s, v in run["exact_act"].items()},
                round(run["seconds"][args.steps]),
                "s",
            )


if __name__ == "__main__":
    main()
