from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from hamr.apps.scorer import check
from hamr.apps.scorer.command import ScorerCheckCommand
from hamr.apps.scorer.gate import GateResult, ask_all, ask_decisive, gate, gates, mix_scores, reaching_scorers
from hamr.calibration.cascade import Cascade
from hamr.config.rewards import ConsistencyConfig
from hamr.data.contrasts import Contrast, Wrong
from hamr.errors import HamrError
from hamr.types import Answer, Question

GOODBYE = "Have a nice day, goodbye!"


def contrast(reference: str, *right: str, wrong: tuple[str, ...] = (GOODBYE, "no")) -> Contrast:
    return Contrast(
        cluster="offer",
        accepted=frozenset({"offer"}),
        history="",
        reference=reference,
        right=right,
        wrong=tuple(Wrong("courtesy", text) for text in wrong),
    )


def scorer(scores: Mapping[str, float | None]):
    async def ask(question: Question) -> Answer:
        score = scores[question.variables["statement_b"]]
        return Answer(failure="timeout") if score is None else Answer(score=score)

    return ask


def test_best_wrong_reply_is_compared_with_the_median_right_reply():
    drawn = [contrast("A", "a", "b", "c"), contrast("B", "d")]
    scores = {(0, "a"): 0.2, (0, "b"): 0.7, (0, "c"): 0.9, (0, GOODBYE): 0.7, (0, "no"): 0.1}
    scores |= {(1, "d"): 0.5, (1, GOODBYE): 0.6, (1, "no"): 0.8}
    found = gate(drawn, scores)
    assert (found.contexts, found.share) == (2, 0.5), "a tie with the median is not won"
    [fooled] = found.fooled
    assert (fooled.reference, fooled.sentence, fooled.score, fooled.right) == ("B", "no", 0.8, 0.5)


def test_contexts_with_unscored_wrong_replies_do_not_count():
    drawn = [contrast("A", "a", "b"), contrast("B", "c")]
    asked = asyncio.run(ask_all(scorer({"a": 0.9, "b": None, GOODBYE: 0.5, "no": None, "c": None}), drawn))
    assert asked == {(0, "a"): 0.9, (0, GOODBYE): 0.5, (1, GOODBYE): 0.5}
    assert (gate(drawn, asked).contexts, gate(drawn, asked).unscored) == (0, 2)
    asked |= {(0, "no"): 0.1, (1, "no"): 0.1}
    found = gate(drawn, asked)
    assert (found.contexts, found.unscored, found.share) == (1, 1, 0.0), "B has no score of a right reply"
    assert "1 contexts do not count" in found.lines("judge")[1]


async def test_verdict_that_cannot_be_read_is_asked_for_again():
    async def ask(question: Question) -> Answer:
        return Answer(score=0.5) if question.attempt else Answer(failure="unparsable")

    assert len(await ask_all(ask, [contrast("A", "a")])) == 3


async def test_both_scorers_must_be_fooled_in_one_context():
    drawn = [contrast("A", "a", wrong=("no",)), replace(contrast("A", "a", wrong=("no",)), history="later")]

    def fooled_in(history: str):
        async def ask(question: Question) -> Answer:
            is_fooled = question.variables["history"] == history and question.variables["statement_b"] == "no"
            return Answer(score=0.9 if is_fooled else 0.5 if question.variables["statement_b"] == "a" else 0.1)

        return ask

    found = await gates({"reranker": fooled_in(""), "judge": fooled_in("later")}, drawn, Cascade(0.6, 0.98, 0.0, 0.0))
    assert [len(found[role].fooled) for role in ("reranker", "judge", "both")] == [1, 1, 0]


async def test_one_reply_may_beat_both_scorers_without_being_their_best():
    asks = {
        "reranker": scorer({"a": 0.5, "b": 0.9, "c": 0.8, "no": 0.1}),
        "judge": scorer({"a": 0.5, "b": 0.4, "c": 0.7, "no": 0.9}),
    }
    found = await gates(asks, [contrast("A", "a", wrong=("b", "c", "no"))], Cascade(0.6, 0.98, 0.0, 0.0))
    [fooled] = found["both"].fooled
    assert (fooled.sentence, fooled.score, fooled.right, found["both"].close) == ("c", 0.8, 0.5, 1)
    asks["judge"] = scorer({"a": 0.5, "b": 0.4, "c": 0.5, "no": 0.9})
    found = await gates(asks, [contrast("A", "a", wrong=("b", "c", "no"))], Cascade(0.6, 0.98, 0.0, 0.0))
    assert (found["both"].fooled, found["both"].close) == ((), 1)


def test_cascade_is_fooled_inside_the_trusted_reranker_interval():
    drawn = [contrast("A", "a")]
    asks = {
        "reranker": scorer({"a": 0.7, GOODBYE: 0.9, "no": 0.0}),
        "judge": scorer({"a": 1.0, GOODBYE: 0.0, "no": 0.0}),
    }
    inside = asyncio.run(gates(asks, drawn, Cascade(0.6, 0.98, 0.0, 0.0)))
    assert {name: len(found.fooled) for name, found in inside.items()} == {
        "reranker": 1,
        "judge": 0,
        "cascade": 1,
        "both": 0,
    }
    outside = asyncio.run(gates(asks, drawn, Cascade(0.75, 0.8, 0.0, 0.0)))
    assert len(outside["cascade"].fooled) == 0, "the judge is asked about both"


def test_cascade_is_fooled_if_both_scorers_prefer_one_wrong_reply():
    drawn = [contrast("A", "a"), contrast("B", "a")]
    likes = scorer({"a": 0.1, GOODBYE: 0.9, "no": 0.0})
    found = asyncio.run(gates({"reranker": likes, "judge": likes}, drawn, Cascade(0.2, 0.8, 0.5, 0.5)))
    assert found["both"].share == 1.0
    assert set(asyncio.run(gates({"judge": likes}, drawn, Cascade(0.2, 0.8, 0.5, 0.5)))) == {"judge"}


def test_output_names_the_most_frequent_winning_sentence():
    drawn = [contrast("A", "a"), contrast("B", "a"), contrast("C", "a", wrong=("no",))]
    asked = asyncio.run(ask_all(scorer({"a": 0.4, GOODBYE: 0.9, "no": 0.5}), drawn))
    first, second, third = gate(drawn, asked).lines("judge")
    assert first.startswith("judge: the best wrong reply outscores the median right one in 3 of 3 contexts (100.0%)")
    assert first.endswith("and is close to it in 3")
    assert second.startswith(f"  courtesy, 2x: {GOODBYE!r} has 0.90 where offer is due") and "median is 0.40" in second
    assert "1x: 'no'" in third


def test_close_wrong_reply_is_counted_separately():
    drawn = [contrast("A", "a", wrong=(GOODBYE,)), contrast("B", "b", wrong=("no",))]
    found = gate(drawn, {(0, "a"): 0.99, (0, GOODBYE): 0.97, (1, "b"): 0.99, (1, "no"): 0.7})
    assert (found.close, found.share) == (1, 0.0)


def test_table_counts_where_replies_of_another_act_win():
    def due(reference: str, *wrong: Wrong) -> Contrast:
        return replace(contrast(reference, "right"), wrong=wrong)

    drawn = [
        due("A", Wrong("act", "bye", "close"), Wrong("act", "fee", "price")),
        due("B", Wrong("act", "bye", "close")),
    ]
    drawn.append(replace(due("C", Wrong("courtesy", "fee"), Wrong("act", "ask", "offer")), cluster="close"))
    scores = {(number, text): score for number in range(3) for text, score in {"right": 0.5, "ask": 0.5}.items()}
    scores |= {(0, "bye"): 0.9, (0, "fee"): 0.1, (1, "bye"): 0.2, (2, "fee"): 0.9}
    assert gate(drawn, scores).as_dict()["acts"] == {
        "close": {"offer": {"contexts": 1, "share": 0.0}},
        "offer": {"close": {"contexts": 2, "share": 0.5}, "price": {"contexts": 1, "share": 0.0}},
    }


def test_file_of_the_check_names_machine_and_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_scorers(config, pools, work, **_):
        liked = scorer(defaultdict(lambda: 0.5))
        return asyncio.run(work(dict.fromkeys(pools, liked)))

    monkeypatch.setattr(check, "with_pools", with_scorers)
    command = ScorerCheckCommand(overrides=("experiment=smoke",), output=tmp_path, contexts=8)
    assert check.check(command) == 0
    found = json.loads((tmp_path / "scorer_check.json").read_text())
    assert found.keys() == {"reranker", "judge", "cascade", "both", "machine", "versions"}
    assert found["machine"]["cores"] >= 1 and found["versions"]["hamr"]
    assert set(found["judge"]["acts"]) == {
        "GoodBye",
        "ask ApplicationTendency",
        "ask ConsumptionProfile",
        "ask EmotionTag",
    }


def test_check_of_a_judge_without_answers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_scorers(config, pools, work, **_):
        answering, silent = scorer(defaultdict(lambda: 0.3)), scorer(defaultdict(lambda: None))
        return asyncio.run(work({name: silent if name == "judge" else answering for name in pools}))

    monkeypatch.setattr(check, "with_pools", with_scorers)
    with pytest.raises(HamrError, match=r"none of 8 contexts is scored by judge, cascade, both; see why"):
        check.check(ScorerCheckCommand(overrides=("experiment=smoke",), contexts=8))


def test_fraction_is_zero_without_scores():
    assert GateResult(contexts=0, close=0, fooled=()).share == 0.0


def test_replies_rejected_without_a_scorer_are_not_tried():
    twice = "Would you like it, would you like it?"
    drawn = [contrast("Would you like it?", "It is yours.", wrong=(twice, "no"))]
    rejecting = ConsistencyConfig(repeated_words=3)
    allowing = ConsistencyConfig(repeated_words=3, allowed_repetitions=("would you like it",))
    assert reaching_scorers(drawn, ConsistencyConfig()) == drawn
    assert [wrong.text for wrong in reaching_scorers(drawn, rejecting)[0].wrong] == ["no"]
    assert reaching_scorers(drawn, allowing) == drawn


def test_judge_is_asked_only_about_replies_the_cascade_sends():
    drawn = [contrast("A", "a", "b", "c")]
    reranker = scorer({"a": 0.7, "b": 0.5, "c": None, GOODBYE: 0.95, "no": 0.8})
    judge, asked = scorer({"b": None, GOODBYE: 0.1, "a": 1.0, "c": 1.0, "no": 1.0}), []

    async def counted(question: Question) -> Answer:
        asked.append(question.variables["statement_b"])
        return await judge(question)

    cascade = Cascade(0.6, 0.9, 0.0, 0.0)
    found = asyncio.run(ask_decisive({"reranker": reranker, "judge": counted}, drawn, cascade))
    assert sorted(asked) == [GOODBYE, "b"]
    assert found == {(0, "a"): 0.7, (0, GOODBYE): cascade.mix(0.95, 0.1), (0, "no"): 0.8}
    everything = [asyncio.run(ask_all(ask, drawn)) for ask in (reranker, judge)]
    assert found == mix_scores(cascade, *everything)
    assert asyncio.run(ask_decisive({"judge": judge}, drawn, cascade)) == everything[1]
