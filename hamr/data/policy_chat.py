"""Prompts and answers in the form that the policy's chat template has for tools, or in hamr's own compact form.

With the template, a policy behind an OpenAI-compatible server sees the prompts that it was trained on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from jinja2 import TemplateError

from hamr.data.actions import ResponseFormat, parse_action, without_markup
from hamr.data.rendering import call_message, policy_messages, request_texts
from hamr.data.tools import function_schemas
from hamr.errors import BadInput
from hamr.types import ServiceSample, ToolCall, Turn

ToolsPrompt = Literal["auto", "template", "compact"]

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_CALLED = ToolCall(name="find_parcel", parameters={"number": 7})
_PROBE = ServiceSample(
    id="probe",
    ticket={},
    policy="Help.",
    tools=(
        {
            "name": "find_parcel",
            "description": "Looks up where a parcel is.",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
        },
    ),
    history=(
        Turn(role="customer", content="Where is it?"),
        Turn(role="agent", tool_call=_CALLED),
        Turn(role="tool", name="find_parcel", content="in Lyon"),
    ),
    references=(),
)


class TextEncoder(Protocol):
    """Tokenizer interface. `spans`: (id, start, end) of every token, in characters of the text. The text of a turn must
    not contain `special_ids`."""

    @property
    def eos_id(self) -> int: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    def encode(self, text: str) -> list[int]: ...
    def spans(self, text: str) -> list[tuple[int, int, int]]: ...
    def chat_ids(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]: ...
    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str: ...


@dataclass(frozen=True, kw_only=True)
class PolicyChat:
    """`native`: the chat template writes tools, calls and results."""

    tokenizer: TextEncoder
    native: bool = False

    @classmethod
    def of(cls, tokenizer: TextEncoder, tools_prompt: ToolsPrompt) -> PolicyChat:
        """Return the form for `model.tools_prompt`.

        Raises BadInput for `template` if the chat template does not support tools.
        """
        compact, native = cls(tokenizer=tokenizer), cls(tokenizer=tokenizer, native=True)
        if tools_prompt == "compact":
            return compact
        problem = native._problem()
        if problem and tools_prompt == "template":
            remedy = f"the model's chat template {problem}; set auto or compact, or use a model with such a template"
            raise BadInput("model.tools_prompt", tools_prompt, remedy)
        return compact if problem else native

    def prompt(self, sample: ServiceSample, response_format: ResponseFormat = "plain") -> list[int]:
        """Return the tokens of the whole prompt, including the generation prompt."""
        return self.encode(sample, policy_messages(sample, response_format, native=self.native))

    def encode(self, sample: ServiceSample, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of a conversation about `sample`, including the generation prompt."""
        if not self.native:
            return self.tokenizer.chat_ids(messages)
        return self.tokenizer.chat_ids(messages, tools=function_schemas(sample.tools))

    def encode_request(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the tokens of an OpenAI request, including the generation prompt."""
        if self.native:
            return self.tokenizer.chat_ids(messages, tools=tools)
        return self.tokenizer.chat_ids(request_texts(messages, tools))

    def rewrite(self, answer: str) -> str:
        """Return an answer with the tool calls, which are in hamr's form, in the policy's form."""
        return _CALL.sub(lambda found: self._rewrite_call(found[0]), answer) if self.native else answer

    def _rewrite_call(self, text: str) -> str:
        call = parse_action(text)
        return self._native_call(call) or text if isinstance(call, ToolCall) else text

    def _native_call(self, call: ToolCall) -> str | None:
        """Return a call as the chat template writes it after the generation prompt. None if it has another form."""
        asked = policy_messages(_PROBE, native=True)[:2]
        before, whole = self._text(asked, True), self._text([*asked, call_message(call)], False)
        found = _CALL.search(whole, len(before)) if whole.startswith(before) else None
        if found is None:
            return None
        written = f"<tool_call>{without_markup(found[1])}</tool_call>"
        return written if parse_action(written) == call else None

    def _text(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> str:
        return self.tokenizer.chat_text(messages, add_generation_prompt, tools=function_schemas(_PROBE.tools))

    def _problem(self) -> str:
        """Return the fault of the chat template, "" if there is none."""
        try:
            shown = self._text(policy_messages(_PROBE, native=True), True)
        except (BadInput, TemplateError) as error:
            return f"cannot show tools ({str(error)[:80]})"
        texts = ("Looks up where a parcel is.", "in Lyon", '"integer"')
        if missing := [text for text in texts if text not in shown]:
            return f"does not show tools (a description or result like {missing[0]!r} is not in the prompt)"
        if self._native_call(_CALLED) is None:
            return "does not write calls as <tool_call>{...}</tool_call>, the form that hamr parses"
        if self.tokenizer.special_ids.intersection(self.tokenizer.encode("<tool_call></tool_call>")):
            return "marks <tool_call> as a special token, which generated text does not show"
        return ""
