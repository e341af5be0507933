"""An agent's side of one dialogue: in the JSON of the contract (SAGE Eq. 2), or with tools and a text."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from hamr.bench.decisions import decision_question, text_and_calls
from hamr.bench.sage.desk import ServiceDesk
from hamr.bench.sage.traces import AgentFault, DialoguePlan, Exchange, ToolUse
from hamr.config.sage import SageConfig
from hamr.data.actions import parse_arguments, unfence
from hamr.files import encodable
from hamr.procedures.contract import output_schema
from hamr.procedures.graph import Scenario
from hamr.prompting.templates import neutralise
from hamr.types import Answer, MalformedResponse, Question, RequestedCall, ServiceSample, ToolCall, Turn

Put = Callable[[Question], Awaitable[Answer]]
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


class JsonAgent:
    """Agent that states labels, path, action and chat in one JSON object per turn."""

    def __init__(self, scenario: Scenario, plan: DialoguePlan, instructions: str, put: Put, config: SageConfig) -> None:
        self._scenario, self._plan, self._put, self._config = scenario, plan, put, config
        self._messages = [{"role": "system", "content": instructions}]

    async def reply(self, user: str, turn: int) -> Exchange | Answer:
        """Return the exchange, or the answer with the failure that ends the dialogue."""
        self._messages.append({"role": "user", "content": neutralise(user)})
        question = Question(
            messages=tuple(self._messages),
            affinity=self._plan.id,
            schema=output_schema(self._scenario),
            temperature=self._config.agent_temperature,
            seed=self._plan.seed_of("agent", turn),
        )
        answer = await self._put(question)
        if answer.failure == "function_failed" or answer.failure == "function_timeout":
            return Exchange(user=user, agent="", fault=answer.failure, detail=answer.detail[:300])
        if answer.text is not None:
            return exchange_of(user, answer.text, self._config)
        if answer.is_cut_off:
            return replace(exchange_of(user, answer.reasoning, self._config), cut_off=True)
        return answer

    def keep(self, text: str) -> None:
        """Add the agent's text to the conversation, as the customer has read it."""
        self._messages.append({"role": "assistant", "content": text})


def exchange_of(user: str, text: str, config: SageConfig) -> Exchange:
    """Return the turn with the agent's text, without a code fence under `fence=strip`."""
    bare = unfence(text)
    return Exchange(user=user, agent=encodable(bare if config.fence == "strip" else text), fenced=bare != text)


def read_answer(answer: Answer, config: SageConfig) -> tuple[str, tuple[RequestedCall, ...] | MalformedResponse, bool]:
    """Return the text and the calls of an agent with tools, and whether it put a code fence around them."""
    given = _THOUGHT.sub("", answer.text or answer.reasoning, count=1)
    bare = unfence(given)
    text, calls = text_and_calls(replace(answer, text=bare if config.fence == "strip" else given))
    return text, calls, bare != given


class ActingAgent:
    """Agent that calls the scenario's tools and answers with a text.

    Calls are executed and their results returned, until the agent answers with a text or `max_rounds` is reached. The
    texts next to the calls belong to the reply.
    """

    def __init__(self, desk: ServiceDesk, sample: ServiceSample, put: Put, config: SageConfig, *, native: bool) -> None:
        self._desk, self._put, self._config, self._native = desk, put, config, native
        self._sample = sample
        self._history: list[Turn] = []
        self._used: list[ToolUse] = []
        self._beside = ""
        """Text next to the calls of the latest turn, which the history has already."""

    async def reply(self, user: str, turn: int) -> Exchange | Answer:
        self._history.append(Turn(role="customer", content=user))
        used: list[ToolUse] = []
        texts: list[str] = []
        fenced = False

        def exchange(text: str = "", *, fault: AgentFault | None = None, detail: str = "") -> Exchange:
            return Exchange(
                user=user,
                agent=encodable("\n".join([*texts, text] if text else texts)),
                fenced=fenced,
                calls=tuple(used),
                fault=fault,
                detail=encodable(detail)[:300],
            )

        for number in range(self._config.max_rounds + 1):
            answer = await self._put(self._question(turn, number))
            if answer.failure == "function_failed" or answer.failure == "function_timeout":
                return exchange(fault=answer.failure, detail=answer.detail)
            if answer.text is None and not answer.is_cut_off:
                return answer
            text, calls, had_fence = read_answer(answer, self._config)
            fenced |= had_fence
            if isinstance(calls, MalformedResponse):
                empty = not text.strip()
                return exchange(text, fault=None if empty else "malformed_call", detail="" if empty else calls.detail)
            if not calls:
                return replace(exchange(text), cut_off=answer.is_cut_off)
            beside = text.strip()
            texts += [beside] * bool(beside)
            if number == self._config.max_rounds:
                break
            if beside:
                self._beside = "\n".join(texts)
                self._history.append(Turn(role="agent", content=beside))
            for call in calls:
                use = self._desk.use(call, self._used)
                used.append(use)
                self._used.append(use)
                self._history += _turns(use)
        return exchange(fault="tool_rounds", detail=f"no reply after {self._config.max_rounds} rounds of tool calls")

    def keep(self, text: str) -> None:
        last, self._beside = text.removeprefix(self._beside).strip(), ""
        if last:
            self._history.append(Turn(role="agent", content=last))

    def _question(self, turn: int, number: int) -> Question:
        plan = self._desk.plan
        return decision_question(
            replace(self._sample, history=tuple(self._history)),
            native=self._native,
            affinity=plan.id,
            temperature=self._config.agent_temperature,
            seed=plan.seed_of("agent", turn, *([number] if number else [])),
        )


def _turns(use: ToolUse) -> Sequence[Turn]:
    arguments = parse_arguments(use.arguments)
    call = ToolCall(name=use.name, parameters=arguments if isinstance(arguments, dict) else {})
    return Turn(role="agent", tool_call=call), Turn(role="tool", name=use.name, content=use.result)
