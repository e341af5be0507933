"""Request and response bodies of the routes of `hamr serve`.

`/score` is hamr's own: {"groups": [{"sample": {...}, "responses": [...]}]} -> {"groups": [{"rewards": [0.7, null],
"records": [...]}]}.

`/get_reward` is OpenRLHF's for a remote reward model (`--remote_rm_url`): {"query": [...], "prompts": [...], "labels":
[...]} -> {"rewards": [...], "scores": [...], "extra_logs": {...}}. A query is the prompt followed by its response,
including special tokens. The label is the JSON of the sample (`--label_key`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hamr.adapters.groups import (
    Missing,
    SampleResponses,
    group_responses,
    is_malformed,
    list_unscored,
    rewards_as_numbers,
)
from hamr.errors import DataError, did_you_mean

END_TEXTS = (
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>",
    "<｜end▁of▁sentence｜>", "</s>", "<eos>",
)  # fmt: skip
"""Special tokens at the end of a query, which begin with "<". Scorers would read one as a part of the reply."""

ScoredGroups = tuple[Sequence[Sequence[float | None]], Sequence[Mapping[str, Any]]]
"""Rewards by group, and the records of all groups in order, as JSON."""


def read_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raise DataError for anything else."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DataError("body", body[:80], f"is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise DataError("body", read, "must be a JSON object")
    return read


def read_score(body: Mapping[str, Any]) -> list[SampleResponses]:
    """Return the groups of a request to `/score`. DataError names the field, also one that is unknown."""
    _check_keys(body, ("groups",))
    groups = _list(body, "groups")
    found: list[SampleResponses] = []
    for i, group in enumerate(groups):
        where = f"groups[{i}]"
        if not isinstance(group, Mapping):
            raise DataError(where, group, "must be an object with sample and responses")
        _check_keys(group, ("sample", "responses"), f"{where}.")
        if not isinstance(group.get("sample"), Mapping):
            raise DataError(f"{where}.sample", group.get("sample"), "must be an object in the sample format")
        found.append((group["sample"], _texts(group, "responses", f"{where}.")))
    return found


def read_get_reward(body: Mapping[str, Any]) -> list[SampleResponses]:
    """Return the groups of a request to `/get_reward`: neighbours with one label. DataError names the field."""
    queries = _texts(body, "query")
    prompts = _texts(body, "prompts")
    labels = _list(body, "labels")
    for name, values in (("prompts", prompts), ("labels", labels)):
        if len(values) != len(queries):
            raise DataError(name, len(values), f"must have the length of query: {len(queries)}")
    responses = [
        response_of(query, prompt, where=f"query[{i}]")
        for i, (query, prompt) in enumerate(zip(queries, prompts, strict=True))
    ]
    return group_responses(labels, responses, "labels")


def response_of(query: str, prompt: str, *, where: str) -> str:
    """Return the text after the prompt in a query, without the special tokens at its end.

    The tokenizer may have added a token before the prompt. Raises DataError for a query without its prompt, for example
    if it was truncated on the left.

    >>> response_of("<s>Hi?Yes.<|im_end|>", "Hi?", where="query[0]")
    'Yes.'
    """
    at = query.find(prompt)
    if at < 0:
        remedy = f"does not contain its prompt {prompt[:80]!r}; was it truncated? raise the trainer's length limits"
        raise DataError(where, query[:80], remedy)
    start, end = at + len(prompt), len(query)
    # Move an index instead of cutting the text, which would take quadratic time in the number of tokens.
    while end > start and (query[end - 1].isspace() or query.endswith(END_TEXTS, start, end)):
        end = end - 1 if query[end - 1].isspace() else query.rindex("<", start, end)
    return query[start:end].strip()


def tell_get_reward(scored: ScoredGroups, missing: Missing) -> dict[str, Any]:
    """Return the answer of `/get_reward`. Raise RewardMissing if `missing` requires it.

    `extra_logs` contains only values that every response has, since the trainer makes tensors of them.
    """
    rewards, records = scored
    values = rewards_as_numbers(rewards, missing, list_unscored(rewards, records))
    return {
        "rewards": values,
        "scores": values,
        "extra_logs": {
            "malformed": [float(is_malformed(record)) for record in records],
            "escalated": [float(record["band"] in ("below", "above")) for record in records],
            "failed": [float(value is None) for group in rewards for value in group],
        },
    }


def tell_score(scored: ScoredGroups) -> dict[str, Any]:
    """Return the answer of `/score`."""
    rewards, records = scored
    rest = iter(records)
    return {"groups": [{"rewards": list(group), "records": [next(rest) for _ in group]} for group in rewards]}


def _check_keys(body: Mapping[str, Any], known: Sequence[str], before: str = "") -> None:
    for key in body:
        if key not in known:
            remedy = f"unknown key; {did_you_mean(key, known)}known are: {', '.join(known)}"
            raise DataError(f"{before}{key}", body[key], remedy)


def _list(body: Mapping[str, Any], field: str, before: str = "") -> list[Any]:
    value = body.get(field)
    if not isinstance(value, list) or not value:
        raise DataError(f"{before}{field}", value, "must be a list that is not empty")
    return value


def _texts(body: Mapping[str, Any], field: str, before: str = "") -> list[str]:
    values = _list(body, field, before)
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise DataError(f"{before}{field}[{i}]", value, "must be a text")
    return values
