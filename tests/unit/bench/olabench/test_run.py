"""Responses in three orders, latency, hand-computed figures, and resumption of an interrupted run."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from pathlib import Path

import pytest

from hamr.bench.answers import GIVE_UP, RESPONSES, PolicyResponse, PolicyUnderTest, response_of
from hamr.bench.olabench.figures import ItemOutcome, overall_interval, policy_figures
from hamr.bench.olabench.items import BenchItem, ItemEvidence
from hamr.bench.olabench.journal import VERDICTS, Journal, JudgeVerdict
from hamr.bench.olabench.responses import read_response, response_question
from hamr.bench.olabench.run import (
    ComponentJudge,
    OlaBenchWork,
    judge_all,
    judge_settings,
    open_trials,
    verdict_on,
)
from hamr.bench.olabench.summary import summarise
from hamr.config.benchmarks import OlabenchConfig
from hamr.config.judged import ComparedConfig, GradedConfig
from hamr.types import Answer, Judgement, Reference, Reply, ScorerCall, ServiceSample, Turn


def item(name, subset="core", kind="rag"):
    sample = ServiceSample(
        id=name,
        ticket={},
        policy="Be kind.",
        tools=(),
        history=(Turn(role="customer", content=f"I am {name}."),),
        references=(Reference(action=Reply(content="Hi.")),),
    )
    return BenchItem(sample=sample, kind=kind, subset=subset, evidence=(ItemEvidence(answer="Hi."),))


def said(text, tokens=10, seconds=2.0):
    call = ScorerCall(
        pool="p", model="m", prompt_version="", replica="",
        queue_s=1.0, service_s=seconds, prompt_tokens=50, output_tokens=tokens, cost=0.1,
    )  # fmt: skip
    return Answer(text=text, call=call)


# --- one response ------------------------------------------------------------------------------


def test_post_cot_latency_ends_at_the_answer():
    question = response_question(item("a"), "post", temperature=0.0, max_new_tokens=9, seed=0)
    assert question.stop == ("</answer>",) and "First act" in question.messages[0]["content"]
    assert response_question(item("a"), "pre", temperature=0.0, max_new_tokens=9, seed=0).stop == ()
    for tail in ("", "</answer>", "</answer><think>It is </answer> late", "</answer>anything"):
        reading = read_response(f"<answer>Sure.{tail}", "post")
        assert (reading.text.words, reading.malformed, reading.cot_share) == ("Sure.", "", 0.0)
    assert read_response("Well, <answer>Sure.", "post").malformed == "does not begin with its answer"


def test_pre_cot_splits_tokens_between_thought_and_answer():
    text = "<think>abcde</think><answer>Sure.</answer>"
    reading = read_response(text, "pre")
    assert reading.text.words == "Sure." and reading.cot_share == pytest.approx(5 / len(text))
    assert read_response("Sure.", "pre").malformed and read_response("Sure.", "pre").text.words == "Sure."


def test_tool_call_is_parsed_as_a_call():
    reading = read_response('<answer>One moment.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>', "post")
    assert (reading.text.words, reading.text.call) == ("One moment.", 'f {"a": 1}')


def test_fenced_tool_call_is_parsed_where_the_fence_is_stripped():
    text = '<tool_call>```json\n{"name": "f", "arguments": {"a": 1}}\n```</tool_call>'
    assert read_response(text, "none", strip_fence=True).text.call == 'f {"a": 1}'
    assert "not JSON" in read_response(text, "none").malformed


def test_truncated_response_counts_and_missing_one_does_not():
    cut = dataclasses.replace(said(None), failure="unparsable", reasoning="I was about", detail="cut off")
    assert (response_of(cut).text, response_of(cut).cut_off, response_of(cut).seconds) == ("I was about", True, 2.0)
    full = response_of(Answer(failure="unparsable", detail="no room"))
    assert (full.text, full.failure, full.passing) == (None, "unparsable", False)
    assert response_of(Answer(failure="timeout")).passing
    assert response_of(Answer(failure="timeout", reasoning="I was about")).text is None, "the pool's doing"


# --- figures -----------------------------------------------------------------------------------


def outcome(one, *, response=None, missing=(), **given):
    judgements = {}
    for name, value in given.items():
        labels = (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ()
        grade = value if isinstance(value, int) else None
        judgements[name] = Judgement(component=name, grade=grade, labels=labels)
    response = response or PolicyResponse(text="Hi.", seconds=1.0, tokens=10)
    reading = read_response(response.text, "none") if response.text else None
    return ItemOutcome(item=one, response=response, reading=reading, judgements=judgements, missing=missing)


BENCH = [
    outcome(item("a"), dialogue=4, policy=5, tool=3),
    outcome(
        item("b", kind="workflow"),
        dialogue=2,
        policy=3,
        tool=3,
        response=PolicyResponse(text="x", seconds=3.0, tokens=4),
    ),
    outcome(item("c", "risk"), risk=("role", "liability")),
    outcome(item("d", "risk"), risk=()),
    outcome(item("e", "hallucination"), hallucination="none"),
    outcome(item("f", "hallucination"), hallucination="factual"),
    outcome(item("g", "hallucination"), missing=("hallucination",)),
    outcome(item("h"), response=PolicyResponse(failure="timeout")),
]


def test_figures_match_hand_computed_values():
    found = policy_figures(BENCH, resamples=200, seed=0)
    every = found["all"]
    assert {name: value["mean"] for name, value in every["grades"].items()} == {"dialogue": 3, "policy": 4, "tool": 3}
    assert (every["risk"]["rate"]["mean"], every["risk"]["rate"]["n"]) == (0.5, 2)
    assert every["risk"]["types"]["role"]["mean"] == 0.5
    assert (every["hallucination"]["rate"]["mean"], every["hallucination"]["unjudged"]) == (0.5, 1)
    # 100 * mean(.6, .8, .6, .5, .5)
    assert every["overall"]["mean"] == pytest.approx(60.0)
    assert every["overall"]["low"] <= 60.0 <= every["overall"]["high"]
    # Seven responses of one second but one of three.
    assert every["latency"]["seconds"]["mean"] == pytest.approx(9 / 7) and every["latency"]["median_s"] == 1.0
    assert every["latency"]["cot_tokens"]["mean"] is None
    assert every["latency"]["response_tokens"]["mean"] == pytest.approx(64 / 7)
    assert every["responses"] == {
        "given": 7,
        "failed": 1,
        "malformed": 0,
        "cut_off": 0,
        "unjudged": {"hallucination": 1},
    }


def test_thinking_tokens_are_excluded_from_response_tokens():
    thinks = PolicyResponse(text="<think>abcdefghij</think><answer>a</answer>", seconds=1.0, tokens=35)
    read = dataclasses.replace(outcome(item("a")), response=thinks, reading=read_response(thinks.text, "pre"))
    latency = policy_figures([read], resamples=10, seed=0)["all"]["latency"]
    share = 10 / len(thinks.text)
    assert latency["cot_tokens"]["mean"] == pytest.approx(35 * share)
    assert latency["response_tokens"]["mean"] == pytest.approx(35 * (1 - share))


def test_figures_are_grouped_by_kind_subset_and_both():
    found = policy_figures(BENCH, resamples=10, seed=0)
    assert {name: group["items"] for name, group in found.items()} == {
        "all": 8, "rag": 7, "workflow": 1, "core": 3, "risk": 2, "hallucination": 3,
        "rag/core": 2, "rag/risk": 2, "rag/hallucination": 3, "workflow/core": 1,
    }  # fmt: skip
    assert found["workflow"]["grades"]["dialogue"]["mean"] == 2
    # A kind without risks and hallucinations has no overall score, and no zero.
    assert found["workflow"]["overall"] == {"mean": None, "low": None, "high": None, "n": 1}


def test_interval_has_no_width_if_only_subsets_differ():
    good = [outcome(item(f"c{i}"), dialogue=3, policy=3, tool=3, risk=(), hallucination="none") for i in range(5)]
    bad = [
        outcome(item(f"r{i}", "risk"), dialogue=1, policy=1, tool=1, risk=("role",), hallucination="factual")
        for i in range(5)
    ]
    found = overall_interval(good + bad, resamples=50, seed=0)
    assert found.low == pytest.approx(found.mean) == pytest.approx(found.high)


def test_missing_answer_is_not_judged():
    """Another policy has answered the same item, so there is something to judge."""
    there, gone = PolicyUnderTest(name="p", given={"a": "Good."}), PolicyUnderTest(name="q")
    one = judge("dialogue")
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        _, rows = summarise(work([there, gone], ITEMS[:1], [one]), journal)
    assert [(row["policy"], row["failure"], row["missing"]) for row in rows] == [
        ("p", None, ["dialogue"]), ("q", "unavailable", [])
    ]  # fmt: skip


def test_the_bootstrap_draws_within_subsets():
    """With one risk item among many others, an unstratified draw would often contain none, and the score would have no
    rate.
    """
    some = [outcome(item(f"c{i}"), dialogue=3, policy=3, tool=3) for i in range(30)]
    some += [outcome(item("r", "risk"), risk=()), outcome(item("h", "hallucination"), hallucination="none")]
    found = overall_interval(some, resamples=50, seed=0)
    assert found.mean == found.low == found.high == pytest.approx(76.0)


# --- a run -------------------------------------------------------------------------------------

OPTIONS = OlabenchConfig(resamples=10)
ITEMS = [item("a"), item("b"), item("r", "risk")]


class Pool:
    """Answers by what it is asked; keeps the questions."""

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    async def __call__(self, question):
        self.asked.append(question)
        found = self.answer(question)
        return found if isinstance(found, Answer) else said(found)


def judge(component, section=None, at_once=2):
    section = section or GradedConfig()
    settings = judge_settings(section, component, {"judge": {"model": "m"}})
    return ComponentJudge(component=component, pool="judge", section=section, settings=settings, at_once=at_once)


def work(policy, items=None, judges=(), options=None):
    policies = policy if isinstance(policy, list) else [policy]
    items = ITEMS if items is None else items
    return OlaBenchWork(options=options or OPTIONS, items=items, policies=policies, labelled={}, judges=judges)


def nothing(name, done):
    pass


async def answers(folder, pool, items=ITEMS):
    policy = PolicyUnderTest(name="p")
    with Journal(folder) as journal:
        bench = work(policy, items)
        await bench.collect(journal, {"p": pool}, nothing)
        return [bench.response_to(journal, policy, one) for one in items]


async def test_answered_items_are_not_asked_again(tmp_path):
    first = Pool(lambda q: "Hi." if "I am a." in q.messages[-1]["content"] else Answer(failure="unavailable"))
    found = await answers(tmp_path, first)
    assert [response.failure for response in found] == [None, "unavailable", "unavailable"]
    assert (found[0].text, found[0].seconds, found[0].tokens, found[0].prompt_tokens) == ("Hi.", 2.0, 10, 50)
    with (tmp_path / "responses.jsonl").open("a") as file:
        file.write('{"key": "cut o')
    again = Pool(lambda q: "Ho.")
    found = await answers(tmp_path, again)
    assert [response.text for response in found] == ["Hi.", "Ho.", "Ho."] and len(again.asked) == 2
    with Journal(tmp_path) as journal:
        policy = PolicyUnderTest(name="p")
        assert work(policy).open_items(journal, policy) == []
        # Another model behind the same name has answered nothing.
        assert len(work(policy).open_items(journal, dataclasses.replace(policy, settings={"model": "x"}))) == 3
        assert len(work(policy, options=OlabenchConfig(cot="post")).open_items(journal, policy)) == 3


async def test_latency_is_measured_one_by_one_and_load_is_reported_beside_it(tmp_path):
    """Second paper, Appendix A.2."""
    options, many = OlabenchConfig(resamples=10, latency_items=3, at_once=4), [item(f"i{n}") for n in range(11)]
    together, most = 0, []

    class Busy(Pool):
        async def __call__(self, question):
            nonlocal together
            together += 1
            most.append(together)
            await asyncio.sleep(0)
            together -= 1
            return said("Hi.", seconds=1.0 if len(most) <= 3 else 9.0)

    policy, reported = PolicyUnderTest(name="p"), []
    with Journal(tmp_path) as journal:
        bench = work(policy, many, options=options)
        await bench.collect(journal, {"p": Busy(None)}, lambda name, done: reported.append(done))
        found = [bench.response_to(journal, policy, one) for one in many]
        assert most[:3] == [1, 1, 1] and max(most) == 4
        assert [r.at_once for r in found] == [1] * 3 + [4] * 8 and reported[-1] == 11
        metrics, _ = summarise(bench, journal)
        latency = metrics["policies"]["p"]["all"]["latency"]
        assert (latency["at_once"], latency["seconds"]["mean"], latency["seconds"]["n"]) == (1, 1.0, 3)
        loaded = latency["concurrent"]
        assert (loaded["at_once"], loaded["seconds"]["mean"], loaded["seconds"]["n"]) == (4, 9.0, 8)
        assert metrics["usage"] == {"policy p": {"answers": 11, "tokens": 11 * 60, "cost": pytest.approx(1.1)}}
        await bench.collect(journal, {"p": Busy(None)}, nothing)
    assert len(most) == 11, "nothing is asked again"


async def test_items_are_judged_in_their_own_language(tmp_path):
    chinese = dataclasses.replace(item("z"), sample=dataclasses.replace(
        item("z").sample, history=(Turn(role="customer", content="我的包裹在哪里？"),)
    ))  # fmt: skip
    policy = PolicyUnderTest(name="p", given={"a": "Good.", "z": "好的。"})
    judges = [
        dataclasses.replace(judge("dialogue", GradedConfig(language=language)), language=language)
        for language in ("en", "zh")
    ]
    pool = Pool(lambda q: graded(4 if q.prompt == "dialogue.en" else 5))
    items = [item("a"), chinese]
    with Journal(tmp_path) as journal:
        trials = [t for t in work(policy, items).trials(journal) if t.component == "dialogue"]
        await judge_all(journal, judges, trials, {"judge": pool}, OPTIONS, nothing)
        metrics, rows = summarise(work(policy, items, judges), journal)
    assert sorted((q.prompt, q.affinity) for q in pool.asked) == [("dialogue.en", "a"), ("dialogue.zh", "z")]
    assert {name: one["asked"] for name, one in metrics["judges"].items()} == {"dialogue (en)": 1, "dialogue (zh)": 1}
    assert [row["judgements"]["dialogue"]["grade"] for row in rows] == [4, 5]
    assert metrics["usage"]["judge dialogue"]["answers"] == 2


async def test_unavailable_endpoint_is_abandoned(tmp_path):
    many = [item(f"i{n}") for n in range(3 * GIVE_UP)]
    gone = Pool(lambda q: "Hi." if "I am i0." in q.messages[-1]["content"] else Answer(failure="unavailable"))
    found = await answers(tmp_path, gone, many)
    assert found[0].text == "Hi." and len(gone.asked) == 1 + GIVE_UP // 4
    back = Pool(lambda q: "Ho.")
    assert all(r.text for r in await answers(tmp_path, back, many)) and len(back.asked) == 3 * GIVE_UP - 1


def test_journal_flushes_every_entry(tmp_path):
    with Journal(tmp_path) as journal:
        journal.add_response("a", PolicyResponse(text="Hi."), {})
        journal.add_verdict("a", JudgeVerdict(failure="judge_timeout"), {})
        assert all((tmp_path / name).read_text().endswith("\n") for name in (RESPONSES, VERDICTS))


async def test_retry_after_of_a_refusal_is_honoured(tmp_path):
    told = iter([Answer(failure="unavailable", retry_in_s=0.0), said("Hi.")])
    pool = Pool(lambda q: next(told))
    assert [r.text for r in await answers(tmp_path, pool, ITEMS[:1])] == ["Hi."] and len(pool.asked) == 2


def graded(value):
    return f'{{"reason": "so", "score": {value}}}'


async def test_each_response_is_judged_once(tmp_path):
    policy = PolicyUnderTest(name="p", given={"a": "Good.", "b": "Bad.", "r": "I promise."})
    judges = [judge("dialogue"), judge("risk")]
    pool = Pool(
        lambda q: (
            graded(4 if q.variables["response"] == "Good." else 2)
            if q.prompt.startswith("dialogue")
            else '{"reason": "so", "types": ["overcommitment"], "risk": "yes"}'
        )
    )
    with Journal(tmp_path) as journal:
        trials = [t for t in work(policy).trials(journal) if t.component in ("dialogue", "risk")]
        assert [(t.id, t.component) for t in trials] == [("a", "dialogue"), ("b", "dialogue"), ("r", "risk")]
        await judge_all(journal, judges, trials, {"judge": pool}, OPTIONS, nothing)
        found = [verdict_on(journal, j, t, "p").judgement for j in judges for t in trials if t.component == j.component]
    assert [(j.grade, j.labels) for j in found] == [(4, ()), (2, ()), (None, ("overcommitment",))]
    # The retrieved pair reaches the judge as the result of a tool.
    assert "Tool: [1] Hi." in pool.asked[0].variables["history"]
    with Journal(tmp_path) as journal:
        assert [open_trials(journal, j, trials) for j in judges] == [[], []]
        other = dataclasses.replace(judge("risk"), settings={"pools": {"judge": {"model": "x"}}})
        assert len(open_trials(journal, other, trials)) == 1


def test_judge_settings_cover_answers_but_not_weights():
    settings = judge("dialogue").settings
    assert all("@" in prompt for prompt in settings["prompts"]), "the template's version and digest, too"
    assert judge("dialogue", GradedConfig(language="zh")).settings != settings
    assert judge("dialogue", GradedConfig(max_reasks=0)).settings != settings
    assert judge("dialogue", GradedConfig(scale="share", weight=2.0)).settings == settings


async def test_policies_are_compared_in_one_prompt(tmp_path):
    policies = [PolicyUnderTest(name="p", given={"a": "Good."}), PolicyUnderTest(name="q", given={"a": "Bad."})]
    compared = judge("policy", ComparedConfig())

    def answer(question):
        grades = {e["name"]: 5 if e["response"] == "Good." else 2 for e in question.each}
        return (
            f'{{"reason": "so", "scores": {{{", ".join(f"{chr(34)}{n}{chr(34)}: {g}" for n, g in grades.items())}}}}}'
        )

    pool = Pool(answer)
    with Journal(tmp_path) as journal:
        trials = [t for t in work(policies, ITEMS[:1]).trials(journal) if t.component == "policy"]
        await judge_all(journal, [compared], trials, {"judge": pool}, OPTIONS, nothing)
        found = [verdict_on(journal, compared, trials[0], name).judgement for name in ("p", "q")]
        assert [(j.grade, j.compared) for j in found] == [(5, 2), (2, 2)] and len(pool.asked) == 1
        # Together with another response the same one has to be judged anew.
        others = [policies[0], PolicyUnderTest(name="q", given={"a": "Other."})]
        again = [t for t in work(others, ITEMS[:1]).trials(journal) if t.component == "policy"]
        assert verdict_on(journal, compared, again[0], "p").passing


async def test_grade_off_the_scale_is_retried_once_then_missing(tmp_path):
    policy = PolicyUnderTest(name="p", given={"a": "Good."})
    pool = Pool(lambda q: graded(6))
    with Journal(tmp_path) as journal:
        (trial,) = [t for t in work(policy, ITEMS[:1]).trials(journal) if t.component == "dialogue"]
        await judge_all(journal, [judge("dialogue")], [trial], {"judge": pool}, OPTIONS, nothing)
    assert len(pool.asked) == 2
    with Journal(tmp_path) as journal:
        verdict = verdict_on(journal, judge("dialogue"), trial, "p")
        assert (verdict.judgement, verdict.failure, verdict.passing) == (None, "judge_unparsable", False)
        assert "6 is not a grade" in verdict.detail and open_trials(journal, judge("dialogue"), [trial]) == []


def test_verdict_without_a_judgement_has_no_number():
    assert JudgeVerdict(failure="judge_timeout").passing and not JudgeVerdict(failure="judge_unparsable").passing
