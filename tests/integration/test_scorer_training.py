"""A small scorer, fine-tuned for real: it learns its examples and writes a complete folder."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest

from hamr.apps.scorer.grader import Grading
from hamr.apps.scorer.judged import JudgedResponse
from hamr.apps.scorer.lessons import example, grader_exam, question_ids, training_examples
from hamr.apps.scorer.prepare import clearly_better, prepare_scorers
from hamr.apps.shared.commands import parse_command
from hamr.apps.shared.preparation import load_splits
from hamr.config.load import load_config
from hamr.config.pools import PoolConfig, ScorerTrainingConfig
from hamr.config.section import LoraConfig
from hamr.data.formats import PLAIN
from hamr.data.pairs import ReplyPair
from hamr.errors import RunFolderError
from hamr.models.bundled import resolve_model
from hamr.models.tokenizer import load_tokenizer
from hamr.pools.pair_training import PairExample, finetune_pairs, pair_scores
from hamr.pools.scorer_pairs import CrossEncoderModel
from hamr.pools.scorer_prompt import ScorerPrompt
from hamr.prompting.templates import PromptTemplate
from hamr.trainer.scorer_training import ScorerExample, batch_loss, family_batches, finetune, verdict_scores
from hamr.types import ServiceSample
from tests.killing import still_there


@pytest.fixture(scope="module")
def tiny() -> Path:
    return resolve_model("tiny")


def prompt_of(tiny: Path, name: str) -> ScorerPrompt:
    return ScorerPrompt(PromptTemplate.load(name), load_tokenizer(tiny))


def pair(label: str) -> ReplyPair:
    b = {"consistent": "The fee is $40.", "partial": "There is a fee.", "inconsistent": "Goodbye!"}[label]
    thought = "A states the fee; B too."
    return ReplyPair(history="", statement_a="A $40 fee applies.", statement_b=b, label=label, thought=thought)


def test_reranker_learns_and_writes_a_complete_folder(tiny: Path, tmp_path: Path) -> None:
    prompt = prompt_of(tiny, "reranker_short.en")
    labels = ["consistent", "inconsistent"] * 32
    out = tmp_path / "scorer"
    losses: list[float] = []
    finetune(
        tiny,
        out,
        [example(prompt, pair(label)) for label in labels],
        ScorerTrainingConfig(layers=2, epochs=8, batch_size=8, learning_rate=3e-3, threads=1),
        seed=0,
        progress=lambda step, steps, loss: losses.append(loss),
    )
    assert len(losses) == 64 and losses[-1] < 0.1 * losses[0]
    questions = [tuple(question_ids(prompt, pair(label), think=False)) for label in labels[:2]]
    values = {prompt.labels["yes"]: 1.0, prompt.labels["no"]: 0.0}
    same, other = verdict_scores(out, questions, values, dtype="float32", threads=1)
    assert same > 0.9 and other < 0.1
    assert load_tokenizer(out).encode("yes") == load_tokenizer(tiny).encode("yes")
    assert not list(tmp_path.glob(".scorer*")), "nothing half-written stays"


@pytest.mark.deep
def test_training_with_a_gpu_takes_the_same_steps(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the device: activations are recomputed, an adapter is trained and merged, without the CPU's kernels."""
    monkeypatch.setattr("hamr.trainer.scorer_training.device_of", lambda config: "cpu:0" if config.num_gpus else "cpu")
    prompt = prompt_of(tiny, "reranker_short.en")
    examples = [example(prompt, pair(label)) for label in ("consistent", "inconsistent") * 8]

    def losses(gpus: Literal[0, 1]) -> list[float]:
        found: list[float] = []
        tuning = ScorerTrainingConfig(
            num_gpus=gpus, dtype="float32", layers=2, batch_size=4, lora=LoraConfig(), learning_rate=3e-3
        )
        finetune(tiny, tmp_path / str(gpus), examples, tuning, seed=0, progress=lambda _, __, loss: found.append(loss))
        return found

    cpu, gpu = losses(0), losses(1)
    assert gpu == pytest.approx(cpu, rel=1e-4) and gpu[-1] < gpu[0]
    assert (tmp_path / "1" / "config.json").is_file()


@pytest.mark.deep
def test_untrained_cross_encoder_learns_and_serves_its_scores(tmp_path: Path) -> None:
    """A fee is right if it equals that of the reference; this holds for amounts outside the examples too."""
    fees = [(a, b) for a in range(20, 60) for b in (a, a + 7)]
    examples = [PairExample(f"A fee of ${a} applies.", f"You pay ${b}.", float(a == b)) for a, b in fees]
    out = tmp_path / "scorer"
    tuning = ScorerTrainingConfig(epochs=25, batch_size=16, learning_rate=1e-3, threads=2)
    finetune_pairs(resolve_model("compact-encoder"), out, examples, tuning, seed=0)
    unseen = [("A fee of $300 applies.", "You pay $300."), ("A fee of $300 applies.", "You pay $400.")]
    right, wrong = pair_scores(out, unseen, threads=1)
    assert right > 0.8 and wrong < 0.2
    pool = PoolConfig(role="judge", type="cross_encoder", dtype="float32", model=str(out))
    served = CrossEncoderModel(pool, out).scores(unseen)
    assert served == pytest.approx([right, wrong], abs=1e-5)
    assert not list(tmp_path.glob(".scorer*")), "nothing half-written stays"


@pytest.mark.deep
def test_grader_learns_the_label_and_its_reason(tiny: Path, tmp_path: Path) -> None:
    sample = ServiceSample(id="s", ticket={}, policy="", tools=(), history=(), references=())
    rows = [
        JudgedResponse(sample=sample, response=said, labels=labels, reason=reason)
        for said, labels, reason in (("It costs $40.", (), ""), ("I am a lawyer.", ("role",), "a lawyer"))
    ]
    grading = Grading(
        reward="risk",
        rewards=load_config(["experiment=smoke"]).rewards,
        tokenizer=load_tokenizer(tiny),
        formats=PLAIN,
    )
    losses: list[float] = []
    finetune(
        tiny,
        tmp_path / "grader",
        grading.examples(rows * 32),
        ScorerTrainingConfig(layers=2, epochs=8, batch_size=8, learning_rate=3e-3, threads=1),
        seed=0,
        progress=lambda step, steps, loss: losses.append(loss),
    )
    assert losses[-1] < 0.1 * losses[0]
    exam = grader_exam(grading, rows)
    clean, risky = verdict_scores(
        tmp_path / "grader", [tuple(q) for q in exam.questions], exam.values, dtype="float32", threads=1
    )
    assert clean > 0.9 and risky < 0.1


@pytest.mark.deep
def test_adapter_learns_and_is_merged_into_the_model(tiny: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    prompt = prompt_of(tiny, "reranker_short.en")
    labels = ["consistent", "inconsistent"] * 32
    losses: list[float] = []
    finetune(
        tiny,
        tmp_path / "scorer",
        [example(prompt, pair(label)) for label in labels],
        ScorerTrainingConfig(
            lora=LoraConfig(), epochs=8, batch_size=8, learning_rate=1e-2, warmup_frac=0.05, threads=1
        ),
        seed=0,
        progress=lambda step, steps, loss: losses.append(loss),
    )
    assert losses[-1] < 0.8 * losses[0], "an adapter leaves the head as it is, whose logits are small in a random model"
    before, after = (load_file(path / "model.safetensors") for path in (tiny, tmp_path / "scorer"))
    assert before.keys() == after.keys()
    moved = {name for name in before if not bool((before[name].bfloat16() == after[name].bfloat16()).all())}
    assert moved and all(name.endswith("_proj.weight") for name in moved)
    questions = [tuple(question_ids(prompt, pair(label), think=False)) for label in labels[:2]]
    values = {prompt.labels["yes"]: 1.0, prompt.labels["no"]: 0.0}
    same, other = verdict_scores(tmp_path / "scorer", questions, values, dtype="float32", threads=1)
    assert same > 0.9 and other < 0.1


@pytest.mark.deep
def test_job_evaluates_the_trained_scorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAMR_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    tuning = "when: always, batch_size: 8, examples: 64, learning_rate: 0.003"
    overrides = ["experiment=smoke", f"pools.reranker.finetune={{{tuning}}}", f"experiment.run_dir={out}"]
    assert parse_command(["scorer", *overrides]).run() == 0
    [(name, scorer)] = json.loads((out / "summary.json").read_text())["scorers"].items()
    assert name == "reranker" and Path(scorer["model"], "config.json").is_file()
    for found in (scorer["quality"]["held_out"][model] for model in ("raw", "tuned")):
        assert found["n"] > 20 and 0 <= found["accuracy"] <= 1 and 0 <= found["calibration_error"] <= 1
        assert sum(b["n"] for b in found["bins"]) == found["n"]
    assert (out / "plots" / "reliability_reranker_held_out.png").stat().st_size > 0
    with pytest.raises(RunFolderError):
        parse_command(["scorer", *overrides]).run()


@pytest.mark.parametrize("train", [True, False])
def test_embeddings_change_only_if_configured(tiny: Path, tmp_path: Path, train: bool) -> None:
    from safetensors import safe_open

    def embeddings(folder: Path) -> Any:
        with safe_open(folder / "model.safetensors", "pt") as tensors:
            return tensors.get_tensor("model.embed_tokens.weight").bfloat16()

    config = ScorerTrainingConfig(batch_size=8, learning_rate=3e-2, train_embeddings=train)
    examples = [
        example(prompt_of(tiny, "reranker_short.en"), pair(label)) for label in ["consistent", "inconsistent"] * 8
    ]
    finetune(tiny, tmp_path / "scorer", examples, config, seed=0)
    assert bool((embeddings(tmp_path / "scorer") == embeddings(tiny)).all()) is not train


def test_partial_pair_is_half_yes_for_two_label_prompts(tiny: Path) -> None:
    reranker, judge = prompt_of(tiny, "reranker_short.en"), prompt_of(tiny, "judge_short.en")
    assert dict(example(reranker, pair("partial")).verdict) == {
        reranker.labels["yes"]: 0.5,
        reranker.labels["no"]: 0.5,
    }
    judged = example(judge, pair("partial"))
    assert dict(judged.verdict) == {judge.labels["part"]: 1.0}
    said = judge.tokenizer.decode(judged.target_ids)
    assert said.startswith("A states the fee; B too.") and said.endswith("Part")


def test_judge_trains_on_the_tokens_of_its_questions(tiny: Path) -> None:
    """Training uses one text; scoring builds the same tokens in two phases."""
    judge = prompt_of(tiny, "judge_short.en")
    trained = example(judge, pair("consistent"))
    asked = question_ids(judge, pair("consistent"), think=True)
    reasoned = judge.tokenizer.encode(pair("consistent").thought) + judge.verdict_ids(after_thinking=True)
    assert [*trained.prompt_ids, *trained.target_ids] == [*asked, *reasoned, judge.labels["yes"]]


def test_missing_or_foreign_reasoning_carries_no_loss(tiny: Path) -> None:
    """Of four examples two have their own reasoning, one has none and one has that of another pair about the same
    statement, if there is any. The verdict is always that of the pair.
    """
    judge, reranker = prompt_of(tiny, "judge_short.en"), prompt_of(tiny, "reranker_short.en")
    replies = [("One.", "A: one; B: one."), ("Two.", "A: two; B: two."), ("Fee.", "A: fee; B: fee.")]
    about = [replies[i] for i in (0, 1, 2, 2, 1, 0)]
    pairs = [
        dataclasses.replace(pair(label), statement_a=a, thought=f"{thought[:-1]} {i // 3}.")
        for i, ((a, thought), label) in enumerate(zip(about, ["consistent", "inconsistent"] * 3, strict=True))
    ]
    examples = training_examples(judge, pairs)
    said = [judge.tokenizer.decode(e.target_ids) for e in examples]
    close = judge.template.thinking.close
    assert [e.sound for e in examples] == [True, False, True, False, True, False]
    assert [said[i].split(close)[0] for i in (0, 2, 4)] == [pairs[i].thought for i in (0, 2, 4)]
    assert [said[i].split(close)[0] for i in (1, 5)] == ["", ""]
    assert said[3].split(close)[0] == pairs[2].thought, "the other pair about 'Fee.'"
    assert [text.rpartition(" ")[2] for text in said] == ["Yes", "No"] * 3
    assert all(e.sound for e in training_examples(reranker, pairs))


def test_raw_model_is_kept_only_if_clearly_better_than_overlap() -> None:
    labels = [True, False] * 30
    assert clearly_better(0.95, 0.6, labels)
    assert not clearly_better(0.52, 0.51, labels), "chance, on a draw on which word overlap is no better"
    assert not clearly_better(0.7, 0.6, labels) and clearly_better(0.7, 0.6, labels * 20)


@pytest.mark.deep
def test_a_judge_starts_from_the_trained_reranker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import load_file

    monkeypatch.setenv("HAMR_CACHE", str(tmp_path))
    tuning = "batch_size: 8, examples: 16, when: always"
    config = load_config(
        [
            "experiment=smoke",
            f"pools.reranker.finetune={{{tuning}, learning_rate: 0.003, layers: 2}}",
            f"pools.judge.finetune={{{tuning}, learning_rate: 1.0e-9, start_from: reranker}}",
        ]
    )
    splits = load_splits(config.data, 0)
    found = prepare_scorers(config, splits.train, splits.validation, print)
    assert list(found) == list(config.pools)
    reranker, judge, base = (
        load_file(path / "model.safetensors")
        for path in (found["reranker"].path, found["judge"].path, resolve_model("tiny"))
    )
    assert found["reranker"].path != found["judge"].path
    assert judge.keys() == reranker.keys() != base.keys()
    assert max(float((judge[name] - reranker[name]).abs().max()) for name in judge) < 1e-7
    assert max(float((reranker[name] - base[name]).abs().max()) for name in reranker) > 1e-3
    assert prepare_scorers(config, splits.train, splits.validation, print) == found, "cached"


@pytest.mark.parametrize("wait_s", [0.0, pytest.param(3.0, marks=pytest.mark.deep)], ids=["early", "late"])
def test_killed_job_leaves_no_training_process(wait_s: float) -> None:
    code = """
import time
from hamr.apps.shared.child_process import child_process
if __name__ == "__main__":
    with child_process("killed") as call:
        call(time.sleep, 600)
"""
    job = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while not (children := psutil.Process(job.pid).children(recursive=True)) or len(children) < 2:
        assert time.monotonic() < deadline and job.poll() is None, "no training process appeared"
        time.sleep(0.1)
    time.sleep(wait_s)  # after 3 s the initialiser of the process has run
    job.kill()
    job.wait()
    assert still_there(children, 20) == []


def an_example(family: str, *prompt: int) -> ScorerExample:
    return ScorerExample(prompt_ids=prompt, target_ids=(1, 2), verdict=((2, 0.75), (3, 0.25)), family=family)


def test_every_example_shares_a_batch_with_its_family() -> None:
    examples = [an_example(f"f{i % 5}", i) for i in range(35)] + [an_example("", i) for i in range(35, 40)]
    batches = family_batches(examples, 8, seed=1)
    assert sorted(e.prompt_ids for batch in batches for e in batch) == sorted(e.prompt_ids for e in examples)
    assert all(len(batch) <= 8 for batch in batches)
    for name in {e.family for e in examples} - {""}:
        assert sum(any(e.family == name for e in batch) for batch in batches) == 1
    assert len(family_batches([an_example("one", i) for i in range(20)], 8, seed=1)) == 3


def test_family_batch_loss_equals_the_loss_of_single_examples(tiny: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from hamr.trainer.policy_model import load_policy

    examples = [an_example("a", 9, 8, 7, n, n + 1) for n in (11, 12, 13)] + [
        an_example("", 5, 6),
        an_example("a", 9, 8),
    ]
    plain = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    expected = 0.0
    for e in examples:
        logits = plain(torch.tensor([e.prompt_ids + e.target_ids])).logits[0].detach()
        logprobs = torch.log_softmax(logits, -1)
        reasoning, verdict = logprobs[len(e.prompt_ids) - 1, 1], logprobs[len(e.prompt_ids), [2, 3]]
        expected -= float(reasoning + 0.75 * verdict[0] + 0.25 * verdict[1]) / len(examples)
    model = load_policy(tiny, dtype=torch.float32, layout="shared_prompt")
    assert batch_loss(model, examples).item() == pytest.approx(expected, abs=1e-5)
