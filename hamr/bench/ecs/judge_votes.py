"""Collects the votes of an ensemble of judges on consistency questions, each question once per judge.

judgements.jsonl has one row per vote, appended on arrival. A row is identified by its question and its judge, not by
its position, so another file of responses or another judge may share the folder. Transient failures (unavailable,
timeout, rate limit) are retried by the next call; an unparseable answer is final.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.bench.agreement import Rating, level
from hamr.bench.answers import process_all
from hamr.bench.folder import RowFolder, parsed_rows
from hamr.cascade.cached_pool import failure_of
from hamr.cascade.retry import patient
from hamr.data.progress import item_key
from hamr.errors import VerdictUnparsable
from hamr.prompting.labels import LABEL_VALUES, Label
from hamr.protocols import Ask
from hamr.rewards.verdict import canonical_label
from hamr.types import TRANSIENT, Answer, Question

FILE = "judgements.jsonl"

ReportVotes = Callable[[int], None]
"""Callback after every vote, with their number."""


@dataclass(frozen=True, kw_only=True)
class EcsVote:
    """One judge's vote on one question. Either `score` and `verdict`, or `failure`."""

    score: float | None = None
    verdict: str | None = None
    failure: str | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if (self.failure is None) != (self.score is not None and 0.0 <= self.score <= 1.0):
            raise ValueError("a vote has a score from 0 to 1, or a failure")

    def rating(self, *, hard: bool) -> Rating | None:
        """Return the vote's value and level: with `hard` the level's 1, 0.5 or 0, else the soft score. None if it
        failed."""
        if self.score is None:
            return None
        written = canonical_label(self.verdict) if self.verdict is not None else None
        label = written if written is not None else level(self.score)
        return (LABEL_VALUES[label] if hard else self.score, label)


@dataclass(frozen=True, kw_only=True)
class VoteQuestion:
    """One question about `item`, a sample or a labelled pair, and its reference; both are informative for readers of
    the rows. `read`: parser of a written answer. Raises VerdictUnparsable."""

    question: Question
    item: str
    reference: int = 0
    read: Callable[[str], Label] | None = None


@dataclass(frozen=True, kw_only=True)
class EcsJudge:
    """A judge. `settings`: what determines its answers (model, prompt, ...). `at_once`: number of concurrent
    questions."""

    name: str
    settings: Mapping[str, Any]
    at_once: int
    attempts: int = 3
    longest_wait_s: float = 60.0


class JudgeVotes(RowFolder):
    """The votes of a folder by key."""

    names = (FILE,)

    def __init__(self, folder: Path, judges: Sequence[EcsJudge]) -> None:
        self.judges = tuple(judges)
        super().__init__(folder)

    def _load(self) -> None:
        rows = parsed_rows(self.folder / FILE, EcsVote, "a judgement")
        self._votes = {str(row.get("key")): vote for row, vote in rows}

    def vote(self, judge: EcsJudge, question: Question) -> EcsVote:
        """Return the judge's vote; a missing vote counts as a transient failure."""
        return self._votes.get(vote_key(judge, question), EcsVote(failure="unavailable", detail="not asked"))

    def ratings(self, question: Question, *, hard: bool) -> tuple[Rating | None, ...]:
        """Return every judge's rating, in the order of the judges."""
        return tuple(self.vote(judge, question).rating(hard=hard) for judge in self.judges)

    def open(self, judge: EcsJudge, asked: Sequence[VoteQuestion]) -> list[VoteQuestion]:
        """Return the questions of `asked` that the judge has not answered, without duplicates."""
        left: dict[str, VoteQuestion] = {}
        for one in asked:
            key = vote_key(judge, one.question)
            if key not in self._votes or self._votes[key].failure in TRANSIENT:
                left.setdefault(key, one)
        return list(left.values())

    async def collect(self, judge: EcsJudge, asked: Sequence[VoteQuestion], ask: Ask, report: ReportVotes) -> None:
        """Ask a judge its unanswered questions."""

        async def one(asked: VoteQuestion) -> bool:
            answer = await patient(ask, judge)(asked.question)
            self._add(judge, asked, answer)
            return answer.failure not in TRANSIENT

        await process_all(self.open(judge, asked), one, judge.at_once, report)

    def _add(self, judge: EcsJudge, one: VoteQuestion, answer: Answer) -> None:
        key, vote = vote_key(judge, one.question), read_vote(answer, one.read)
        self._votes[key] = vote
        row = {
            "key": key,
            "judge": judge.name,
            "item": one.item,
            "reference": one.reference,
            **vars(vote),
            "reasoning": answer.reasoning,
            "tokens": answer.call.prompt_tokens + answer.call.output_tokens if answer.call else 0,
            "cost": answer.call.cost if answer.call else 0.0,
        }
        self._write(FILE, row)


def vote_key(judge: EcsJudge, question: Question) -> str:
    return item_key(judge.settings, dict(question.variables))


def read_vote(answer: Answer, read: Callable[[str], Label] | None = None) -> EcsVote:
    """Return the vote in an answer; a score outside [0, 1] is invalid."""
    if read is not None and answer.text is not None:
        try:
            label = read(answer.text)
        except VerdictUnparsable as error:
            return EcsVote(failure="unparsable", detail=str(error)[:300])
        return EcsVote(score=LABEL_VALUES[label], verdict=label)
    failed = failure_of("judge", answer)
    if failed is None:
        return EcsVote(score=answer.score, verdict=answer.verdict)
    return EcsVote(failure=answer.failure or "unparsable", detail=failed.detail[:300])
