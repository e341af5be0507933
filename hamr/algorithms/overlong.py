"""DAPO's soft overlong punishment (section 3.4, equation 13)."""

from __future__ import annotations


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
