"""`hamr evaluate benchmark=plans`: prompts, parsing, resumption and figures, with scripted pools."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.evaluate.plans.judging import DIMENSIONS, KEYS, plan_of, planning_question, read_comparison, read_gold
from hamr.cli import main
from hamr.config.benchmarks import PlansConfig
from hamr.errors import VerdictUnparsable
from hamr.types import Answer, Question, ScorerCall

POOLS = ["pools=tiny", "pools.planner={role: grader, model: tiny, dtype: float32}"]
CALL = ScorerCall(
    pool="p", model="m", prompt_version="", replica="", queue_s=0.0, service_s=0.1, prompt_tokens=90, output_tokens=10,
    cost=0.5,
)  # fmt: skip
GOLD = ("I look the fee up.", "Assuming a fee is due, this indicates a charge, therefore, I can name it.")


def item(name: str) -> dict[str, Any]:
    cut = GOLD[1].index("therefore")
    sample = {
        "id": name, "ticket": {"Plan": "Surf"}, "policy": "Be brief.", "tools": [], "documents": ["Fees are listed."],
        "history": [{"role": "customer", "content": f"Cancel {name}."}],
        "references": [{"action": "reply", "content": "I look."}],
    }  # fmt: skip
    target = [
        {"part": "action", "text": f"<plans><plan_1>{GOLD[0]}</plan_1>"},
        {"part": "environment", "text": f"<plan_2>{GOLD[1][:cut]}"},
        {"part": "action", "text": f"{GOLD[1][cut:]}</plan_2></plans><actions>[]</actions>"},
    ]
    return {"kind": "patm", "sample": sample, "target": target}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def plan_text(first: str) -> str:
    return f"<plans><plan_1>{first}</plan_1><plan_2>{GOLD[1]}</plan_2></plans>"


def verdict(*levels: str) -> str:
    return json.dumps({"reason": "r", **dict(zip(KEYS, levels, strict=True))}, ensure_ascii=False)


SAME = verdict("consistent", "consistent", "consistent", "consistent")
PART = verdict("inconsistent", "partially consistent", "consistent", "partially consistent")
OTHER = verdict("不一致", "不一致", "不一致", "不一致")


class Pools:
    """Scripted planner and judge. The planner answers by the customer's words, the judge by the first step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plans: dict[str, str], verdicts: dict[str, str]) -> None:
        self.plans, self.verdicts = plans, verdicts
        self.asked: list[Question] = []
        monkeypatch.setattr("hamr.apps.evaluate.plans.run.with_pools", self.with_pools)

    def with_pools(self, config: Any, names: list[str], work: Any, *, run: str) -> None:
        asyncio.run(work(dict.fromkeys(names, self.ask)))

    async def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        if question.messages:
            shown = str(question.messages[-1]["content"])
            text = next(text for name, text in self.plans.items() if f"Cancel {name}." in shown)
            return Answer(text=text, call=CALL)
        return Answer(text=self.verdicts[question.variables["plan_1"]], call=CALL)


def evaluate(folder: Path, **changed: str) -> int:
    given = {"data": folder / "gold.jsonl", "policy": "planner", "judge": "judge", "output": folder / "out", **changed}
    return main(["evaluate", "benchmark=plans", *(f"{key}={value}" for key, value in given.items()), *POOLS])


def figures_of(folder: Path, policy: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "metrics.json").read_text())["policies"][policy]
    return found


def test_plans_are_judged_in_three_dimensions_and_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "gold.jsonl", [item(name) for name in "abcd"])
    plans = {"a": plan_text("I look."), "b": plan_text("I ask."), "c": plan_text("I stop."), "d": "I have no plan."}
    pools = Pools(monkeypatch, plans, {"I look.": SAME, "I ask.": PART, "I stop.": OTHER})
    assert evaluate(tmp_path) == 0
    found = figures_of(tmp_path, "planner")
    assert (found["plans"], found["missing"], found["readable"]["mean"]) == (4, 0, 0.75)
    assert [level["mean"] for level in found["judge_result"].values()] == [0.25, 0.25, 0.5]
    assert [found[key]["consistent"]["mean"] for key in DIMENSIONS] == [0.25, 0.25, 0.5]
    judged = next(question for question in pools.asked if question.prompt)
    assert (judged.prompt, judged.variables["first"], judged.variables["then"]) == ("plan_evaluation.en", *GOLD)
    assert "25% of 4 plans agree" in (tmp_path / "out" / "report.html").read_text()
    asked = len(pools.asked)
    assert evaluate(tmp_path) == 0
    assert len(pools.asked) == asked, "plans and verdicts of the folder are kept"
    spent = json.loads((tmp_path / "out" / "metrics.json").read_text())["usage"]
    assert spent == {
        "pool planner": {"answers": 4, "tokens": 400, "cost": 2.0},
        "pool judge": {"answers": 3, "tokens": 300, "cost": 1.5},
    }


def test_finished_plans_of_a_file_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "gold.jsonl", [item("a")])
    mine = write(tmp_path / "mine.jsonl", [{"id": "a", "response": plan_text("I look.")}])
    pools = Pools(monkeypatch, {}, {"I look.": SAME})
    assert evaluate(tmp_path, policy=str(mine)) == 0
    assert [question.prompt for question in pools.asked] == ["plan_evaluation.en"]
    assert figures_of(tmp_path, "mine")["plans"] == 1


def test_unparsable_verdict_is_asked_again_and_then_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "gold.jsonl", [item("a")])
    pools = Pools(monkeypatch, {"a": plan_text("I look.")}, {"I look.": "Fine."})
    assert evaluate(tmp_path, attempts="2") == 1
    assert [question.attempt for question in pools.asked if question.prompt] == [0, 1]
    assert "no plan was judged" in capsys.readouterr().err


def test_judge_that_refuses_for_a_time_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "gold.jsonl", [item("a")])
    pools = Pools(monkeypatch, {"a": plan_text("I look.")}, {"I look.": SAME})
    answer, refusals = pools.ask, iter([0.0, 0.0])

    async def refuse_twice(question: Question) -> Answer:
        wait = next(refusals, None) if question.prompt else None
        return await answer(question) if wait is None else Answer(failure="unavailable", retry_in_s=wait)

    monkeypatch.setattr(pools, "ask", refuse_twice)
    assert evaluate(tmp_path, attempts="3") == 0
    assert figures_of(tmp_path, "planner")["plans"] == 1


def test_planning_prompt_has_all_inputs_and_asks_for_plans_alone(tmp_path: Path) -> None:
    [gold] = read_gold(write(tmp_path / "gold.jsonl", [item("a")]))
    system, user = (str(m["content"]) for m in planning_question(gold, PlansConfig()).messages)
    for part in ("Plan = Surf", "1. Fees are listed.", "Customer: Cancel a."):
        assert part in user
    assert "<plans>" in system and "<actions>" not in system and "write no tool call" in system
    trained = planning_question(gold, PlansConfig(prompt="training")).messages
    assert "Be brief." in str(trained[0]["content"])


def test_plan_is_read_without_its_thought_and_actions() -> None:
    text = plan_text("I look.")
    assert plan_of(f"<think>Hm.</think>\n{text}") == plan_of(f"{text}<actions>[]</actions>") == ("I look.", GOLD[1])
    assert plan_of(f"{text} And so on.") is None
    assert plan_of("<plans><plan_1>I look.</plan_1></plans>") is None


def test_result_may_not_contradict_its_dimensions() -> None:
    """D.3.6: inconsistent only if the first decision differs, consistent only without a difference."""
    assert read_comparison(PART).labels[-1] == "partially consistent"
    assert read_comparison(OTHER).labels == ("inconsistent",) * 4
    for levels in (
        ("consistent", "inconsistent", "inconsistent", "inconsistent"),
        ("consistent", "inconsistent", "consistent", "consistent"),
        ("consistent", "consistent", "consistent", "partially consistent"),
    ):
        with pytest.raises(VerdictUnparsable, match="contradicts"):
            read_comparison(verdict(*levels))


@pytest.mark.parametrize(
    ("changed", "rows", "said"),
    [
        ({}, [{"kind": "patm"}], "gold.jsonl:1: sample: ['kind']: missing field"),
        ({}, [item("a"), item("a")], "gold.jsonl:2: sample: id: 'a': already used"),
        ({"judge": "reranker"}, [item("a")], "judge: 'reranker': is a reranker and cannot write"),
        ({"policy": "nobody"}, [item("a")], "policy: 'nobody': no such pool, run folder, function or file"),
        ({"prompt": "other"}, [item("a")], "prompt: 'other': must be planning or training"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, str],
    rows: list[dict[str, Any]],
    said: str,
) -> None:
    write(tmp_path / "gold.jsonl", rows)
    Pools(monkeypatch, {}, {})
    assert evaluate(tmp_path, **changed) == 2
    shown = capsys.readouterr().err
    assert said in shown and len(shown.strip().splitlines()) == 1
