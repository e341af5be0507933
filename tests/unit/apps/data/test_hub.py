"""Data sets of the Hugging Face Hub, from a local server that answers like it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.docs_pages import DOCS, commands

COMMIT = "a" * 40
FILES = {
    f"data/{split}.jsonl": "".join(
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": f"Where is parcel {split} {i}?"},
                    {"role": "assistant", "content": f"Parcel {i} is on its way."},
                ]
            }
        )
        + "\n"
        for i in range(n)
    ).encode()
    for split, n in (("train", 4), ("validation", 2), ("test", 2))
} | {"README.md": b"A data set.", "model.bin": b"no table"}


class Hub(BaseHTTPRequestHandler):
    """The parts of the Hub that a download of a data set asks for."""

    asked: ClassVar[list[str]] = []

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/datasets/owner/name/revision/"):
            siblings = [{"rfilename": name} for name in FILES]
            self.send(200, json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": siblings}).encode(), body=body)
        elif path.startswith("/api/datasets/owner/name/tree/"):
            tree = [{"type": "file", "path": n, "size": len(t), "oid": oid(t)} for n, t in FILES.items()]
            self.send(200, json.dumps(tree).encode(), body=body)
        elif (name := path.removeprefix(f"/datasets/owner/name/resolve/{COMMIT}/")) in FILES:
            self.send(200, FILES[name], body=body, etag=oid(FILES[name]))
        else:
            self.send(404, b'{"error": "not found"}', body=body)

    def send(self, status: int, content: bytes, *, body: bool, etag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        if etag:
            self.send_header("ETag", f'"{etag}"')
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run_hamr(arguments: list[str], hub: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run hamr as a process of its own: the Hub's client reads its address when it is imported."""
    env = os.environ | {"HF_ENDPOINT": hub, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "0", "NO_PROXY": "*"}
    command = [sys.executable, "-m", "hamr", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_data_set_is_imported_with_its_splits_as_documented(hub: str, tmp_path: Path) -> None:
    Hub.asked.clear()
    [command] = [c for c in commands(DOCS / "how-to" / "data.md") if "input=owner/name" in c]
    done = run_hamr(shlex.split(command)[1:], hub, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "taking the data set owner/name of the Hugging Face Hub" in done.stdout
    folder = tmp_path / "data" / "chats"
    lines = {split: len((folder / f"{split}.jsonl").read_text().splitlines()) for split in ("train", "test")}
    assert lines == {"train": 4, "test": 2}
    assert not any(path.endswith(("README.md", "model.bin")) for path in Hub.asked), "only tables are downloaded"


def test_unknown_data_set_is_refused_in_one_line(hub: str, tmp_path: Path) -> None:
    done = run_hamr(["data", "import", "messages", "input=owner/nothing", "output=out"], hub, tmp_path)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("hamr: input: 'owner/nothing': neither a file or folder here nor found on the Hub (")
    assert not (tmp_path / "out").exists()
