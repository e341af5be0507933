from __future__ import annotations

import json

import pytest

from hamr.bench.answers import GIVE_UP
from hamr.bench.ecs.judge_votes import FILE, EcsJudge, EcsVote, JudgeVotes, VoteQuestion, read_vote
from hamr.errors import BadInput, VerdictUnparsable
from hamr.prompting.labels import LABEL_VALUES
from hamr.types import Answer, Question


def judge(name="j", at_once=4, **settings):
    return EcsJudge(name=name, settings={"model": "m", **settings}, at_once=at_once, longest_wait_s=0.0)


def asked(count):
    return [
        VoteQuestion(question=Question(variables={"statement_b": f"reply {i}"}), item=f"s{i}") for i in range(count)
    ]


def nothing(done):
    pass


class Scripted:
    def __init__(self, answer):
        self.answer, self.count = answer, 0

    async def __call__(self, question):
        self.count += 1
        return self.answer(question, self.count)


YES = Answer(score=0.9, verdict="yes")
AWAY = Answer(failure="unavailable", detail="connection refused")


async def test_each_question_is_asked_once_and_its_vote_stored(tmp_path):
    ask = Scripted(lambda q, n: YES)
    told = []
    with JudgeVotes(tmp_path, [judge()]) as ballot:
        await ballot.collect(judge(), [*asked(3), *asked(2)], ask, told.append)
    assert ask.count == 3 and told == [1, 2, 3]
    with JudgeVotes(tmp_path, [judge()]) as ballot:
        assert ballot.open(judge(), asked(4)) == asked(4)[3:]
        assert ballot.vote(judge(), asked(1)[0].question) == EcsVote(score=0.9, verdict="yes")
        # Another model's word is another vote.
        assert len(ballot.open(judge(model="other"), asked(3))) == 3


async def test_unavailable_endpoint_is_skipped_until_the_next_call(tmp_path):
    ask = Scripted(lambda q, n: YES if n <= 5 else AWAY)
    with JudgeVotes(tmp_path, [judge(at_once=1)]) as ballot:
        await ballot.collect(judge(at_once=1), asked(100), ask, nothing)
    assert ask.count == 5 + GIVE_UP
    back = Scripted(lambda q, n: YES)
    with JudgeVotes(tmp_path, [judge()]) as ballot:
        await ballot.collect(judge(), asked(100), back, nothing)
        assert back.count == 95 and not ballot.open(judge(), asked(100))


async def test_intermittent_endpoint_is_not_abandoned(tmp_path):
    ask = Scripted(lambda q, n: YES if n % 2 else AWAY)
    with JudgeVotes(tmp_path, [judge(at_once=1)]) as ballot:
        await ballot.collect(judge(at_once=1), asked(3 * GIVE_UP), ask, nothing)
    assert ask.count == 3 * GIVE_UP


async def test_unparsable_answer_is_final(tmp_path):
    mumble = Scripted(lambda q, n: Answer(failure="unparsable", detail="hm"))
    for _ in range(2):
        with JudgeVotes(tmp_path, [judge()]) as ballot:
            await ballot.collect(judge(), asked(3), mumble, nothing)
    assert mumble.count == 3


async def test_vote_is_written_before_it_is_reported(tmp_path):
    """A kill after the report cannot lose the vote."""
    rows = []
    with JudgeVotes(tmp_path, [judge(at_once=1)]) as ballot:
        await ballot.collect(
            judge(at_once=1),
            asked(2),
            Scripted(lambda q, n: YES),
            lambda done: rows.append((tmp_path / FILE).read_text().count("\n")),
        )
    assert rows == [1, 2]


async def test_pool_with_open_breaker_is_retried(tmp_path):
    shut = Answer(failure="unavailable", detail="breaker", retry_in_s=30.0)
    ask = Scripted(lambda q, n: shut if n <= 2 else YES)
    with JudgeVotes(tmp_path, [judge(at_once=1)]) as ballot:
        await ballot.collect(judge(at_once=1), asked(1), ask, nothing)
        assert ask.count == 3 and ballot.vote(judge(), asked(1)[0].question).score == 0.9


async def test_votes_of_an_unavailable_judge_are_missing(tmp_path):
    judges = [judge("a"), judge("b", other=True)]
    with JudgeVotes(tmp_path, judges) as ballot:
        for one, answer in zip(judges, (AWAY, YES), strict=True):
            await ballot.collect(one, asked(2), Scripted(lambda q, n, answer=answer: answer), nothing)
        assert ballot.ratings(asked(1)[0].question, hard=True) == (None, (1.0, "yes"))
        assert ballot.ratings(asked(1)[0].question, hard=False) == (None, (0.9, "yes"))


def test_a_score_outside_the_scale_is_a_missing_vote():
    assert read_vote(Answer(score=7.0, verdict="yes")).failure == "unparsable"
    assert read_vote(Answer(failure="timeout", detail="30 s")) == EcsVote(failure="timeout", detail="30 s")
    assert EcsVote(score=0.3).rating(hard=True) == (0.5, "part")
    assert EcsVote(score=0.3, verdict="odd").rating(hard=False) == (0.3, "part")


@pytest.mark.parametrize(
    "row",
    [{"key": "k"}, {"key": "k", "score": 7.0, "verdict": "yes", "failure": None, "detail": ""}],
)
def test_damaged_row_is_reported(tmp_path, row):
    (tmp_path / FILE).write_text(json.dumps(row) + "\n")
    with pytest.raises(BadInput, match="judgements.jsonl:1.*is not a judgement"):
        JudgeVotes(tmp_path, [judge()])
    # What was refused is not held.
    (tmp_path / FILE).unlink()
    with JudgeVotes(tmp_path, [judge()]), pytest.raises(BadInput, match="another evaluation is writing to it"):
        JudgeVotes(tmp_path, [judge()])


def test_written_answers_are_votes_if_they_can_be_parsed():
    def read(text):
        if text not in LABEL_VALUES:
            raise VerdictUnparsable(f"{text!r} is no label")
        return text

    assert read_vote(Answer(text="yes"), read) == EcsVote(score=1.0, verdict="yes")
    assert read_vote(Answer(text="Hm."), read) == EcsVote(failure="unparsable", detail="'Hm.' is no label")
    assert read_vote(Answer(failure="timeout", detail="30 s"), read).failure == "timeout"
