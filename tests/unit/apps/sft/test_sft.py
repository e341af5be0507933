"""`hamr sft` before Ray starts: rejected input, selected items, and the preview."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.apps.sft import run as module
from hamr.apps.sft.preview import stretches
from hamr.apps.sft.run import SftRun, check_resumable, take_steps, train
from hamr.apps.sft.sets import PreparedSft, prepare_sft
from hamr.apps.shared.preemption import Preemption
from hamr.apps.shared.preparation import Codec, load_splits
from hamr.apps.shared.start_status import StartStatus
from hamr.cli import main
from hamr.config.load import load_config
from hamr.config.schema import Config
from hamr.data.samples import write_samples
from hamr.data.sft_items import PARTS, SftItem, TargetPart, decision_item, write_items
from hamr.errors import BadInput, Preempted
from hamr.models.tokenizer import load_tokenizer
from hamr.telemetry.console import Console
from hamr.telemetry.control_requests import ControlRequests
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.run_folder import RunFolder
from hamr.trainer.checkpoints import Checkpoint, Checkpoints
from hamr.types import Reference, Reply, ServiceSample, SftKind, Turn
from tests.tool_models import tiny_with_tools, tool_sample

TEXTS = {
    "decision": ("May I ask why?",),
    "decision_dra": ("<think>They leave.</think>", "<answer>May I ask why?</answer>"),
    "patm": ("<plans><plan_1>I ask.</plan_1>", "<plan_2>Assuming it is dear,", " I offer less.</plan_2></plans>"),
    "patm_dra": ("<think>Hm.</think>", "<plans><plan_1>I ask.</plan_1>", "<plan_2>If so,", " I act.</plan_2></plans>"),
    "decision_post": ("<answer>May I ask why?</answer>", "<think>They leave.</think>"),
}  # fmt: skip


def item(number: int, kind: SftKind = "decision", words: int = 3) -> SftItem:
    sample = ServiceSample(
        id=f"s{number}",
        ticket={},
        policy="Help.",
        tools=(),
        history=(Turn(role="customer", content="please " * words),),
        references=(Reference(action=Reply(content="Why?")),),
        meta={"dialogue": f"d{number}"},
    )
    parts = tuple(TargetPart(part=p, text=t) for p, t in zip(PARTS[kind], TEXTS[kind], strict=True))
    return SftItem(kind=kind, sample=sample, target=parts)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """20 decisions, and plans from the first 10 of their dialogues; the working folder is theirs."""
    monkeypatch.chdir(tmp_path)
    write_items(tmp_path / "decisions.jsonl", [item(i) for i in range(20)])
    write_items(tmp_path / "plans.jsonl", [item(i, "patm") for i in range(10)])
    return tmp_path


def prepared(*overrides: str) -> PreparedSft:
    return prepare_sft(load_config(["experiment=smoke", *overrides]))


MIX = "sft.sets=[{path: decisions.jsonl}, {path: plans.jsonl, weight: 2}]"


def test_mix_holds_out_the_same_dialogues_from_every_set(files: Path) -> None:
    job = prepared(MIX, "sft.held_out_frac=0.2", "sft.batch_size=8")
    decisions, plans = job.sets
    assert (decisions.name, plans.name) == ("decisions", "plans")
    assert len(decisions.train) + decisions.held_out == 20 and len(plans.train) + plans.held_out == 10
    assert decisions.held_out >= 4 and plans.held_out >= 2
    kept = {bytes(x.prompt_ids) for x in decisions.train}
    assert not kept & {bytes(x.prompt_ids) for x in decisions.validation} or len(kept) == 1
    assert job.items_in_all == len(decisions.train) + 2 * len(plans.train)
    assert job.steps == -(-job.items_in_all // 8)
    assert [len(job.batch(step)) for step in range(1, job.steps)] == [8] * (job.steps - 1)
    assert sum(len(job.batch(step)) for step in range(1, job.steps + 1)) == job.items_in_all


def test_more_steps_repeat_the_mix(files: Path) -> None:
    job = prepared(MIX, "sft.batch_size=8", "sft.steps=9")
    assert job.steps == 9 and len(job.batch(9)) == 8


def test_kinds_select_items_from_one_file(files: Path) -> None:
    write_items(files / "all.jsonl", [item(i, kind) for kind in PARTS for i in range(5)])
    [entry] = prepared("sft.sets=[{path: all.jsonl}]", "sft.kinds=[decision_dra, patm_dra]").sets
    assert {x.kind for x in (*entry.train, *entry.validation)} == {"decision_dra", "patm_dra"}
    assert entry.other_kinds == 15


def test_run_resumes_only_with_its_original_items(files: Path) -> None:
    folder = RunFolder(files / "run", locked=False)
    begun = prepared(MIX)

    def left(**more: str) -> Checkpoint:
        return Checkpoint(step=1, path=files, state={"sft": {"validations": [], **more}})

    check_resumable(prepared(MIX), left(mix=begun.digest), folder)
    check_resumable(begun, None, folder)
    write_items(files / "plans.jsonl", [item(i, "patm", words=4) for i in range(10)])
    changed = prepared(MIX)
    assert changed.steps == begun.steps
    with pytest.raises(BadInput, match=r"run.*other items than its sets hold now; put the files back"):
        check_resumable(changed, left(mix=begun.digest), folder)
    check_resumable(changed, left(), folder)
    with pytest.raises(BadInput, match="is not a run of hamr sft"):
        check_resumable(begun, Checkpoint(step=1, path=files, state={}), folder)


def test_set_with_weight_zero_is_used_only_for_validation(files: Path) -> None:
    job = prepared("sft.sets=[{path: decisions.jsonl}, {path: plans.jsonl, weight: 0}]", "sft.held_out_frac=0.5")
    assert job.items_in_all == len(job.sets[0].train)
    assert job.sets[1].validation


def test_validation_files_are_excluded_from_every_training_set(files: Path) -> None:
    write_items(files / "held.jsonl", [item(i, "patm") for i in range(3)])
    job = prepared(
        "sft.sets=[{path: decisions.jsonl}, {path: plans.jsonl, validation: held.jsonl}]", "sft.held_out_frac=0"
    )
    assert (len(job.sets[0].train), job.sets[0].held_out, len(job.sets[0].validation)) == (17, 3, 3)
    assert (len(job.sets[1].train), job.sets[1].held_out, len(job.sets[1].validation)) == (7, 3, 3)


def test_long_items_are_dropped_and_counted(files: Path) -> None:
    write_items(files / "long.jsonl", [item(i, words=400 if i == 2 else 3) for i in range(5)])
    sets = "sft.sets=[{path: long.jsonl}]"
    [entry] = prepared(sets, "sft.held_out_frac=0", "model.max_context=300").sets
    assert (len(entry.train), entry.too_long) == (4, 1)


def test_no_set_contains_the_test_split_of_the_data(files: Path) -> None:
    samples = [replace(item(i).sample, policy=f"Help {i}.", meta={"group": f"g{i // 2}"}) for i in range(40)]
    write_samples(files / "train.jsonl", samples)
    write_items(files / "items.jsonl", [replace(item(i), sample=sample) for i, sample in enumerate(samples)])
    job = prepared(
        "data=train.jsonl",
        "sft.sets=[{name: data}, {path: items.jsonl}]",
        "data.held_out_frac=0.2",
        "sft.held_out_frac=0",
    )
    splits = load_splits(job.config.data, job.config.experiment.seed)
    references, items = job.sets
    assert len(references.train) == len(splits.train) == len(items.train)
    assert len(references.validation) == len(splits.validation) == len(items.validation)


def test_set_without_a_file_uses_the_references_of_the_data() -> None:
    [entry] = prepared("sft.sets=[{}]").sets
    assert entry.name == "references" and entry.train and entry.validation
    assert {x.kind for x in entry.train} == {"decision"}


def lines(path: Path, *rows: object) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


REFUSED = {
    "no sets": ([], "sft.sets: []: is empty"),
    "an empty file": (["sft.sets=[{path: empty.jsonl}]"], "empty.jsonl:1"),
    "no file": (["sft.sets=[{path: nowhere.jsonl}]"], "nowhere.jsonl"),
    "an unreadable row": (["sft.sets=[{path: torn.jsonl}]"], "torn.jsonl:2"),
    "an unknown kind": (["sft.sets=[{path: kind.jsonl}]"], "kind.jsonl:1: kind: 'plan': unknown kind"),
    "weights of zero": (
        ["sft.sets=[{path: decisions.jsonl, weight: 0}, {path: plans.jsonl, weight: 0}]"],
        "the weights of the mix sum to zero (decisions 0, plans 0)",
    ),
    "a negative weight": (["sft.sets=[{path: decisions.jsonl, weight: -1}]"], "sft.sets.0.weight"),
    "weights too small": (["sft.sets=[{path: decisions.jsonl, weight: 0.01}]"], "an epoch of the mix has no items"),
    "one name twice": (["sft.sets=[{path: decisions.jsonl}, {path: decisions.jsonl}]"], "two sets are called"),
    "an unknown key": (["sft.sets=[{file: decisions.jsonl}]"], "sft.sets.0.file: unknown key"),
    "no item of a kind": (["sft.sets=[{path: plans.jsonl}]", "sft.kinds=[decision]"], "10 patm"),
    "all held out": (["sft.sets=[{path: decisions.jsonl}]", "sft.held_out_frac=0.99"], "none is left to train on"),
    "all too long": (["sft.sets=[{path: decisions.jsonl}]", "model.max_context=20"], "model.max_context=20;"),
}  # fmt: skip


@pytest.mark.parametrize("command", [["sft"], ["sft", "preview"]], ids=" ".join)
@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_reported_in_one_line_with_exit_code_2(
    case: str, command: list[str], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "empty.jsonl").write_text("\n")
    lines(files / "kind.jsonl", {"kind": "plan", "sample": {}, "target": []})
    (files / "torn.jsonl").write_text((files / "plans.jsonl").read_text().splitlines()[0] + '\n{"kind":\n')
    overrides, named = REFUSED[case]
    assert (
        main([*command, "experiment=smoke", "rollout.max_new_tokens=4", "algorithm.overlong.cache=1", *overrides]) == 2
    )
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and named in said[0], said
    assert not (files / "runs").exists(), "a refused run leaves no folder"


def test_special_token_in_a_target_is_rejected(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = item(0)
    bad = SftItem(kind="decision", sample=whole.sample, target=(TargetPart(part="action", text="Bye<|im_end|>"),))
    write_items(files / "special.jsonl", [item(1), bad])
    assert main(["sft", "experiment=smoke", "sft.sets=[{path: special.jsonl}]"]) == 2
    assert "special.jsonl:2: target: '<|im_end|>'" in capsys.readouterr().err


def test_run_of_train_cannot_be_resumed_by_sft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hamr.config.load import dump_config

    (tmp_path / "config.yaml").write_text(dump_config(load_config(["experiment=smoke"])))
    assert main(["sft", f"resume={tmp_path}"]) == 2
    assert "sft.sets" in capsys.readouterr().err


def test_preview_names_every_segment_and_counts_its_tokens(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft", "preview", "experiment=smoke", MIX, "n=2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("prompt, ") == 4, "two items of each set"
    job = prepared(MIX)
    plan = job.sets[1].train[0]
    parts = {name: len(said) for name, said in stretches(plan)}
    assert list(parts) == ["action", "environment", "next_action"]
    for name, count in parts.items():
        assert f"{name}, {count} tokens, loss" in shown
    assert f"{sum(parts.values())} of {len(plan)} tokens carry loss" in shown
    text = "".join(job.tokenizer.decode(said) for _, said in stretches(plan))
    assert text == "".join(TEXTS["patm"])


def test_preview_shows_both_orders_of_a_rationale(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_items(files / "hybrid.jsonl", [item(0, "decision_dra"), item(0, "decision_post")])
    sets = ["sft.sets=[{path: hybrid.jsonl}]", "sft.kinds=[decision_dra, decision_post]", "sft.held_out_frac=0"]
    assert main(["sft", "preview", "experiment=smoke", *sets, "n=2"]) == 0
    pre, post = capsys.readouterr().out.split("hybrid 1: decision_dra")[1].split("hybrid 2: decision_post")
    assert pre.index("rationale, ") < pre.index("action, ")
    assert post.index("action, ") < post.index("rationale, ")
    assert "First think, then act" in pre and "First act, then say why" in post
    assert post.count("no loss") == 1, "the prompt's"


@pytest.mark.parametrize(("n", "says"), [("0", "n: 0: must be 1 or more"), ("x", "n: 'x': must be a whole number")])
def test_preview_requires_a_number_of_items(n: str, says: str, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft", "preview", "experiment=smoke", MIX, f"n={n}"]) == 2
    assert says in capsys.readouterr().err


class Trainers:
    """Count the steps; during number `stop_at` SIGTERM arrives."""

    def __init__(self, stop_at: int = 0) -> None:
        self.steps, self.stop_at = 0, stop_at

    async def train(self, batch: object) -> dict[str, float]:
        self.steps += 1
        if self.steps == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.01)
        return {}

    async def save(self, folder: Path) -> None:
        (folder / "weights").write_text(str(self.steps))

    async def load(self, folder: Path) -> None:
        self.steps = int((folder / "weights").read_text())


def an_sft_run(job: PreparedSft, folder: Path, trainers: Trainers, monkeypatch: pytest.MonkeyPatch) -> SftRun:
    nothing: Any = SimpleNamespace(begin=lambda *a: None, metrics=lambda *a: None)
    run = SftRun(
        prepared=job,
        trainers=trainers,  # type: ignore[arg-type]
        recorder=nothing,
        checkpoints=Checkpoints(folder / "checkpoints"),
        console=Console(enabled=False),
        preemption=Preemption(),
    )

    async def validate(step: int) -> None:
        run.validations.append({"step": step, "sets": {"after": trainers.steps}})

    monkeypatch.setattr(run, "validate", validate)
    return run


async def test_stopped_run_resumes_from_its_last_step_with_validations(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = prepared(MIX, "sft.batch_size=8", "sft.steps=4", "experiment.eval_every=2")
    stopped = an_sft_run(job, files / "run", Trainers(stop_at=2), monkeypatch)
    kept = "stopped by SIGTERM, step 2 of 4 is kept; continue with: hamr sft resume="
    with stopped.preemption.watching(), pytest.raises(Preempted, match=kept):
        await take_steps(stopped, None)
    assert [v["step"] for v in stopped.validations] == [0], "the one after step 2 is left to the resumed run"

    newest = stopped.checkpoints.newest()
    assert newest is not None and newest.step == 2
    resumed = an_sft_run(job, files / "run", Trainers(), monkeypatch)
    await take_steps(resumed, newest)
    expected = [{"step": step, "sets": {"after": step}} for step in (0, 2, 4)]
    assert resumed.validations == expected


async def test_running_job_is_stopped_through_its_folder(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def busy(*args: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(module, "_train", busy)
    with RunFolder.create(files / "run", "a: 1") as folder, StartStatus(files / "run", "run", str) as starting:
        job = asyncio.create_task(train(prepared(MIX), folder, Console(enabled=False), starting))
        requests = ControlRequests(folder.path)
        answer = await asyncio.to_thread(requests.ask, {"scale": {"judge": 2}}, timeout_s=30)
        assert answer["bad_input"] == ["pool", "judge", "a run of hamr sft has no pools to resize"]
        assert (seen := LiveStatus.read(folder.path)) and seen.state == "running"
        assert await asyncio.to_thread(requests.ask, {"stop": True}, timeout_s=30) == {"stopping": True}
        with pytest.raises(Preempted):
            await job
    assert (seen := LiveStatus.read(folder.path)) and seen.state == "preempted"
    assert "stopped by SIGTERM; continue with: hamr sft resume=" in seen.detail


def test_job_writes_its_status_from_the_start(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: Config) -> PreparedSft:
        seen = LiveStatus.read(files / "run")
        assert seen and seen.state == "starting"
        raise BadInput("sft", "x", "is wrong")

    monkeypatch.setattr(module, "prepare_sft", fail)
    assert main(["sft", "experiment=smoke", MIX, f"experiment.run_dir={files / 'run'}"]) == 2
    assert not (files / "run").exists()


def test_items_are_encoded_as_the_prompts_and_answers_of_rl(files: Path) -> None:
    """With a chat template that supports tools, also for calls that a file has in hamr's form."""
    made = tool_sample()
    write_items(files / "calls.jsonl", [decision_item(made, made.references[0].action)])
    overrides = [f"model.path={tiny_with_tools(files / 'model')}", "model.max_context=2048"]
    [entry] = prepared("sft.sets=[{path: calls.jsonl}]", "sft.held_out_frac=0", *overrides).sets
    config = load_config(["experiment=smoke", *overrides])
    codec = Codec(tokenizer=load_tokenizer(config.model.path), config=config)
    assert codec.chat.native and tuple(entry.train[0].prompt_ids) == codec.prompt(made)
    assert tuple(entry.train[0].token_ids) == codec.answer(made.references[0].action)


@pytest.mark.parametrize("job", [["train"], ["sft", MIX]])
def test_chat_template_without_tools_is_one_line(
    files: Path, job: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A unit test that starts Ray fails, so the check comes before it."""
    assert main([*job, "experiment=smoke", "model.tools_prompt=template", f"experiment.run_dir={files / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("hamr: model.tools_prompt: 'template': the model's chat template does not show tools")
    assert said.count("\n") == 1 and "set auto or compact" in said
