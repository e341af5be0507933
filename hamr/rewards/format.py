"""The format reward: the response is an action in the format that was asked for, or it is not."""

from __future__ import annotations

from hamr.data.actions import ResponseFormat, parse_action
from hamr.types import MalformedResponse


def format_reward(text: str, response_format: ResponseFormat = "plain") -> float:
    """1.0 if `text` parses as an action, else 0.0 (second paper, section 4.3).

    >>> format_reward("<think>a</think><answer>b</answer>", "think_answer"), format_reward("b", "think_answer")
    (1.0, 0.0)
    """
    return 0.0 if isinstance(parse_action(text, response_format), MalformedResponse) else 1.0
