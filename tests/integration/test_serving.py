"""vLLM's OpenAI-compatible server on an exported policy: its prompts are those of the training."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hamr import cli
from hamr.apps.shared.preparation import Codec
from hamr.config.load import load_dumped
from hamr.data.rendering import policy_messages
from hamr.data.samples import write_samples
from hamr.data.tools import function_schemas
from hamr.models.tokenizer import load_tokenizer
from tests.docs_pages import TUTORIALS, blocks, documented
from tests.tool_models import run_of, tiny_with_tools, tool_sample

RESULT = TUTORIALS[-1]
START_S = 240


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run, its exported policy and samples, where the tutorial expects them."""
    monkeypatch.chdir(tmp_path)
    run_of(tiny_with_tools(tmp_path / "tiny_tools"), tmp_path / "run")
    write_samples("data/mine/test.jsonl", [tool_sample()])
    assert cli.main(documented("tutorials/8-result.md", "hamr export")) == 0
    return tmp_path


@contextlib.contextmanager
def served(folder: Path) -> Iterator[int]:
    """Start the tutorial's server on a free port and yield the port."""
    [command] = [block.text for block in blocks(RESULT, "bash") if "api_server" in block.text]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    small = [
        "--kv-cache-memory-bytes",
        "1G",
        "--max-model-len",
        "2048",
        "--enforce-eager",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, *shlex.split(command)[1:], *small],
            env=os.environ | environment | {"VLLM_NO_USAGE_STATS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            assert server.poll() is None and time.monotonic() < deadline, (folder / "server.log").read_text()[-3000:]
            time.sleep(0.2)
        yield port
    finally:
        server.terminate()
        server.wait(60)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
    return False


def prompt_ids(port: int, **request: Any) -> list[int]:
    body = json.dumps({"model": "policy", "max_tokens": 1, "return_token_ids": True, **request}).encode()
    url, headers = f"http://127.0.0.1:{port}/v1/chat/completions", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=120) as answer:
        return json.load(answer)["prompt_token_ids"]


@pytest.mark.deep
@pytest.mark.timeout(400)
def test_server_makes_the_prompts_of_the_training(folder: Path) -> None:
    """The tutorial's commands and code as written, but for the port; then other requests."""
    codec = Codec(
        tokenizer=load_tokenizer(folder / "run/checkpoints/step_1/policy"), config=load_dumped(Path("run/config.yaml"))
    )
    sample = tool_sample()
    with served(folder) as port:
        [code] = [block.text for block in blocks(RESULT, "python") if "OpenAI(" in block.text]
        names: dict[str, Any] = {}
        exec(code.replace("127.0.0.1:8000", f"127.0.0.1:{port}"), names)
        assert names["answer"].prompt_token_ids == list(codec.prompt(sample))
        # A client's own tools, which have no wrapper, description or parameters.
        bare = replace(sample, tools=({"name": "close"},), history=sample.history[:1], policy="", ticket={})
        given = {
            "messages": policy_messages(bare, native=True),
            "tools": [{"type": "function", "function": bare.tools[0]}],
        }
        assert prompt_ids(port, **given) == list(codec.prompt(replace(bare, id="bare")))
        # Without tools, the system message holds everything.
        alone = replace(sample, id="alone", tools=(), history=sample.history[:1])
        assert not function_schemas(alone.tools)
        assert prompt_ids(port, messages=policy_messages(alone, native=True)) == list(codec.prompt(alone))
