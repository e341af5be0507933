"""Scripted pools and small samples for the router's tests."""

import asyncio
from collections.abc import Callable, Mapping

from hamr.types import (
    Answer,
    Question,
    Reference,
    Reply,
    Rollout,
    SampleKey,
    ScorerCall,
    ServiceSample,
    ToolCall,
    Turn,
    VersionSpan,
)


class ScriptedPool:
    """Answers by (statement_a, statement_b), by statement_b, or by a function; keeps what it was asked."""

    def __init__(self, name: str, script: Mapping[object, Answer] | Callable[[Question], Answer]) -> None:
        self.name, self.script = name, script
        self.asked: list[Question] = []
        self.open, self.most_open = 0, 0
        self.hold: asyncio.Event | None = None
        self.reached = asyncio.Event()

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        self.open += 1
        self.reached.set()
        self.most_open = max(self.open, self.most_open)
        try:
            await asyncio.sleep(0)
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.open -= 1
        if callable(self.script):
            return self.script(question)
        a, b = question.variables["statement_a"], question.variables["statement_b"]
        return self.script[(a, b)] if (a, b) in self.script else self.script[b]


def call(pool: str, queue_s: float = 0.25, service_s: float = 0.5) -> ScorerCall:
    return ScorerCall(
        pool=pool, model="m", prompt_version="p@1", replica="r0", queue_s=queue_s, service_s=service_s,
        prompt_tokens=10, output_tokens=1, cost=2.0,
    )  # fmt: skip


def reranked(score: float) -> Answer:
    return Answer(score=score, verdict="yes" if score >= 0.5 else "no", label_mass=1.0, call=call("reranker"))


def judged(score: float, verdict: str = "part") -> Answer:
    return Answer(score=score, verdict=verdict, label_mass=1.0, call=call("judge"))


def sample(*references: str | ToolCall, sample_id: str = "s1") -> ServiceSample:
    actions = [Reply(content=r) if isinstance(r, str) else r for r in references]
    return ServiceSample(
        id=sample_id, ticket={}, policy="", tools=(), history=(Turn(role="customer", content="Cancel it."),),
        references=tuple(Reference(action=action) for action in actions),
    )  # fmt: skip


def rollout(text: str, number: int = 0) -> Rollout:
    return Rollout(
        key=SampleKey(run="r", step=0, prompt="s1", sample=number), prompt_ids=(1,), token_ids=(2, 3, 4),
        logprobs=(-0.1, -0.1, -0.1), text=text, finish_reason="stop",
        versions=(VersionSpan(version=0, start=0, end=3),),
    )  # fmt: skip
