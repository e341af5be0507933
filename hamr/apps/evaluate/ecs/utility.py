"""Agreement of the utility judge with people (first paper, section 3.1): would another reply have helped too?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hamr.bench.agreement import with_people
from hamr.bench.ecs.judge_votes import EcsJudge, JudgeVotes, VoteQuestion
from hamr.config.benchmarks import EcsConfig
from hamr.data.language import language_of
from hamr.data.samples import from_json, read_rows
from hamr.errors import DataError
from hamr.prompting.labels import Label
from hamr.rewards.utility import read_utility, utility_question
from hamr.types import Reply

SUMMARY = "ticket_summary"


@dataclass(frozen=True, kw_only=True)
class RatedReply:
    """The judge's question about a reply, and whether people found the reply available."""

    asked: VoteQuestion
    available: bool


def read_rated(path: Path) -> list[RatedReply]:
    """Read rated replies. Raises DataError at `file:line: field` for the first fault."""
    return [_parse_rated(row, f"{path}:{number}") for number, row in read_rows(path)]


def _parse_rated(row: Any, where: str) -> RatedReply:
    sample = from_json(row, where=where, own=("response", "available"))
    text, available, summary = row.get("response"), row.get("available"), sample.privileged.get(SUMMARY)
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: response", text, "give the reply that people rated")
    if not isinstance(available, bool):
        raise DataError(f"{where}: available", available, "give true or false, as people rated the reply")
    if not isinstance(summary, str) or not summary.strip():
        raise DataError(f"{where}: privileged.{SUMMARY}", summary, "give the summary that the utility judge sees")
    logged = next((r.action for r in sample.references if isinstance(r.action, Reply)), None)
    if logged is None:
        raise DataError(f"{where}: references", None, "give the reply of the agent who solved the ticket")
    prompt = f"utility.{language_of(text)}"
    question = utility_question(sample, summary, logged.content, text, prompt=prompt)
    vote = VoteQuestion(
        question=question, item=sample.id, read=lambda text: "yes" if read_utility(text).available else "no"
    )
    return RatedReply(asked=vote, available=available)


def agreement(votes: JudgeVotes, judge: EcsJudge, rated: Sequence[RatedReply], ecs: EcsConfig) -> dict[str, Any]:
    """Return the judge's agreement with people, JSON-serialisable."""
    ratings = [votes.vote(judge, one.asked.question).rating(hard=True) for one in rated]
    people: list[Label] = ["yes" if one.available else "no" for one in rated]
    return {
        "judge": judge.name,
        "replies": len(rated),
        **asdict(with_people(ratings, people, resamples=ecs.resamples, seed=ecs.seed)),
    }
