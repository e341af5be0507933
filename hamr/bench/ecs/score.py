"""Ensemble-Consistency Score (first paper, Eq. 1, sections 3.1 and 4.1): is a response as good as an acceptable one?

S_ECS(x, y) = max over references y* of J_con(x, y, y*), where J_con is the mean of an ensemble of consistency judges:
first the mean, then the maximum. Multi-ECS uses all references, Single-ECS only the logged one. In [0, 1].

A failed vote is missing and is left out of its mean. A reference without any vote is left out of the maximum. A
response without a vote on any reference has no score, which is never 0. Cases that need no judge are exact: a malformed
response, and one of another type than its references, is 0; a tool call is 1 if it equals a reference, else 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from hamr.config.matching import MatchingConfig
from hamr.data.actions import ResponseFormat, parse_action
from hamr.rewards.matching import MatchRules, match_action
from hamr.types import Action, MalformedResponse, Reply, ServiceSample, ToolCall

MatchKind = Literal["malformed", "type_mismatch", "tool_call", "reply"]
Votes = Sequence[float | None]
"""One vote per judge, in [0, 1]; None: it failed."""

LOGGED = ("logged", "generated")
"""Sources of the reference of Single-ECS. Generated dialogues have no log: their first reference takes its place."""


def ecs(scores: Sequence[Sequence[Votes]]) -> list[float | None]:
    """Return, per item, the maximum over references of the mean over judges of `scores[item][reference][judge]`.

    None for an item without any vote.

    >>> ecs([[[1.0, 0.5], [0.0, 1.0]], [[0.5, None], [None, None]], [[None]]])
    [0.75, 0.5, None]

    Raises ValueError for a score outside [0, 1].
    """
    means = ([mean for votes in references if (mean := mean_vote(votes)) is not None] for references in scores)
    return [max(of_item, default=None) for of_item in means]


def mean_vote(votes: Votes) -> float | None:
    """Return J_con: the mean over the judges that voted; None without votes.

    Raises ValueError for a score outside [0, 1].
    """
    cast = [vote for vote in votes if vote is not None]
    for vote in cast:
        if not 0.0 <= vote <= 1.0:
            raise ValueError(f"{vote!r} is not a score in [0, 1]")
    # Rounding may move the sum slightly outside [0, 1].
    return min(1.0, fmean(cast)) if cast else None


# --- one response ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EcsPlan:
    """State of a response before judging.

    `ask`: the references (by index) that judges compare it with. `logged`: the first logged reference, None where all
    were added later.
    """

    sample: ServiceSample
    text: str
    index: int
    action: Action | None
    kind: MatchKind
    ask: tuple[int, ...]
    logged: int | None
    exact: float | None
    """The score against all references where no judge is needed."""
    rules: MatchRules = field(default_factory=MatchRules)


@dataclass(frozen=True, kw_only=True)
class EcsScores:
    """A response's scores.

    `multi` and `single` are None where they are not known. `call`: where a tool call is expected, whether the response
    equals one of the references; None elsewhere. `logged`: whether the sample has a logged reference, without which
    there is no `single`.
    """

    id: str
    index: int
    kind: MatchKind
    multi: float | None
    single: float | None
    call: bool | None
    logged: bool
    votes: Mapping[int, tuple[float | None, ...]]


def plan_response(
    sample: ServiceSample,
    text: str,
    index: int,
    response_format: ResponseFormat,
    matching: MatchingConfig | None = None,
) -> EcsPlan:
    """Compare the response's action with its references (section 3.3: the types first, then exact parameters).

    `matching` decides which parameters of tool calls agree.
    """
    rules = MatchRules(leniency=matching or MatchingConfig())
    logged = next((i for i, reference in enumerate(sample.references) if reference.source in LOGGED), None)
    parsed = parse_action(text, response_format)
    action = None if isinstance(parsed, MalformedResponse) else parsed
    match = None if action is None else match_action(action, sample.references, rules)
    return EcsPlan(
        sample=sample,
        text=text,
        index=index,
        action=action,
        kind="malformed" if match is None else match.kind,
        ask=() if match is None else match.ask,
        logged=logged,
        exact=0.0 if match is None else match.score,
        rules=rules,
    )


def score_response(plan: EcsPlan, votes: Mapping[int, Votes]) -> EcsScores:
    """Return the scores that follow from the judges' votes on every reference of `plan.ask`.

    Multi is at least Single wherever both are known, since the logged reference is one of all references.
    """
    held = {reference: tuple(votes[reference]) for reference in plan.ask}
    multi = ecs([list(held.values())])[0] if plan.ask else plan.exact
    single = None if plan.logged is None else _against(plan, plan.logged, held)
    return EcsScores(
        id=plan.sample.id,
        index=plan.index,
        kind=plan.kind,
        multi=multi,
        single=single,
        call=plan.kind == "tool_call" and plan.exact == 1.0 if _call_due(plan) else None,
        logged=plan.logged is not None,
        votes=held,
    )


def _call_due(plan: EcsPlan) -> bool:
    """Return whether a tool call was logged, or, without a logged action, all references are tool calls."""
    references = plan.sample.references
    due = references if plan.logged is None else [references[plan.logged]]
    return all(isinstance(reference.action, ToolCall) for reference in due)


def _against(plan: EcsPlan, reference: int, votes: Mapping[int, Votes]) -> float | None:
    if reference in votes:
        return mean_vote(votes[reference])
    if plan.action is None or isinstance(plan.action, Reply):
        return 0.0  # malformed, or a reply where a tool was called
    return match_action(plan.action, [plan.sample.references[reference]], plan.rules).score
