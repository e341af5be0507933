"""Requests to a vLLM engine, and how the thread that steps it answers the asyncio loops that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hamr.errors import EngineDied

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

FinishReason = Literal["stop", "length", "abort"]


class Completion(NamedTuple):
    """Generated text. `token_ids` include the end-of-sequence token or the stop string's tokens, `text` does not.

    `cached_tokens` is the number of prompt tokens found in the prefix cache. `logprobs`: one per token, if requested.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    cached_tokens: int
    logprobs: tuple[float, ...] = ()


class Classified(NamedTuple):
    """`cached_tokens` is the number of prompt tokens found in the prefix cache."""

    logprobs: dict[int, float]
    cached_tokens: int


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """One request in flight. `deliver`, `fail` and `watch` run in the engine's thread.

    `watch` gets the partial output after every step.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    deliver: Callable[[RequestOutput], None]
    fail: Callable[[BaseException], None]
    watch: Callable[[RequestOutput], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Letter:
    """An action in the inbox, and what to call with EngineDied if it can never run or ends the engine."""

    action: Callable[[], None]
    fails: Sequence[Callable[[BaseException], None]] = ()

    def __call__(self) -> None:
        try:
            self.action()
        except BaseException as error:
            for fail in self.fails:
                fail(EngineDied(f"{type(error).__name__}: {error}"))
            raise


def threadsafe(callback: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Wrap `callback` to run in the current event loop, from any thread."""
    loop = asyncio.get_running_loop()

    def call(value: Any) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(callback, value)

    return call


def settle(future: asyncio.Future[Any], outcome: Any) -> None:
    """Set a waiter's result or exception, unless it was cancelled."""
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def logprobs_of(answer: Any) -> tuple[float, ...]:
    """Return the log-probability of every sampled token."""
    flat = answer.logprobs
    return tuple(flat.logprobs[start] for start in flat.start_indices)


def finish_reason(reason: str | None) -> FinishReason:
    return reason if reason in ("stop", "length") else "abort"  # type: ignore[return-value]
