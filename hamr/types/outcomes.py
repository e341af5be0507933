"""Outcomes: a score, a malformed response, or a typed failure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A score was given. `value` is in the range that the component declares."""

    value: float
    ok = True
    kind = "scored"


@dataclass(frozen=True, kw_only=True)
class MalformedResponse:
    """The policy's response is no action. That is the policy's own fault, so the score is a genuine 0."""

    detail: str = ""
    value = 0.0
    ok = True
    kind = "malformed_response"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """No score could be had. Never a number: it leaves the group's baseline and gets advantage 0."""

    detail: str = ""
    ok = False
    kind = "failure"


@dataclass(frozen=True, kw_only=True)
class RerankerUnavailable(Failure):
    kind = "reranker_unavailable"


@dataclass(frozen=True, kw_only=True)
class RerankerTimeout(Failure):
    kind = "reranker_timeout"


@dataclass(frozen=True, kw_only=True)
class JudgeTimeout(Failure):
    kind = "judge_timeout"


@dataclass(frozen=True, kw_only=True)
class JudgeUnparsable(Failure):
    kind = "judge_unparsable"


@dataclass(frozen=True, kw_only=True)
class JudgeUnavailable(Failure):
    kind = "judge_unavailable"


@dataclass(frozen=True, kw_only=True)
class Absent:
    """The sample gives this component nothing to judge (no rubric, say). It is not counted: no number, no failure."""

    detail: str = ""
    ok = True
    kind = "absent"


@dataclass(frozen=True, kw_only=True)
class Vetoed(Absent):
    """Not asked, because the veto that `detail` names had fired. Not counted either."""

    kind = "vetoed"


Total = Scored | MalformedResponse | Failure
"""How a response's whole reward may end."""
Outcome = Total | Absent
"""How one component of it may end."""
