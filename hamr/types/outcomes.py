"""Outcomes: a score, a malformed response, or a typed failure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A score. `value` is in the range that the component declares."""

    value: float
    ok = True
    kind = "scored"


@dataclass(frozen=True, kw_only=True)
class MalformedResponse:
    """A response that does not parse as an action. The policy is at fault, so the score is a genuine 0."""

    detail: str = ""
    value = 0.0
    ok = True
    kind = "malformed_response"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """No score is available. A failure is never a number: it is excluded from the group's baseline and has advantage
    0."""

    detail: str = ""
    ok = False
    kind = "failure"


@dataclass(frozen=True, kw_only=True)
class RerankerUnavailable(Failure):
    """The reranker's pool could not answer."""

    kind = "reranker_unavailable"


@dataclass(frozen=True, kw_only=True)
class RerankerTimeout(Failure):
    """The reranker did not answer within the deadline."""

    kind = "reranker_timeout"


@dataclass(frozen=True, kw_only=True)
class JudgeTimeout(Failure):
    """The judge did not answer within the deadline."""

    kind = "judge_timeout"


@dataclass(frozen=True, kw_only=True)
class JudgeUnparsable(Failure):
    """The judge's answer cannot be parsed."""

    kind = "judge_unparsable"


@dataclass(frozen=True, kw_only=True)
class JudgeUnavailable(Failure):
    """The judge's pool could not answer."""

    kind = "judge_unavailable"


@dataclass(frozen=True, kw_only=True)
class LabelMissing(Failure):
    """The file of labels that answers audits has no row for this reply."""

    kind = "label_missing"


@dataclass(frozen=True, kw_only=True)
class FunctionFailed(Failure):
    """A user's reward or episode function raised an exception or returned something else, or its process ended."""

    kind = "function_failed"


@dataclass(frozen=True, kw_only=True)
class FunctionTimeout(Failure):
    """A user's reward or episode function did not return before its deadline."""

    kind = "function_timeout"


@dataclass(frozen=True, kw_only=True)
class FaultyCustomer(Failure):
    """The simulated customer of a dialogue has a fault, so that its rewards say nothing about the policy."""

    kind = "faulty_customer"


@dataclass(frozen=True, kw_only=True)
class CustomerUnavailable(Failure):
    """A pool that plays or reads the simulated customer of a dialogue did not answer."""

    kind = "customer_unavailable"


@dataclass(frozen=True, kw_only=True)
class NotScored(Failure):
    """A generated response whose score was not asked for."""

    kind = "not_scored"


@dataclass(frozen=True, kw_only=True)
class Stale(Failure):
    """A scored response that no step trained on: its policy became too old, or the step had enough groups."""

    kind = "stale"


@dataclass(frozen=True, kw_only=True)
class Absent:
    """The sample has nothing to judge for this component (for example no rubric). Not counted: neither number nor
    failure."""

    detail: str = ""
    ok = True
    kind = "absent"


@dataclass(frozen=True, kw_only=True)
class Vetoed(Absent):
    """Not scored because the veto named in `detail` fired. Not counted either."""

    kind = "vetoed"


Total = Scored | MalformedResponse | Failure
"""Possible outcomes of the total reward of a response."""
Outcome = Total | Absent
"""Possible outcomes of one reward component."""
