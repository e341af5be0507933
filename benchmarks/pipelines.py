"""The small pipelines to their end: seconds of each stage; and with `--kills`, a killed one against an undisturbed one.

    .venv/bin/python benchmarks/pipelines.py
    .venv/bin/python benchmarks/pipelines.py hrm_small olamind_small --few --kills   # every stage is killed once

`hrm_small` and `olamind_small` as they ship. The arms of `hrm_ablations`, from what `hrm_small` made, get the
quickstart's policy and scorers and two steps each; their plans are the dialogues in the words of a template, and none
has a reason. With `--kills` a second run is killed by SIGKILL in every stage, 1 to 6 seconds after the stage's folder
appears, and resumed. What its stages hand on is then compared with the first run: data, scores, fits and figures
without their times, and the policies' weights. Counted are rows whose texts and counts the other run lacks; of other
numbers the largest difference is given (scorers' batches depend on timing, and with them the last digits of scores).
A finished folder is read instead of run again. Writes benchmarks/results/pipelines.json (with `--kills`
pipelines_killed.json) and prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from results_json import write_results
from safetensors.torch import load_file
from template_teacher import served

from hamr.apps.pipeline.log import PLAN, PipelineLog
from hamr.apps.shared.machine import machine, versions
from hamr.security.processes import alive

HERE = Path(__file__).resolve().parent
NAMES = ("hrm_small", "olamind_small", "hrm_ablations")
FEW = {
    "both": (
        *("stages.dialogues.data.sage.train=48", "stages.dialogues.data.sage.validation=12"),
        *("stages.dialogues.data.sage.test=12", "sft.steps=60", "experiment.steps=4", "experiment.prompts_per_step=4"),
        *("experiment.checkpoint.every=1", "rollout.samples_per_prompt=4", "data.max_eval=8"),
        *("pools.reranker.finetune.examples=200", "pools.judge.finetune.examples=100", "scorers.accept_chance=true"),
    ),
    "hrm_small": ("stages.calibrate.most=40",),
    "olamind_small": (
        *("stages.items.core=2", "stages.items.risk=1", "stages.items.hallucination=3"),
        *("stages.responses.n=1", "stages.sampled.min_mean=0"),
    ),
}
SMALL_ARMS = (
    *("model=compact", "pools=compact", "trainer=cpu", "rollout=cpu", "model.max_context=512", "trainer.dtype=float32"),
    *("rollout.max_new_tokens=88", "rollout.samples_per_prompt=4", "rollout.engine.max_num_seqs=96"),
    *("experiment.steps=2", "experiment.prompts_per_step=4", "sft.steps=40", "sft.batch_size=16", "data.max_eval=12"),
    *("trainer.threads=2", "pools.reranker.finetune.examples=4000", "pools.judge.finetune.examples=1200"),
    "scorers.accept_chance=true",
)
Row = dict[str, float]
HANDED_ON = (
    *("output.jsonl", "train.jsonl", "validation.jsonl", "test.jsonl", "items.jsonl", "held_out_items.jsonl"),
    *("generated.jsonl", "planted.jsonl", "metrics.jsonl", "metrics.json", "calibration.json", "scores.jsonl"),
    *("judgements.jsonl", "result.json"),
)
TIMES = re.compile(r"time|seconds|key|timing/.*|router/seconds/.*|pool/.*|memory.*|.*(_s|per_second)(/.*)?")
"""Keys of what a clock or the machine gives."""


def hamr(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hamr", *arguments]


def run_pipeline(name: str, folder: Path, overrides: list[str]) -> None:
    if not (folder / PLAN).is_file():
        arguments = [f"pipeline={name}", f"experiment.run_dir={folder}", *overrides]
        subprocess.run(hamr("train", *arguments), check=True)
    elif not unfinished(folder):
        return
    else:
        subprocess.run(hamr("train", f"resume={folder}"), check=True)


def stages_of(folder: Path) -> dict[str, Path]:
    return {row["name"]: folder / row["folder"] for row in json.loads((folder / PLAN).read_text())["stages"]}


def unfinished(folder: Path) -> list[str]:
    log = PipelineLog(folder)
    return [name for name in stages_of(folder) if not log.is_finished(name)]


def run_with_kills(name: str, folder: Path, overrides: list[str], seed: int) -> None:
    """Kill the pipeline once in every stage that lasts long enough, and resume it each time."""
    chance, killed = random.Random(seed), set()
    started = (folder / PLAN).is_file()
    while not started or unfinished(folder):
        given = [f"resume={folder}"] if started else [f"pipeline={name}", f"experiment.run_dir={folder}", *overrides]
        with (folder.parent / f"{folder.name}.log").open("a") as log:
            process = subprocess.Popen(hamr("train", *given), stdout=log, stderr=log)
        after = chance.uniform(1, 6)
        while process.poll() is None:
            stage = running(folder)
            if stage and stage not in killed:
                time.sleep(after)
                if running(folder) == stage and process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
                    process.wait()
                    killed.add(stage)
                    wait_until_ended(stages_of(folder)[stage])
                    break
                after = chance.uniform(0.5, 1)  # a short stage
            time.sleep(0.1)
        else:
            if process.returncode:
                raise SystemExit(f"{name}: exit code {process.returncode}; see {folder}.log")
        started = (folder / PLAN).is_file()


def ablation_inputs(hrm: Path, out: Path) -> list[str]:
    """Return the inputs of `hrm_ablations` as overrides, made from the folder of `hrm_small`."""
    stages = stages_of(hrm)
    dialogues, plans = stages["dialogues"], out / "plans.jsonl"
    if not plans.is_file():
        chats = out / "chats.jsonl"
        with chats.open("w") as file:
            for line in (dialogues / "train.jsonl").read_text().splitlines():
                sample = json.loads(line)
                turns = [*sample["history"], {"role": "agent", **sample["references"][0]}]
                if all(turn.get("action", "reply") == "reply" for turn in turns) and len(turns) > 3:
                    role = {"customer": "user", "agent": "assistant"}
                    messages = [{"role": role[turn["role"]], "content": turn["content"]} for turn in turns]
                    file.write(json.dumps({"messages": messages}) + "\n")
        subprocess.run(hamr("data", "import", "messages", f"input={chats}", f"output={out / 'chats'}"), check=True)
        with served() as url:
            pool = f"+pools.words={{role: grader, type: openai, model: template, endpoint: '{url}'}}"
            given = [f"input={out / 'chats' / 'trajectories.jsonl'}", f"output={plans}", "pools=sage_small"]
            subprocess.run(hamr("data", "patm", *given, "teacher=words", pool), check=True)
    single, multi = out / "single", out / "multi"
    for folder, train in ((single, dialogues / "train.jsonl"), (multi, stages["multigt"] / "output.jsonl")):
        folder.mkdir(exist_ok=True)
        held_out = {split: stages[f"multigt_{split}"] / "output.jsonl" for split in ("validation", "test")}
        for split, path in {"train": train, **held_out}.items():
            shutil.copyfile(path, folder / f"{split}.jsonl")
    paths = {"decisions": dialogues / "train.jsonl", "reasons": dialogues / "items.jsonl", "plans": plans}
    paths |= {"plan_reasons": dialogues / "items.jsonl", "single": single, "multi": multi}
    paths |= {"cascade": stages["calibrate"]}
    return [f"inputs.{name}={path}" for name, path in paths.items()]


def running(folder: Path) -> str | None:
    """Return the stage that has begun and whose folder exists."""
    if not (folder / PLAN).is_file():
        return None
    log = PipelineLog(folder)
    begun = [name for name, path in stages_of(folder).items() if log.of(name).state == "begun" and path.is_dir()]
    return begun[0] if begun else None


def wait_until_ended(stage: Path) -> None:
    """The kernel tells the stage of a killed pipeline to end, which takes it a moment."""
    lock = stage / "run.lock"
    while lock.is_file() and (owner := lock.read_text()) and alive(json.loads(owner)["pid"]):
        time.sleep(0.2)
    time.sleep(1)


def handed_on(folder: Path, stage: Path) -> Iterator[tuple[str, Any]]:
    """Yield each output of a stage: weights as tensors, else rows without times and without the run's own path."""
    for path in sorted(stage.rglob("*")):
        name = str(path.relative_to(stage))
        if path.name == "model.safetensors" and "checkpoints" in name:
            yield name, {key: tensor.float() for key, tensor in load_file(path).items()}
        elif path.name in HANDED_ON and "wandb" not in name:
            text = path.read_text().replace(str(folder), "")
            rows = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
            yield name, [without_times(row) for row in rows]


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in sorted(value.items()) if not TIMES.fullmatch(k)}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def words_of(value: Any) -> Any:
    """The value without its fractional numbers, which are compared within a tolerance."""
    if isinstance(value, dict):
        return {k: words_of(v) for k, v in value.items()}
    if isinstance(value, list):
        return [words_of(item) for item in value]
    return None if isinstance(value, float) else value


def difference(first: Any, other: Any) -> float:
    """Return the largest difference of two outputs' numbers; infinite if anything else differs.

    >>> difference({"a": [1.0, "x"]}, {"a": [1.25, "x"]}), difference([1], [1, 2])
    (0.25, inf)
    """
    if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor) and first.shape == other.shape:
        return float((first - other).abs().max())
    if isinstance(first, dict) and isinstance(other, dict) and first.keys() == other.keys():
        return max((difference(first[k], other[k]) for k in first), default=0.0)
    if isinstance(first, list) and isinstance(other, list) and len(first) == len(other):
        return max((difference(a, b) for a, b in zip(first, other, strict=True)), default=0.0)
    if isinstance(first, int | float) and isinstance(other, int | float):
        return abs(first - other)
    return 0.0 if first == other else math.inf


def compare(whole: Path, killed: Path) -> dict[str, dict[str, Row]]:
    """Return stage -> output -> the largest difference of numbers, and how many rows have no counterpart."""
    second = stages_of(killed)
    found = {}
    for name, stage in stages_of(whole).items():
        first, other = dict(handed_on(whole, stage)), dict(handed_on(killed, second[name]))
        last = sorted(path for path in first if "checkpoints" in path)[-1:]  # of the checkpoints, the last one counts
        files = sorted(path for path in first.keys() | other.keys() if "checkpoints" not in path) + last
        found[name] = {path: compare_output(first.get(path, []), other.get(path, [])) for path in files}
    return found


def compare_output(first: Any, other: Any) -> Row:
    if isinstance(first, dict):
        return {"rows": 1, "without_counterpart": 0, "difference": difference(first, other)}
    by_words: dict[str, list[Any]] = {}
    for row in other:
        by_words.setdefault(json.dumps(words_of(row)), []).append(row)
    largest, alone = 0.0, 0
    for row in first:
        if same := by_words.get(json.dumps(words_of(row))):
            largest = max(largest, difference(row, same.pop(0)))
        else:
            alone += 1
    return {"rows": len(first), "without_counterpart": alone, "difference": largest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--few", action="store_true", help="few samples and steps")
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--out", type=Path, default=Path("runs/pipelines"), help="folder of the runs")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    body: dict[str, Any] = {"machine": machine(), "versions": versions(), "few": args.few, "pipelines": {}}
    for name in args.names:
        overrides = [*FEW["both"], *FEW.get(name, ())] if args.few else []
        if name == "hrm_ablations":
            overrides = [*SMALL_ARMS, *ablation_inputs((args.out / "hrm_small").resolve(), args.out.resolve())]
        whole = (args.out / name).resolve()
        run_pipeline(name, whole, overrides)
        log = PipelineLog(whole)
        row: dict[str, Any] = {"seconds": {stage: log.of(stage).seconds for stage in stages_of(whole)}}
        print(f"{name}: {sum(row['seconds'].values()):.0f} s in {len(row['seconds'])} stages")
        if args.kills:
            again = (args.out / f"{name}_killed").resolve()
            run_with_kills(name, again, overrides, args.seed)
            row["attempts"] = {stage: PipelineLog(again).of(stage).attempts for stage in stages_of(again)}
            row["differences"] = compare(whole, again)
            for stage, files in row["differences"].items():
                alone = ", ".join(
                    f"{f['without_counterpart']} of {f['rows']} in {path}"
                    for path, f in files.items()
                    if f["without_counterpart"]
                )
                print(f"| {stage} | {len(files)} | {max(f['difference'] for f in files.values()):.0e} | {alone} |")
        else:
            for stage, seconds in row["seconds"].items():
                print(f"| {stage} | {seconds:.0f} |")
        body["pipelines"][name] = row
    result = HERE / "results" / ("pipelines_killed.json" if args.kills else "pipelines.json")
    write_results(result, body)


if __name__ == "__main__":
    main()
