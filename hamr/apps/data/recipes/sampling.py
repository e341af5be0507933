"""Rejection sampling (second paper, section 4): the best responses of an RL run as supervised data for the next stage.

Per prompt: the `best` distinct responses by total reward, none below `min_total`; or by the weighted mean of the terms
that a sample has, none below `min_mean`. A sample without a rubric or a tool has fewer terms, so that its total is
lower however good the response is.

A response with a rationale becomes an item with the rationale before the action, after it, or one item of each,
regardless of its original order. A response without a rationale becomes a `decision`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hamr.apps.data.recipes.thought import ORDERS, Rendering
from hamr.data.actions import parse_action, render_action
from hamr.data.sft_items import SftItem, decision_item
from hamr.data.words import plain
from hamr.errors import DataError
from hamr.types import Action, Failure, MalformedResponse, NotScored, RewardRecord, ServiceSample

PENALTIES = ("hallucination", "length")
"""Terms whose best value is 0."""
_THOUGHT = re.compile(r"<think>(.*)</think>", re.DOTALL)


def split_response(response: str) -> tuple[Action, str] | None:
    """Return (the action, its rationale or "") of a response in any format of the policy.

    None for a response that does not parse to an action, or whose rationale is not closed.
    """
    if "<answer>" not in response:
        action = parse_action(response)
        return None if isinstance(action, MalformedResponse) else (action, "")
    if response.lstrip().startswith("<answer>"):
        action, rest = parse_action(response, "answer_think"), response.partition("</answer>")[2]
        thought = _THOUGHT.search(rest)
        if isinstance(action, MalformedResponse) or (thought is None and "<think>" in rest):
            return None
        return action, thought[1].strip() if thought else ""
    action = parse_action(response, "think_answer")
    thought = _THOUGHT.search(response)
    if isinstance(action, MalformedResponse) or thought is None or not thought.group(1).strip():
        return None
    return action, thought.group(1).strip()


def mean_term(record: RewardRecord) -> float:
    """Return the weighted mean of the terms that have a value; minus infinity where none has."""
    terms = [term for term in record.components if term.value is not None and term.weight > 0]
    weight = sum(term.weight for term in terms)
    return sum(term.contribution or 0.0 for term in terms) / weight if weight else float("-inf")


def best_responses(
    records: Iterable[RewardRecord],
    samples: Mapping[str, ServiceSample],
    *,
    best: int,
    min_total: float | None = None,
    min_mean: float | None = None,
    render: Rendering = "pre",
) -> tuple[list[SftItem], Counter[str]]:
    """Return (the items in the samples' order, best first; the number of responses kept, and dropped by reason).

    Exactly one of `min_total` and `min_mean` is given. Among equal values
    the earlier response wins. Responses to prompts other than the samples' are not counted.
    """
    found: dict[str, list[tuple[float, int, str]]] = {}
    counts: Counter[str] = Counter()
    for number, record in enumerate(records):
        if record.key.prompt not in samples:
            continue
        if isinstance(record.total, NotScored):
            counts["dropped: has no reward (generate it with_rewards=true)"] += 1
        elif isinstance(record.total, Failure):
            counts["dropped: its scoring failed"] += 1
        elif min_total is not None and record.total.value < min_total:
            counts["dropped: below min_total"] += 1
        elif min_mean is not None and mean_term(record) < min_mean:
            counts["dropped: below min_mean"] += 1
        else:
            value = record.total.value if min_mean is None else mean_term(record)
            found.setdefault(record.key.prompt, []).append((-value, number, record.response))
    items: list[SftItem] = []
    for name, sample in samples.items():
        kept: set[str] = set()
        for _, _, response in sorted(found.get(name, ())):
            made, why = _items(sample, response, kept, best, ORDERS[render])
            counts[why] += 1
            items.extend(made)
    return items, counts


def samples_out_of_reach(
    records: Iterable[RewardRecord], samples: Mapping[str, ServiceSample], min_total: float | None
) -> int:
    """Return the number of samples for which no response can have this total: their terms are too few."""
    most: dict[str, float] = {}
    for record in records:
        if record.key.prompt in samples and record.components and not isinstance(record.total, Failure):
            known = [term for term in record.components if term.value is not None and term.name not in PENALTIES]
            most[record.key.prompt] = max(sum(term.weight for term in known), most.get(record.key.prompt, 0.0))
    return sum(reach < min_total for reach in most.values()) if min_total is not None else 0


def _items(
    sample: ServiceSample, response: str, kept: set[str], best: int, orders: Sequence[bool]
) -> tuple[list[SftItem], str]:
    reading = split_response(response)
    if reading is None:
        return [], "dropped: no action"
    action, thought = reading
    try:
        words = plain(render_action(action))
        made = [decision_item(sample, action, thought, answer_first=order) for order in orders]
    except DataError:  # parsed again it would differ from the policy's text
        return [], "dropped: no action"
    if words in kept:
        return [], "dropped: a duplicate"
    if len(kept) >= best:
        return [], "dropped: not among the best"
    kept.add(words)
    return made if thought else made[:1], "kept"
