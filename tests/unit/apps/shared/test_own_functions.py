"""The example of the page on hooks, and refusals of functions before anything starts."""

from __future__ import annotations

import hashlib
import json
import runpy
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from hamr.apps.shared import own_functions
from hamr.apps.shared.own_functions import check_own_functions, load_callbacks
from hamr.apps.shared.preparation import load_splits
from hamr.apps.shared.training_job import Job
from hamr.config.custom import function_arguments
from hamr.config.load import dump_config, load_config, load_dumped
from hamr.data.samples import from_json
from hamr.errors import ConfigError
from hamr.types import JudgeTimeout, Scored
from tests.docs_pages import DOCS, blocks, commands, save_files
from tests.unit.telemetry.records import record

HOOKS = DOCS / "reference" / "hooks.md"
SAMPLE = json.loads(next(block.text for block in blocks(DOCS / "tutorials" / "1-own-tickets.md", "json")))


def test_documented_reward_compares_the_response_with_the_references(tmp_path: Path) -> None:
    save_files(HOOKS, tmp_path)
    closeness = runpy.run_path(str(tmp_path / "my_rewards.py"))["closeness"]
    call = {"action": "call_tool", "name": "lookup", "parameters": {}}
    reply = {"action": "reply", "content": "Your parcel arrives tomorrow."}
    tools = [{"name": "lookup", "description": "", "parameters": {"type": "object", "properties": {}}}]
    sample = from_json({**SAMPLE, "tools": tools, "references": [call, reply]}, where="sample")
    assert closeness(sample, "Your parcel arrives tomorrow.") == 1.0
    assert 0.0 < closeness(sample, "Your parcel is lost.") < 1.0
    assert closeness(replace(sample, references=sample.references[:1]), "Hi.") == 0.0


def test_documented_functions_are_accepted_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_files(HOOKS, tmp_path)
    rows = [{**SAMPLE, "id": f"s{i}"} for i in range(20)]
    (tmp_path / "samples.json").write_text(json.dumps(rows))
    [command] = [command for command in commands(HOOKS) if command.startswith("hamr train experiment=own_data")]
    config = check_own_functions(load_config(shlex.split(command)[2:]))
    digest = hashlib.sha256((tmp_path / "my_job.py").read_bytes()).hexdigest()
    assert {section.sha256 for section in (*config.functions.values(), config.data.importer)} == {digest}
    assert len(config.functions) == 3, "the importer was called and is no longer needed"
    assert sum(map(len, (load_splits(config.data, 0).train, load_splits(config.data, 0).test))) > 10
    callbacks = load_callbacks(config, pytest.fail)
    assert callbacks is not None
    callbacks.call("on_step_end", "rl", 1, {"reward/total/mean": 0.5})
    rewards = [Scored(value=0.7), JudgeTimeout(), Scored(value=0.2)]
    records = tuple(replace(record(i, total), response=f"reply {i}") for i, total in enumerate(rewards))
    callbacks.call("on_evaluation_end", "rl", 1, {}, records)
    callbacks.close()
    assert json.loads((tmp_path / "steps.jsonl").read_text()) == {"stage": "rl", "step": 1, "reward": 0.5}
    assert (tmp_path / "worst-rl.txt").read_text() == "reply 2\nreply 0\n"

    Job(config=config, path=tmp_path / "run", resume=False).open().close()
    recorded = tmp_path / "run/config.yaml"
    with pytest.raises(ConfigError, match=r"repeat it on the command line: algorithm\.loss\.path=my_job\.py:one_sided"):
        check_own_functions(load_dumped(recorded))
    repeated = load_dumped(recorded, function_arguments(config.functions))
    assert dump_config(check_own_functions(repeated)) == dump_config(config)
    assert load_splits(repeated.data, 0) == load_splits(config.data, 0)
    (tmp_path / "my_job.py").write_text((tmp_path / "my_job.py").read_text() + "# changed")
    with pytest.raises(ConfigError, match="has changed since the run began"):
        check_own_functions(repeated)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(tokens): return 'text'", r"returned 'text' \(str\); return a tensor"),
        (
            "def f(tokens): return tokens.logprobs.mean()",
            r"returned a tensor of shape \(\); return a tensor of the shape",
        ),
        ("def f(tokens): return tokens.advantages", "do not depend on tokens.logprobs"),
        ("def f(tokens): return tokens.logprobs / 0", "losses that are not finite"),
        ("def f(tokens): return tokens.logprobs / tokens.mask", "not finite if tokens.mask leaves out a token"),
        ("def f(tokens): return tokens.odds", "raised AttributeError: 'TokenTerms' object has no attribute 'odds'"),
        ("def f(): pass", r"cannot be called as f\(tokens\)"),
    ],
)
def test_function_that_returns_no_losses_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "my.py").write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        check_own_functions(load_config(["experiment=smoke", f"algorithm.loss.path={tmp_path}/my.py:f"]))
    assert error.value.where == "algorithm.loss.path" and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["def f(tokens):\n    time.sleep(600)\n", "time.sleep(600)\n"])
def test_function_that_sleeps_for_ever_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(own_functions, "CHECK_S", 0.3)
    (tmp_path / "own.py").write_text(f"import time\n\n{text}")
    config = load_config(["experiment=smoke", f"algorithm.loss.path={tmp_path / 'own.py'}:f"])
    with pytest.raises(ConfigError, match=r"^algorithm.loss.path: .* did not return within 0.3 s") as refused:
        check_own_functions(config)
    assert refused.value.exit_code == 2
