"""Reward records, and the questions to scorers with their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hamr.types.outcomes import Absent, Failure, Outcome, Total
from hamr.types.rollouts import Rollout, SampleKey, VersionSpan
from hamr.types.samples import Action, ServiceSample

Fallback = Literal["reranker"]
"""Who stood in for a scorer that was away."""
Band = Literal[
    "none", "type_mismatch", "tool_match", "verbatim", "below", "inside", "above", "skipped", "judge_only",
    "reranker_only"
]  # fmt: skip
"""`skipped`: the cascade wanted the judge, whose word could not have changed the group (`hamr.cascade.group_aware`)."""


@dataclass(frozen=True, kw_only=True)
class ReferenceScore:
    """What the scorers said of one response against one reference. None: not asked."""

    reference: int
    s_r: float | None = None
    s_j: float | None = None
    verdict: str | None = None


@dataclass(frozen=True, kw_only=True)
class Component:
    """One term of the reward. `contribution` = weight x value, or None where there is no value."""

    name: str
    outcome: Outcome
    weight: float

    @property
    def contribution(self) -> float | None:
        return None if self.value is None else self.weight * self.value

    @property
    def value(self) -> float | None:
        """The outcome's number; None for a failure and for what is absent."""
        return None if isinstance(self.outcome, Failure | Absent) else self.outcome.value


@dataclass(frozen=True, kw_only=True)
class ScorerCall:
    """One question put to a scorer: who answered, how long it took, what it cost.

    `queue_s` and `service_s` in seconds; `cost` in the pool's own unit (its price per 1,000 tokens). `cached_tokens` of
    the prompt were in the replica's prefix cache. Where the question was put to a second replica beside the first
    (hedging), the loser counts in `attempts` and in `cost`, as dear as the answer that came: a cancelled call sends no
    bill.
    """

    pool: str
    model: str
    prompt_version: str
    replica: str
    queue_s: float
    service_s: float
    prompt_tokens: int
    output_tokens: int
    attempts: int = 1
    cost: float = 0.0
    cached_tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a judge said of one response for one component, as it was read: enough to compute the outcome again.

    `grade`: 1 to 5, as given. `labels`: what was found (types of risk, a hallucination's label). `items`: per item of
    the rubric its weight and whether the response passes it. `compared`: responses that stood in the prompt.
    """

    component: str
    grade: int | None = None
    labels: tuple[str, ...] = ()
    items: tuple[tuple[float, bool], ...] = ()
    reason: str = ""
    compared: int = 1


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What the judge said of a reply that it had not been asked about, or not about all of its references.

    `s_r`, `s_j`: of the reference that decided. `best`: the highest S_J over all references, which a judge for all
    would have given. Both are None where the judge failed, `best` in older ledgers too.
    """

    s_r: float
    s_j: float | None = None
    best: float | None = None


@dataclass(frozen=True, kw_only=True)
class RewardRecord:
    """Everything that made one response's reward; enough to compute the same number again offline.

    `total` is Scored only if no component with a non-zero weight failed; otherwise it is the first
    failure among them, and the response takes no part in its group's baseline.

    `fallback` says that the judge was away and the reranker's score alone made what Eq. 4 would have mixed
    (`rewards.consistency.fallback: reranker`); such a reward is a number, but not the one that was meant.
    """

    key: SampleKey
    total: Total
    components: tuple[Component, ...]
    action: Action | None
    band: Band
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
    cascade: tuple[float, float, float, float] | None = None
    """(tau_a, tau_b, w1, w2) that were in force; None where no cascade was (another mode, or an older ledger)."""
    mean_logprob: float | None = None
    """Of the response's tokens under the policy that sampled it (nats, <= 0): its length-normalised log-probability.
    None where nobody knows it (a response from a file, a token of probability 0, an older ledger)."""
    answer_tokens: int | None = None
    answer_s: float | None = None
    """Tokens and seconds from the request to the end of the answer: in post-CoT before its rationale, else to the
    response's own end. None where nobody knows (a response from a file, an older ledger)."""


@dataclass(frozen=True, kw_only=True)
class RolloutGroup:
    """The N responses to one prompt, with their records in the same order."""

    sample: ServiceSample
    rollouts: tuple[Rollout, ...]
    records: tuple[RewardRecord, ...]

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Total reward per response; None where scoring failed."""
        return tuple(None if isinstance(r.total, Failure) else r.total.value for r in self.records)


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question to a pool.

    Without `prompt` the pool renders its own template with `variables` and answers with a label. For the consistency
    scorers: `history`, `statement_a` (the reference), `statement_b` (the response).

    With `prompt`, the name of a template that asks for a written answer, it renders that one, with `each` as the
    entries of a list in it, and answers with `Answer.text`. `schema` is the JSON schema of such an answer, for engines
    that can hold a model to it. `attempt` above 0 asks again what could not be read: greedy decoding would repeat it.

    With `messages` ({"role", "content"} each) it asks for the next message of that conversation, as `Answer.text`;
    `variables` is then empty.

    `temperature` and `max_new_tokens` are for written answers; None: greedy at the first attempt, and the pool's
    `answer_tokens`. `seed` tells apart questions that are sampled from the same words.
    A written answer ends where one of the texts of `stop` would come, which is then not part of it.

    `affinity` names the group: its questions share a prompt prefix.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    affinity: str = ""
    prompt: str = ""
    each: tuple[Mapping[str, str], ...] = ()
    schema: Mapping[str, Any] | None = None
    attempt: int = 0
    messages: tuple[Mapping[str, str], ...] = ()
    temperature: float | None = None
    max_new_tokens: int | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()

    @property
    def written(self) -> bool:
        """Whether the answer is a text, and no label of the pool's own prompt."""
        return bool(self.prompt or self.messages)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a pool said. Either `score` (in [0, 1]) or `failure` is set, never both; to a question that brings its own
    prompt, `text` or `failure`.

    `probabilities` are those of the labels at the verdict position, renormalised over the labels;
    `label_mass` is what they summed to before (a low mass means that the model wanted to say something else).

    `retry_in_s` comes with a refusal: the question was put to nobody, because the pool's breaker is open or its
    endpoint takes no more for now, and asking again sooner is no use.
    """

    score: float | None = None
    verdict: str | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)
    label_mass: float = 0.0
    reasoning: str = ""
    text: str | None = None
    failure: Literal["timeout", "unparsable", "unavailable"] | None = None
    detail: str = ""
    call: ScorerCall | None = None
    retry_in_s: float | None = None
