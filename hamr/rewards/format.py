"""Format reward: 1 if the response is an action in the requested format and order, else 0."""

from __future__ import annotations

from hamr.data.actions import ResponseFormat, in_order
from hamr.types import Action, MalformedResponse


def format_reward(text: str, action: Action | MalformedResponse, response_format: ResponseFormat) -> float:
    """Return 1.0 if `text`, which parses as `action`, is an action and begins with the requested block, else 0.0.

    In hybrid-CoT both orders occur, and the system prompt selects one (second paper, section 4.3). In post-CoT
    (`answer_think`) the text after the answer is ignored, even if the rationale is missing or truncated. Otherwise a
    deployment that stops at the answer would have a lower reward.
    """
    return float(not isinstance(action, MalformedResponse) and in_order(text, response_format))
