"""The vocabulary: what flows between the rooms. Frozen, keyword-only, standard library only.

A worked example, from a prompt to a record:

>>> sample = ServiceSample(
...     id="s1", ticket={"Penalty": 0}, policy="Help the customer.", tools=(),
...     history=(Turn(role="customer", content="Hi, cancel my plan."),),
...     references=(Reference(action=Reply(content="May I ask why?")),))
>>> rollout = Rollout(key=SampleKey(run="r", step=0, prompt="s1", sample=0), text="Why is that?",
...                   token_ids=(5, 6), logprobs=(-0.1, -0.2), versions=(VersionSpan(version=0, start=0, end=2),),
...                   finish_reason="stop", prompt_ids=(1, 2, 3))
>>> Scored(value=0.0).ok, JudgeTimeout(detail="30 s").ok
(True, False)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["customer", "agent", "tool"]


# --- samples -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The agent says `content` to the customer."""

    content: str


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """The agent calls tool `name` with JSON-like `parameters`."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


Action = Reply | ToolCall


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of a dialogue. An agent's turn that called a tool has `tool_call` and no content;
    a tool's turn has the tool's `name` and its result as `content`."""

    role: Role
    content: str = ""
    tool_call: ToolCall | None = None
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One acceptable action. `source` says where it came from: logged, consistency, utility, ..."""

    action: Action
    source: str = "logged"


@dataclass(frozen=True, kw_only=True)
class ServiceSample:
    """One decision point of a service dialogue: everything before the agent's next action.

    `ticket` holds the system variables that the policy may see. `privileged` reaches judges and the
    simulator, never the policy; its `rubric`, if there is one, is what the rubric reward judges by
    (`hamr.rewards.rubric.sample_rubric`). `meta` is free for the builder of the data.
    """

    id: str
    ticket: Mapping[str, Any]
    policy: str
    tools: tuple[Mapping[str, Any], ...]
    history: tuple[Turn, ...]
    references: tuple[Reference, ...]
    privileged: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)


# --- responses ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SampleKey:
    """Identity of one response: (run, step, prompt, sample, attempt). The ledger's primary key."""

    run: str
    step: int
    prompt: str
    sample: int
    attempt: int = 0


@dataclass(frozen=True, kw_only=True)
class VersionSpan:
    """Tokens [start, end) of a response were sampled from policy `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One response of the policy. `logprobs[i]` is log p(token_ids[i]) under the policy that sampled
    it, at the sampling temperature (nats, <= 0). The end-of-sequence token is among `token_ids`."""

    key: SampleKey
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish_reason: Literal["stop", "length", "abort"]
    versions: tuple[VersionSpan, ...]
    seed: int | None = None
    seconds: float = 0.0
    siblings: int = 1
    """Responses that were asked for in this one's group, itself included: judges that compare wait for so many."""
    rescored: bool = False
    """Scored again, alone or beside those of its group that failed with it: the others have their rewards, so that
    nothing can be decided by looking at the group."""
    answer_tokens: int | None = None
    answer_s: float | None = None
    """Tokens and seconds up to the end of the answer, where more may follow it (post-CoT). None: it never ended, or
    nothing may follow, and the answer ends with the response."""

    @property
    def mean_logprob(self) -> float | None:
        """log p(response) / tokens; None without tokens, and where a token's is not finite."""
        total = math.fsum(self.logprobs) if all(map(math.isfinite, self.logprobs)) else math.nan
        return total / len(self.logprobs) if self.logprobs and math.isfinite(total) else None

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


# --- outcomes ----------------------------------------------------------------------------------


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


# --- records -----------------------------------------------------------------------------------

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


# --- questions to scorers ----------------------------------------------------------------------


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


# --- training ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TrainSequence:
    """One completion to learn from. `advantage` weighs its tokens; `old_logprobs` are the engine's
    (empty for supervised fine-tuning). `mask[i]` is False for tokens that carry no loss."""

    token_ids: tuple[int, ...]
    advantage: float = 1.0
    old_logprobs: tuple[float, ...] = ()
    mask: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainGroup:
    """Completions that share one prompt: the trainer computes the prompt once for all of them."""

    prompt_ids: tuple[int, ...]
    sequences: tuple[TrainSequence, ...]


Aggregation = Literal["token_mean", "sequence_mean"]
SftKind = Literal["decision", "decision_dra", "patm", "patm_dra", "decision_post"]
SftPart = Literal["rationale", "action", "environment"]
"""What a supervised target is, and what it is made of (`hamr.data.sft_items`)."""


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """One optimiser step's data. `loss` names the loss; `aggregation` says what counts alike in it: every completion
    token (`token_mean`), or every completion whatever its length (`sequence_mean`)."""

    groups: tuple[TrainGroup, ...]
    loss: Literal["policy", "sft"] = "policy"
    aggregation: Aggregation = "token_mean"

    @property
    def tokens(self) -> int:
        """Completion tokens that carry loss."""
        return sum(sum(s.mask) if s.mask else len(s.token_ids) for g in self.groups for s in g.sequences)
