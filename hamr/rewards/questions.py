"""What scorers are asked about a response, as values; the pools' templates turn it into words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class Said:
    """A response as judges read it. The call has a place of its own, where no words can stand in for one."""

    words: str
    call: str = ""


def words_of(text: str, action: Action, response_format: ResponseFormat) -> Said:
    """The words to the customer, and the tool call, if there is one. The rationale is left out, so that what comes
    after an answer (post-CoT, where it may be cut off) cannot move its score."""
    words = customer_text(text, response_format)
    if isinstance(action, Reply):
        return Said(words=words)
    arguments = json.dumps(dict(action.parameters), ensure_ascii=False, sort_keys=True)
    return Said(words=words, call=f"{action.name} {arguments}")


def case_variables(sample: ServiceSample) -> dict[str, str]:
    """What a judge may get to read of a sample: `policy`, `ticket`, `tools`, `history` (tools' results among it).
    A template takes of these what it needs. `privileged` is not among them."""
    return {
        "policy": sample.policy,
        "ticket": "\n".join(" ".join(f"{key} = {value}".split()) for key, value in sample.ticket.items()),
        "tools": "\n".join(json.dumps(tool, ensure_ascii=False, sort_keys=True) for tool in sample.tools),
        "history": dialogue_text(sample),
    }


def judge_question(
    sample: ServiceSample,
    prompt: str,
    schema: Mapping[str, Any],
    *,
    attempt: int,
    response: Said | None = None,
    each: Sequence[Mapping[str, str]] = (),
    **variables: str,
) -> Question:
    """A question that asks for a written answer about `sample`, by the template `prompt`, where it is about one
    `response`: variables of the same name and `call`."""
    shown = {"response": response.words, "call": response.call} if response else {}
    return Question(
        variables={**case_variables(sample), **shown, **variables},
        affinity=sample.id,
        prompt=prompt,
        each=tuple(each),
        schema=schema,
        attempt=attempt,
    )
