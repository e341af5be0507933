"""`hamr data preview` prints exactly what the policy gets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hamr import cli
from hamr.data.samples import write_samples
from hamr.types import Reference, Reply, ServiceSample, ToolCall, Turn
from tests.docs_pages import DOCS, commands
from tests.tool_models import tiny_with_tools

TOOL = {"name": "refund", "description": "Pays money back.", "parameters": {"type": "object", "properties": {}}}
SAMPLE = ServiceSample(
    id="[s1]",
    ticket={"Plan": "Surf"},
    policy="Be brief.",
    tools=(TOOL,),
    history=(Turn(role="customer", content="[bold]Money[/bold] back, please."),),
    references=(Reference(action=ToolCall(name="refund")), Reference(action=Reply(content="Sure."))),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for split in ("train", "validation", "test"):
        write_samples(tmp_path / f"data/own/{split}.jsonl", [SAMPLE])
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["data", "preview", "experiment=smoke", "data=data/own", *words]) == 0
    return capsys.readouterr().out


def test_prompt_and_references_are_shown_with_special_tokens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    assert "tools: hamr's compact form" in text and "Tools: refund()" in text
    assert "<|im_start|>user\n[bold]Money[/bold] back, please.<|im_end|>\n<|im_start|>assistant\n" in text
    assert '<tool_call>{"name": "refund", "arguments": {}}</tool_call><|im_end|>' in text
    assert [int(n) for n in re.findall(r"(?:prompt|reference) of (\d+) tokens", text)][1:] != []
    assert "sample [s1]: prompt of" in text


def test_tools_are_shown_as_the_template_writes_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, f"model.path={tiny_with_tools(folder / 'model')}")
    assert "tools: written by the chat template" in text and "Pays money back." in text
    assert '<tool_call>\n{"name": "refund", "arguments": {}}\n</tool_call><|im_end|>' in text


def test_a_file_that_is_too_small_to_split_is_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("validation", "test"):
        (folder / f"data/own/{split}.jsonl").unlink()
    assert "sample [s1]: prompt of" in shown(capsys)


def test_a_prompt_without_room_is_marked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = int(re.findall(r"prompt of (\d+) tokens\n", shown(capsys))[0])
    words = [f"model.max_context={count + 9}", "rollout.max_new_tokens=12"]
    assert f"prompt of {count} tokens, 3 too many" in shown(capsys, *words)


def test_reference_longer_than_a_reply_is_marked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = sorted(map(int, re.findall(r"reference of (\d+) tokens", shown(capsys))))
    text = shown(capsys, f"rollout.max_new_tokens={counts[0]}")
    assert f"reference of {counts[0]} tokens\n" in text
    more = counts[1] - counts[0]
    assert f"reference of {counts[1]} tokens, {more} more than rollout.max_new_tokens={counts[0]}; raise it" in text


def test_example_of_the_how_to_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = [c for c in commands(DOCS / "how-to" / "data.md") if c.startswith("hamr data preview")]
    assert [cli.main([*shlex.split(command)[1:], "model.path=tiny"]) for command in examples] == [0, 0]
    assert capsys.readouterr().out.count("tools: hamr's compact form") == 2
    assert cli.main([*shlex.split(examples[0])[1:], "model.path=tiny", "model.tools_prompt=template"]) == 2
    assert re.fullmatch(r"hamr: model\.tools_prompt: 'template': [^\n]*\n", capsys.readouterr().err)
