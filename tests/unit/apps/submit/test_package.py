"""The package of a working tree that is submitted with a job."""

from __future__ import annotations

import os
import random
import string
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from hamr.apps.submit.package import pack
from hamr.errors import BadInput
from hamr.security.key_files import find_key, is_key_file
from tests.requirements import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, text in {
        ".gitignore": "runs/\n*.bin\n",
        "code.py": "print()",
        "deep/.gitignore": "not_this\n",
        "deep/this": "1",
        "deep/not_this": "1",
        "deep/big.bin": "0" * 100,
        "runs/a/config.yaml": "{}",
        "elsewhere/mine/run.lock": "",
        "elsewhere/mine/checkpoints/step_1/state.json": "{}",
        ".env": "KEY=1",
        "keys/server.pem": "-----",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_package_excludes_ignored_files_and_keys(tree: Path, tmp_path: Path) -> None:
    package = pack(tree, tmp_path / "a.zip", {".hamr-job/x.yaml": "a: 1"}, most_mb=1)
    assert names(package.path) == {".gitignore", "code.py", "deep/.gitignore", "deep/this", ".hamr-job/x.yaml"}
    assert package.kept_back == {".env": "by name", "keys/server.pem": "by name"}
    assert [package.has(p) for p in ("deep/this", "./deep", "code.py/", "dee", "deep/not_this", "../tree")] == [
        *[True] * 3,
        *[False] * 3,
    ]
    assert not (tree / ".git").exists(), "listing leaves nothing behind"


def test_the_same_tree_makes_the_same_archive(tree: Path, tmp_path: Path) -> None:
    first = pack(tree, tmp_path / "a.zip", {}, most_mb=1).path.read_bytes()
    (tree / "code.py").touch()
    assert pack(tree, tmp_path / "b.zip", {}, most_mb=1).path.read_bytes() == first


def test_oversized_package_names_the_largest_files(tree: Path, tmp_path: Path) -> None:
    (tree / "large.dat").write_bytes(b"0" * 300_000)
    with pytest.raises(BadInput, match=r"cluster\.max_package_mb: 0\.2: .*large\.dat \(0\.3 MB\).*\.gitignore"):
        pack(tree, tmp_path / "a.zip", {}, most_mb=0.2)


def test_file_with_a_secret_value_is_rejected(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_API_KEY", "canary-0123456789")
    (tree / "notes.md").write_text("my key is canary-0123456789, see above")
    with pytest.raises(BadInput, match=r"package: 'notes\.md': holds the value of a secret") as refused:
        pack(tree, tmp_path / "a.zip", {}, most_mb=1)
    assert "canary-0" not in str(refused.value)


def test_secret_with_undecodable_bytes_is_found(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_API_KEY", os.fsdecode(b"canary-\xe9\xe8\xff"))
    pack(tree, tmp_path / "a.zip", {}, most_mb=1)
    (tree / "notes.md").write_bytes(b"my key is canary-\xe9\xe8\xff")
    with pytest.raises(BadInput, match=r"package: 'notes\.md': holds the value of a secret"):
        pack(tree, tmp_path / "b.zip", {}, most_mb=1)


def test_file_name_that_is_not_utf8_is_rejected(tree: Path, tmp_path: Path) -> None:
    odd = tree / os.fsdecode(b"caf\xe9.txt")
    odd.touch()
    with pytest.raises(BadInput, match=r"package: 'caf.*\.txt': has a name that is not UTF-8; rename it") as refused:
        pack(tree, tmp_path / "a.zip", {}, most_mb=1)
    str(refused.value).encode()
    odd.rename(tree / "caf\u00e9.txt")
    assert "caf\u00e9.txt" in pack(tree, tmp_path / "b.zip", {}, most_mb=1).names


def test_git_variables_of_the_environment_drop_no_file(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook of git sets them."""
    for args in (["init", "-q"], ["add", "code.py"]):
        subprocess.run(["git", *args], cwd=tree, check=True)
    expected = pack(tree, tmp_path / "a.zip", {}, most_mb=1)
    monkeypatch.setenv("GIT_DIR", str(tree / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tree / ".git" / "index"))
    found = pack(tree, tmp_path / "b.zip", {}, most_mb=1)
    assert "code.py" in found.names and "code.py" not in found.untracked
    assert (found.names, found.untracked) == (expected.names, expected.untracked)


KEY_FILES = (
    "credentials", "kubeconfig", "credentials.json", "gcp/my-service-account.json", "client_secret_1.json",
    "secrets.yaml", "prod-secrets.yml", "AuthKey.p8", "store.jks", "cert.PFX", "terraform.tfstate", "prod.tfvars",
    "prod.env", ".pypirc", ".npmrc", ".pgpass", ".netrc", ".git-credentials", ".htpasswd", "id_ecdsa", "my.kdbx",
    "putty.ppk", "vpn.ovpn", "auth_token", "serviceAccountKey.json", "app-firebase-adminsdk-1.json", "hf_token",
    "openai_api_key.txt", "token.txt", ".bash_history", "secrets.sh", "api_key", ".api_key", "openai_key.txt",
    ".env-prod", "kubeconfig-prod", "kubeconfig-prod.yaml", "wp-config.php", "ssh_host_ed25519_key",
    "api_keys.json", "db_password.txt", "kubeadmin-password", "msal_token_cache.json",
)  # fmt: skip
KEYS = {
    "private key": "-----BEGIN " + "RSA PRIVATE KEY-----\nMII",
    "key of AWS": "id = AKIA" + "IOSFODNN7EXAMPLE",
    "key of a model service": "key='sk-" + "proj-" + "abcdefghij0123456789abcd'",
    "token of GitHub": "ghp_" + "a1B2" * 9,
    "token of Hugging Face": "hf_" + "abCD" * 8 + "ef",
    "token of Slack": "xoxb-" + "123456789012-abcdef",
    "key of Groq": "gsk_" + "aB1c" * 12,
    "key of xAI": "xai-" + "aB1cd" * 14,
    "key of age": "AGE-SECRET-" + "KEY-1" + "QZ" * 29,
    "webhook of Slack": "https://hooks.slack.com/" + "services/T01234567/B01234567/" + "aB1c" * 6,
    "key of PuTTY": "PuTTY-User-Key-" + "File-3: ssh-ed25519",
    "secret key of AWS": "export AWS_SECRET_ACCESS_KEY=" + "aB1/" * 10,
}
HARMLESS = {
    "src/secrets.py": "import secrets",
    "tokenizer.json": "{}",
    "credentials.md": "-----BEGIN CERTIFICATE-----",
    "task.txt": "task-abcdefghijklmnopqrstuvwxyz sk-short AKIA... $OPENAI_API_KEY",
    "names.txt": "sk-learn-something-long-name sk-SK-Chirp3-HD-Achernar sk-learn-2-Plots-Of-Many-Classifiers-And-Data",
    "aws.sh": f"export AWS_SECRET_ACCESS_KEY=$SECRET  # commit {'0123456789' * 4}",
    "putty.py": 'first.startswith("PuTTY-User-Key-File-2: ")',
    "hooks.md": "https://hooks.slack.com/services/...",
    "keys.json": '{"sort": ["id"]}',
    "appsettings.json": '{"Logging": {}}',
    "kubeconfig_reader.py": "",
    "ssh_host_rsa_key.pub": "ssh-rsa AAAA",
    "answer_key.txt": "1: b",
}


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_files_that_look_like_keys_are_named_and_not_sent(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    held = {f"notes/{kind}.txt": f"see\n{text}\n" for kind, text in KEYS.items()}
    write(root, dict.fromkeys(KEY_FILES, "x") | held | HARMLESS | {".aws/credentials": "x", "a/.ssh/config": "x"})
    package = pack(root, tmp_path / "a.zip", {}, most_mb=1)
    assert names(package.path) == set(HARMLESS)
    assert package.kept_back == dict.fromkeys(KEY_FILES, "by name") | {f"notes/{kind}.txt": kind for kind in KEYS}
    assert package.dot_folders == (".aws", "a/.ssh")
    said = "\n".join(package.describe())
    assert ".pypirc (by name)" in said and "notes/key of AWS.txt (key of AWS)" in said
    assert "excluded folders: .aws, a/.ssh\ncluster.package_also" in said


def test_every_key_of_a_model_service_is_found() -> None:
    draw = random.Random(0)
    for prefix, length in (("ant-api03-", 95), ("ant-admin01-", 95), ("proj-", 156), ("svcacct-", 156), ("", 48)):
        letters = string.ascii_letters + string.digits + ("-_" if prefix else "")
        for _ in range(2000):
            key = f"sk-{prefix}{''.join(draw.choices(letters, k=length))}"
            assert find_key(f"key={key}\n".encode()) == "key of a model service", key


@pytest.mark.parametrize(
    ("prefix", "rest"),
    [
        ("AKIA", "IOSFODNN7EXAMPLE"),
        ("sk-", "a1B2" * 12),
        ("gsk_", "a1B2" * 12),
        ("xai-", "aB1cd" * 14),
        ("hf_", "ab" * 17),
        ("npm_", "a1B2" * 9),
    ],
)
def test_key_after_an_escaped_line_break_is_found(prefix: str, rest: str) -> None:
    key = (prefix + rest).encode()
    assert find_key(rb'"\n' + key + b'"') is not None is not find_key(rb'"a\t' + key)
    assert find_key(b"n" + key) is find_key(rb"\x" + key) is None


def test_no_file_of_the_repository_looks_like_a_key() -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [Path(name) for name in tracked.split("\0") if name]
    assert len(files) > 100
    assert [f for f in files if is_key_file(f) or find_key((ROOT / f).read_bytes())] == []


def test_keys_in_large_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "tree"
    write(root, {"a.log": "x" * (3 << 20) + "\n" + KEYS["private key"]})
    assert pack(root, tmp_path / "a.zip", {}, most_mb=4).kept_back == {"a.log": "private key"}
    monkeypatch.setenv("CANARY_API_KEY", "canary-0123456789")
    write(root, {"b.log": "x" * (3 << 20) + "canary-0123456789"})
    with pytest.raises(BadInput, match=r"package: 'b\.log': holds the value of a secret"):
        pack(root, tmp_path / "a.zip", {}, most_mb=8)


def test_links_are_sent_as_copies_of_packed_files(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    write(root, {"conf/v2.yaml": "a: 1", "conf/deep/b.txt": "b", "run.sh": "x"})
    (root / "run.sh").chmod(0o755)
    links = {"conf/now.yaml": "v2.yaml", "chain": "conf/now.yaml", "settings": "conf", "bin/go": "../run.sh"}
    (root / "bin").mkdir()
    for link, to in links.items():
        (root / link).symlink_to(to)
    package = pack(root, tmp_path / "a.zip", {}, most_mb=1)
    real = {"conf/v2.yaml", "conf/deep/b.txt", "run.sh"}
    copies = {"conf/now.yaml", "chain", "bin/go", "settings/v2.yaml", "settings/deep/b.txt", "settings/now.yaml"}
    assert names(package.path) == real | copies
    with zipfile.ZipFile(package.path) as archive:
        assert {archive.read(n) for n in ("chain", "conf/now.yaml", "settings/now.yaml", "settings/v2.yaml")} == {
            b"a: 1"
        }
        assert archive.getinfo("bin/go").external_attr >> 16 == 0o755
    assert package.has("settings/deep") and package.unsent_links == ()


def test_links_to_what_is_not_sent_are_named(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    write(tmp_path, {"outside/f.txt": "x"})
    write(
        root,
        {"a/x.py": "", ".gitignore": "data/", "data/d.jsonl": "", "secrets.yaml": "x", "note.txt": KEYS["key of AWS"]},
    )
    links = {
        "away": "../outside", "file": "../outside/f.txt", "gone": "nowhere", "loop": "loop", "a/up": "..",
        "d": "data/d.jsonl", "settings": "secrets.yaml", "b": "a",
    }  # fmt: skip
    for link, to in {**links, "copy": "note.txt", "token": "a/x.py"}.items():
        (root / link).symlink_to(to)
    package = pack(root, tmp_path / "a.zip", {}, most_mb=1)
    assert names(package.path) == {"a/x.py", ".gitignore", "b/x.py"}
    assert package.unsent_links == ("a/up", "away", "b/up", "d", "file", "gone", "loop", "settings")
    assert package.kept_back == {
        "secrets.yaml": "by name", "token": "by name", "note.txt": "key of AWS", "copy": "key of AWS",
    }  # fmt: skip
    line = "excluded links, because their targets are not in the package: a/up, away, b/up, d, file and 3 more"
    assert line in package.describe()


def test_files_named_by_the_user_are_sent_all_the_same(tmp_path: Path) -> None:
    write(tmp_path / "tree", {".github/ci.yml": "x", ".vscode/x": "x", "secrets.yaml": "x", "prod.env": "x"})
    package = pack(tmp_path / "tree", tmp_path / "a.zip", {}, most_mb=1, also=(".github/*", "secrets.yaml"))
    assert names(package.path) == {".github/ci.yml", "secrets.yaml"}


def git(root: Path, *words: str) -> None:
    login = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *login, *words], cwd=root, check=True, capture_output=True)


@pytest.mark.parametrize("commits", [True, False])
def test_repositories_inside_are_sent_and_untracked_files_are_named(tmp_path: Path, commits: bool) -> None:
    root = tmp_path / "tree"
    write(root, {"a.py": "", "lib/b.py": "", "lib/out/c.py": "", "lib/.gitignore": "out/\n"})
    for folder in (root, root / "lib"):
        git(folder, "init", "-q")
    git(root / "lib", "add", "b.py")
    if commits:
        git(root / "lib", "commit", "-qm", "x")
    package = pack(root, tmp_path / "a.zip", {}, most_mb=1)
    assert names(package.path) == {"a.py", "lib/b.py", "lib/.gitignore"}
    assert package.untracked == ("a.py", "lib/.gitignore")
    assert "2 not tracked by git: a.py, lib/.gitignore" in package.describe()


def test_without_git_all_files_are_untracked(tmp_path: Path) -> None:
    write(tmp_path / "tree", {f"{i}.py": "" for i in range(9)})
    package = pack(tmp_path / "tree", tmp_path / "a.zip", {}, most_mb=1)
    assert "9 not tracked by git: 0.py, 1.py, 2.py, 3.py, 4.py and 4 more" in package.describe()


def test_programs_of_a_nested_repository_are_not_run(tmp_path: Path) -> None:
    root, ran = tmp_path / "tree", tmp_path / "ran"
    nested = root / "data" / "nested"
    nested.mkdir(parents=True)
    (root / "a.py").touch()
    (nested / "f.txt").touch()
    subprocess.run(["git", "init", "-q", str(nested)], check=True)
    program = tmp_path / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    subprocess.run(["git", "-C", str(nested), "config", "core.fsmonitor", str(program)], check=True)
    pack(root, tmp_path / "job.zip", {}, most_mb=1)
    assert names(tmp_path / "job.zip") >= {"a.py", "data/nested/f.txt"} and not ran.exists()
