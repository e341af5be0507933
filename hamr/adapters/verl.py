"""hamr as verl's custom reward function, over HTTP (`hamr serve`). Standard library only.

    reward.custom_reward_function.path=pkg://hamr.adapters.verl
    reward.custom_reward_function.name=compute_score_async     # one response per call, in verl's event loop
    +reward.custom_reward_function.reward_kwargs.url=http://localhost:8711

`compute_score` is the same for the manager `remote`, which takes no async function; `compute_score_batch` is for reward
managers that score whole batches, so that comparative judges see the group. The JSON of the sample is in
`reward_model.ground_truth` of the row, or in `extra_info["sample"]`.

verl accepts only numbers: it builds a tensor of them, and a NaN invalidates its whole group. A response that could not
be scored is therefore retried, and then RewardRefused ends the run (`missing="refuse"`). `group_mean` (for batches) and
`nan` are alternatives. None of them is 0: the manager `rate_limited` turns any Exception, and a call that exceeds its
`reward.timeout`, into 0.0, so RewardRefused is not one. It replaces every Exception of a call; `compute_score_async`
also raises it when it is cancelled. The batch manager of early verl versions (spring 2025) turns any score that is not
a bare number into 0.0. Use one that passes `reward_kwargs` on, as all later ones do.

Checked with verl 0.9.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

from hamr.adapters.client import RewardClient
from hamr.adapters.groups import Missing, group_responses, is_malformed, list_unscored, rewards_as_numbers
from hamr.errors import BadInput

_MISSING: tuple[Missing, ...] = ("refuse", "group_mean", "nan")
URL = "HAMR_REWARD_URL"
"""Environment variable with the server address if `url` is not given."""

CONCURRENT = 256
"""Concurrent calls of `compute_score_async` in a process."""


class RewardRefused(BaseException):
    """A response has no reward. Not an Exception, because verl's manager `rate_limited` replaces these by 0.0."""


@contextmanager
def _no_exception() -> Iterator[None]:
    """Raise RewardRefused in place of any Exception."""
    try:
        yield
    except Exception as error:
        raise RewardRefused(f"{type(error).__name__}: {error}") from error


async def compute_score_async(
    data_source: Any,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, float]:
    """Return `compute_score`. Raise RewardRefused also if the caller cancels it."""
    call = partial(compute_score, data_source, solution_str, ground_truth, extra_info, **options)
    try:
        with _no_exception():
            return await asyncio.get_running_loop().run_in_executor(_threads(), call)
    except asyncio.CancelledError as error:
        remedy = "raise it with +reward.timeout=SECONDS, or set router.deadline_s of hamr serve below it"
        raise RewardRefused(f"the reward manager cancelled the call before the reward arrived; {remedy}") from error


@_no_exception()
def compute_score(
    data_source: Any,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    missing: Missing = "refuse",
    asks: int = 3,
    pause_s: float = 5.0,
    **_: Any,
) -> dict[str, float]:
    """Return {"score": total reward, "malformed", "escalated": 0 or 1}.

    Raise RewardRefused after `asks` failures. The wait before each retry is `pause_s`, doubled each time.
    """
    [scored] = compute_score_batch(
        [data_source],
        [solution_str],
        [ground_truth],
        [extra_info],
        url=url,
        missing=missing,
        asks=asks,
        pause_s=pause_s,
    )
    return scored


@_no_exception()
def compute_score_batch(
    data_sources: Sequence[Any],
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any] | None],
    *,
    url: str | None = None,
    missing: Missing = "refuse",
    asks: int = 3,
    pause_s: float = 5.0,
    group_size: int | None = None,
    **_: Any,
) -> list[dict[str, float]]:
    """Return `compute_score` for a batch. Neighbours with the same sample form a group of at most `group_size`
    (`rollout.n`)."""
    samples = [(info or {}).get("sample", truth) for info, truth in zip(extra_infos, ground_truths, strict=True)]
    groups = group_responses(samples, solution_strs, "ground_truth", group_size)
    if missing not in _MISSING:
        raise BadInput("missing", missing, f"verl takes numbers only; use one of {', '.join(_MISSING)}")
    client = _client(url)
    answers = client.groups(groups)
    for again in range(asks - 1):
        failed = [i for i, answer in enumerate(answers) if None in answer["rewards"]]
        if not failed:
            break
        time.sleep(pause_s * 2**again)
        # Retry whole groups, since judges compare. The server caches earlier answers of the scorers.
        for i, answer in zip(failed, client.groups([groups[i] for i in failed]), strict=True):
            answers[i] = answer
    records = [record for answer in answers for record in answer["records"]]
    rewards = [answer["rewards"] for answer in answers]
    values = rewards_as_numbers(rewards, missing, list_unscored(rewards, records))
    return [
        {
            "score": float(value),
            "malformed": float(is_malformed(record)),
            "escalated": float(record["band"] in ("below", "above")),
        }
        for _, value, record in zip(solution_strs, values, records, strict=True)
        if value is not None
    ]


@lru_cache(maxsize=8)
def _client_of(url: str) -> RewardClient:
    return RewardClient(url)


def _client(url: str | None) -> RewardClient:
    given = url or os.environ.get(URL)
    if not given:
        raise BadInput("url", given, f"set reward.custom_reward_function.reward_kwargs.url, or the variable {URL}")
    return _client_of(given)


@lru_cache(maxsize=1)
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONCURRENT, thread_name_prefix="hamr")
