"""Records for the tests: any record (hypothesis) and hand-made ones."""

from typing import get_args

from hypothesis import strategies as st

from hamr.types import (
    Absent,
    Audit,
    Component,
    EpisodeResult,
    Failure,
    Judgement,
    JudgeTimeout,
    JudgeUnavailable,
    JudgeUnparsable,
    MalformedResponse,
    ReferenceScore,
    Reply,
    RerankerTimeout,
    RerankerUnavailable,
    RewardCorrection,
    RewardRecord,
    SampleKey,
    Scored,
    ScorerCall,
    ToolCall,
    VersionSpan,
    Vetoed,
)
from hamr.types.rewards import Band

FAILURES = [Failure, JudgeTimeout, JudgeUnavailable, JudgeUnparsable, RerankerTimeout, RerankerUnavailable]
BANDS = get_args(Band)

numbers = st.floats(allow_nan=False, allow_infinity=False)
scores = st.none() | numbers
counts = st.integers(0, 2**40)
text = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
outcomes = (
    st.builds(Scored, value=numbers)
    | st.builds(MalformedResponse, detail=text)
    | st.sampled_from(FAILURES).flatmap(lambda cls: st.builds(cls, detail=text))
)
unasked = st.builds(Absent, detail=text) | st.builds(Vetoed, detail=text)
actions = (
    st.none()
    | st.builds(Reply, content=text)
    | st.builds(ToolCall, name=text, parameters=st.dictionaries(text, json_values, max_size=3))
)
keys = st.builds(SampleKey, run=text, step=counts, prompt=text, sample=counts, attempt=counts, turn=counts)


def tuples(strategy):
    return st.lists(strategy, max_size=3).map(tuple)


records = st.builds(
    RewardRecord,
    key=keys,
    total=outcomes,
    components=tuples(st.builds(Component, name=text, outcome=outcomes | unasked, weight=numbers)),
    action=actions,
    band=st.sampled_from(BANDS),
    reference_scores=tuples(
        st.builds(ReferenceScore, reference=counts, s_r=scores, s_j=scores, verdict=st.none() | text)
    ),
    calls=tuples(
        st.builds(
            ScorerCall,
            pool=text,
            model=text,
            prompt_version=text,
            replica=text,
            queue_s=numbers,
            service_s=numbers,
            prompt_tokens=counts,
            output_tokens=counts,
            attempts=st.integers(1, 5),
            cost=numbers,
            cached_tokens=counts,
        )
    ),
    s_r=scores,
    s_j=scores,
    response=text,
    response_tokens=counts,
    versions=tuples(st.builds(VersionSpan, version=counts, start=counts, end=counts)),
    seconds=numbers,
    observation=text,
    episode=st.none()
    | st.builds(
        EpisodeResult,
        outcome=st.sampled_from(["ended", "max_turns", "context_full", "failed"]),
        components=tuples(st.builds(Component, name=text, outcome=outcomes, weight=numbers)),
        path=text,
    ),
    judgements=tuples(
        st.builds(
            Judgement,
            component=text,
            grade=st.none() | st.integers(1, 5),
            labels=tuples(text),
            items=tuples(st.tuples(numbers, st.booleans())),
            reason=text,
            compared=counts,
        )
    ),
    audit=st.none() | st.builds(Audit, s_r=numbers, s_j=scores, best=scores, mix=scores),
    correction=st.none()
    | st.builds(
        RewardCorrection, value=numbers, strata=tuples(text), propensity=numbers, shift=numbers, residual=scores
    ),
    fallback=st.none() | st.just("reranker"),
    cascade=st.none() | st.tuples(numbers, numbers, numbers, numbers),
    mean_logprob=scores,
    answer_tokens=st.none() | counts,
    answer_s=scores,
)


def record(sample=0, total=1.0, *, step=1, prompt="p", band="inside", components=(), **more):
    """A record with a total reward (a number or an outcome)."""
    outcome = Scored(value=total) if isinstance(total, int | float) else total
    return RewardRecord(
        key=SampleKey(run="r", step=step, prompt=prompt, sample=sample),
        total=outcome,
        components=tuple(components) or (Component(name="consistency", outcome=outcome, weight=1.0),),
        action=Reply(content="Hello"),
        band=band,
        response='{"action": "reply"}',
        response_tokens=4,
        **more,
    )


def call(pool, *, queue_s=0.0, service_s=0.1, tokens=10, attempts=1, cost=0.0):
    return ScorerCall(
        pool=pool,
        model="m",
        prompt_version="1",
        replica="0",
        queue_s=queue_s,
        service_s=service_s,
        prompt_tokens=tokens,
        output_tokens=1,
        attempts=attempts,
        cost=cost,
    )
