"""`hamr chat` gives the policy the prompts of its training, streams its answers and ends quietly."""

from __future__ import annotations

import builtins
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hamr import cli
from hamr.apps.chat.run import converse
from hamr.apps.shared.preparation import Codec
from hamr.apps.shared.training_job import Job
from hamr.config.load import load_config
from hamr.data.importer_function import imported_samples
from hamr.data.samples import to_json, write_samples
from hamr.errors import BadInput
from hamr.models.local_model import LocalModel
from hamr.models.tokenizer import load_tokenizer
from hamr.types import ToolCall, Turn
from tests.docs_pages import documented
from tests.tool_models import run_of, tiny_with_tools, tool_sample

DESK = tool_sample(history=())
CALL = ToolCall(name="issue_refund", parameters={"order_id": "A"})
CALLING = '<tool_call>\n{"name": "issue_refund", "arguments": {"order_id": "A"}}\n</tool_call>'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_with_tools(tmp_path_factory.mktemp("model") / "tiny_tools")


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(model, tmp_path_factory.mktemp("runs") / "run", "rollout.max_new_tokens=6")


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


class Scripted:
    """Policy with given answers, which keeps the prompts it gets."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.prompts = iter(answers), []

    def __call__(self, ids: Sequence[int]) -> str:
        self.prompts.append(tuple(ids))
        return next(self.answers)


def test_prompts_are_those_of_the_training(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "Refund, please.", '{"paid": 3}', "Thanks", "And now?", "/quit", "not read")
    policy = Scripted(CALLING, "Paid.", "</tool_call>", "Bye.")
    codec = Codec(tokenizer=load_tokenizer(model), config=load_config(["experiment=smoke", f"model.path={model}"]))
    converse(DESK, codec, policy)
    turns = (
        Turn(role="customer", content="Refund, please."),
        Turn(role="agent", tool_call=CALL),
        Turn(role="tool", name="issue_refund", content='{"paid": 3}'),
        Turn(role="agent", content="Paid."),
        Turn(role="customer", content="Thanks"),
        Turn(role="agent", content="</tool_call>"),
        Turn(role="customer", content="And now?"),
    )
    assert policy.prompts == [codec.prompt(replace(DESK, history=turns[:end])) for end in (1, 3, 5, 7)]


def test_a_rationale_is_shown_and_left_out_of_later_prompts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "Hi", "Bye")
    policy = Scripted("<think>Greet.</think><answer>Hello.</answer>", "<think>End.</think><answer>Bye.</answer>")
    overrides = ["experiment=smoke", f"model.path={model}", "model.response_format=think_answer"]
    codec = Codec(tokenizer=load_tokenizer(model), config=load_config(overrides))
    converse(DESK, codec, policy)
    turns = (
        Turn(role="customer", content="Hi"),
        Turn(role="agent", content="Hello."),
        Turn(role="customer", content="Bye"),
    )
    assert policy.prompts[1] == codec.prompt(replace(DESK, history=turns))


def test_answers_of_the_model_are_printed_as_it_writes_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tutorial's command, on samples of the run and on given ones."""
    monkeypatch.chdir(run.parent)
    outputs = []
    for _ in range(2):
        say(monkeypatch, "Hello", "", "Can I have a refund?", "/quit")
        assert cli.main(documented("tutorials/8-result.md", "hamr chat")) == 0
        outputs.append(capsys.readouterr().out)
    first, *answers = outputs[0].split("agent> ")
    assert "policy of step 1; sample telecom_package-test" in first and "change_order" in first
    assert len(answers) == 2 and all(answers)
    assert outputs[0] == outputs[1], "greedy by default"
    write_samples(tmp_path / "own.jsonl", [tool_sample(), replace(tool_sample(), id="other")])
    say(monkeypatch)
    assert cli.main(["chat", str(run), f"samples={tmp_path / 'own.jsonl'}", "id=other"]) == 0
    assert capsys.readouterr().out.startswith("policy of step 1; sample other; tools: issue_refund; ticket: Plan=Surf;")


def test_run_keeps_the_samples_of_its_importer(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [to_json(replace(tool_sample(), id=f"own{i}")) for i in range(8)]
    Path("rows.json").write_text(json.dumps(rows))
    Path("own.py").write_text("import json\n\n\ndef read():\n    yield from json.load(open('rows.json'))\n")
    importer = "data.importer.path=own.py:read"
    run_of(model, tmp_path / "run", importer)
    Path("own.py").unlink()
    say(monkeypatch)
    assert cli.main(["chat", "run"]) == 0
    assert capsys.readouterr().out.startswith("policy of step 1; sample own")
    with pytest.raises(BadInput, match=r"^data\.importer\.path: 'other\.py:f': the run keeps the samples of own"):
        Job.from_folder(tmp_path / "run", ["data.importer.path=other.py:f"])
    for again in ([], [importer], [f"+{importer}"]):
        config = Job.from_folder(tmp_path / "run", again).config
        assert not config.functions and {s.id for s in imported_samples(config.data.importer)} == {
            r["id"] for r in rows
        }


def test_text_is_streamed_as_it_is_returned(model: Path) -> None:
    local, pieces = LocalModel(model, "float32"), []
    ids = local.tokenizer.chat_ids([{"role": "user", "content": "Hi"}])
    one, same, other = (
        local.write(ids, pieces.append, max_new_tokens=12, temperature=1.0, seed=seed) for seed in (3, 3, 4)
    )
    assert len(pieces) > 6 and "".join(pieces) == one + same + other
    assert one == same != other


def test_ctrl_c_ends_quietly(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(builtins, "input", interrupt)
    assert cli.main(["chat", str(run)]) == 0
    assert capsys.readouterr().err == ""


def test_faults_are_one_line_each(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, "Hello")
    assert cli.main(["chat", str(run), "id=nobody"]) == 2
    assert "id: 'nobody': none of the" in capsys.readouterr().err
    assert cli.main(["chat", str(tmp_path)]) == 2
    assert "RUN: " in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    assert cli.main(["chat", str(run)]) == 2
    assert "is not UTF-8" in capsys.readouterr().err
    say(monkeypatch, "word " * 600)
    assert cli.main(["chat", str(run)]) == 1
    assert "start a new conversation" in capsys.readouterr().err
