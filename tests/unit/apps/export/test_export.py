"""`hamr export` writes a folder that loads without hamr, with a model card whose code makes the training's requests."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from hamr import cli
from hamr.apps.export import run as export_run
from hamr.data.policy_chat import PolicyChat
from hamr.data.rendering import policy_messages
from hamr.models.bundled import resolve_model
from hamr.models.tokenizer import load_tokenizer
from tests.tool_models import run_of, tiny_with_tools, tool_sample


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_with_tools(tmp_path_factory.mktemp("model") / "tiny_tools")


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "desk"
    made = run_of(model, out, "rollout.temperature=0.7", "trainer=lora", steps=(2, 4))
    figures = {"n": 40, "action_accuracy": 0.5, "format_error_rate": 0.0, "reward": {"total": 1.25}}
    (made / "summary.json").write_text(json.dumps({"stages": {"base": figures}}))
    return made


def export(run: Path, output: Path, *words: str) -> int:
    return cli.main(["export", str(run), f"output={output}", *words])


def request_of_card(folder: Path) -> dict:
    """Run the card's code for a sample."""
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    names: dict = {"sample": tool_sample()}
    exec(code, names)
    return names["request"]


def test_folder_has_model_tokenizer_settings_and_card(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    assert export(run, tmp_path / "out" / "model") == 0
    out = tmp_path / "out" / "model"
    printed = capsys.readouterr().out
    assert "model of step 4" in printed and f"--model {out} --enable-auto-tool-choice" in printed
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {
        file.name for file in out.iterdir()
    }
    tokenizer, settings = AutoTokenizer.from_pretrained(out), GenerationConfig.from_pretrained(out)
    assert tokenizer.chat_template and settings.temperature == 0.7 and settings.eos_token_id == [2]
    card = (out / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n") and "checkpoint of step 4" in card
    assert "| base | 40 | 50.0% | 0.0% | 1.250 |" in card and "adapter (rank 16) is merged" in card
    assert str(run) not in card and str(tmp_path) not in card, "a card is made to be shared"


@pytest.mark.parametrize(("ends", "exported"), [(None, [2]), (0, [2, 0]), ([0, 2], [2, 0])])
def test_end_tokens_of_the_model_are_kept_beside_that_of_the_training(
    ends: object, exported: list[int], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = export_run._write_generation_config

    def with_ends(path: Path, *others: Any) -> None:
        path.write_text(json.dumps({"eos_token_id": ends}))
        write(path, *others)

    monkeypatch.setattr(export_run, "_write_generation_config", with_ends)
    assert export(run, tmp_path / "model") == 0
    assert json.loads((tmp_path / "model" / "generation_config.json").read_text())["eos_token_id"] == exported


def test_code_of_the_card_makes_the_prompt_of_the_training(run: Path, model: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "model", "step=2")
    tokenizer = load_tokenizer(tmp_path / "model")
    request = request_of_card(tmp_path / "model")
    assert tokenizer.chat_ids(request["messages"], tools=request["tools"]) == PolicyChat.of(
        load_tokenizer(model), "template"
    ).prompt(tool_sample())


@pytest.mark.parametrize("asked", ["plain", "think_answer"])
def test_card_of_a_compact_policy_has_no_tools(tmp_path: Path, asked: str) -> None:
    run = run_of(resolve_model("tiny"), tmp_path / "run", f"model.response_format={asked}")
    export(run, tmp_path / "model")
    assert request_of_card(tmp_path / "model") == {"messages": policy_messages(tool_sample(), asked)}
    assert "--enable-auto-tool-choice" not in (tmp_path / "model" / "README.md").read_text()


def test_adapter_is_exported_with_the_name_of_its_base_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A local path is left out; a rank of two stages is rounded up to one that vLLM accepts."""
    trained = shutil.copytree(model, tmp_path / "trained")
    (trained / "adapter").mkdir()
    settings = trained / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps({"r": 48, "base_model_name_or_path": None}))
    (trained / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
    for base, named in ((str(model), None), ("tiny", "tiny")):
        run = run_of(trained, tmp_path / f"run_{named}", "trainer=lora", f"model.path={base}")
        out = tmp_path / f"desk_{named}"
        assert export(run, out) == 0
        assert f"its LoRA adapter alone: {out / 'adapter'}" in capsys.readouterr().out
        assert json.loads((out / "adapter/adapter_config.json").read_text())["base_model_name_or_path"] == named
        assert (out / "adapter/adapter_model.safetensors").read_bytes() == b"weights"
        card = (out / "README.md").read_text()
        assert "has it alone (rank 48: the adapters of all stages, joined)" in card
        assert f"--enable-lora --max-lora-rank 64 --lora-modules desk_{named}=adapter" in card


def test_faults_are_one_line_each(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    empty = run_of(resolve_model("tiny"), tmp_path / "empty", steps=())
    for words, said in (
        ((run, tmp_path / "full"), "exists and is not empty"),
        ((run, tmp_path / "new", "step=3"), "it has steps 2, 4"),
        ((empty, tmp_path / "new"), "has no complete checkpoint"),
        ((tmp_path / "gone", tmp_path / "new"), "no such folder"),
    ):
        assert export(*words) == 2
        assert re.fullmatch(f"hamr: (output|step|RUN): [^\n]*{said}[^\n]*\n", capsys.readouterr().err)
    assert not (tmp_path / "new").exists()
