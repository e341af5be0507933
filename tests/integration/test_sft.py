"""`hamr sft` with the tiny model: it learns, a killed run resumes to the same weights, and other libraries load the
result.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hamr.config.load import load_config
from hamr.data.sage_samples import generate_samples
from hamr.data.sft_items import SftItem, TargetPart, write_items
from hamr.models.bundled import resolve_model
from hamr.protocols import GenerationRequest
from hamr.telemetry.metrics import read_metrics
from hamr.trainer.checkpoints import Checkpoints
from tests.killing import kill_family

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PLAN = ("<plans><plan_1>I ask why.</plan_1>", "<plan_2>Assuming it is dear,", " I offer less.</plan_2></plans>")
PARTS = ("action", "environment", "action")
WEIGHTS = "model.safetensors"
OVERRIDES = (
    "experiment=smoke",
    "sft.sets=[{name: references}, {path: plans.jsonl, weight: 2}]",
    "sft.batch_size=8",
    "sft.steps=6",
    "sft.max_validation=6",
    "trainer.learning_rate=3e-3",
    "trainer.min_learning_rate=1e-3",
    "trainer.schedule=cosine",
    "experiment.checkpoint.every=2",
    "experiment.checkpoint.keep=3",
    "experiment.eval_every=3",
)


def hamr(*args: str) -> list[str]:
    return [sys.executable, "-m", "hamr", *args]


def run(*args: str, cwd: Path) -> None:
    done = subprocess.run(hamr(*args), cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def validations_of(run_folder: Path) -> list[dict[str, Any]]:
    return json.loads((run_folder / "summary.json").read_text())["sft"]["validations"]


@pytest.fixture(scope="module")
def folder(joined: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a set of plans, and `whole`, the run folder of an unbroken run."""
    cwd = tmp_path_factory.mktemp("sft")
    samples = generate_samples(load_config(["experiment=smoke"]).data.sage).train[:12]
    target = tuple(TargetPart(part=p, text=t) for p, t in zip(PARTS, PLAN, strict=True))
    write_items(cwd / "plans.jsonl", [SftItem(kind="patm", sample=s, target=target) for s in samples])
    run("sft", *OVERRIDES, *joined, "experiment.run_dir=whole", cwd=cwd)
    return cwd


def test_every_set_is_trained_and_validated(folder: Path) -> None:
    validations = validations_of(folder / "whole")
    assert [v["step"] for v in validations] == [0, 3, 6]
    for name in ("references", "plans"):
        losses = [v["sets"][name]["loss"] for v in validations]
        assert losses == sorted(losses, reverse=True), f"{name}: {losses}"
    assert set(validations[-1]["sets"]["plans"]) == {"loss", "action", "environment", "next_action"}
    rows = [row for row in read_metrics(folder / "whole" / "metrics.jsonl") if row["stage"] == "sft"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    rates = [row["sft/learning_rate"] for row in rows]
    assert rates[0] == pytest.approx(3e-3) and rates[-1] == pytest.approx(1e-3)
    assert (folder / "whole" / "report.html").stat().st_size > 0


@pytest.mark.deep
def test_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(folder: Path, joined: tuple[str, ...]) -> None:
    import torch
    from safetensors.torch import load_file

    broken, output = folder / "broken", folder / "broken.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            hamr("sft", *OVERRIDES, *joined, "experiment.run_dir=broken", "experiment.checkpoint.asynchronous=true"),
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + 200
    while not (broken / "checkpoints" / "step_2").is_dir():
        assert process.poll() is None, f"exit code {process.returncode} before step 2: {output.read_text()[-4000:]}"
        assert time.monotonic() < deadline, f"no step 2: {output.read_text()[-4000:]}"
        time.sleep(0.02)
    kill_family(process)
    run("sft", f"resume={broken}", cwd=folder)
    ours, theirs = (load_file(folder / r / "checkpoints/step_6/policy/model.safetensors") for r in ("broken", "whole"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert validations_of(broken) == validations_of(folder / "whole")


def test_checkpoint_losses_in_transformers_match_the_summary(folder: Path) -> None:
    """The reference computes the loss on the validation items one by one; the trainer reports it at the end."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from hamr.apps.sft.sets import prepare_sft

    summary = json.loads((folder / "whole" / "summary.json").read_text())
    model_path = folder / "whole" / summary["sft"]["model"]
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    assert AutoTokenizer.from_pretrained(model_path).chat_template
    with contextlib.chdir(folder):
        [_, plans] = prepare_sft(load_config(list(OVERRIDES))).sets
    losses: list[float] = []
    for item in plans.validation:
        ids = torch.tensor([[*item.prompt_ids, *item.token_ids]])
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits[0].float(), -1)
        start = len(item.prompt_ids)
        losses += [-logprobs[start + i - 1, t].item() for i, t in enumerate(item.token_ids)]
    expected = summary["sft"]["validations"][-1]["sets"]["plans"]["loss"]
    assert sum(losses) / len(losses) == pytest.approx(expected, abs=1e-4)


@pytest.mark.deep
def test_checkpoint_gives_equal_logprobs_in_vllm_and_transformers(
    folder: Path,
    joined: tuple[str, ...],
    start_engine: Callable[..., Any],
    oracle: Any,
    prompt_ids: tuple[int, ...],
    request_of: Callable[..., GenerationRequest],
) -> None:
    """Each token that vLLM finds likeliest is transformers' likeliest, with the same log-probability. An adapter is
    merged into the checkpoint, which differs from that of a full run in its weights alone, so that one engine takes
    both; both have changed theirs."""
    import ray

    lora = ("trainer.lora={rank: 4}", "sft.steps=2", "experiment.run_dir=adapter")
    run("sft", *OVERRIDES, *joined, *lora, cwd=folder)
    run("export", "adapter", "output=exported", cwd=folder)
    assert "LoRA adapter (rank 4) is merged into the weights" in (folder / "exported/README.md").read_text()
    assert_changed_from_tiny(folder / "exported")
    whole, adapter = (
        folder / name / json.loads((folder / name / "summary.json").read_text())["sft"]["model"]
        for name in ("whole", "adapter")
    )
    files = {path.name for path in whole.iterdir()}
    assert {path.name for path in adapter.iterdir()} == files | {"adapter"}
    assert all((adapter / name).read_bytes() == (whole / name).read_bytes() for name in files - {WEIGHTS})
    engine = start_engine(whole)
    for model_path in (whole, adapter):
        assert_changed_from_tiny(model_path)
        model = oracle(model_path)
        if model_path is adapter:
            weights = model.save(folder / "adapter.safetensors")
            ray.get(engine.load_weights.remote(str(weights), 1), timeout=120)
        request = request_of(prompt_ids, samples=1, tokens=16, temperature=0.0)
        [rollout] = ray.get(engine.generate.remote([request]), timeout=240)
        likely = model.distributions(prompt_ids, rollout.token_ids)
        for i, (token, said) in enumerate(zip(rollout.token_ids, rollout.logprobs, strict=True)):
            assert likely[i, token] == pytest.approx(likely[i].max().item(), abs=1e-4)
            assert said == pytest.approx(likely[i, token].item(), abs=1e-3)


def assert_changed_from_tiny(model_path: Path) -> None:
    from safetensors.torch import load_file

    weights, before = (load_file(path / WEIGHTS) for path in (model_path, resolve_model("tiny")))
    assert weights.keys() == before.keys()
    assert any(not weights[name].equal(before[name]) for name in weights)


def test_train_rejects_the_resumption_of_an_sft_run(folder: Path) -> None:
    done = subprocess.run(
        hamr("train", f"resume={folder / 'whole'}"), cwd=folder, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 2 and "hamr sft resume" in done.stderr
    assert Checkpoints(folder / "whole" / "checkpoints").newest().step == 6
