import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from hamr.config.logging import WandbConfig
from hamr.config.rewards import ConsistencyConfig
from hamr.errors import BadInput
from hamr.files import read_jsonl
from hamr.telemetry.console import Console
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import read_metrics
from hamr.telemetry.recorder import RunRecorder, pick_samples, show_action
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.wandb_sink import WandbSink, check_wandb
from hamr.types import (
    Audit,
    Component,
    EpisodeResult,
    JudgeTimeout,
    JudgeUnavailable,
    Reference,
    ReferenceScore,
    Reply,
    SampleKey,
    Scored,
    ServiceSample,
    ToolCall,
    Turn,
)
from tests.unit.telemetry.records import record

SAMPLE = ServiceSample(
    id="p",
    ticket={},
    policy="",
    tools=(),
    history=(Turn(role="customer", content="Cancel it."), Turn(role="agent", content="Why?")),
    references=(
        Reference(action=Reply(content="May I ask why?")),
        Reference(action=ToolCall(name="refund", parameters={"order": 7})),
    ),
)


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "run", "a: 1") as folder:
        yield folder


def test_step_is_one_row_with_the_metrics_of_its_records(folder):
    with RunRecorder(folder, prompts={"p": SAMPLE}) as recorder:
        recorder.begin("rl", 2)
        recorder.records(1, [record(0, 0.0, band="below"), record(1, 1.0)])
        recorder.metrics(1, {"policy/entropy": 2.0, "router/requests": 102.0})  # with an evaluation of 100 points
        recorder.metrics(2, {"policy/entropy": 1.0})
    first, second = read_metrics(folder.metrics)
    assert (first["stage"], first["step"], first["policy/entropy"]) == ("rl", 1, 2.0)
    assert first["reward/total/mean"] == 0.5
    assert (first["router/escalated_frac"], first["router/requests"]) == (0.5, 102.0)
    assert "reward/total/mean" not in second
    with Ledger(folder.ledger, readonly=True) as ledger:
        assert ledger.count() == 2
    rows = list(read_jsonl(folder.samples))
    assert [r["total"] for r in rows] == [0.0, 1.0]
    assert rows[0]["customer"] == "Cancel it."
    assert rows[0]["reference"] == "May I ask why?"
    assert rows[0]["reward/consistency"] == 0.0


def test_replies_with_a_known_truth_show_joint_errors_of_reranker_and_judge(folder):
    class Truth:
        """Knows that every reply is wrong."""

        def is_exact(self, action, sample):
            return False

        def by_act(self, actions, samples):
            return {"ask": [False] * len(actions)}

    audits = [Audit(s_r=0.9, s_j=0.8), Audit(s_r=0.9, s_j=0.1), Audit(s_r=0.9), None]
    own = [record(i, 1.0, s_r=0.9, audit=audit) for i, audit in enumerate(audits)]
    judged = [record(4, 1.0, band="below", s_r=0.2, s_j=0.8), record(5, 1.0, band="above", s_r=0.9, s_j=0.8)]
    with RunRecorder(folder, prompts={"p": SAMPLE}, truth=Truth()) as recorder:
        recorder.begin("rl", 1)
        recorder.records(1, [*own, *judged])
        recorder.metrics(1, {})
    [row] = read_metrics(folder.metrics)
    shares = [row[f"truth/{who}_wrong_frac"] for who in ("reranker", "judge", "both")]
    # The two audits with an answer stand for the four replies that the judge has not scored.
    assert shares == [5 / 6, 4 / 6, 3 / 6]


ACT_PROMPTS = {
    f"{act} {number}": replace(SAMPLE, id=f"{act} {number}", meta={"act": act})
    for number in range(40)
    for act in ("bye", "offer")
}


class ActTruth:
    """Takes a reply for exact if it is the name of the expected act."""

    def is_exact(self, action, sample):
        return action.content == sample.meta["act"]

    def by_act(self, actions, samples):
        held = {"bye": [], "offer": []}
        for action, sample in zip(actions, samples, strict=True):
            held[sample.meta["act"]].append(self.is_exact(action, sample))
        return held


def collapsing_step(step):
    """From step 20 on every prompt gets the goodbye, which is exact where it is due, and the reward rises."""
    records = []
    for number in range(40):
        act = ("bye", "offer")[number % 2]
        reply = "bye" if step >= 20 else act
        audit = Audit(s_r=0.9, s_j=0.9 if step < 20 else 0.1 * (number % 3), best=0.5, mix=0.5)
        own = record(0, 0.5 + step / 100, step=step, prompt=f"{act} {number}", s_r=0.9, audit=audit)
        records.append(replace(own, action=Reply(content=reply)))
    return records


def collapsing_run(folder, steps, after=None, refits=()):
    """Record these steps of a run, resumed after the step `after`, and return its metrics."""
    with folder, RunRecorder(folder, prompts=ACT_PROMPTS, truth=ActTruth(), audited=ConsistencyConfig()) as recorder:
        if after is not None:
            recorder.rewind("r", after, refits=refits)
        recorder.begin("rl", 30)
        for step in steps:
            recorder.records(step, collapsing_step(step))
            recorder.metrics(step, {})
            if step in refits:
                recorder.scorers_changed()
    return [{**row, "time": 0.0} for row in read_metrics(folder.metrics)]


@pytest.mark.parametrize(
    ("refits", "alarms"),
    [
        ((), {"truth_drop", "truth_act_drop", "top_reply_frac", "audit_drift", "scorer_gap"}),
        ((19,), {"top_reply_frac", "scorer_gap"}),  # the others compare scores before and after
    ],
)
def test_resumed_recorder_raises_the_alarms_of_an_uninterrupted_one(refits, alarms, tmp_path):
    whole = collapsing_run(RunFolder.create(tmp_path / "whole", "a: 1"), range(1, 31), refits=refits)
    # Killed after the checkpoint of step 22.
    collapsing_run(RunFolder.create(tmp_path / "stopped", "a: 1"), range(1, 27), refits=refits)
    resumed = collapsing_run(RunFolder.resume(tmp_path / "stopped"), range(23, 31), after=22, refits=refits)
    assert resumed == whole
    raised = {name for row in whole for name, value in row.items() if name.startswith("alarm/") and value}
    assert raised == {f"alarm/{name}" for name in alarms}


def test_alarm_of_an_act_names_it_on_the_terminal(folder, capsys):
    with RunRecorder(folder, prompts=ACT_PROMPTS, truth=ActTruth(), console=Console("run")) as recorder:
        recorder.begin("rl", 30)
        for step in range(1, 31):
            recorder.records(step, collapsing_step(step))
            recorder.metrics(step, {})
    printed = " ".join(capsys.readouterr().out.split())
    assert "fall where one act is expected" in printed and "unlearns it: offer, from 1.00 to" in printed


def test_labels_of_a_person_are_the_truth_of_joint_errors(folder):
    labelled = Audit(s_r=0.9, s_j=0.0, best=0.0, mix=0.0, by="file")
    audits = [labelled, replace(labelled, s_j=None, best=None, mix=None, failure="label_missing"), None]
    by_file = ConsistencyConfig.model_validate({"audit": {"by": "file", "file": "labels.jsonl"}})
    with RunRecorder(folder, prompts={"p": SAMPLE}, audited=by_file) as recorder:
        recorder.begin("rl", 1)
        recorder.records(1, [record(i, 1.0, s_r=0.9, s_j=0.8, audit=audit) for i, audit in enumerate(audits)])
        recorder.metrics(1, {})
    [row] = read_metrics(folder.metrics)
    assert (row["truth/both_wrong_frac"], row["audit/answered"], row["audit/failed"]) == (1.0, 1.0, 1.0)


def test_each_step_estimates_the_remaining_time_of_its_stage(folder):
    with RunRecorder(folder) as recorder:
        recorder.begin("sft", 1)
        recorder.metrics(1, {"timing/step/total": 100.0})
        recorder.begin("rl", 8)
        for step, seconds in enumerate((9.0, 1.0, 1.0, 1.0, 1.0, 1.0), start=1):
            recorder.metrics(step, {"timing/step/total": seconds})
        recorder.metrics(7, {"policy/entropy": 1.0})
    rows = list(read_metrics(folder.metrics))
    left = {(row["stage"], row["step"]): row["progress/left_s"] for row in rows}
    assert left[("sft", 1)] == 0.0, "a stage that is over has nothing left"
    assert left[("rl", 1)] == 63.0, "seven more of 9 s; the stage before does not count"
    assert left[("rl", 6)] == 2.0, "two more at the pace of the last five"
    assert left[("rl", 7)] == 1.0, "a step that was not timed changes no pace"


def test_repeated_evaluation_replaces_its_records(folder):
    """As after a stop between the decisions and the dialogues of an evaluation."""
    key = SampleKey(run="r/eval-base", step=0, prompt="p", sample=0)
    down, up = (replace(record(total=total), key=key) for total in (JudgeUnavailable(detail="down"), 0.9))
    training = record(step=0)
    with RunRecorder(folder) as recorder:
        recorder.records(0, [training])
        recorder.evaluation("base", 0, {}, [down])
        recorder.evaluation("base", 0, {}, [up])
    with Ledger(folder.ledger, readonly=True) as ledger:
        assert list(ledger.rows()) == [training, up]


def test_evaluation_is_recorded_separately_from_training(folder):
    with RunRecorder(folder) as recorder:
        recorder.evaluation("base", 0, {"eval/base/action_accuracy": 0.5}, [record(0, step=0)])
        recorder.begin("rl", 1)
        recorder.metrics(1, {"policy/entropy": 1.0})
    base, rl = read_metrics(folder.metrics)
    assert (base["stage"], base["eval/base/action_accuracy"]) == ("eval-base", 0.5)
    assert "reward/total/mean" not in rl
    assert [r["stage"] for r in read_jsonl(folder.samples)] == ["eval-base"]


def test_samples_contain_the_best_the_worst_and_a_failure():
    rs = [record(i, 0.5) for i in range(30)]
    rs[7], rs[11], rs[20] = record(7, 0.9), record(11, 0.1), record(20, JudgeTimeout())
    rows = pick_samples(rs, {}, 4, seed=3)
    assert len(rows) == 4
    assert {7, 11, 20} <= {r["sample"] for r in rows}
    assert rows == pick_samples(rs, {}, 4, seed=3)
    assert [r["outcome"] for r in rows if r["sample"] == 20] == ["judge_timeout"]
    assert [r["total"] for r in rows if r["sample"] == 20] == [None]


def test_samples_contain_whole_dialogues_with_their_end():
    def dialogue(i, reward):
        turns = [record(i, 0.5) for _ in range(3)]
        turns = [replace(r, key=replace(r.key, turn=turn), observation="Hello") for turn, r in enumerate(turns)]
        end = Component(name="completion", outcome=Scored(value=reward), weight=1.0)
        return [*turns[:-1], replace(turns[-1], episode=EpisodeResult(outcome="ended", components=(end,)))]

    records = [turn for i in range(20) for turn in dialogue(i, 1.0 if i == 13 else -1.0 if i == 4 else 0.0)]
    rows = pick_samples(records, {}, 9, seed=0)
    assert {4, 13} < {row["sample"] for row in rows} and len(rows) == 9
    for i in {row["sample"] for row in rows}:
        assert [row["turn"] for row in rows if row["sample"] == i] == [0, 1, 2]
    [best] = [row for row in rows if row["sample"] == 13 and "end" in row]
    assert (best["end"], best["episode/completion"]) == ("ended", 1.0)


def test_shown_reference_is_the_best_scoring_one():
    scores = (ReferenceScore(reference=0, s_r=0.2), ReferenceScore(reference=1, s_r=0.3, s_j=0.9))
    (row,) = pick_samples([record(0, reference_scores=scores)], {"p": SAMPLE}, 1, seed=0)
    assert row["reference"] == "refund(order=7)"
    json.dumps(row, allow_nan=False)


def test_shown_call_has_chinese_arguments_as_they_are():
    assert show_action(ToolCall(name="refund", parameters={"原因": "退款", "n": 7})) == 'refund(原因="退款", n=7)'


def test_lone_surrogates_of_a_call_are_written(folder):
    call = ToolCall(name="refund", parameters={"why": "\ud800退"})
    with RunRecorder(folder) as recorder:
        recorder.samples(1, [{"response": show_action(call)}])
    [row] = read_jsonl(folder.samples)
    assert row["response"] == 'refund(why="\ud800退")'


# --- W&B ---------------------------------------------------------------------------------------


def test_online_mode_requires_an_api_key():
    with pytest.raises(BadInput, match="WANDB_API_KEY") as e:
        check_wandb("online", {})
    assert e.value.exit_code == 2
    check_wandb("online", {"WANDB_API_KEY": "k"})
    check_wandb("offline", {})


def test_disabled_wandb_writes_nothing(tmp_path):
    sink = WandbSink(tmp_path, WandbConfig(mode="disabled"))
    sink.metrics(1, "rl", {"reward/total/mean": 1.0})
    sink.close()
    assert os.listdir(tmp_path) == []
    assert sink.id is None


DYING = """
import signal, sys
import psutil
from pathlib import Path
from hamr.telemetry import wandb_sink

wandb_sink.CLOSE_S["offline"] = 3.0
sink = wandb_sink.WandbSink(Path(sys.argv[1]), config={})
sink.metrics(1, "rl", {"policy/entropy": 1.0})
for service in psutil.Process().children(recursive=True):
    service.send_signal(getattr(signal, sys.argv[2]))
for step in range(2, 2000):
    sink.metrics(step, "rl", {"policy/entropy": float(step)})
sink.close()
print("the run goes on", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGSTOP"])
def test_dead_or_hanging_wandb_does_not_affect_the_run(tmp_path, signal):
    command = [sys.executable, "-c", DYING, str(tmp_path), signal]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "the run goes on" in done.stdout, done.stderr
    assert done.stderr.count("W&B logging disabled for the rest of this run") == 1


OFFLINE = """
import sys
from pathlib import Path
from hamr.telemetry.recorder import RunRecorder
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.wandb_sink import WandbSink
from tests.unit.telemetry.records import record

make = RunFolder.resume if sys.argv[2] == "resume" else lambda p: RunFolder.create(p, "a: 1")
with make(sys.argv[1]) as folder:
    config = {"judge": {"api_key": "canary-config", "url": "http://x/canary-env/v1"}, "kept": "config-marker"}
    sink = WandbSink(folder.path, config=config)
    with RunRecorder(folder, wandb=sink) as recorder:
        recorder.begin("rl", 2)
        for step in (1, 2):
            recorder.records(step, [record(0, 0.5), record(1, 1.0)])
            recorder.metrics(step, {"policy/entropy": 2.0})
        recorder.samples(2, [{"response": "late", "hint": 3}])
    print(sink.id)
"""


@pytest.mark.slow
def test_offline_files_contain_metrics_and_no_secret(tmp_path):
    env = {**os.environ, "FOO_API_KEY": "canary-env", "WANDB_API_KEY": "c" * 36 + "cana", "HAMR_STRICT_METRICS": "1"}

    def run(mode):
        command = [sys.executable, "-c", OFFLINE, str(tmp_path / "run"), mode, "--key=canary-argv"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[-1]

    assert run("create") == run("resume")
    files = [p for p in (tmp_path / "run").rglob("*") if p.is_file() and not p.is_symlink()]
    parts = [p for p in files if p.suffix == ".wandb"]
    assert len(parts) == 2
    tables = [json.loads(p.read_text()) for p in sorted(files) if p.name.endswith(".table.json")]
    assert [[row[0] for row in table["data"]] for table in tables] == 2 * [[1, 1], [2, 2], [2]], "only new rows"
    [late] = tables[2]["data"]
    assert dict(zip(tables[2]["columns"], late, strict=True))["more"] == '{"hint": 3}'
    assert all(b"reward/total/mean" in p.read_bytes() and b"config-marker" in p.read_bytes() for p in parts)
    for path in files:
        content = path.read_bytes()
        for canary in (b"canary-env", b"canary-config", b"canary-argv", b"c" * 36 + b"cana"):
            assert canary not in content, path
