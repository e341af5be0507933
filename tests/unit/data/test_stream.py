"""The prompt order: every sample once per epoch, and exact continuation after a resume."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hamr.data.stream import PromptStream
from hamr.types import Reference, Reply, ServiceSample


def samples(n: int) -> list[ServiceSample]:
    return [
        ServiceSample(
            id=f"s{i}", ticket={}, policy="", tools=(), history=(), references=(Reference(action=Reply(content="x")),)
        )
        for i in range(n)
    ]


@given(n=st.integers(1, 20), seed=st.integers(0, 5), cut=st.integers(0, 50), rest=st.integers(0, 50))
def test_resumed_stream_continues_exactly(n: int, seed: int, cut: int, rest: int) -> None:
    whole = PromptStream(samples(n), seed).take(cut + rest)
    first = PromptStream(samples(n), seed)
    head = first.take(cut)
    tail = PromptStream(samples(n), seed, state=first.state()).take(rest)
    assert [s.id for s in head + tail] == [s.id for s in whole]


@given(n=st.integers(1, 20), seed=st.integers(0, 5))
def test_every_epoch_has_every_sample_once(n: int, seed: int) -> None:
    stream = PromptStream(samples(n), seed)
    for _ in range(3):
        assert sorted(s.id for s in stream.take(n)) == sorted(s.id for s in samples(n))
