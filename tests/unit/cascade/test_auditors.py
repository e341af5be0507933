"""Auditors other than the judge: an ensemble, the data's rules, a person's labels."""

import asyncio
import json
from dataclasses import replace

import pytest
from scripted import ScriptedPool, judged, reranked, rollout, sample

from hamr.cascade.audit import AuditWindow
from hamr.cascade.auditors import find_auditor, read_labels, with_auditor
from hamr.cascade.cascade_controller import CascadeController, ControlledRewarder
from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.rewards import RewardsConfig
from hamr.errors import BadInput
from hamr.rewards.truth import ExactAct
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import Answer, Audit

ASK = replace(sample("May I ask why you want to cancel?"), meta={"act": "ask"})
CLOSE = replace(sample("Thank you, have a nice day, goodbye!", sample_id="s2"), meta={"act": "close"})
RULE = ExactAct.of([ASK, CLOSE])
RIGHT, WRONG = "May I ask why you want to cancel?", "Thank you, have a nice day, goodbye!"
FOOLED = {RIGHT: (0.3, 0.4), WRONG: (0.99, 0.95)}
"""Reply -> S_R, S_J of scorers that both prefer the wrong one. The judge is asked about both."""


def config(by, frac=1.0, **more):
    consistency = {"audit_frac": frac, "audit": {"by": by, **more.pop("audit", {})}, **more}
    return RewardsConfig.model_validate({"consistency": consistency})


def records_of(rewards, replies, *, truth=None, steps=1, pools=()):
    """Score the replies in every step as a run does. Return the records, and the questions to the judge."""
    judge = ScriptedPool("judge", {text: judged(s_j) for text, (_, s_j) in FOOLED.items()})
    reranker = ScriptedPool("reranker", {text: reranked(s_r) for text, (s_r, _) in FOOLED.items()})
    router = RewardRouter(
        rewards, {"reranker": reranker, "judge": judge, **dict(pools)}, count_tokens=len, deadline_s=5.0, cache_size=0
    )
    rewarder = ControlledRewarder(
        with_auditor(router, rewards.consistency, truth), CascadeController(rewards.consistency)
    )

    async def run():
        found = []
        for step in range(steps):
            found += [await rewarder.score(ASK, rollout(text, 100 * step + i)) for i, text in enumerate(replies)]
            rewarder.step_ended()
        await router.close()
        return found

    records = asyncio.run(run())
    for record in records:
        assert record_from_json(record_to_json(record)) == record
        assert replay(record, rewards) == record.total
    return records, len(judge.asked)


def test_rules_audit_replies_that_the_judge_has_scored():
    (right, wrong), asked = records_of(config("rules"), [RIGHT, WRONG], truth=RULE)
    assert right.audit == Audit(s_r=0.3, s_j=1.0, best=1.0, mix=1.0, by="rules")
    assert wrong.audit == Audit(s_r=0.99, s_j=0.0, best=0.0, mix=0.0, by="rules")
    assert asked == 2, "the judge is asked by the cascade only"
    assert wrong.components[0].value > right.components[0].value, "without a correction the reward is unchanged"
    gap = (abs(right.components[0].value - 1.0) + wrong.components[0].value) / 2
    assert AuditWindow("rules").add([right, wrong])["audit/gap"] == pytest.approx(gap)


def test_correction_by_rules_turns_a_preference_that_reranker_and_judge_share():
    """With the judge as auditor these replies are outside the interval and nothing would be corrected."""
    rewards = config("rules", 0.3, correction="stratified")
    records, _ = records_of(rewards, [RIGHT, WRONG] * 8, truth=RULE, steps=6)
    for record in records[-16:]:
        right = record.action.content == RIGHT
        if record.audit is not None:
            assert record.components[0].value == float(right)
        else:
            assert (record.components[0].value > 0.7) == right
    assert {r.correction.propensity for r in records} == {0.3}
    unaudited, _ = records_of(config("judge", 0.3, correction="stratified"), [RIGHT, WRONG] * 8, steps=6)
    assert all(record.correction is None for record in unaudited)


def labels(folder, *rows):
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"file": str(path)}


def test_reply_without_a_label_is_a_typed_failure_of_its_audit(tmp_path):
    audit = labels(tmp_path, {"sample": "s1", "reply": f" {WRONG}\n", "label": 0.25})
    rewards = config("file", audit=audit, correction="stratified")
    (right, wrong), _ = records_of(rewards, [RIGHT, WRONG])
    assert wrong.audit == Audit(s_r=0.99, s_j=0.25, best=0.25, mix=0.25, by="file")
    assert wrong.components[0].value == 0.25
    assert right.audit == Audit(s_r=0.3, by="file", failure="label_missing")
    assert right.components[0].value == pytest.approx(0.05 * 0.3 + 0.95 * 0.4), "not 0"
    figures = AuditWindow("file").add([right, wrong])
    assert (figures["audit/answered"], figures["audit/failed"]) == (1.0, 1.0)


def test_ensemble_answers_with_its_mean_and_fails_as_a_whole():
    audit = {"pools": ["one", "two"]}
    votes = {"one": ScriptedPool("one", {WRONG: judged(0.1)}), "two": ScriptedPool("two", {WRONG: judged(0.4)})}
    [record], asked = records_of(config("ensemble", audit=audit), [WRONG], pools=votes)
    assert record.audit == Audit(s_r=0.99, s_j=0.25, best=0.25, mix=0.25, by="ensemble")
    assert (asked, [len(pool.asked) for pool in votes.values()]) == (1, [1, 1])
    votes["two"] = ScriptedPool("two", {WRONG: Answer(failure="unavailable")})
    [record], _ = records_of(config("ensemble", audit=audit), [WRONG], pools=votes)
    assert record.audit == Audit(s_r=0.99, by="ensemble", failure="judge_unavailable")


def test_rules_need_data_that_name_their_acts():
    with pytest.raises(BadInput, match=r"audit\.by: 'rules': the samples name no act"):
        find_auditor(config("rules").consistency, ExactAct.of([sample("Hello.")]))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"sample": "a", "label": 1}], ":1: reply: ['label', 'sample']: missing field"),
        ([{"sample": "a", "reply": "b", "label": 1.5}], ":1: label: 1.5: must be less than or equal to 1"),
        ([{"sample": "a", "reply": "b", "label": True}], ":1: label: True: must be a valid number"),
        (
            [{"sample": "a", "reply": "b", "label": 1}, {"sample": "a", "reply": "b ", "label": 0}],
            ":2: label: 0.0: this reply already has the label 1; keep one",
        ),
        ([[1]], ":1: [1]: must be a JSON object"),
        ([], "labels.jsonl"),
    ],
)
def test_faulty_label_files_are_refused_with_their_line(tmp_path, rows, says):
    audit = labels(tmp_path, *rows)
    with pytest.raises(BadInput) as caught:
        read_labels(audit["file"])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
