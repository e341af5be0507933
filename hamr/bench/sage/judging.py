"""Questions to the judges about a turn, their votes, and the consensus (section 3.2.2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

from hamr.bench.sage.simulation import reply_of
from hamr.bench.sage.traces import DialoguePlan, Trace, read_turn
from hamr.config.sage import SageConfig, TieRule
from hamr.data.rendering import one_line
from hamr.errors import VerdictUnparsable
from hamr.procedures.contract import label
from hamr.procedures.graph import Scenario
from hamr.procedures.prompts import CLASSIFICATION, DIMENSIONS, GRADES, JUDGE_REASONS, QUALITY, judge_prompt
from hamr.procedures.schema import Value
from hamr.procedures.scores import quality
from hamr.prompting.reading import TEXT, json_values, object_schema
from hamr.prompting.templates import neutralise
from hamr.protocols import Ask
from hamr.types import TRANSIENT, Answer, Question

ASSESSED = (1, 5, 10, 15)
"""Turns that are judged, besides the last."""
AGAIN = "#"
"""Separator in the name of a repeated judge (`judge#2`), which is sampled: greedy decoding would only repeat the
vote."""
AGAIN_TEMPERATURE = 0.7


@dataclass(frozen=True, kw_only=True)
class JudgeVote:
    """One judge's answer to one question. `failure`: the reason why there is no vote."""

    judge: str
    failure: str | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class TurnVote(JudgeVote):
    """One judge's vote on one turn.

    A field or a dimension that cannot be parsed is absent: a missing vote, not a wrong one.
    """

    labels: Mapping[str, Value] = field(default_factory=dict)
    grades: Mapping[str, int] = field(default_factory=dict)

    @property
    def quality(self) -> float | None:
        """Return Eq. 8 for this judge; None unless all five dimensions were graded."""
        return quality(self.grades) if self.grades.keys() == DIMENSIONS.keys() else None


@dataclass(frozen=True, kw_only=True)
class TurnJudgement:
    """All judges on one turn (counted from 1) of one dialogue."""

    agent: str
    dialogue: str
    turn: int
    votes: tuple[TurnVote, ...]


@dataclass(frozen=True, kw_only=True)
class Consensus:
    """Consensus of the judges.

    `tied`: fields where several labels have the most votes, with the label chosen by the tie rule (None: undecided).
    `unvoted`: fields without any vote.
    """

    fields: Mapping[str, Value]
    tied: Mapping[str, Value | None]
    unvoted: tuple[str, ...]
    quality: float | None
    """Mean over the judges that graded all dimensions."""


def assessed_turns(count: int) -> list[int]:
    """Return the judged turns of `count` turns: 1, 5, 10, 15 and the last, without duplicates.

    >>> assessed_turns(12), assessed_turns(5), assessed_turns(0)
    ([1, 5, 10, 12], [1, 5], [])
    """
    return sorted({*(turn for turn in ASSESSED if turn <= count), *([count] if count else [])})


def consensus(votes: Sequence[TurnVote], scenario: Scenario, tie: TieRule) -> Consensus:
    """Return the label with the most votes of each field; `tie` is the rule for ties.

    Missing votes do not count: two judges that agree decide, and so does a single one.
    """
    fields: dict[str, Value] = {}
    tied: dict[str, Value | None] = {}
    unvoted = []
    for name in scenario.file.fields:
        cast = [vote.labels[name] for vote in votes if name in vote.labels]
        if not cast:
            unvoted.append(name)
            continue
        counts = Counter(cast)
        most = max(counts.values())
        best = [value for value in counts if counts[value] == most]
        chosen: Value | None = best[0]
        if len(best) > 1:
            # `best` is in the order of the judges, since Counter keeps insertion order.
            chosen = tied[name] = {"first": best[0], "smallest": min(best, key=str), "none": None}[tie]
        if chosen is not None:
            fields[name] = chosen
    graded = [value for vote in votes if (value := vote.quality) is not None]
    mean = sum(graded) / len(graded) if graded else None
    return Consensus(fields=fields, tied=tied, unvoted=tuple(unvoted), quality=mean)


def judge_question(scenario: Scenario, trace: Trace, turn: int) -> Question:
    """Return the question about turn `turn` (from 1): the ticket, the previous dialogue, the customer's message and the
    reply.

    The agent's thoughts, labels, plans and decisions are not shown (section 3.2.2).
    """
    plan = trace.plan
    before, now = trace.turns[: turn - 1], trace.turns[turn - 1]
    history = "\n".join(
        f"Customer: {one_line(past.user)}\nAgent: {one_line(_reply(scenario, trace, number))}"
        for number, past in enumerate(before)
    )
    ticket = "\n".join(f"{name} = {value}" for name, value in plan.system.items())
    parts = {
        "system_information": ticket,
        "dialogue_history": history,
        "user_message": now.user,
        "agent_reply": _reply(scenario, trace, turn - 1),
    }
    content = "\n".join(f"<{tag}>\n{neutralise(text)}\n</{tag}>" for tag, text in parts.items())
    return Question(
        messages=(
            {"role": "system", "content": judge_prompt(scenario, language=plan.language)},
            {"role": "user", "content": content},
        ),
        affinity=plan.id,
        schema=judge_schema(scenario),
    )


@lru_cache(maxsize=64)
def judge_schema(scenario: Scenario) -> dict[str, Any]:
    """Return the JSON schema of a judge's answer, for pools with constrained decoding."""
    labels = {name: {"enum": list(variable.options or ())} for name, variable in scenario.file.fields.items()}
    grades = {name: {"enum": list(GRADES)} for name in DIMENSIONS}
    parts = {CLASSIFICATION: object_schema(**labels), QUALITY: object_schema(**grades)}
    return object_schema(**parts, **dict.fromkeys(JUDGE_REASONS, TEXT))


def read_vote(judge: str, text: str, scenario: Scenario) -> TurnVote:
    """Parse a judge's answer as far as possible. Raises VerdictUnparsable if nothing can be parsed."""
    found = last_object(text)
    given_labels, given_grades = found.get(CLASSIFICATION), found.get(QUALITY)
    labels: dict[str, Value] = {}
    for name, variable in scenario.file.fields.items():
        value = label(given_labels.get(name), variable) if isinstance(given_labels, dict) else None
        if value is not None:
            labels[name] = value
    grades = {
        name: int(given_grades[name])
        for name in DIMENSIONS
        if isinstance(given_grades, dict) and _is_grade(given_grades.get(name))
    }
    if not labels and not grades:
        raise VerdictUnparsable(f"neither a label nor a grade in {text[-120:]!r}")
    return TurnVote(judge=judge, labels=labels, grades=grades)


async def judge_turn(
    judges: Mapping[str, Ask], scenario: Scenario, trace: Trace, turn: int, config: SageConfig
) -> TurnJudgement:
    """Collect the votes on one turn. A judge's failure is stored in its vote and never raised."""

    def read(name: str, text: str) -> TurnVote:
        return read_vote(name, text, scenario)

    votes = await ask_judges(TurnVote, judges, judge_question(scenario, trace, turn), (trace.plan, turn), config, read)
    return TurnJudgement(agent=trace.agent, dialogue=trace.plan.id, turn=turn, votes=votes)


Vote = TypeVar("Vote", bound=JudgeVote)


async def ask_judges(
    kind: type[Vote],
    judges: Mapping[str, Ask],
    question: Question,
    about: tuple[DialoguePlan, object],
    config: SageConfig,
    read: Callable[[str, str], Vote],
) -> tuple[Vote, ...]:
    """Return every judge's vote. A judge's failure is stored in its vote and never raised.

    `about`: the dialogue and its part, from which each judge's seed follows. `read` parses a judge's text, given its
    name. It raises VerdictUnparsable.
    """
    plan, part = about
    asked = (
        _ask_judge(kind, name, ask, replace(question, seed=plan.seed_of(name, part)), config, partial(read, name))
        for name, ask in judges.items()
    )
    return tuple(await asyncio.gather(*asked))


async def _ask_judge(
    kind: type[Vote], name: str, ask: Ask, question: Question, config: SageConfig, read: Callable[[str], Vote]
) -> Vote:
    """Ask one judge; retry unparseable answers (`reasks`) and transient failures (`attempts`)."""
    if AGAIN in name:
        question = replace(question, temperature=AGAIN_TEMPERATURE)
    unread = away = 0
    while True:
        answer = await ask(replace(question, attempt=unread))
        vote = _vote_of(kind, name, answer, read)
        unread += vote.failure == "unparsable"
        away += vote.failure in TRANSIENT
        if vote.failure is None or unread > config.reasks or away >= config.attempts:
            return vote
        if vote.failure in TRANSIENT:
            await asyncio.sleep(min(answer.retry_in_s or 0.0, config.longest_wait_s))


def _vote_of(kind: type[Vote], judge: str, answer: Answer, read: Callable[[str], Vote]) -> Vote:
    if answer.text is None:
        return kind(judge=judge, failure=answer.failure or "unparsable", detail=answer.detail[:300])
    try:
        return read(answer.text)
    except VerdictUnparsable as error:
        return kind(judge=judge, failure="unparsable", detail=str(error)[:300])


def _reply(scenario: Scenario, trace: Trace, index: int) -> str:
    return reply_of(read_turn(scenario, trace.turns[: index + 1]), trace.plan.language)


def _is_grade(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value in GRADES


def last_object(text: str) -> dict[str, Any]:
    """Return the last outermost JSON object. Raises VerdictUnparsable where there is none."""
    found = list(json_values(text, r"\{"))
    if not found:
        raise VerdictUnparsable(f"no JSON object in {text[-120:]!r}")
    return found[-1]
