"""DAPO's overlong reward shaping (section 3.4): overlong filtering, and the soft overlong punishment (equation 13)."""

from __future__ import annotations

from hamr.types import Rollout


def is_overlong(rollout: Rollout) -> bool:
    """Return whether overlong filtering takes the response out of the loss: its answer was truncated.

    With m_i = 0 for such a response and 1 for the others, the loss is sum_i m_i sum_t L(i, t) / sum_i m_i |o_i| for
    `token_mean`, and the mean over the responses with m_i = 1 for `sequence_mean`. The advantages of the others keep
    the reward of the truncated one in their group's mean and deviation. In post-CoT, text after the answer does not
    matter.
    """
    return rollout.is_truncated and rollout.answer_tokens is None


def overlong_penalty(length: int, limit: int, cache: int) -> float:
    """Return 0 up to limit - cache, then a linear decrease to -1 at the limit. Lengths in tokens, value in [-1, 0].

    With l the length, M the limit and c the cache: ((M - c) - l) / c for M - c < l <= M, and -1 beyond. Raises
    ValueError unless 0 < cache <= limit.

    >>> [overlong_penalty(n, 100, 20) for n in (80, 90, 100, 101)]
    [0.0, -0.5, -1.0, -1.0]
    """
    if not 0 < cache <= limit:
        raise ValueError(f"cache={cache} must be above 0 and at most limit={limit}")
    over = length - (limit - cache)
    return -min(max(over, 0) / cache, 1.0) if over > 0 else 0.0
