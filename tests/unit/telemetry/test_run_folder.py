import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
import yaml

from hamr.errors import RunFolderError
from hamr.security.processes import alive
from hamr.security.redaction import REDACTED, looks_secret, redact, redact_text
from hamr.telemetry.run_folder import RunFolder


def test_create_lays_out_the_folder(tmp_path):
    with RunFolder.create(tmp_path / "a" / "run", "experiment: {name: x}\n") as folder:
        assert yaml.safe_load(folder.config.read_text()) == {"experiment": {"name": "x"}}
        assert folder.plots.is_dir()
        assert folder.checkpoints.is_dir()
        names = [p.name for p in (folder.metrics, folder.ledger, folder.samples, folder.summary, folder.report)]
        assert names == ["metrics.jsonl", "ledger.sqlite", "samples.jsonl", "summary.json", "report.html"]


def test_existing_folder_is_rejected_with_the_remedy(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=f"not empty.*resume={tmp_path}") as e:
        RunFolder.create(tmp_path, "")
    assert e.value.exit_code == 2
    assert "\n" not in str(e.value)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_empty_folder_is_accepted(tmp_path):
    RunFolder.create(tmp_path, "a: 1").close()


def test_file_in_place_of_a_folder_is_rejected(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.create(tmp_path / "f", "")
    with pytest.raises(RunFolderError, match="cannot be created"):
        RunFolder.create(tmp_path / "f" / "run", "")


def test_two_runs_cannot_share_a_folder(tmp_path):
    with RunFolder.create(tmp_path / "run", "a: 1") as folder:
        with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"):
            RunFolder.resume(folder.path)
        assert RunFolder.open(folder.path).config.is_file()  # looking is free
    RunFolder.resume(tmp_path / "run").close()
    RunFolder.resume(tmp_path / "run").close()


HOLDER = """
import sys, time
from hamr.telemetry.run_folder import RunFolder
folder = RunFolder.create(sys.argv[1], "a: 1")
print("held", flush=True)
time.sleep(600)
"""


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RunFolderError, match=f"in use by process {holder.pid}"):
        RunFolder.resume(tmp_path / "run")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with RunFolder.resume(tmp_path / "run") as folder:
        assert json.loads((folder.path / "run.lock").read_text())["pid"] == os.getpid()


def test_the_lock_of_a_zombie_is_taken_over(tmp_path):
    """In a container whose first process reaps nobody, a killed run stays in the process table for ever."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    assert psutil.Process(holder.pid).status() == psutil.STATUS_ZOMBIE
    assert not alive(holder.pid)
    RunFolder.resume(tmp_path / "run").close()
    holder.wait()


def test_recycled_pid_is_not_the_lock_owner(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "a: 1")
    lock = tmp_path / "run" / "run.lock"
    owner = json.loads(lock.read_text())
    lock.write_text(json.dumps({**owner, "started": "1"}))
    RunFolder.resume(tmp_path / "run").close()
    folder.close()


def test_lock_of_another_host_is_respected(tmp_path):
    RunFolder.create(tmp_path / "run", "a: 1").close()
    lock = tmp_path / "run" / "run.lock"
    lock.write_text(json.dumps({"host": "elsewhere", "pid": 1, "started": "1"}))
    with pytest.raises(RunFolderError, match=r"process 1 on elsewhere.*remove .*run\.lock"):
        RunFolder.resume(tmp_path / "run")


def test_truncated_lock_is_ignored(tmp_path):
    RunFolder.create(tmp_path / "run", "a: 1").close()
    (tmp_path / "run" / "run.lock").write_text('{"host": "el')
    RunFolder.resume(tmp_path / "run").close()


def test_resume_requires_a_run_folder(tmp_path):
    with pytest.raises(RunFolderError, match="no such folder"):
        RunFolder.resume(tmp_path / "none")
    with pytest.raises(RunFolderError, match=r"no config\.yaml"):
        RunFolder.resume(tmp_path)


# --- secrets -----------------------------------------------------------------------------------

SECRET = ["api_key", "OPENAI_API_KEY", "HF_TOKEN", "token", "db.password", "AWS_SECRET_ACCESS_KEY", "authToken"]
SECRET += ["client_secret", "Authorization", "wandb-api-key", "private_key", "apiKey"]
HARMLESS = ["api_key_env", "max_new_tokens", "eos_token", "tokens_per_microbatch", "key", "affinity_key", "monkey"]
HARMLESS += ["price_per_1k_tokens", "thinking_tokens", "keep", "tokenizer", "secret_name"]


@pytest.mark.parametrize("key", SECRET)
def test_secret_names_are_recognised(key):
    assert looks_secret(key)
    assert redact({key: "canary-value"}, environ={}) == {key: REDACTED}


@pytest.mark.parametrize("key", HARMLESS)
def test_similar_names_are_not_secret(key):
    assert not looks_secret(key)


def test_redaction_is_recursive_and_keeps_other_values():
    value = {"a": [{"password": "x", "steps": 3}], "t": ("u", None, 1.5, True), "token": 5, "api_key": None}
    assert redact(value, environ={}) == {
        "a": [{"password": REDACTED, "steps": 3}],
        "t": ["u", None, 1.5, True],
        "token": 5,
        "api_key": None,
    }


def test_secret_environment_values_are_redacted_everywhere():
    env = {"FOO_API_KEY": "canary", "BAR_TOKEN": "canary-long", "X_TOKEN": "1", "HOME": "/home/canal"}
    assert redact_text("see canary-long, canary and 1 in /home/canal", env) == (
        f"see {REDACTED}, {REDACTED} and 1 in /home/canal"
    )
    assert redact_text("https://me:pw@host/x http://host:80/@y", {}) == f"https://{REDACTED}@host/x http://host:80/@y"


def test_no_secret_reaches_the_config_file(tmp_path, monkeypatch):
    monkeypatch.setenv("FOO_API_KEY", "canary-7f3a")
    text = "pools:\n  judge: {endpoint: 'http://x/canary-7f3a/v1', api_key_env: FOO_API_KEY, api_key: other-canary}\n"
    with RunFolder.create(tmp_path / "run", text) as folder:
        written = folder.config.read_text()
    assert "canary" not in written
    assert yaml.safe_load(written)["pools"]["judge"]["api_key_env"] == "FOO_API_KEY"


def test_working_folder_is_not_redacted() -> None:
    """A path below it stands in the configuration that a run is gone on with."""
    environ = {"PWD": "/home/user/work", "OLDPWD": "/home/user", "DB_PWD": "hunter22"}
    assert redact_text("/home/user/work/items.jsonl hunter22", environ) == f"/home/user/work/items.jsonl {REDACTED}"
