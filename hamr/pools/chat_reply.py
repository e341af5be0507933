"""Reply of an OpenAI-compatible endpoint, validated on arrival. Fields that hamr does not read are ignored."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from hamr.types import RequestedCall


def _none_if_invalid(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        return None


Lenient = WrapValidator(_none_if_invalid)
"""For fields that are only recorded: an invalid value is dropped and does not fail the answer."""
TokenCount = Annotated[int | None, Field(ge=0, lt=2**31), Lenient]
LogProb = Annotated[float, Field(le=1e-6, strict=True)]
"""Log-probability in nats. The bound leaves room for rounding, and NaN violates it. Texts and booleans are refused."""


class TextPart(BaseModel):
    """Part of a message. A part without text, such as the reasoning of some models, counts as empty."""

    text: str = ""


JsonText = BeforeValidator(lambda given: given if isinstance(given, str) else json.dumps(given))
"""Text of a JSON value. Some servers return the value itself."""


class CalledFunction(BaseModel):
    name: str
    arguments: Annotated[str, JsonText] = "{}"


class ReplyToolCall(BaseModel):
    function: CalledFunction


class ReplyMessage(BaseModel):
    content: str | list[TextPart] | None = None
    tool_calls: list[ReplyToolCall] | None = None
    reasoning_content: Annotated[str | None, Lenient] = None
    refusal: Annotated[str | None, Lenient] = None

    @property
    def text(self) -> str:
        content = self.content or ""
        return content if isinstance(content, str) else "".join(part.text for part in content)

    @property
    def tool_requests(self) -> tuple[RequestedCall, ...]:
        calls = self.tool_calls or ()
        return tuple(RequestedCall(name=call.function.name, arguments=call.function.arguments) for call in calls)


class TopToken(BaseModel):
    token: str
    logprob: LogProb


class Token(BaseModel):
    token: str
    logprob: Annotated[LogProb | None, Lenient] = None
    top_logprobs: list[TopToken] | None = None


class LogProbs(BaseModel):
    content: list[Token] | None = None


class Choice(BaseModel):
    message: ReplyMessage
    finish_reason: Annotated[str | None, Lenient] = None
    logprobs: LogProbs | None = None


class TokenDetails(BaseModel):
    cached_tokens: TokenCount = None


class ReplyUsage(BaseModel):
    prompt_tokens: TokenCount = None
    completion_tokens: TokenCount = None
    prompt_tokens_details: Annotated[TokenDetails | None, Lenient] = None


class ChatReply(BaseModel):
    choices: Annotated[list[Choice], Field(min_length=1)]
    model: Annotated[str | None, Lenient] = None
    usage: Annotated[ReplyUsage | None, Lenient] = None
