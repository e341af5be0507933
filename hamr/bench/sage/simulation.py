"""One dialogue between a simulated customer and the agent under test, turn by turn (SAGE Eq. 1 and 2)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from hamr.bench.sage.agents import ActingAgent, JsonAgent
from hamr.bench.sage.desk import ServiceDesk
from hamr.bench.sage.traces import DialogueOutcome, DialoguePlan, Exchange, Trace, read_turn
from hamr.config.sage import AgentPrompt, SageConfig
from hamr.data.customer_audit import out_of_role
from hamr.data.rendering import policy_messages
from hamr.files import encodable
from hamr.procedures.contract import OutputReading
from hamr.procedures.graph import Scenario
from hamr.procedures.prompts import END_MARK, plain, policy_text, service_prompt
from hamr.procedures.schema import Value
from hamr.prompting.templates import neutralise
from hamr.protocols import Ask
from hamr.types import TRANSIENT, Answer, Question, ServiceSample

ChatMessage = dict[str, str]

OPENING: Mapping[str, str] = {
    "en": "(The service desk is listening. Write your first message.)",
    "zh": "（客服已接通，请写下你的第一句话。）",
}
SILENCE: Mapping[str, str] = {"en": "(no answer)", "zh": "（没有回复）"}
STATE: Mapping[str, str] = {"en": "(what the desk now does: {action})", "zh": "（客服当前的处理：{action}）"}
_OWN_NAME = re.compile(r"^\s*(?:customer|user|用户|客户|顾客)\s*[:：]\s*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class CustomerMessage:
    text: str
    ends: bool = False


@dataclass(frozen=True, kw_only=True)
class _Stop:
    outcome: DialogueOutcome
    detail: str = ""


class Simulation:
    """Dialogues of one scenario between an agent and a simulator; each is a pool or another answering function."""

    def __init__(self, scenario: Scenario, agent: Ask, user: Ask, config: SageConfig, *, native: bool = False) -> None:
        """`native`: the agent gets the tools as schemas, unless the configuration has another prompt for it."""
        self.scenario, self.config, self._native = scenario, config, native
        self._prompt: AgentPrompt = config.agent_prompt or ("actions" if native else "service")
        self._agent, self._user = agent, user
        self._instructions = lru_cache(maxsize=1024)(self._instruct)

    async def run(self, plan: DialoguePlan, *, agent: str, simulator: str) -> Trace:
        """Run the whole dialogue. A model's failure is never raised. `agent` and `simulator` name the participants in
        the trace.

        The dialogue ends when the customer leaves, after `max_turns`, when the customer repeatedly breaks character,
        when the text no longer fits into a model's context, or when a pool does not answer. Finished turns are kept in
        every case.
        """
        turns: list[Exchange] = []
        to_user = [
            {"role": "system", "content": plan.prompt(self.scenario)},
            {"role": "user", "content": OPENING[plan.language]},
        ]
        side = self._side(plan)

        def end(outcome: DialogueOutcome, detail: str = "", parting: str = "") -> Trace:
            return Trace(
                agent=agent,
                simulator=simulator,
                plan=plan,
                turns=tuple(turns),
                outcome=outcome,
                detail=detail,
                parting=parting,
            )

        while len(turns) < self.config.max_turns:
            message = await self._customer(plan, to_user, len(turns))
            if isinstance(message, _Stop):
                return end(message.outcome, message.detail)
            if message.ends:
                return end("ended", parting=message.text)
            to_user.append({"role": "assistant", "content": message.text})
            exchange = await side.reply(message.text, len(turns))
            if isinstance(exchange, Answer):
                return end("context_full" if exchange.failure == "unparsable" else "agent_failed", _why(exchange))
            turns.append(exchange)
            reading = read_turn(self.scenario, turns)
            side.keep(reply_of(reading, plan.language))
            to_user.append({"role": "user", "content": _to_customer(self.scenario, exchange, reading, plan.language)})
        return end("max_turns")

    def instructions(self, plan: DialoguePlan) -> str:
        """Return the system prompt of an agent that answers in JSON."""
        return self._instructions(tuple(plan.system.items()), plan.language)

    def _instruct(self, system: tuple[tuple[str, Value], ...], language: str) -> str:
        if self._prompt == "service":
            return service_prompt(self.scenario, dict(system), language=language)
        policy = service_prompt(self.scenario, {}, language=language)
        return policy_messages(_sample(dict(system), policy))[0]["content"]

    def _side(self, plan: DialoguePlan) -> JsonAgent | ActingAgent:
        put = partial(self._put, self._agent)
        if self._prompt == "actions":
            desk = ServiceDesk(self.scenario, plan)
            policy = policy_text(self.scenario, language=plan.language)
            sample = _sample(plan.system, policy, tools=desk.tools)
            return ActingAgent(desk, sample, put, self.config, native=self._native)
        return JsonAgent(self.scenario, plan, self.instructions(plan), put, self.config)

    async def _customer(self, plan: DialoguePlan, messages: list[ChatMessage], turn: int) -> CustomerMessage | _Stop:
        """Return the next message; retry while it breaks character or ends the dialogue before it starts."""
        stop = _Stop(outcome="user_broke_character")
        for attempt in range(self.config.reasks + 1):
            answer = await self._put(self._user, message_question(plan, messages, self.config, turn, attempt))
            text = text_of(answer)
            if not text and answer.failure is not None:
                full = answer.failure == "unparsable"
                return _Stop(outcome="context_full" if full else "user_failed", detail=_why(answer))
            message = parse_turn(encodable(text))
            if message.ends and not turn:
                stop = _Stop(outcome="user_ended_at_once", detail=message.text[:120])
                continue
            fault = out_of_role(message.text) if message.text or not message.ends else None
            if fault is None:
                return message
            stop = _Stop(outcome="user_broke_character", detail=fault)
        return stop

    async def _put(self, ask: Ask, question: Question) -> Answer:
        """Return the pool's answer; retry an unavailable pool after its delay, up to `attempts` times."""
        answer = await ask(question)
        for _ in range(self.config.attempts - 1):
            if answer.failure not in TRANSIENT:
                break
            await asyncio.sleep(min(answer.retry_in_s or 0.0, self.config.longest_wait_s))
            answer = await ask(question)
        return answer


def message_question(
    plan: DialoguePlan, messages: Sequence[Mapping[str, str]], config: SageConfig, turn: int, attempt: int
) -> Question:
    """Return the question for a message of the customer."""
    return Question(
        messages=tuple(messages),
        affinity=f"{plan.id}/user",
        temperature=config.user_temperature,
        max_new_tokens=config.user_tokens,
        seed=plan.seed_of("user", turn, attempt),
    )


def text_of(answer: Answer) -> str:
    """Return the text of an answer, or the available part of one that was truncated."""
    return answer.text if answer.text is not None else answer.reasoning


def reply_of(reading: OutputReading, language: str) -> str:
    """Return the text of a turn that customers and judges read: the chat.

    An unparseable turn is not shown, since it may contain the agent's thoughts.
    """
    return (neutralise(reading.output.chat) if reading.output is not None else "") or SILENCE[language]


def _to_customer(scenario: Scenario, exchange: Exchange, reading: OutputReading, language: str) -> str:
    """Return the reply and the action that the agent took at this turn, in the scenario's words."""
    reply = reply_of(reading, language)
    named = reading.output.action if reading.output is not None else ""
    if exchange.calls is not None:
        named = next((use.action for use in reversed(exchange.calls) if use.action), "")
    action = scenario.file.actions.get(named)
    return reply if action is None else f"{reply}\n{STATE[language].format(action=action.description.of(language))}"


def _sample(system: Mapping[str, Value], policy: str, *, tools: tuple[Mapping[str, Any], ...] = ()) -> ServiceSample:
    ticket = {name: plain(value) if isinstance(value, bool) else value for name, value in system.items()}
    return ServiceSample(id="", ticket=ticket, policy=policy, tools=tools, history=(), references=())


def parse_turn(text: str) -> CustomerMessage:
    """Return the customer's message without the mark of the end and a name in front."""
    before, mark, _ = text.partition(END_MARK)
    return CustomerMessage(text=_OWN_NAME.sub("", before).strip(), ends=bool(mark))


def _why(answer: Answer) -> str:
    return f"{answer.failure}: {answer.detail}"[:300]
