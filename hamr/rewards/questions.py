"""What scorers are asked about a response, as values; the pools' templates turn it into words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hamr.data.actions import ResponseFormat, customer_text
from hamr.data.rendering import dialogue_text
from hamr.types import Action, Question, Reply, ServiceSample


def consistency_question(sample: ServiceSample, reference: Reply, reply: Reply) -> Question:
    """Does the response lead the customer as the reference does?

    `statement_a` is the reference, `statement_b` the response, `history` the dialogue before both.

    The variables that the responses of a group share come first in every template, and the sample's id as
    affinity keeps the group on one replica while its load allows: its prompt prefix is computed once.
    """
    return Question(
        variables={
            "history": dialogue_text(sample),
            "statement_a": reference.content,
            "statement_b": reply.content,
        },
        affinity=sample.id,
    )


def response_text(text: str, action: Action, response_format: ResponseFormat) -> str:
    """A response as judges read it: the words to the customer, then the tool call, if there is one. The rationale is
    left out, so that what comes after an answer (post-CoT, where it may be cut off) cannot move its score."""
    words = customer_text(text, response_format)
    if isinstance(action, Reply):
        return words
    arguments = json.dumps(dict(action.parameters), ensure_ascii=False, sort_keys=True)
    return f"{words}\n[calls tool {action.name} with {arguments}]".strip()


def case_variables(sample: ServiceSample) -> dict[str, str]:
    """What a judge may get to read of a sample: `policy`, `ticket`, `tools`, `history` (tools' results among it).
    A template takes of these what it needs. `privileged` is not among them."""
    return {
        "policy": sample.policy,
        "ticket": "\n".join(f"{key} = {value}" for key, value in sample.ticket.items()),
        "tools": "\n".join(json.dumps(tool, ensure_ascii=False, sort_keys=True) for tool in sample.tools),
        "history": dialogue_text(sample),
    }


def judge_question(
    sample: ServiceSample,
    prompt: str,
    schema: Mapping[str, Any],
    *,
    attempt: int,
    each: Sequence[Mapping[str, str]] = (),
    **variables: str,
) -> Question:
    """A question that asks for a written answer about `sample`, by the template `prompt`."""
    return Question(
        variables={**case_variables(sample), **variables},
        affinity=sample.id,
        prompt=prompt,
        each=tuple(each),
        schema=schema,
        attempt=attempt,
    )
