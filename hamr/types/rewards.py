"""Reward records, and the questions to scorers with their answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hamr.types.outcomes import Absent, Failure, Outcome, Total
from hamr.types.rollouts import Rollout, SampleKey, VersionSpan
from hamr.types.samples import Action, ServiceSample

Fallback = Literal["reranker"]
"""Scorer that replaced an unavailable one."""
Band = Literal[
    "none", "type_mismatch", "tool_match", "verbatim", "repetition", "below", "inside", "above", "judge_only",
    "reranker_only",
]  # fmt: skip
AuditBy = Literal["judge", "ensemble", "rules", "file"]
"""Source of the answers to audits: the judge of the cascade, other judges, the data's rules, or a person's labels."""
MATCH_BANDS: tuple[Band, ...] = ("type_mismatch", "tool_match", "verbatim", "repetition")
"""Bands of the responses that need no scorer."""
CASCADE_BANDS: tuple[Band, ...] = ("below", "inside", "above")
"""Bands of the replies that Eq. 4 scores."""


@dataclass(frozen=True, kw_only=True)
class ReferenceScore:
    """Scores of one response against one reference. None: not scored.

    `dimensions`: by dimension of the consistency judge, whether the two agree in it. Empty unless its prompt asks for
    them.
    """

    reference: int
    s_r: float | None = None
    s_j: float | None = None
    verdict: str | None = None
    dimensions: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Component:
    """One term of the reward. `contribution` = weight x value, or None without a value."""

    name: str
    outcome: Outcome
    weight: float

    @property
    def contribution(self) -> float | None:
        """Part of the total reward: weight times value. None without a value."""
        return None if self.value is None else self.weight * self.value

    @property
    def value(self) -> float | None:
        """Number of the outcome. None for a failure or an absent outcome."""
        return None if isinstance(self.outcome, Failure | Absent) else self.outcome.value


@dataclass(frozen=True, kw_only=True)
class ScorerCall:
    """One question to a scorer, with its replica, latency and cost.

    `queue_s` and `service_s` are in seconds. `cost` is in the unit of the pool (its price per 1,000 tokens).
    `cached_tokens` prompt tokens were in the prefix cache of the replica. If the question was hedged to a second
    replica, `attempts` and `cost` include the losing call. It is counted at the cost of the winning call, because a
    cancelled call returns no usage.
    """

    pool: str
    model: str
    prompt_version: str = ""
    replica: str = ""
    queue_s: float = 0.0
    service_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    attempts: int = 1
    cost: float = 0.0
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class ItemScore:
    """Scores of one response on one rubric item: 1 if it passes. `s_j` is None if the judge was not asked."""

    weight: float
    s_r: float
    s_j: float | None = None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Parsed judgement of one response for one component. Sufficient to compute the outcome again.

    `grade`: 1 to 5. `labels`: types of risk, or the label of a hallucination. `items`: the weight of each rubric item
    and whether the response passes it. `item_scores`: the same where a reranker answers every item and the judge those
    in doubt. `compared`: number of responses in the prompt.
    """

    component: str
    grade: int | None = None
    labels: tuple[str, ...] = ()
    items: tuple[tuple[float, bool], ...] = ()
    item_scores: tuple[ItemScore, ...] = ()
    reason: str = ""
    compared: int = 1


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Audit of a reply. The judge audits those that it did not score, or not against all of their references; any
    other auditor (`by`) audits all replies of the cascade. With `judge_best_k` only so many references count, those
    with the highest reranker scores, and the decisive one.

    `s_r` and `s_j`, the auditor's score, belong to the decisive reference. `best` is the highest score of the auditor
    over the references. `mix` is the reward that follows: for the judge Eq. 4 with every reference outside the trust
    interval, the highest over the references; for any other auditor `best`. If the auditor failed for a reference,
    `failure` is the kind of its first failure, and `best` and `mix` are None; `s_j` is None if it failed for the
    decisive one.
    """

    s_r: float
    s_j: float | None = None
    best: float | None = None
    mix: float | None = None
    by: AuditBy = "judge"
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class RewardCorrection:
    """Correction of the consistency value of a reply by the audits of earlier steps (`hamr.calibration`).

    `value` is the cascade's value, `strata` are those of the reply, `propensity` is the probability with which it was
    drawn for an audit, `shift` is the mean residual in its strata. `residual` is `Audit.mix` - `value` if the audit was
    answered. `shared` is the `Audit.mix` of an identical reply of the group, for a reply without an answered audit.
    """

    value: float
    strata: tuple[str, ...]
    propensity: float
    shift: float
    residual: float | None = None
    shared: float | None = None

    @property
    def shifted_value(self) -> float:
        """Reward of the reply without an audit: the value plus the shift, in [0, 1]."""
        return min(1.0, max(0.0, self.value + self.shift))


EpisodeOutcome = Literal["ended", "max_turns", "context_full", "failed"]
"""End of an episode: its function ended it, a limit was reached, or it failed and has no reward."""


@dataclass(frozen=True, kw_only=True)
class EpisodeResult:
    """End of an episode. The record of its last turn holds it.

    `components`: the rewards of the episode as a whole, such as its completion. `path`: name of the customer's path
    through the procedure, for metrics.
    """

    outcome: EpisodeOutcome
    components: tuple[Component, ...] = ()
    path: str = ""
    total: float | None = None
    """The reward as it was trained on. None without rewards."""

    @property
    def reward(self) -> float | None:
        """Sum of the contributions. None without components, or if one has no value."""
        contributions = [c.contribution for c in self.components]
        known = [c for c in contributions if c is not None]
        return math.fsum(known) if known and len(known) == len(contributions) else None


@dataclass(frozen=True, kw_only=True)
class RewardRecord:
    """Everything that determined the reward of one response. Sufficient to compute the same number again offline.

    `total` is Scored only if no component with a non-zero weight failed. Otherwise it is the first such failure, and
    the response is excluded from the baseline of its group.

    `fallback` is set if the judge was unavailable and the reranker score alone replaced the mix of Eq. 4
    (`rewards.consistency.fallback: reranker`). Such a reward is a number, but it is not comparable to a full cascade
    reward.
    """

    key: SampleKey
    total: Total
    components: tuple[Component, ...] = ()
    action: Action | None = None
    band: Band = "none"
    reference_scores: tuple[ReferenceScore, ...] = ()
    calls: tuple[ScorerCall, ...] = ()
    s_r: float | None = None
    s_j: float | None = None
    response: str = ""
    response_tokens: int = 0
    versions: tuple[VersionSpan, ...] = ()
    seconds: float = 0.0
    judgements: tuple[Judgement, ...] = ()
    audit: Audit | None = None
    fallback: Fallback | None = None
    correction: RewardCorrection | None = None
    """None: the cascade's value is the reward (no correction configured, or the reranker alone did not decide)."""
    cascade: tuple[float, float, float, float] | None = None
    """(tau_a, tau_b, w1, w2) in force. None without a cascade (another mode)."""
    mean_logprob: float | None = None
    """Length-normalised log-probability of the response under the policy that sampled it (nats, <= 0). None if unknown
    (a response from a file, a token of probability 0)."""
    answer_tokens: int | None = None
    answer_s: float | None = None
    """Tokens and seconds from the request to the end of the answer: before the rationale in post-CoT, otherwise to the
    end of the response. None if unknown (a response from a file)."""
    observation: str = ""
    """In a dialogue: what the policy read before this turn, such as the customer's message or a tool's result."""
    episode: EpisodeResult | None = None
    """In a dialogue: its end, with its last turn. None for all other turns and for single decisions."""

    @property
    def reward(self) -> float | None:
        """Total reward. None if scoring failed."""
        return None if isinstance(self.total, Failure) else self.total.value


@dataclass(frozen=True, kw_only=True)
class RolloutGroup:
    """The N responses to one prompt, or the turns of N dialogues with one customer, dialogue by dialogue.

    `records` are in the same order as `rollouts`. A dialogue that failed before its first turn has one rollout without
    tokens.
    """

    sample: ServiceSample
    rollouts: tuple[Rollout, ...]
    records: tuple[RewardRecord, ...]
    points: tuple[ServiceSample, ...] = ()
    """In dialogues: the decision point of each response. Empty: `sample` is that of all responses."""

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Total reward of each response. None if scoring failed."""
        return tuple(record.reward for record in self.records)


@dataclass(frozen=True, kw_only=True)
class RequestedCall:
    """A tool call as a model wrote it. `arguments` should be the JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question to a pool.

    Without `prompt` and `messages`, the pool renders its own template with `variables` and answers with a label. The
    consistency scorers use the variables `history`, `statement_a` (the reference) and `statement_b` (the response).

    `prompt` is the name of a template that asks for a written answer. The pool renders it, with `each` as the entries
    of a list in it, and answers with `Answer.text`. `schema` is the JSON schema of the answer, for engines with
    constrained decoding. `attempt` above 0 retries an unparseable answer; greedy decoding would repeat it.

    With `messages` ({"role", "content"} each) the pool answers with the next message of that conversation, as
    `Answer.text`. `variables` is then empty. `tools` are OpenAI function schemas for an endpoint or a function, whose
    calls are in `Answer.tool_calls`; the messages may then have `tool_calls` and the role `tool`.

    `temperature` and `max_new_tokens` apply to written answers. None: greedy at the first attempt, and the
    `answer_tokens` of the pool. `seed` distinguishes samples of the same question. A written answer ends before the
    first text in `stop`. With `logprobs`, the answer has `mean_logprob` where the model returns log-probabilities.

    `affinity` names the group. Its questions share a prompt prefix.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    affinity: str = ""
    prompt: str = ""
    each: tuple[Mapping[str, str], ...] = ()
    schema: Mapping[str, Any] | None = None
    attempt: int = 0
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    temperature: float | None = None
    max_new_tokens: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: bool = False

    @property
    def is_written(self) -> bool:
        """True if the answer is a text instead of a label of the pool's own prompt."""
        return bool(self.prompt or self.messages)


TRANSIENT = ("timeout", "unavailable")
"""Failures of an answer that concern the pool and not the question, so that a retry may succeed."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer of a pool. Exactly one of `score` (in [0, 1]) and `failure` is set. For a question with its own prompt or
    messages, exactly one of `text` and `failure` is set. `text` may be empty next to `tool_calls`.

    `probabilities` are those of the labels at the verdict position, renormalised over the labels. `label_mass` is their
    sum before renormalisation (a low mass means that the model preferred another token).

    `retry_in_s` comes with a refusal: the question was not sent, because the circuit breaker of the pool is open or its
    endpoint is rate-limited. Retrying earlier fails again.

    `mean_logprob`: log p(written answer) / tokens in nats, if the question asked for it.
    """

    score: float | None = None
    verdict: str | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)
    label_mass: float = 0.0
    reasoning: str = ""
    text: str | None = None
    tool_calls: tuple[RequestedCall, ...] = ()
    failure: Literal["timeout", "unparsable", "unavailable", "function_failed", "function_timeout"] | None = None
    detail: str = ""
    call: ScorerCall | None = None
    retry_in_s: float | None = None
    mean_logprob: float | None = None

    @property
    def is_cut_off(self) -> bool:
        """Return whether the requested text was truncated. `reasoning` then has the part before the cut."""
        return self.text is None and self.failure == "unparsable" and bool(self.reasoning)
