"""What of a working tree is sent along with a job."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from hamr.apps.submit.package import pack
from hamr.errors import BadInput


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
    assert package.kept_back == (".env", "keys/server.pem")
    assert package.files == 5
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
