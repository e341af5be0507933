"""The format reward: the response is an action in the format and the order that were asked for, or it is not."""

from __future__ import annotations

from hamr.data.actions import ResponseFormat, in_order, parse_action
from hamr.types import Action, MalformedResponse


def format_reward(text: str, response_format: ResponseFormat = "plain") -> float:
    """1.0 if `text` parses as an action and begins with the block that the prompt asked for first, else 0.0 (second
    paper, section 4.3: hybrid-CoT has both orders, and the system prompt says which).

    In post-CoT (`answer_think`) what follows the answer does not count, a rationale that is missing or cut off
    included: a deployment that stops at the answer would otherwise be worth less than one that does not.

    >>> format_reward("<think>a</think><answer>b</answer>", "think_answer"), format_reward("b", "think_answer")
    (1.0, 0.0)
    """
    return format_value(text, parse_action(text, response_format), response_format)


def format_value(text: str, action: Action | MalformedResponse, response_format: ResponseFormat) -> float:
    """`format_reward` of a text that has been parsed."""
    return float(not isinstance(action, MalformedResponse) and in_order(text, response_format))
