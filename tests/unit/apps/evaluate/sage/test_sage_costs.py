from __future__ import annotations

import io

import pytest
from rich.console import Console

from hamr.apps.evaluate.command import EvaluateSage
from hamr.apps.evaluate.sage.costs import dialogue_work, estimate, show_cost
from hamr.apps.shared.commands import parse
from hamr.bench.sage.coverage import plan_dialogues
from hamr.bench.sage.store import Store
from hamr.procedures import load_scenario

TELECOM = {"telecom_package": load_scenario("telecom_package")}


def request(tmp_path, **changes):
    given = {"scenario": "telecom_package", "agent": "judge", "simulator": "scripted:worded", "judges": "judge"}
    words = {**given, "limit": "4", "output": str(tmp_path / "out"), **changes}
    return parse(EvaluateSage, [f"{key}={value}" for key, value in words.items()])


def test_questions_of_a_dialogue_follow_from_its_turns():
    prompts = {"agent": 1000, "simulator": 500, "judges": 2000, "readers": 900}
    work = dialogue_work(prompts, 12)
    assert {role: one.questions for role, one in work.items()} == {"agent": 12, "simulator": 13, "judges": 4}
    assert work["judges"].tokens == 4 * 2000 + (1 + 5 + 10 + 12) * 145 + 4 * 250
    assert work["agent"].tokens == 12 * 1000 + 145 * sum(range(1, 13))
    read = dialogue_work(prompts, 12, reads=True)["judges"]
    assert (read.questions, read.tokens - work["judges"].tokens) == (5, 900 + 12 * 145 + 250)


def test_a_pool_in_two_roles_is_counted_for_both(tmp_path):
    command = request(tmp_path, judges="judge,judge")
    plans = plan_dialogues(TELECOM["telecom_package"], command)
    found = estimate(command, TELECOM, [("judge", plan) for plan in plans], 10)
    assert found["judge"].questions == 4 * (10 + 2 * 3)
    assert found["scripted:worded"].questions == 4 * 11


@pytest.mark.parametrize(("price", "shown"), [("0", "-"), ("0.5", None)])
def test_cost_is_printed_for_pools_and_missing_dialogues_only(tmp_path, price, shown):
    command = request(tmp_path, **{"pools.judge.price_per_1k_tokens": price})
    plans = plan_dialogues(TELECOM["telecom_package"], command)
    pairs = [("judge", plan) for plan in plans]
    screen = io.StringIO()
    with Store(tmp_path / "out", {"agents": {}, "scenarios": {}}) as store:
        show_cost(command, TELECOM, command.config(), store, pairs, Console(file=screen, width=120))
    text = screen.getvalue()
    [row] = [line.split() for line in text.splitlines() if line.strip().startswith("judge ")]
    assert row[1] == "52" and "4 dialogues of 10 turns, and at most 30" in " ".join(text.split())
    tokens = estimate(command, TELECOM, pairs, 10)["judge"].tokens
    assert row[3] == (shown or f"{0.5 * tokens / 1000:,.2f}")
    assert "scripted" not in text
