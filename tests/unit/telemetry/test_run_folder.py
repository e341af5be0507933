import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import yaml

from hamr.apps.shared.training_job import Job
from hamr.config.load import dump_config, load_config
from hamr.errors import RunFolderError
from hamr.files import write_atomic
from hamr.security import redaction
from hamr.security.processes import alive, identity
from hamr.security.redaction import REDACTED, looks_secret, redact, redact_text, secret_values
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.run_folder import RunFolder
from hamr.types import RewardRecord, SampleKey
from tests.unit.telemetry.records import record


def test_create_lays_out_the_folder(tmp_path):
    with RunFolder.create(tmp_path / "a" / "run", "experiment: {name: x}\n") as folder:
        assert yaml.safe_load(folder.config.read_text()) == {"experiment": {"name": "x"}}
        assert folder.plots.is_dir()
        assert folder.checkpoints.is_dir()
        names = [p.name for p in (folder.metrics, folder.ledger, folder.samples, folder.summary, folder.report)]
        assert names == ["metrics.jsonl", "ledger.sqlite", "samples.jsonl", "summary.json", "report.html"]


def test_renamed_folder_keeps_its_id(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "my run, 1", "a: 1") as folder:
        assert folder.id == "my-run-1"
    folder.path.rename(tmp_path / "renamed")
    assert RunFolder.open(tmp_path / "renamed").id == "my-run-1"
    with RunFolder.resume(tmp_path / "renamed") as resumed:
        assert resumed.id == "my-run-1"


def test_resume_writes_the_id_of_an_older_folder(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "older", "a: 1").close()
    (tmp_path / "older" / "run.id").unlink()
    assert RunFolder.open(tmp_path / "older").id == "older"
    assert not (tmp_path / "older" / "run.id").exists(), "a reader writes nothing"
    RunFolder.resume(tmp_path / "older").close()
    (tmp_path / "older").rename(tmp_path / "renamed")
    assert RunFolder.open(tmp_path / "renamed").id == "older"


def of_step(run: str, step: int) -> RewardRecord:
    return replace(record(), key=SampleKey(run=run, step=step, prompt="p", sample=0))


def test_steps_of_a_renamed_run_are_in_the_ledger_once(tmp_path: Path) -> None:
    """A run that resumes after step 1 removes what it recorded of step 2, whatever its folder is called now."""
    with RunFolder.create(tmp_path / "first", "a: 1") as folder, Ledger(folder.ledger) as ledger:
        ledger.add([of_step(folder.id, 1), of_step(folder.id, 2)])
    folder.path.rename(tmp_path / "second")
    with RunFolder.resume(tmp_path / "second") as folder, Ledger(folder.ledger) as ledger:
        ledger.discard_after(folder.id, 1)
        ledger.add([of_step(folder.id, 2)])
        assert ledger.query("SELECT run, step FROM records ORDER BY step") == [("first", 1), ("first", 2)]


def test_only_the_owner_can_read_a_new_folder(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "runs" / "mine", "a: 1").close()
    assert (tmp_path / "runs" / "mine").stat().st_mode & 0o777 == 0o700
    own = tmp_path / "shared"
    own.mkdir(mode=0o750)
    RunFolder.create(own, "a: 1").close()
    assert own.stat().st_mode & 0o777 == 0o750, "a folder that was made for the run keeps its mode"


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
    """In a container whose init does not reap, a killed run stays in the process table."""
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


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere"}, {"pids": "pid:[1]"}], ids=["host", "container"])
def test_lock_of_a_process_elsewhere_is_respected(tmp_path, elsewhere):
    RunFolder.create(tmp_path / "run", "a: 1").close()
    lock = tmp_path / "run" / "run.lock"
    lock.write_text(json.dumps({**identity(), **elsewhere, "pid": 1, "started": "1"}))
    with pytest.raises(RunFolderError, match=r"process 1 on \S+; .*remove .*run\.lock"):
        RunFolder.resume(tmp_path / "run")


@pytest.mark.parametrize("content", ['{"host": "el', "[]", "{}", '{"host": "x"}'])
def test_damaged_lock_is_ignored(tmp_path, content):
    RunFolder.create(tmp_path / "run", "a: 1").close()
    (tmp_path / "run" / "run.lock").write_text(content)
    RunFolder.resume(tmp_path / "run").close()


def test_links_of_a_foreign_folder_are_not_followed(tmp_path):
    RunFolder.create(tmp_path / "run", "a: 1").close()
    outside = tmp_path / "outside"
    outside.write_text("mine")
    (tmp_path / "run" / "run.lock").unlink()
    (tmp_path / "run" / "run.lock").symlink_to(outside)
    with pytest.raises(RunFolderError, match="symbolic links"):
        RunFolder.resume(tmp_path / "run")
    (tmp_path / "run" / ".report.html.tmp").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic links"):
        write_atomic(tmp_path / "run" / "report.html", "theirs")
    assert outside.read_text() == "mine"


def test_resume_requires_a_run_folder(tmp_path):
    with pytest.raises(RunFolderError, match="no such folder"):
        RunFolder.resume(tmp_path / "none")
    with pytest.raises(RunFolderError, match=r"no config\.yaml"):
        RunFolder.resume(tmp_path)
    with pytest.raises(RunFolderError, match=r"RUN: .*no such folder"):
        RunFolder.open(tmp_path / "none", "RUN")


# --- secrets -----------------------------------------------------------------------------------

SECRET = ["api_key", "OPENAI_API_KEY", "HF_TOKEN", "token", "db.password", "AWS_SECRET_ACCESS_KEY", "authToken"]
SECRET += ["client_secret", "Authorization", "wandb-api-key", "private_key", "apiKey", "TS_AUTHKEY"]
SECRET += ["PGPASSWORD", "MYSQL_ROOT_PASSWORD", "MYSQL_PWD", "API_KEYS", "access_tokens", "DATABASE_URL", "MONGODB_URI"]
SECRET += [
    "SLACK_WEBHOOK_URL",
    "SENTRY_DSN",
    "AZURE_STORAGE_CONNECTION_STRING",
    "JWT",
    "sslPassword",
    "smtp.passwd",
    "TS_AUTHKEY",
]
HARMLESS = ["api_key_env", "max_new_tokens", "eos_token", "tokens_per_microbatch", "key", "affinity_key", "monkey"]
HARMLESS += ["price_per_1k_tokens", "thinking_tokens", "keep", "tokenizer", "secret_name"]
HARMLESS += [
    "SSH_PRIVATE_KEY_PATH",
    "PASSWORD_STORE_DIR",
    "dashboard_url",
    "endpoint",
    "keys",
    "patm",
    "author",
    "passed",
]
VARIABLES = [
    "AZURE_OPENAI_KEY",
    "GH_PAT",
    "SMTP_PASS",
    "DB_PW",
    "REDISCLI_AUTH",
    "AWS_ACCESS_KEY_ID",
    "DOCKER_AUTH_CONFIG",
    "OPENAI_API_KEY_2",
    "OPENAI_API_KEY_V2",
    "API_KEY_PROD",
    "OPENAI_API_KEY_BACKUP",
    "HF_TOKEN_READ",
    "PRIVATE_KEY_PEM",
    "PRIVATE_KEY_B64",
    "DB_PASS_TEST",
    "DBPASS",
    "CLIENTSECRET",
    "SECRETKEY",
    "ACCESSKEY",
    "SAS_URL",
    "SSHPASS",
    "CREDS",
    "GCP_CREDS",
    "CONN_STR",
    "AZURE_SQL_CONNECTIONSTRING",
    "STRIPE_SK",
    "LANGFUSE_SK",
]
GITHUB, SLACK = "ghp_" + "a1B2" * 9, "services/" + "T01234567/B01234567/" + "aB1c" * 6
ORDINARY = ["SSH_AUTH_SOCK", "XAUTHORITY", "PATH", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "MAX_TOKENS_2", "MONKEY"]
ORDINARY += [
    "KEYBOARD_LAYOUT",
    "KEYBOARD_TEST",
    "BYPASS",
    "EOS_TOKEN_V2",
    "SSL_KEY_FILE_2",
    "NODE_ENV_PROD",
    "B64",
    "TEST",
    "TASK",
    "MASK",
    "RISK",
    "DISK",
    "DESK",
    "SKIP",
    "SK",
    "COMPASS",
    "CONNECTION",
]


@pytest.mark.parametrize("key", SECRET)
def test_secret_names_are_recognised(key):
    assert looks_secret(key)
    assert redact({key: "canary-value"}, environ={}) == {key: REDACTED}


@pytest.mark.parametrize("key", HARMLESS)
def test_similar_names_are_not_secret(key):
    assert not looks_secret(key)


@pytest.mark.parametrize("name", SECRET + VARIABLES)
def test_secret_values_are_those_of_variables_with_a_secret_name(name: str) -> None:
    assert secret_values({name: "canary-value"}) == ("canary-value",)


@pytest.mark.parametrize("name", [*(key for key in HARMLESS if not key.endswith(("key", "keys"))), *ORDINARY])
def test_other_variables_hold_no_secrets(name: str) -> None:
    assert secret_values({name: "canary-value"}) == ()


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("DATABASE_URL", "postgres://me:canary@db/x", True),
        ("DATABASE_URL", "sqlite:///data/file.db", False),
        ("REDIS_URL", "redis://:canary@cache:6379", True),
        ("REDIS_URL", "redis://localhost:6379", False),
        ("DATABASE_URL", "postgres://db/x?user=me&password=canary", True),
        ("DATABASE_URL", "postgres://db/x?sslmode=require&user=me", False),
        ("DATABASE_URL", "https://canary@db.example.org/x", True),
        ("DATABASE_URL_PROD", "postgres://db/x", False),
        ("REDIS_URL", "rediss://cache:6379?password=canary", True),
        ("REDIS_URL", "https://canary@cache.example.org", True),
        ("JDBC", "jdbc:sqlserver://db:1433;user=me;password=canary", True),
        ("ENDPOINT", "https://api.example.org/v1?version=2&max_tokens=5", False),
        ("HTTPS_PROXY", "http://me:canary@proxy:3128", True),
        ("HTTPS_PROXY", "http://proxy:3128", False),
        ("SLACK_WEBHOOK_URL", "https://hooks.slack.com/services/canary", True),
        ("SENTRY_DSN", "https://canary@sentry.io/1", True),
        ("REMOTE", f"https://{GITHUB}@github.com/me/mine", True),
        ("REMOTE", "https://github.com/me/mine", False),
        ("SLACK_URL", f"https://hooks.slack.com/{SLACK}", True),
        ("SLACK_URL", "https://hooks.slack.com/services/", False),
        ("NOTE", f"use {GITHUB}", True),
        ("SQL", "Server=db;User Id=me;Password=canary", True),
        ("SQL", "Password=canary;Server=db", True),
        ("SQL", "Server=db;User Id=me;Trusted_Connection=yes", False),
        ("STORAGE", "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=canary==;EndpointSuffix=x", True),
        ("STORAGE", "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=;EndpointSuffix=x", False),
        ("HINT", "the option password=... is required", False),
        ("LS_COLORS", "rs=0:di=01;34:*.key=01;31", False),
    ],
)
def test_a_value_is_a_secret_if_it_has_a_login_or_key(name: str, value: str, secret: bool) -> None:
    assert secret_values({name: value}) == ((value,) if secret else ())


def test_no_key_of_the_configuration_is_taken_for_a_secret() -> None:
    def keys(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield key
                yield from keys(inner)

    found = {key for key in keys(load_config(["experiment=smoke"]).model_dump(mode="json")) if looks_secret(key)}
    assert found == {"secret"}, "launch.secret, the name of a Secret"


def test_a_variable_that_the_configuration_names_for_a_key_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_named", set())
    assert redact_text("the canary", {"WHATEVER": "canary"}) == "the canary"
    load_config(["experiment=smoke", "pools.judge.api_key_env=WHATEVER"])
    assert redact_text("the canary", {"WHATEVER": "canary"}) == f"the {REDACTED}"


def test_redaction_is_recursive_and_keeps_other_values():
    value = {"a": [{"password": "x", "steps": 3}], "t": ("u", None, 1.5, True), "token": 5, "api_key": None}
    assert redact(value, environ={}) == {
        "a": [{"password": REDACTED, "steps": 3}],
        "t": ["u", None, 1.5, True],
        "token": 5,
        "api_key": None,
    }


def test_sections_and_figures_under_a_secret_name_stay():
    """A reward, an act or a tool may be called `reset_password`."""
    config = {"custom": {"asks_for_password": {"weight": 1, "kwargs": {"max_secrets": 2}}}, "password": 12345678}
    shown = redact(config, environ={})
    assert shown == {**config, "password": REDACTED}
    figures = {"exact_by_act": {"reset_password": {"0": 0.5}, "change_password": 0.25}, "password": "plain canary"}
    assert redact(figures, {"X_KEY": "canary"}, names=False) == {**figures, "password": f"plain {REDACTED}"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://u:p@ss@db/x", f"postgres://{REDACTED}@db/x"),
        ("postgres://u:pa,ss@db:5432/x", f"postgres://{REDACTED}@db:5432/x"),
        ("redis://:12345@host:6379/0 and me@x.de", f"redis://{REDACTED}@host:6379/0 and me@x.de"),
        (f"https://{'4xk2pat9w8' * 3}@dev.azure.com/org", f"https://{REDACTED}@dev.azure.com/org"),
        ('"https://u:p@h","a@b"', f'"https://{REDACTED}@h","a@b"'),
        *((text, text) for text in (
            "ssh://git@github.com/x", "https://shop.de:443?u=me@x.de", "http://h:8080,me@x.de",
            "docker://reg.io:5000@sha256:abc", "see http://h:80/a me@b.c",
        )),
    ],
)  # fmt: skip
def test_logins_are_redacted_and_other_urls_stay(text: str, shown: str) -> None:
    assert redact_text(text, {}) == shown


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


def test_a_secret_that_the_folder_lacks_is_named_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a Kubernetes Secret is none, and names of a tracker change no training."""
    secret = ["rewards.custom.leaks.path=my.py:f", "rewards.custom.leaks.kwargs={secret_words: [margin, internal]}"]
    harmless = ["launch.secret=hamr-keys", "logging.wandb.group=of-canary-7f3a"]
    monkeypatch.setenv("FOO_API_KEY", "canary-7f3a")
    for name, overrides in (("kept", harmless), ("lost", secret)):
        with RunFolder.create(tmp_path / name, dump_config(load_config(["experiment=smoke", *overrides]))):
            pass
    assert Job.from_folder(tmp_path / "kept").config.launch.secret == "hamr-keys"
    with pytest.raises(
        RunFolderError, match=r"^rewards\.custom\.leaks\.kwargs\.secret_words: .*does not hold; write it"
    ):
        Job.from_folder(tmp_path / "lost")


def test_working_folder_is_not_redacted() -> None:
    """A resumed configuration may contain a path below it."""
    environ = {"PWD": "/home/user/work", "OLDPWD": "/home/user", "DB_PWD": "hunter22"}
    assert redact_text("/home/user/work/items.jsonl hunter22", environ) == f"/home/user/work/items.jsonl {REDACTED}"
