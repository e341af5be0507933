"""Length reward: 0 for concise answers, down to -1 for long ones (second paper, Eq. 1)."""

from __future__ import annotations

import math


def length_reward(length: int, reference_length: int, cache_ratio: float) -> float:
    """Return R_len in [-1, 0], with L_cache = cache_ratio * L_ref.

        0                          if |y| <= L_ref
        -(|y| - L_ref) / L_cache   if L_ref < |y| <= L_ref + L_cache
        -1                         beyond

    Lengths have any common unit; hamr counts tokens of the policy's tokenizer. The function is continuous: -1 is
    reached exactly at L_ref + L_cache. With a reference of length 0 it is 0 for an empty answer, -1 for any other.

    >>> length_reward(15, 10, 1.0)
    -0.5

    Raises ValueError for a negative length or a cache_ratio that is not a positive number.
    """
    if length < 0 or reference_length < 0:
        raise ValueError(f"length={length} and reference_length={reference_length} have to be 0 or more")
    if not math.isfinite(cache_ratio) or cache_ratio <= 0.0:
        raise ValueError(f"cache_ratio={cache_ratio} has to be a positive number")
    over = length - reference_length
    if over <= 0:
        return 0.0
    margin = cache_ratio * reference_length
    return -1.0 if over >= margin else -over / margin
