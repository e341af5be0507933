"""A secret is placed wherever a user could put one; all files and messages are then searched for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from hamr import cli
from hamr.apps.submit.launch_files import KINDS, render
from hamr.config.load import load_config
from hamr.security.redaction import REDACTED, blot, redact_text
from hamr.telemetry.live import LiveStatus

CANARY = 'canary-4f1d9c"e2'
"""With a character that JSON writes otherwise."""
PLAIN = "canary4f1d9ce2"

ENVIRONMENT = {
    "JUDGE_API_KEY": CANARY,
    "HF_TOKEN": PLAIN,
    "RAY_AUTH_TOKEN": PLAIN,
    "WANDB_API_KEY": PLAIN.ljust(40, "0"),
}

OPENAI = ("pools.judge.type=openai", "pools.judge.model=m")

RUN = """
import sys
from pathlib import Path

from hamr.config.load import dump_config, load_config
from hamr.telemetry.recorder import RunRecorder
from hamr.apps.report.report import write_report
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.summary import write_summary
from hamr.config.logging import WandbConfig
from hamr.telemetry.wandb_sink import WandbSink
from hamr.types import Component, JudgeUnavailable, Reply, RewardRecord, SampleKey, Scored
import os

leak = " and ".join(os.environ[name] for name in ("JUDGE_API_KEY", "HF_TOKEN", "WANDB_API_KEY"))
config = load_config(["experiment=smoke", "pools.judge.type=openai", "pools.judge.endpoint=http://127.0.0.1:9/v1",
                      "pools.judge.model=m", "pools.judge.api_key_env=JUDGE_API_KEY"])

def record(sample, outcome):
    return RewardRecord(key=SampleKey(run="r", step=1, prompt="p", sample=sample), total=outcome,
        components=(Component(name="consistency", outcome=outcome, weight=1.0),), action=Reply(content=f"Hello {leak}"),
        band="below", response=f"marker {leak}", response_tokens=4)

with RunFolder.create(sys.argv[1], dump_config(config)) as folder:
    named = {"name": leak, "notes": leak, "group": leak, "job_type": leak, "tags": [os.environ["HF_TOKEN"]]}
    sink = WandbSink(folder.path, WandbConfig(**named), config=config.model_dump(mode="json"))
    with RunRecorder(folder, wandb=sink) as recorder:
        recorder.begin("rl", 1)
        recorder.records(1, [record(0, Scored(value=1.0)), record(1, JudgeUnavailable(detail=f"401 for {leak}"))])
        recorder.metrics(1, {"policy/entropy": 2.0})
        recorder.evaluation("rl", 1, {"eval/rl/n": 1.0}, [record(2, Scored(value=0.0))])
    write_summary(folder, {"name": leak, "versions": {"api": leak}})
    write_report(folder.path)
"""


def leaks(content: bytes) -> bool:
    return b"canary" in content


@pytest.mark.slow
def test_run_files_do_not_contain_the_secret(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path / "run"), f"--token={PLAIN}"]
    env = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(command, env=env, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert not leaks(done.stdout + done.stderr)
    files = [p for p in (tmp_path / "run").rglob("*") if p.is_file() and not p.is_symlink()]
    names = {p.name for p in files}
    assert {"config.yaml", "metrics.jsonl", "samples.jsonl", "ledger.sqlite", "summary.json", "report.html"} <= names
    assert any(p.suffix == ".wandb" for p in files)
    assert [p.name for p in files if leaks(p.read_bytes())] == []
    # What was searched is what was written, with the secret out.
    for name in ("ledger.sqlite", "samples.jsonl"):
        assert b"marker [redacted]" in (tmp_path / "run" / name).read_bytes()


@pytest.mark.parametrize(
    "args",
    [
        ["train", f"logging.wandb.api_key={PLAIN}"],
        ["train", f"pools.judge.password={PLAIN}"],
        ["train", *OPENAI, f"pools.judge.endpoint=https://me:{PLAIN}@judge.example/v1"],
        ["train", *OPENAI, f"pools.judge.endpoint='https://judge.example/v1?api_key={PLAIN}'"],
        ["train", *OPENAI, "pools.judge.endpoint=http://x/v1", f"pools.judge.api_key_env={PLAIN}-"],
        ["train", f"experiment={PLAIN}"],
        ["train", f"trainer.learning_rate={PLAIN}"],
        ["train", PLAIN],
        ["calibrate", f"scores={PLAIN}.jsonl", "output=x"],
        ["plan", f"from={PLAIN}"],
        [f"--key={PLAIN}"],
    ],
)
def test_messages_do_not_contain_the_secret(
    args: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert cli.main(args) == 2
    said = "".join(capsys.readouterr())
    assert "hamr: " in said
    assert "canary" not in said


@pytest.mark.parametrize("key", ["logging.wandb.api_key", "pools.judge.password", "trainer.auth_token"])
def test_message_omits_a_secret_that_is_not_in_the_environment(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", f"{key}={PLAIN}"]) == 2
    err = capsys.readouterr().err
    assert key in err
    assert "canary" not in err


def test_traceback_does_not_contain_the_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "hamr_defect_job.py").write_text(
        "import os\nfrom hamr.apps.shared.commands import Command\n\nclass Defect(Command):\n"
        "    def run(self):\n        raise KeyError(os.environ['HF_TOKEN'])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.JOBS, "defect", ("hamr_defect_job:Defect", "fails"))
    monkeypatch.setenv("HF_TOKEN", PLAIN)
    assert cli.main(["defect"]) == 1
    err = capsys.readouterr().err
    assert "KeyError" in err
    assert "canary" not in err


@pytest.mark.parametrize("kind", KINDS)
def test_launch_files_do_not_contain_the_secret(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    judge = {"type": "openai", "endpoint": "http://127.0.0.1:9/v1", "model": "m", "api_key_env": "JUDGE_API_KEY"}
    wanted = [f"pools.judge.{key}={value}" for key, value in judge.items()]
    config = load_config(["experiment=smoke", "launch.secret=keys", *wanted])
    text = "".join(render(config, kind).values())
    assert "JUDGE_API_KEY" in text
    assert "canary" not in text


def test_working_folder_is_not_redacted() -> None:
    environ = {"PWD": "/home/me/work", "OLDPWD": "/home/me/before", "DB_PWD": "hunter2!"}
    text = '"/home/me/work /home/me/before %s"'
    assert blot(text % "hunter2!", environ) == text % REDACTED


def test_url_login_in_a_customer_text_is_kept() -> None:
    said = '{"response": "see http://a:b@c"}'
    assert blot(said, {}) == said
    assert blot('{"x": "k\\"ey123"}', {"MY_TOKEN": 'k"ey123'}) == '{"x": "[redacted]"}'


@pytest.mark.parametrize(
    "command",
    [
        ["submit", "train", "cluster=ray", "cluster.dashboard=http://127.0.0.1:9"],
        ["submit", "train", "cluster=kuberay", "launch.claim=c"],
        ["submit", "train", "cluster=slurm"],
        ["plan", "launch=slurm", "output=files"],
    ],
    ids=lambda words: words[1],
)
def test_setting_with_the_secret_is_rejected(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", PLAIN)
    assert cli.main([*command, "experiment=smoke", f"logging.wandb.group=mine-{PLAIN}"]) == 2
    said = "".join(capsys.readouterr())
    assert "logging.wandb.group: '[redacted]': contains the value of a secret environment variable" in said
    assert "canary" not in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_redacted_text_stays_valid_json() -> None:
    environ = {"DB_PASSWORD": "123456", "APP_SECRET": "sample", "API_KEY": 'k"\u00e9\\key'}
    row = {
        "sample": 0.81234567,
        "n": 1234567,
        "text": ["a sample of 123456", 'x k"\u00e9\\key'],
        "none": None,
        "b": True,
    }
    for text in (json.dumps(row), json.dumps(row, ensure_ascii=False)):
        clean = json.loads(blot(text, environ))
        assert clean == row | {"text": [f"a {REDACTED} of {REDACTED}", f"x {REDACTED}"]}
    harmless = '{"a":   1}'
    assert blot(harmless, environ) == harmless


@given(st.text(st.characters(codec="utf-8"), min_size=6, max_size=12))
def test_secret_is_redacted_in_every_encoding(secret: str) -> None:
    """In nested JSON strings, such as an argument of a tool call, and in HTML."""
    environ = {"APP_PASSWORD": secret}
    for ascii_only in (True, False):
        inner = json.dumps({"argument": f"<{secret}>"}, ensure_ascii=ascii_only)
        clean = blot(json.dumps({"call": inner}, ensure_ascii=ascii_only), environ)
        assert json.loads(json.loads(clean)["call"]) == {"argument": f"<{REDACTED}>"}
    assert redact_text(f"<p>{escape('(' + secret + ')')}</p>", environ) == f"<p>({REDACTED})</p>"


def test_failure_detail_of_a_status_is_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", CANARY)
    LiveStatus(run="r", state="failed", phase="rl", started=0.0, time=0.0, detail=f"401 for {CANARY}").write(tmp_path)
    assert CANARY not in (tmp_path / "status.json").read_text()
    assert (found := LiveStatus.read(tmp_path)) and found.detail == f"401 for {REDACTED}"
