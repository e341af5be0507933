"""Records that packages exchange: frozen, keyword-only, standard library only.

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

from hamr.types.batches import (
    Aggregation,
    Credit,
    ImportanceLevel,
    PolicyAggregation,
    SftKind,
    SftPart,
    TrainBatch,
    TrainGroup,
    TrainSequence,
)
from hamr.types.episodes import TURN_REWARD, AskPolicy, Episode, EpisodeFunction, EpisodeLimit, Messages
from hamr.types.outcomes import (
    Absent,
    Failure,
    FunctionFailed,
    FunctionTimeout,
    JudgeTimeout,
    JudgeUnavailable,
    JudgeUnparsable,
    MalformedResponse,
    NotScored,
    Outcome,
    RerankerTimeout,
    RerankerUnavailable,
    Scored,
    Stale,
    Total,
    Vetoed,
)
from hamr.types.rewards import (
    CASCADE_BANDS,
    TRANSIENT,
    Answer,
    Audit,
    Band,
    Component,
    EpisodeOutcome,
    EpisodeResult,
    Fallback,
    Judgement,
    Question,
    ReferenceScore,
    RequestedCall,
    RewardRecord,
    RolloutGroup,
    ScorerCall,
)
from hamr.types.rollouts import Rollout, SampleKey, VersionSpan, derive_seed
from hamr.types.samples import Action, Reference, Reply, Role, ServiceSample, ToolCall, Turn

__all__ = [
    "CASCADE_BANDS",
    "TRANSIENT",
    "TURN_REWARD",
    "Absent",
    "Action",
    "Aggregation",
    "Answer",
    "AskPolicy",
    "Audit",
    "Band",
    "Component",
    "Credit",
    "Episode",
    "EpisodeFunction",
    "EpisodeLimit",
    "EpisodeOutcome",
    "EpisodeResult",
    "Failure",
    "Fallback",
    "FunctionFailed",
    "FunctionTimeout",
    "ImportanceLevel",
    "JudgeTimeout",
    "JudgeUnavailable",
    "JudgeUnparsable",
    "Judgement",
    "MalformedResponse",
    "Messages",
    "NotScored",
    "Outcome",
    "PolicyAggregation",
    "Question",
    "Reference",
    "ReferenceScore",
    "Reply",
    "RequestedCall",
    "RerankerTimeout",
    "RerankerUnavailable",
    "RewardRecord",
    "Role",
    "Rollout",
    "RolloutGroup",
    "SampleKey",
    "Scored",
    "ScorerCall",
    "ServiceSample",
    "SftKind",
    "SftPart",
    "Stale",
    "ToolCall",
    "Total",
    "TrainBatch",
    "TrainGroup",
    "TrainSequence",
    "Turn",
    "VersionSpan",
    "Vetoed",
    "derive_seed",
]
