"""The judged side rewards behind the router: questions, retries and failures."""

import asyncio
import json
from dataclasses import replace

import pytest
from scripted import ScriptedPool, call, judged, reranked, rollout, sample

from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.rewards import RewardsConfig
from hamr.data.formats import Formats
from hamr.errors import ConfigError, MissingScore
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import (
    Absent,
    Answer,
    JudgeTimeout,
    JudgeUnavailable,
    JudgeUnparsable,
    MalformedResponse,
    Scored,
    Vetoed,
)

RUBRIC = [{"title": "Asks why", "description": "Asks.", "weight": 3}, {"title": "Lies", "description": "Lies.",
          "weight": -1}]  # fmt: skip
ANSWERS = {
    "dialogue.en": {"reason": "fine", "score": 4},
    "policy.en": {"reason": "fine", "score": 5},
    "tool.en": {"reason": "fine", "score": 2},
    "rubric.en": {"reason": "fine", "score": 3},
    "rubric_items.en": {"reason": "fine", "checks": {"I1": "met", "I2": "violated"}},
    "risk.en": {"reason": "fine", "types": [], "risk": "no"},
    "hallucination.en": {"reason": "fine", "judgment": "none"},
}
ALL = {name: {"weight": 1.0} for name in ("dialogue", "policy", "tool", "rubric", "risk", "hallucination")}


def said(fields, pool="judge"):
    return Answer(text="Analysis. " + (fields if isinstance(fields, str) else json.dumps(fields)), call=call(pool))


def judge(changes=None, compare=None):
    """A pool that answers by the template's name; the texts of a list are used in turn. `compare(entries)` gives the
    scores of a comparing prompt."""
    answers = ANSWERS | (changes or {})

    def answer(question):
        if question.prompt.endswith("_compared.en"):
            return said({"reason": "compared", "scores": compare(question.each)})
        entry = answers[question.prompt]
        entry = entry.pop(0) if isinstance(entry, list) else entry
        return entry if isinstance(entry, Answer) else said(entry)

    return ScriptedPool("judge", answer)


def build(pool, rewards, *, deadline_s=5.0, response_format="plain", **pools):
    config = RewardsConfig.model_validate({"consistency": {"weight": 0.0}} | rewards)
    router = RewardRouter(
        config, {"judge": pool, **pools}, count_tokens=lambda t: len(t.split()), deadline_s=deadline_s,
        formats=Formats(asked=response_format),
    )  # fmt: skip
    return router, config


def with_rubric(point):
    return replace(point, privileged={"rubric": RUBRIC})


def outcomes(record):
    return {c.name: c.outcome for c in record.components}


def same_again(record, config):
    """Through the ledger's JSON and the replay: the same total."""
    assert record_from_json(record_to_json(record)) == record
    assert replay(record, config) == record.total


async def test_olamind_stage_2_total_matches_the_paper():
    """0.75 + 1 + 0.25 + 0.5 of quality, 0.2 format, 0 length, 1 rules, 1 risk, 3 x 0 hallucination."""
    weights = {"format": {"weight": 0.2}, "length": {"weight": 1.0}, "rules": {"weight": 1.0}}
    pool = judge()
    router, config = build(pool, ALL | weights | {"hallucination": {"weight": 3.0}})
    record = await router.score(with_rubric(sample("Why do you want to leave?")), rollout("Why?"))
    assert record.total.value == pytest.approx(0.75 + 1.0 + 0.25 + 0.5 + 0.2 + 1.0 + 1.0)
    assert [c.name for c in record.components] == ["format", "length", "rules", *ALL]
    assert {(j.component, j.grade, j.labels) for j in record.judgements} == {
        ("dialogue", 4, ()), ("policy", 5, ()), ("tool", 2, ()), ("rubric", 3, ()), ("risk", None, ()),
        ("hallucination", None, ("none",)),
    }  # fmt: skip
    assert len(pool.asked) == len(record.calls) == 6
    assert {q.affinity for q in pool.asked} == {"s1"}
    same_again(record, config)
    metrics = router.metrics()
    assert (metrics["router/side_calls"], metrics["router/judge_calls"], metrics["router/reasks"]) == (6, 0, 0)


async def test_total_range_matches_the_paper():
    """Appendix C: the total lies in [-4, 6.2] with the weights of Stage 2."""
    weights = {"format": {"weight": 0.2}, "length": {"weight": 1.0}, "rules": {"weight": 1.0}}
    best = {f"{n}.en": {"reason": "", "score": 5} for n in ("dialogue", "policy", "tool", "rubric")}
    worst = {f"{n}.en": {"reason": "", "score": 1} for n in ("dialogue", "policy", "tool", "rubric")} | {
        "risk.en": {"reason": "", "types": ["role"], "risk": "yes"},
        "hallucination.en": {"reason": "", "judgment": "factual"},
    }
    for answers, text, total in ((best, "Why?", 6.2), (worst, "Why? stupid " * 30, -3.8)):
        router, _ = build(judge(answers), ALL | weights | {"hallucination": {"weight": 3.0}})
        record = await router.score(with_rubric(sample("Why?")), rollout(text))
        # The lowest has its format right, since a malformed response reaches no judge: -4 + 0.2.
        assert record.total.value == pytest.approx(total)


async def test_judged_rewards_run_concurrently_and_may_use_other_pools():
    side, reranker = judge(), ScriptedPool("reranker", lambda q: reranked(0.8))
    config = {"consistency": {"weight": 1.0}, "dialogue": {"weight": 1.0, "pool": "side"}}
    cascade_judge = ScriptedPool("judge", {})
    router, rewards = build(cascade_judge, config, side=side, reranker=reranker)
    record = await router.score(sample("Why?"), rollout("So?"))
    assert [c.name for c in record.components] == ["consistency", "format", "length", "rules", "dialogue"]
    assert record.total == Scored(value=1.55)
    assert (len(side.asked), cascade_judge.asked) == (1, [])
    same_again(record, rewards)


async def test_one_judge_may_serve_the_cascade_and_the_side_rewards():
    def answer(question):
        return judged(1.0) if not question.prompt else said({"reason": "", "score": 5})

    reranker, pool = ScriptedPool("reranker", lambda q: reranked(0.5)), ScriptedPool("judge", answer)
    router, rewards = build(pool, {"consistency": {"weight": 1.0}, "dialogue": {"weight": 1.0}}, reranker=reranker)
    record = await router.score(sample("Why?"), rollout("So?"))
    assert record.total.value == pytest.approx(0.05 * 0.5 + 0.95 + 1.0)
    assert sorted(q.prompt for q in pool.asked) == ["", "dialogue.en"]
    same_again(record, rewards)


async def test_rubric_component_is_absent_without_a_rubric():
    router, config = build(judge(), {"rubric": {"weight": 1.0}, "dialogue": {"weight": 1.0}})
    record = await router.score(sample("Why?"), rollout("So?"))
    assert outcomes(record)["rubric"] == Absent(detail="the sample has no rubric")
    assert next(c for c in record.components if c.name == "rubric").contribution is None
    assert record.total == Scored(value=0.75)
    same_again(record, config)


async def test_rubric_items_replay_from_their_verdicts():
    router, config = build(judge(), {"rubric": {"weight": 2.0, "reading": "items"}})
    record = await router.score(with_rubric(sample("Why?")), rollout("So?"))
    assert record.judgements[0].items == ((3.0, True), (-1.0, False))
    assert record.total == Scored(value=1.5)
    same_again(record, config)


async def test_grades_replay_on_another_scale():
    router, config = build(judge(), {"dialogue": {"weight": 1.0}, "risk": {"weight": 1.0}})
    record = await router.score(sample("Why?"), rollout("So?"))
    other = RewardsConfig.model_validate({
        "consistency": {"weight": 0.0}, "dialogue": {"weight": 2.0, "scale": "share"},
        "risk": {"weight": 1.0, "scale": "penalty"},
    })  # fmt: skip
    assert record.total == Scored(value=1.75)
    assert replay(record, other) == Scored(value=1.6)


# --- failures ----------------------------------------------------------------------------------


async def test_unparsable_answer_is_requested_once_more():
    pool = judge({"dialogue.en": ["I would say 4.", {"reason": "now", "score": 2}]})
    router, config = build(pool, {"dialogue": {"weight": 1.0}})
    record = await router.score(sample("Why?"), rollout("So?"))
    assert record.total == Scored(value=0.25)
    assert [q.attempt for q in pool.asked] == [0, 1]
    assert len(record.calls) == 2
    assert router.metrics()["router/reasks"] == 1
    same_again(record, config)


async def test_retried_comparison_uses_another_order():
    answers = iter(["mumble", None])

    def compare(entries):
        return next(answers) or {entry["name"]: 5 for entry in entries}

    pool = judge(compare=compare)
    router, _ = build(pool, {"policy": {"weight": 1.0, "judging": "comparative", "max_compared": 8}})
    group = [replace(rollout(f"So {i}?", i), siblings=8) for i in range(8)]
    records = await asyncio.gather(*(router.score(sample("Why?"), one) for one in group))
    assert [r.total for r in records] == [Scored(value=1.0)] * 8
    first, again = ([entry["response"] for entry in question.each] for question in pool.asked)
    assert sorted(first) == sorted(again) and first != again


@pytest.mark.parametrize(
    "bad",
    [
        "",
        ":",
        "Solution",
        "The reply is polite and right; I would give it five of five.",
        '{"score": 5}',
        '{"reason": "polite", "sco',
        '{"reason": "polite", "score": NaN}',
        '{"reason": "polite", "score": "excellent"}',
        '{"reason": "polite", "judgment": "none"}',
        Answer(),
        Answer(failure="unparsable", detail="cut off"),
    ],
)
async def test_answer_unparsable_twice_is_a_typed_failure(bad):
    pool = judge({"dialogue.en": bad})
    router, config = build(pool, {"dialogue": {"weight": 1.0}, "risk": {"weight": 1.0}})
    record = await router.score(sample("Why?"), rollout("So?"))
    assert isinstance(record.total, JudgeUnparsable)
    assert isinstance(outcomes(record)["dialogue"], JudgeUnparsable)
    assert outcomes(record)["risk"] == Scored(value=1.0)
    assert sum(q.prompt == "dialogue.en" for q in pool.asked) == 2
    same_again(record, config)


async def test_the_number_of_reasks_is_configured():
    pool = judge({"dialogue.en": "mumble"})
    router, _ = build(pool, {"dialogue": {"weight": 1.0, "max_reasks": 0}})
    await router.score(sample("Why?"), rollout("So?"))
    assert len(pool.asked) == 1


async def test_unparsable_answer_is_not_cached():
    pool = judge({"dialogue.en": ["mumble", "mumble", {"reason": "", "score": 5}]})
    router, _ = build(pool, {"dialogue": {"weight": 1.0}})
    first = await router.score(sample("Why?"), rollout("So?"))
    second = await router.score(sample("Why?"), rollout("So?", 1))
    third = await router.score(sample("Why?"), rollout("So?", 2))
    assert isinstance(first.total, JudgeUnparsable)
    assert second.total == third.total == Scored(value=1.0)
    assert len(pool.asked) == 3
    assert third.calls[0].cost == 0.0 < second.calls[0].cost


@pytest.mark.parametrize(("kind", "failure"), [("timeout", JudgeTimeout), ("unavailable", JudgeUnavailable)])
async def test_unavailable_judge_is_not_asked_again(kind, failure):
    pool = judge({"dialogue.en": Answer(failure=kind)})
    router, config = build(pool, {"dialogue": {"weight": 1.0}})
    record = await router.score(sample("Why?"), rollout("So?"))
    assert isinstance(record.total, failure)
    assert len(pool.asked) == 1
    same_again(record, config)


@pytest.mark.parametrize("judging", ["single", "comparative"])
async def test_fallback_wait_retries_an_unavailable_judge(judging):
    """The breaker is open twice; all members of the group wait for the comparative judge, which is asked once."""
    away = Answer(failure="unavailable", detail="open", retry_in_s=0.0)
    script = [away, away]
    pool = judge(compare=lambda entries: {entry["name"]: 5 for entry in entries})
    answer = pool.script
    pool.script = lambda question: script.pop(0) if script else answer(question)
    rewards = {"policy": {"weight": 1.0, "judging": judging}, "fallback": "wait"}
    router, _ = build(pool, rewards)
    said = [replace(rollout(text, i), siblings=2) for i, text in enumerate(["So?", "Why so?"])]
    records = await asyncio.gather(*(router.score(sample("Why?"), one) for one in said))
    assert [r.total for r in records] == [Scored(value=1.0)] * 2
    assert router.metrics()["router/side_calls"] == (1 if judging == "comparative" else 2)


async def test_hanging_judge_times_out_at_the_deadline():
    pool = judge()
    pool.hold = asyncio.Event()
    router, _ = build(pool, {"dialogue": {"weight": 1.0}}, deadline_s=0.05)
    assert isinstance((await router.score(sample("Why?"), rollout("So?"))).total, JudgeTimeout)
    await router.close()


async def test_malformed_response_is_not_judged():
    pool = judge()
    router, config = build(pool, ALL | {"hallucination": {"weight": 3.0}})
    record = await router.score(with_rubric(sample("Why?")), rollout("<tool_call>{"))
    assert all(isinstance(outcomes(record)[name], MalformedResponse) for name in ALL)
    assert record.total == Scored(value=0.0)
    assert pool.asked == []
    same_again(record, config)


async def test_failure_of_an_unweighted_reward_is_ignored():
    router, _ = build(judge({"dialogue.en": "mumble"}), {"dialogue": {"weight": 0.0}, "risk": {"weight": 1.0}})
    assert (await router.score(sample("Why?"), rollout("So?"))).total == Scored(value=1.0)


def test_missing_pool_is_named():
    with pytest.raises(ConfigError, match=r"rewards\.risk\.pool: 'safety'"):
        build(judge(), {"risk": {"weight": 1.0, "pool": "safety"}})


# --- vetoes ------------------------------------------------------------------------------------

RISKY = {"risk.en": {"reason": "", "types": ["overcommitment"], "risk": "yes"}}


async def test_veto_skips_costlier_judges_and_is_recorded():
    pool = judge(RISKY)
    router, config = build(pool, ALL | {"veto_first": True})
    record = await router.score(with_rubric(sample("Why?")), rollout("So?"))
    assert {q.prompt for q in pool.asked} == {"risk.en", "hallucination.en"}
    spared = {name: outcome for name, outcome in outcomes(record).items() if isinstance(outcome, Vetoed)}
    assert spared == dict.fromkeys(("dialogue", "policy", "tool", "rubric"), Vetoed(detail="vetoed by risk"))
    assert record.total == Scored(value=0.0)
    assert router.metrics()["router/vetoed_frac"] == 1.0
    same_again(record, config)


async def test_all_judges_are_asked_without_veto_first():
    pool = judge(RISKY)
    router, config = build(pool, ALL)
    record = await router.score(with_rubric(sample("Why?")), rollout("So?"))
    assert len(pool.asked) == 6
    assert record.total == Scored(value=0.75 + 1.0 + 0.25 + 0.5)
    same_again(record, config)


async def test_other_judges_are_asked_after_vetoes_pass():
    pool = judge()
    router, _ = build(pool, ALL | {"veto_first": True})
    record = await router.score(with_rubric(sample("Why?")), rollout("So?"))
    assert {q.prompt for q in pool.asked[:2]} == {"risk.en", "hallucination.en"}
    assert record.total == Scored(value=3.5)


async def test_failed_veto_judge_does_not_veto():
    router, _ = build(judge({"risk.en": "mumble"}), ALL | {"veto_first": True})
    record = await router.score(with_rubric(sample("Why?")), rollout("So?"))
    assert isinstance(record.total, JudgeUnparsable)
    assert outcomes(record)["dialogue"] == Scored(value=0.75)


async def test_vetoed_record_cannot_be_replayed_without_the_veto():
    from hamr.errors import MissingScore

    router, config = build(judge(RISKY), {"risk": {"weight": 1.0}, "dialogue": {"weight": 1.0}, "veto_first": True})
    record = await router.score(sample("Why?"), rollout("So?"))
    with pytest.raises(MissingScore, match="vetoed by risk"):
        replay(record, config.model_copy(update={"veto_first": False}))


# --- dimensions of the user's own ----------------------------------------------------------------

TEMPLATE = """\
name: tone
version: 1
language: en
system: Grade the tone.
user: "<history>{{ history }}</history>"
each: ""
after: "<response>{{ response }}</response><call>{{ call }}</call>"
"""


async def test_a_prompt_file_is_a_component_and_replays_from_its_grade(tmp_path):
    prompt = str(tmp_path / "tone.yaml")
    (tmp_path / "tone.yaml").write_text(TEMPLATE)
    pool = judge({prompt: {"reason": "warm", "score": 4}})
    router, config = build(pool, {"judged": {"tone": {"prompt": prompt, "weight": 2.0}}})
    record = await router.score(sample("Who?"), rollout("Why"))
    (own,) = [c for c in record.components if c.name == "tone"]
    assert (own.outcome, own.weight, record.total) == (Scored(value=0.75), 2.0, Scored(value=1.5))
    assert record_from_json(record_to_json(record)) == record and replay(record, config) == record.total
    shares = {"consistency": {"weight": 0.0}, "judged": {"tone": {"prompt": prompt, "scale": "share"}}}
    assert replay(record, RewardsConfig.model_validate(shares)) == Scored(value=0.8)


async def test_an_unparsable_grade_of_a_prompt_file_is_a_failure(tmp_path):
    prompt = str(tmp_path / "tone.yaml")
    (tmp_path / "tone.yaml").write_text(TEMPLATE)
    router, _ = build(judge({prompt: "warm"}), {"judged": {"tone": {"prompt": prompt}}})
    record = await router.score(sample("Who?"), rollout("Why"))
    assert isinstance(record.total, JudgeUnparsable)


def test_a_prompt_file_that_does_not_fit_is_named_with_its_key(tmp_path):
    (tmp_path / "tone.yaml").write_text(TEMPLATE.replace("{{ response }}", "words"))
    with pytest.raises(ConfigError, match=r"rewards\.judged\.tone\.prompt: .*does not show \{\{ response \}\}"):
        build(judge(), {"judged": {"tone": {"prompt": str(tmp_path / "tone.yaml")}}})
    with pytest.raises(ConfigError, match=r"rewards\.judged\.tone\.pool"):
        build(judge(), {"judged": {"tone": {"prompt": str(tmp_path / "tone.yaml"), "pool": "other"}}})


CASCADE = {"tau_a": 0.6, "tau_b": 1.0, "w1": 0.25}
ITEMS = {"rubric": {"weight": 1.0, "reading": "items", "reranker": "small", "cascade": CASCADE}}


def items_of(scores):
    """A reranker that scores each rubric item by its text."""
    found = {f"{item['title']}: {item['description']}": score for item, score in zip(RUBRIC, scores, strict=True)}
    return ScriptedPool("small", lambda question: found[question.variables["statement_a"]])


@pytest.mark.parametrize(
    ("scores", "checks", "value", "asked"),
    [
        # Sure at both ends. The error item passes with 1 - S_R.
        ((0.9, 0.1), None, (3 * 0.9 + 0.9) / 4, []),
        ((0.1, 0.9), None, (3 * 0.1 + 0.1) / 4, []),
        ((0.9, 0.6), {"I1": "violated"}, (3 * 0.9 + 0.25 * 0.4) / 4, ["Lies"]),
        ((0.4, 0.1), {"I1": "met"}, (3 * (0.25 * 0.4 + 0.75) + 0.9) / 4, ["Asks why"]),
        ((0.7, 0.6), {"I1": "unmet", "I2": "clear"}, (3 * 0.25 * 0.7 + 0.25 * 0.4 + 0.75) / 4, ["Asks why", "Lies"]),
    ],
)
async def test_judge_answers_only_rubric_items_in_doubt(scores, checks, value, asked):
    pool, small = judge({"rubric_items.en": {"reason": "so", "checks": checks}}), items_of(map(reranked, scores))
    router, config = build(pool, ITEMS, small=small)
    record = await router.score(with_rubric(sample("Why?")), rollout("Why?"))
    assert outcomes(record)["rubric"].value == pytest.approx(value)
    shown = [entry["title"] for question in pool.asked for entry in question.each]
    assert shown == asked
    assert [score.s_j is not None for score in record.judgements[0].item_scores] == [
        t in asked for t in ("Asks why", "Lies")
    ]
    assert router.metrics()["router/judged_items_frac"] == len(asked) / 2
    assert len(record.calls) == 2 + bool(asked)
    same_again(record, config)


@pytest.mark.parametrize(
    ("scores", "said_by_judge", "kind"),
    [
        ((reranked(0.9), Answer(failure="timeout")), None, "reranker_timeout"),
        ((reranked(0.9), reranked(0.6)), Answer(failure="unavailable"), "judge_unavailable"),
        ((reranked(0.9), reranked(0.6)), "no JSON", "judge_unparsable"),
    ],
)
async def test_missing_item_answer_is_a_typed_failure(scores, said_by_judge, kind):
    pool = judge({"rubric_items.en": said_by_judge})
    router, config = build(pool, ITEMS, small=items_of(scores))
    record = await router.score(with_rubric(sample("Why?")), rollout("Why?"))
    assert outcomes(record)["rubric"].kind == kind
    same_again(record, config)
    await router.close()


async def test_sample_without_a_rubric_asks_no_reranker():
    small = items_of((0.5, 0.5))
    router, _ = build(judge(), ITEMS, small=small)
    record = await router.score(sample("Why?"), rollout("Why?"))
    assert isinstance(outcomes(record)["rubric"], Absent)
    assert small.asked == []


async def test_replay_with_a_smaller_interval_needs_the_missing_verdicts():
    router, config = build(judge(), ITEMS, small=items_of(map(reranked, (0.9, 0.1))))
    record = await router.score(with_rubric(sample("Why?")), rollout("Why?"))
    rubric = config.rubric.model_copy(update={"cascade": config.rubric.cascade.model_copy(update={"tau_a": 0.9})})
    with pytest.raises(MissingScore, match="the judge's score is needed"):
        replay(record, config.model_copy(update={"rubric": rubric}))
