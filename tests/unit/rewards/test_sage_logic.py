from __future__ import annotations

import dataclasses
import json

import pytest

from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.load import load_config
from hamr.config.resources import resource
from hamr.config.rewards import RewardsConfig
from hamr.data.sage_samples import generate
from hamr.errors import ConfigError
from hamr.procedures import load_scenario, scenario_names
from hamr.rewards.sage_logic import check_gold, load_scenarios, sage_logic
from hamr.types import (
    Absent,
    MalformedResponse,
    Reference,
    Reply,
    Rollout,
    SampleKey,
    Scored,
    ServiceSample,
    Turn,
)

FIELDS = {
    "ConsumptionType": "Change",
    "ApplicationTendency": "Agree",
    "ConsumptionProfile": "Data",
    "EmotionTag": "Discontent",
}
PATH = ["stage1", "stage2", "stage4", "stage5", "stage7"]
SAMPLE = ServiceSample(
    id="s",
    ticket={"PackageStatus": "Contracted", "Penalty": 100},
    policy="",
    tools=(),
    history=(Turn(role="customer", content="Change my package."),),
    references=(Reference(action=Reply(content="Of course.")),),
    privileged={"fields": FIELDS, "path": PATH, "action": "TransHuman"},
    meta={"scenario": "telecom_package"},
)


def logic(text, sample=SAMPLE, **choices):
    return sage_logic(text, sample, load_scenarios(), **choices)


def said(fields=FIELDS, path=PATH, action="TransHuman"):
    return json.dumps(
        {
            "classification_output": fields,
            "cot": "",
            "now_path": path,
            "finals": {"Action": action},
            "chat": "One moment, please.",
        }
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (said(), 1.0),
        (said(action="GoodBye"), 0.8),
        (said(fields={**FIELDS, "EmotionTag": "Calm"}, action="ChangeOrder"), 0.7),
        (said(path=PATH[:3]), 0.84),  # 0.4 + 0.4 * 3/5 + 0.2
        (said(fields={}, path=[], action=""), 0.0),
    ],
)
def test_values_match_hand_computed_ones(text, value):
    assert logic(text) == Scored(value=pytest.approx(value))


def test_prefix_form_is_order_sensitive():
    text = said(path=["stage1", "stage4", "stage2", "stage5", "stage7"])
    assert logic(text).value == pytest.approx(1.0)
    assert logic(text, path="prefix").value == pytest.approx(0.68)  # 0.4 + 0.4 * 1/5 + 0.2


def test_action_is_not_scored_while_the_procedure_waits():
    waiting = {"fields": {"ConsumptionType": "Change"}, "path": PATH, "action": None}
    sample = dataclasses.replace(SAMPLE, privileged=waiting)
    assert logic(said(action="Dance", path=PATH), sample).value == pytest.approx(1.0)
    assert logic(said(path=PATH[:2]), sample).value == pytest.approx((0.4 + 0.4 * 2 / 5) / 0.8)
    unknown = dataclasses.replace(SAMPLE, privileged={**waiting, "fields": {}, "path": PATH[:2]})
    assert logic(said(path=PATH[:1]), unknown).value == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["", "Certainly!", f"Here: {said()}", said()[:-5]])
def test_invalid_format_is_malformed(text):
    assert isinstance(logic(text), MalformedResponse)


def test_thought_is_separated_from_the_answer():
    text = f"<think>stage1 first</think><answer>{said()}</answer>"
    assert logic(text, response_format="think_answer").value == pytest.approx(1.0)
    assert isinstance(logic(said(), response_format="think_answer"), MalformedResponse)


@pytest.mark.parametrize(
    "changes",
    [
        {"meta": {}},
        {"meta": {"scenario": "bakery"}},
        {"privileged": {}},
        {"privileged": {"fields": FIELDS}},
        {"privileged": {"fields": FIELDS, "path": []}},
        {"privileged": {"fields": FIELDS, "path": "stage1"}},
    ],
)
def test_reward_is_absent_without_gold(changes):
    assert isinstance(logic(said(), dataclasses.replace(SAMPLE, **changes)), Absent)


def test_every_generated_reference_gets_the_full_reward():
    scenarios = [load_scenario(name) for name in scenario_names()]
    splits = generate(scenarios, {"train": 10 * len(scenarios), "validation": 0, "test": 0}, seed=3, form="sage")
    texts = [(r.action.content, sample) for sample in splits.train for r in sample.references]
    assert {sample.meta["scenario"] for _, sample in texts} == set(scenario_names())
    assert all(logic(text, sample) == Scored(value=pytest.approx(1.0)) for text, sample in texts)


def rollout(text):
    return Rollout(
        key=SampleKey(run="r", step=0, prompt="s", sample=0),
        prompt_ids=(),
        token_ids=(1,),
        logprobs=(0.0,),
        text=text,
        finish_reason="stop",
        versions=(),
    )


async def test_router_weights_sage_logic_and_the_record_replays():
    rewards = RewardsConfig.model_validate({"consistency": {"weight": 0}, "sage_logic": {"weight": 2}})
    router = RewardRouter(rewards, {}, count_tokens=len, deadline_s=5.0)
    record = await router.score(SAMPLE, rollout(said(action="GoodBye")))
    assert record.total == Scored(value=pytest.approx(1.6))
    assert replay(record, rewards) == record.total
    off = RewardsConfig.model_validate({"consistency": {"weight": 0}, "format": {"weight": 1}})
    plain = await RewardRouter(off, {}, count_tokens=len, deadline_s=5.0).score(SAMPLE, rollout(said()))
    assert "sage_logic" not in {component.name for component in plain.components}
    await router.close()


async def test_custom_procedure_is_loaded_from_its_file(tmp_path):
    text = resource("conf", "scenarios/telecom_package.yaml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("name: telecom_package", "name: mine").replace("TransHuman", "HandOver"))
    sample = dataclasses.replace(
        SAMPLE, meta={"scenario": "mine"}, privileged={**SAMPLE.privileged, "action": "HandOver"}
    )
    assert isinstance(logic(said(action="HandOver"), sample), Absent)
    section = {"weight": 1, "scenarios": [str(mine)]}
    rewards = RewardsConfig.model_validate({"consistency": {"weight": 0}, "sage_logic": section})
    check_gold(rewards.sage_logic, [sample])
    router = RewardRouter(rewards, {}, count_tokens=len, deadline_s=5.0)
    assert (await router.score(sample, rollout(said(action="HandOver")))).total == Scored(value=pytest.approx(1.0))
    await router.close()


@pytest.mark.parametrize("changes", [{"meta": {"scenario": "bakery"}}, {"privileged": {}}])
def test_run_without_gold_is_rejected(changes):
    bare = dataclasses.replace(SAMPLE, **changes)
    on = RewardsConfig.model_validate({"sage_logic": {"weight": 1}}).sage_logic
    with pytest.raises(ConfigError, match="rewards.sage_logic.scenarios"):
        check_gold(on, [bare])
    check_gold(on, [bare, SAMPLE])
    check_gold(RewardsConfig().sage_logic, [bare])


def test_sage_logic_may_be_the_only_reward():
    load_config(["rewards.consistency.weight=0", "rewards.sage_logic.weight=1"])
    with pytest.raises(ConfigError, match="every reward would be 0"):
        load_config(["rewards.consistency.weight=0"])
