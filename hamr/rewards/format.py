"""Format reward: 1 if the response is an action in the requested format and order, else 0."""

from __future__ import annotations

from hamr.data.actions import ResponseFormat, in_order, parse_action
from hamr.types import Action, MalformedResponse


def format_reward(text: str, response_format: ResponseFormat = "plain") -> float:
    """Return 1.0 if `text` parses as an action and begins with the requested block, else 0.0.

    In hybrid-CoT both orders occur, and the system prompt selects one (second paper, section 4.3). In post-CoT
    (`answer_think`) the text after the answer is ignored, even if the rationale is missing or truncated. Otherwise a
    deployment that stops at the answer would have a lower reward.

    >>> format_reward("<think>a</think><answer>b</answer>", "think_answer"), format_reward("b", "think_answer")
    (1.0, 0.0)
    """
    return format_value(text, parse_action(text, response_format), response_format)


def format_value(text: str, action: Action | MalformedResponse, response_format: ResponseFormat) -> float:
    """Return the `format_reward` of a parsed text."""
    return float(not isinstance(action, MalformedResponse) and in_order(text, response_format))
