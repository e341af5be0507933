"""Responses sampled by the engines."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


def mean_logprob(logprobs: Sequence[float]) -> float | None:
    """Return log p(response) / tokens. None without tokens or if a log-probability, or their sum, is not finite."""
    if not logprobs or not all(map(math.isfinite, logprobs)):
        return None
    try:
        return math.fsum(logprobs) / len(logprobs)
    except OverflowError:
        return None


@dataclass(frozen=True, kw_only=True)
class SampleKey:
    """Identity of one response: (run, step, prompt, turn, sample, attempt). The ledger's primary key.

    In a dialogue, `prompt` names the customer, `sample` the dialogue with it, and `turn` the response from 0. A single
    decision has only turn 0.
    """

    run: str
    step: int
    prompt: str
    sample: int
    attempt: int = 0
    turn: int = 0


@dataclass(frozen=True, kw_only=True)
class VersionSpan:
    """Tokens [start, end) of a response that were sampled from policy `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One response of the policy.

    `logprobs[i]` is log p(token_ids[i]) under the policy that sampled it, at the sampling temperature (nats, <= 0).
    `token_ids` includes the end-of-sequence token.
    """

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
    """Number of responses requested for this group, including this one. Judges that compare wait for this number."""
    answer_tokens: int | None = None
    answer_s: float | None = None
    """Tokens and seconds up to the end of the answer if text may follow it (post-CoT). None if the answer did not end,
    or if nothing may follow and the answer ends with the response."""

    @property
    def mean_logprob(self) -> float | None:
        """Mean log-probability of the tokens in nats, as `mean_logprob` returns it."""
        return mean_logprob(self.logprobs)

    @property
    def is_truncated(self) -> bool:
        """True if the length limit ended the response."""
        return self.finish_reason == "length"


def derive_seed(*parts: object) -> int:
    """Derive a 31-bit seed from printable values. The result is the same on every machine and in every process."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF
