"""Assessment of a turn: the judges' consensus, the rule engine's reference, and the agent's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hamr.bench.sage.judging import Consensus, TurnJudgement, TurnVote, assessed_turns, consensus
from hamr.bench.sage.traces import Trace, read_turn
from hamr.config.sage import SageConfig
from hamr.procedures.contract import AgentOutput, OutputReading, words
from hamr.procedures.graph import Scenario
from hamr.procedures.schema import Value
from hamr.procedures.scores import (
    LogicScore,
    SageReference,
    classification,
    departure,
    logic_score,
    overall,
    reference_of,
)

NOTHING = LogicScore(classification=0.0, path=0.0, action=0.0, logic=0.0)
NO_ACTION = LogicScore(classification=None, path=None, action=0.0, logic=None)
"""Score of an unreadable turn of an agent with tools, which states neither labels nor a path."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """Scores of one turn by some judges' votes, each in [0, 100].

    None: not known (a label that the procedure needs is missing, no grades), or left out since the turn cannot be
    parsed.
    """

    logic: LogicScore | None
    chat: float | None
    overall: float | None


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """One assessed turn.

    `alone`: its scores by each single judge. `grades`: mean of the judges' grades per dimension. `passed` and
    `departed`: the nodes of the right path as far as the agent followed it, and the node at which it left it, or took
    another action (None: it did not).

    At the last turn, when the customer has shown everything, `truth` is the logic score against the customer's assigned
    case (inverse configuration: without a judge), by the fields that decide its path. `judges_right` is the share of
    those fields that the consensus labels correctly. None at other turns, and where nothing was parsed or voted.
    """

    agent: str
    scenario: str
    dialogue: str
    level: str
    intent: str
    turn: int
    last: bool
    faults: tuple[str, ...]
    fenced: bool
    readable: bool
    chat_words: int | None
    consensus: Consensus | None
    reference: SageReference | None
    worth: Worth
    alone: Mapping[str, Worth]
    grades: Mapping[str, float]
    truth: LogicScore | None
    judges_right: float | None
    passed: tuple[str, ...]
    departed: str | None

    @property
    def counts(self) -> bool:
        """Return whether the turn has a score, or none because it cannot be parsed. False where no judge voted."""
        return not self.readable or any(v is not None for v in (self.worth.logic, self.worth.chat, self.truth))


def needs_judges(trace: Trace, scenario: Scenario) -> list[int]:
    """Return the assessed turns of a finished dialogue that judges have to see: those that can be parsed."""
    turns = assessed_turns(len(trace.turns))
    return [turn for turn in turns if _reading(trace, turn, scenario).output is not None]


def assess(
    scenario: Scenario, trace: Trace, judgements: Mapping[int, TurnJudgement], config: SageConfig
) -> list[Assessment]:
    """Return every assessed turn of a dialogue, in order. A turn without a judgement has no scores, but its faults
    count."""
    return [_assess(scenario, trace, turn, judgements.get(turn), config) for turn in assessed_turns(len(trace.turns))]


def _assess(
    scenario: Scenario, trace: Trace, turn: int, judgement: TurnJudgement | None, config: SageConfig
) -> Assessment:
    reading = _reading(trace, turn, scenario)
    votes = judgement.votes if judgement is not None and reading.output is not None else ()
    held = consensus(votes, scenario, config.tie) if votes else None
    reference = reference_of(scenario, held.fields, trace.plan.system) if held is not None else None
    passed, departed = _way(reading.output, reference)
    last = turn == len(trace.turns)
    return Assessment(
        agent=trace.agent,
        scenario=scenario.name,
        dialogue=trace.plan.id,
        level=trace.plan.level,
        intent=trace.plan.intent,
        turn=turn,
        last=last,
        faults=reading.kinds,
        fenced=trace.turns[turn - 1].fenced,
        readable=reading.output is not None,
        chat_words=None if reading.output is None else words(reading.output.chat),
        consensus=held,
        reference=reference,
        worth=_worth(scenario, trace, reading.output, votes, config, last=last),
        alone={vote.judge: _worth(scenario, trace, reading.output, (vote,), config, last=last) for vote in votes},
        grades=_mean_grades(votes),
        truth=_truth(scenario, trace, reading.output, config) if last else None,
        judges_right=_judges_right(held, _deciding(scenario, trace)) if last and held is not None else None,
        passed=passed,
        departed=departed,
    )


def _reading(trace: Trace, turn: int, scenario: Scenario) -> OutputReading:
    return read_turn(scenario, trace.turns[:turn])


def _worth(
    scenario: Scenario,
    trace: Trace,
    output: AgentOutput | None,
    votes: Sequence[TurnVote],
    config: SageConfig,
    *,
    last: bool,
) -> Worth:
    if output is None and config.unreadable == "zero":
        acts = trace.turns[-1].calls is not None
        return Worth(logic=NO_ACTION if acts else NOTHING, chat=0.0, overall=None if acts else 0.0)
    if output is None or not votes:
        return Worth(logic=None, chat=None, overall=None)
    held = consensus(votes, scenario, config.tie)
    reference = reference_of(scenario, held.fields, trace.plan.system)
    logic = None
    if reference is not None:
        logic = logic_score(output, reference, scenario, path=config.path, action=config.action, last=last)
    together = None
    if logic is not None and logic.logic is not None and held.quality is not None:
        together = overall(logic.logic, held.quality, scenario.file.metrics)
    return Worth(logic=logic, chat=held.quality, overall=together)


def _truth(scenario: Scenario, trace: Trace, output: AgentOutput | None, config: SageConfig) -> LogicScore | None:
    if not trace.plan.fields or (output is None and config.unreadable == "left_out"):
        return None
    if output is None:
        return NOTHING if trace.turns[-1].calls is None else NO_ACTION
    reference = reference_of(scenario, _deciding(scenario, trace), trace.plan.system)
    assert reference is not None, "the deciding fields lead to the end"
    return logic_score(output, reference, scenario, path=config.path, action=config.action)


def _judges_right(held: Consensus, deciding: Mapping[str, Value]) -> float | None:
    """Return the share of correct labels among the fields with a label; None without labels. Missing labels are not
    errors."""
    voted = {name: value for name, value in deciding.items() if name not in held.unvoted}
    return classification(held.fields, voted) if voted else None


def _deciding(scenario: Scenario, trace: Trace) -> dict[str, Value]:
    """Return the customer's own fields that its path reads; it may never have had a reason to mention the others."""
    fields = trace.plan.fields
    read = scenario.walk(fields, trace.plan.system).read
    return {name: value for name, value in fields.items() if name in read} or dict(fields)


def _mean_grades(votes: Sequence[TurnVote]) -> dict[str, float]:
    graded = [vote.grades for vote in votes if vote.quality is not None]
    return {name: sum(grades[name] for grades in graded) / len(graded) for name in graded[0]} if graded else {}


def _way(output: AgentOutput | None, reference: SageReference | None) -> tuple[tuple[str, ...], str | None]:
    if output is None or reference is None or output.acts:
        return (), None
    common = departure(output.path, reference.path)
    if output.path == reference.path:
        return reference.nodes, None if output.action == reference.action else reference.nodes[-1]
    passed = reference.nodes[: max(1, common)]
    return passed, passed[-1]
