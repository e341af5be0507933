"""Questions to scorers as values. The templates of the pools render them as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hamr.data.actions import ResponseFormat, customer_text, parse_action
from hamr.data.rendering import dialogue_text, documents_text
from hamr.procedures.contract import chat_of
from hamr.types import Action, MalformedResponse, Question, Reply, ServiceSample


def consistency_question(sample: ServiceSample, reference: Reply, reply: Reply) -> Question:
    """Ask whether the response leads the customer as the reference does.

    `statement_a` is the reference, `statement_b` the response, `history` the dialogue before both. In every template
    the variables that a group shares come first. The sample id as affinity keeps the group on one replica while its
    load allows, so the prompt prefix is computed once.
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
class JudgedText:
    """A response as shown to judges. The call is a separate field, so words cannot imitate one."""

    words: str
    call: str = ""


def words_of(text: str, action: Action, response_format: ResponseFormat) -> JudgedText:
    """Return the words to the customer, and the tool call if there is one.

    The rationale is omitted, so text after an answer (post-CoT, where it may be truncated) cannot change its score.
    """
    return judged_text(customer_text(text, response_format), action)


def response_words(text: str, response_format: ResponseFormat = "plain") -> JudgedText:
    """Return `words_of` a response; one that does not parse to an action is judged by its words alone."""
    action = parse_action(text, response_format)
    return words_of(text, Reply(content=text) if isinstance(action, MalformedResponse) else action, response_format)


def judged_text(words: str, action: Action) -> JudgedText:
    """Return the words to the customer with the tool call of the action."""
    if isinstance(action, Reply):
        return JudgedText(words=words)
    arguments = json.dumps(dict(action.parameters), ensure_ascii=False, sort_keys=True)
    return JudgedText(words=words, call=f"{action.name} {arguments}")


def as_customer_reads(
    sample: ServiceSample, action: Action | MalformedResponse
) -> tuple[ServiceSample, Action | MalformedResponse]:
    """Return a sample in SAGE's form and a response to it with the chat in place of the whole JSON object.

    Scorers judge what the customer reads, not labels, path and rationale. A response without a chat is malformed then.
    Every reference of such a sample is an object with a chat; other samples and their responses are unchanged.
    """
    chats = [chat_of(r.action.content) if isinstance(r.action, Reply) else None for r in sample.references]
    if not chats or not all(chats):
        return sample, action
    references = tuple(
        replace(r, action=Reply(content=chat)) for r, chat in zip(sample.references, chats, strict=True) if chat
    )
    text = chat_of(action.content) if isinstance(action, Reply) else None
    if not isinstance(action, MalformedResponse):
        action = Reply(content=text) if text else MalformedResponse(detail="no chat in the form of SAGE")
    return replace(sample, references=references), action


def case_variables(sample: ServiceSample) -> dict[str, str]:
    """Return the variables of a sample that a judge may see: `policy`, `ticket`, `tools`, `documents` (empty without
    any), `history` (with tool results).

    A template uses a subset. `privileged` is excluded.
    """
    return {
        "policy": sample.policy,
        "ticket": "\n".join(" ".join(f"{key} = {value}".split()) for key, value in sample.ticket.items()),
        "tools": "\n".join(json.dumps(tool, ensure_ascii=False, sort_keys=True) for tool in sample.tools),
        "documents": documents_text(sample),
        "history": dialogue_text(sample),
    }


def judge_question(
    sample: ServiceSample,
    prompt: str,
    schema: Mapping[str, Any],
    *,
    attempt: int,
    response: JudgedText | None = None,
    each: Sequence[Mapping[str, str]] = (),
    **variables: str,
) -> Question:
    """Return a question for a written answer about `sample` with the template `prompt`.

    A `response` sets the variables `response` and `call`.
    """
    shown = {"response": response.words, "call": response.call} if response else {}
    return Question(
        variables={**case_variables(sample), **shown, **variables},
        affinity=sample.id,
        prompt=prompt,
        each=tuple(each),
        schema=schema,
        attempt=attempt,
    )
