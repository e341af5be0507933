"""Whole dialogues with the policy in training, on scripted engines."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.apps.report.report import write_report
from hamr.apps.shared.dialogue_checks import check_dialogues
from hamr.apps.train.dialogues import simulate
from hamr.bench.sage.coverage import plan_dialogues
from hamr.bench.sage.scripted import perfect
from hamr.config.load import load_config
from hamr.errors import BadInput
from hamr.procedures import load_scenario
from hamr.telemetry.console import Console
from hamr.telemetry.recorder import RunRecorder
from hamr.telemetry.run_folder import RunFolder
from hamr.types import Answer, Rollout

ON = "experiment.sage.scenarios=[telecom_package]"
OPTIONS = ["experiment=smoke", ON, "experiment.sage.limit=6", "model.max_context=4096", "experiment.sage.resamples=20"]
TELECOM = load_scenario("telecom_package")


class Engine:
    """Replies like the perfect agent to the customer that the request names, with nothing every `silent` times."""

    def __init__(self, plans: Any, silent: int = 0) -> None:
        self.plans, self.silent, self.said = {plan.id: plan for plan in plans}, silent, 0

    async def generate(self, requests: Any) -> Any:
        for request in requests:
            self.said += 1
            mute = self.silent and self.said % self.silent == 0
            text = "" if mute else perfect(TELECOM, self.plans[request.keys[0].prompt], None)  # type: ignore[arg-type]
            yield Rollout(
                key=request.keys[0], prompt_ids=request.prompt_ids, token_ids=(), logprobs=(), text=text,
                finish_reason="stop", versions=(),
            )  # fmt: skip


def tokenizer(tokens: int = 10) -> Any:
    return SimpleNamespace(chat_ids=lambda messages: list(range(tokens)))


def begun(folder: RunFolder, recorder: Any, config: Any, engine: Any, pools: Any = None) -> Any:
    return SimpleNamespace(
        config=config,
        folder=folder.path,
        run_id="r",
        console=Console("r", enabled=False),
        recorder=recorder,
        world=SimpleNamespace(workers=engine, pools=pools or {}),
        prepared=SimpleNamespace(codec=SimpleNamespace(tokenizer=tokenizer())),
        dialogues={},
    )


async def test_dialogues_use_the_engines_and_record_figures(tmp_path: Path) -> None:
    config = load_config(OPTIONS)
    plans = plan_dialogues(TELECOM, config.experiment.sage)
    with RunFolder.create(tmp_path / "run", "{}") as folder, RunRecorder(folder) as recorder:
        run = begun(folder, recorder, config, Engine(plans, silent=1))
        await simulate(run, "base", 0)
        run.world.workers = Engine(plans)
        recorder.evaluation("rl", 2, {"eval/rl/action_accuracy": 0.5})
        await simulate(run, "rl", 2)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["stage"], row["step"]) for row in rows] == [("eval-base", 0), ("eval-rl", 2), ("eval-rl", 2)]
    assert rows[0]["eval/base/sage/unreadable"] == 100.0
    assert rows[0]["eval/base/sage/truth"] == 0.0
    assert rows[2]["eval/rl/sage/truth"] == pytest.approx(100.0)
    assert rows[2]["eval/rl/sage/dialogues"] == 6.0
    assert run.dialogues["rl"]["truth"] == pytest.approx(100.0) and run.dialogues["rl"]["step"] == 2
    traces = (tmp_path / "run" / "sage" / "rl" / "traces.jsonl").read_text().splitlines()
    assert {json.loads(row)["agent"] for row in traces} == {"policy"} and len(traces) == 6
    assert (tmp_path / "run" / "sage" / "rl" / "report.html").is_file()
    page = write_report(tmp_path / "run").read_text()
    assert "Whole dialogues" in page and (tmp_path / "run" / "plots" / "dialogues.png").is_file()
    assert "judges right" in page


async def test_retried_stage_starts_from_the_beginning(tmp_path: Path) -> None:
    config = load_config(OPTIONS)
    plans = plan_dialogues(TELECOM, config.experiment.sage)
    with RunFolder.create(tmp_path / "run", "{}") as folder, RunRecorder(folder) as recorder:
        run = begun(folder, recorder, config, Engine(plans, silent=1))
        await simulate(run, "rl", 2)
        run.world.workers = Engine(plans)
        await simulate(run, "rl", 2)
    assert run.dialogues["rl"]["unreadable"] == 0.0
    assert len((tmp_path / "run" / "sage" / "rl" / "traces.jsonl").read_text().splitlines()) == 6


async def test_pools_of_the_run_play_customers_and_judges(tmp_path: Path) -> None:
    config = load_config([*OPTIONS, "experiment.sage.simulator=judge", "experiment.sage.judges=[judge]"])
    plans = plan_dialogues(TELECOM, config.experiment.sage)
    asked = []

    async def ask(question: Any) -> Answer:
        asked.append(question)
        return Answer(text="I want another plan.") if question.affinity.endswith("/user") else Answer(text="mumbles")

    with RunFolder.create(tmp_path / "run", "{}") as folder, RunRecorder(folder) as recorder:
        run = begun(folder, recorder, config, Engine(plans), {"judge": SimpleNamespace(ask=ask)})
        await simulate(run, "base", 0)
    assert run.dialogues["base"]["truth"] == pytest.approx(100.0)
    assert "logic" not in run.dialogues["base"], "no judge could be read"
    assert {question.affinity.endswith("/user") for question in asked} == {True, False}


@pytest.mark.parametrize(
    ("changes", "tokens", "said"),
    [
        (["experiment.sage.scenarios=[telecom_pakage]"], 10, "did you mean 'telecom_package'"),
        (["experiment.sage.simulator=nobody"], 10, "experiment.sage.simulator=.nobody. but pools"),
        (["experiment.sage.simulator=scripted:wordy"], 10, "did you mean 'scripted:worded'"),
        (["experiment.sage.judges=[reranker]"], 10, "cannot generate text"),
        (["experiment.sage.judges=[judge,judge]"], 10, "names one twice"),
        (["model.response_format=think_answer"], 10, "answers are plain"),
        ([], 4090, "model.max_context"),
    ],
)
def test_impossible_settings_are_rejected_before_the_start(changes: list[str], tokens: int, said: str) -> None:
    check_dialogues(load_config(OPTIONS), tokenizer())
    with pytest.raises(BadInput, match=said.replace("[", r"\[")):
        check_dialogues(load_config([*OPTIONS, *changes]), tokenizer(tokens))


def test_no_requirements_are_checked_without_scenarios() -> None:
    check_dialogues(load_config(["experiment=smoke", "experiment.sage.simulator=nobody"]), tokenizer(10**6))
