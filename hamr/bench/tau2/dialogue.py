"""One dialogue of tau2-bench: the package's orchestrator and evaluator, with messages from hamr's participants."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hamr.bench.decisions import text_and_calls
from hamr.bench.tau2.tasks import Domain, environment_of, tasks_of, tau2
from hamr.config.benchmarks import Tau2Config
from hamr.data.actions import parse_arguments
from hamr.protocols import Ask
from hamr.types import Answer, MalformedResponse, Question, RequestedCall, ServiceSample, ToolCall, Turn

Act = Callable[[ServiceSample], Awaitable[Answer]]
"""Answers a decision point, as the agent under test or the policy in training."""


class ParticipantFailed(Exception):
    """A participant did not answer. `answer` has the failure."""

    def __init__(self, who: str, answer: Answer) -> None:
        super().__init__(f"{who}: {answer.failure}: {answer.detail}"[:300])
        self.who, self.answer = who, answer


@dataclass(frozen=True, kw_only=True)
class Tau2Result:
    """End of a dialogue. `reward` is that of the package's evaluator, 1.0 or 0.0; `ending` its termination reason.
    `fault` is the failure of the agent's function that ended it, if one did."""

    reward: float
    ending: str
    turns: int
    messages: tuple[dict[str, Any], ...]
    breakdown: dict[str, float] = field(default_factory=dict)
    fault: str = ""


class Tau2Dialogue:
    """A dialogue about one task. It has its own database."""

    def __init__(self, sample: ServiceSample, options: Tau2Config, seed: int) -> None:
        self.sample, self.options, self.seed = sample, options, seed
        self.domain: Domain = sample.meta["domain"]
        self.task = tasks_of(self.domain)[sample.meta["task"]]
        environment = environment_of(self.domain)
        user_tools = environment.get_user_tools() if environment.user_tools is not None else None
        agent = tau2("agent.llm_agent").LLMAgent(environment.get_tools(), environment.get_policy())
        instructions = str(self.task.user_scenario)
        user = tau2("user.user_simulator").UserSimulator(tools=user_tools, instructions=instructions)
        self._user_tools = tuple(tool.openai_schema for tool in user_tools or ())
        self._orchestrator = tau2("orchestrator.orchestrator").Orchestrator(
            domain=self.domain, agent=agent, user=user, environment=environment, task=self.task
        )
        self._orchestrator.initialize()
        self._turns = 0
        self._fault = ""
        self._started = time.monotonic()

    async def run(self, act: Act, user: Ask) -> Tau2Result:
        """Hold the dialogue and evaluate it.

        An exception of a participant passes through; `finish` then evaluates the messages so far.

        Raises:
            ParticipantFailed: A participant did not answer.
        """
        one, roles = self._orchestrator, tau2("orchestrator.orchestrator").Role
        while not one.done:
            if one.to_role == roles.AGENT:
                message = await self._agent_message(act)
                if message is None:
                    return await self.finish("agent_error")
                self._give(one.agent, message)
            elif one.to_role == roles.USER:
                self._give(one.user, await self._user_message(user))
            one.step()
            if one.to_role != roles.ENV and not one.done:
                if one.step_count >= self.options.max_steps:
                    return await self.finish("max_steps")
                if one.num_errors >= self.options.max_errors:
                    return await self.finish("too_many_errors")
        return await self.finish(one.termination_reason.value)

    async def finish(self, ending: str) -> Tau2Result:
        """Return the result of the messages so far. Only a dialogue that a participant ended can have a reward."""
        simulation = tau2("data_model.simulation").SimulationRun(
            id=str(uuid.uuid4()),
            task_id=self.task.id,
            start_time="",
            end_time="",
            duration=time.monotonic() - self._started,
            termination_reason=ending,
            messages=self._orchestrator.get_trajectory(),
        )
        found = await asyncio.to_thread(self._evaluate, simulation)
        return Tau2Result(
            reward=float(found.reward),
            ending=ending,
            turns=self._turns,
            messages=tuple(m.model_dump(mode="json", exclude_none=True) for m in simulation.messages),
            breakdown={kind.value: float(value) for kind, value in (found.reward_breakdown or {}).items()},
            fault=self._fault,
        )

    def _evaluate(self, simulation: Any) -> Any:
        evaluator = tau2("evaluator.evaluator")
        return evaluator.evaluate_simulation(
            simulation, self.task, evaluator.EvaluationType.ALL, solo_mode=False, domain=self.domain
        )

    def _give(self, participant: Any, message: Any) -> None:
        """Let the participant say this message in the next step."""

        def say(incoming: Any, state: Any) -> tuple[Any, Any]:
            state.messages.extend([*_parts(incoming), message])
            return message, state

        participant.generate_next_message = say

    async def _agent_message(self, act: Act) -> Any:
        """Return the agent's message, None if it was empty or a malformed call, or if its function failed.

        A text that was cut off at its token limit is the message.
        """
        one = self._orchestrator
        messages = [*one.agent_state.messages, *_parts(one.message)]
        answer = await act(replace(self.sample, history=tuple(_turns(messages))))
        self._turns += 1
        if answer.failure == "function_failed" or answer.failure == "function_timeout":
            self._fault = f"{answer.failure}: {answer.detail}"[:300]
            return None
        if answer.is_cut_off:
            answer = replace(answer, text=answer.reasoning, failure=None)
        if answer.failure is not None:
            raise ParticipantFailed("agent", answer)
        return _message("assistant", *text_and_calls(answer))

    async def _user_message(self, user: Ask) -> Any:
        one = self._orchestrator
        state = one.user_state.model_copy(update={"messages": [*one.user_state.messages, *_parts(one.message)]})
        messages = tau2("utils.llm_utils").to_litellm_messages([*state.system_messages, *state.flip_roles()])
        answer = await user(
            Question(
                messages=tuple({k: v for k, v in m.items() if v is not None} for m in messages),
                tools=self._user_tools,
                temperature=self.options.user_temperature,
                seed=self.seed + one.step_count,
                affinity=f"{self.sample.id}/{self.seed}/user",
            )
        )
        if answer.failure is not None:
            raise ParticipantFailed("user", answer)
        message = _message("user", answer.text or "", answer.tool_calls)
        if message is None:
            calls = "; ".join(f"{call.name}({call.arguments})" for call in answer.tool_calls)
            detail = f"arguments are not a JSON object: {calls}" if calls else "empty message"
            raise ParticipantFailed("user", Answer(failure="unparsable", detail=detail))
        return message


def _parts(message: Any) -> list[Any]:
    """Return the messages of a step: several tool results come as one."""
    return list(getattr(message, "tool_messages", None) or [message])


def _turns(messages: Sequence[Any]) -> list[Turn]:
    """Return the conversation as the agent saw it."""
    found, names = list[Turn](), dict[str, str]()
    for message in messages:
        if message.role == "tool":
            found.append(Turn(role="tool", name=names.get(message.id), content=message.content or ""))
            continue
        for call in message.tool_calls or ():
            names[call.id] = call.name
            found.append(Turn(role="agent", tool_call=ToolCall(name=call.name, parameters=call.arguments)))
        if message.content:
            found.append(Turn(role="agent" if message.role == "assistant" else "customer", content=message.content))
    return found


def _message(role: str, text: str, calls: tuple[RequestedCall, ...] | MalformedResponse) -> Any:
    """Return a message of the package: calls, or else a text. None if it is empty or a call is malformed."""
    if isinstance(calls, MalformedResponse):
        return None
    data, made = tau2("data_model.message"), []
    for call in calls:
        arguments = parse_arguments(call.arguments)
        if isinstance(arguments, MalformedResponse):
            return None
        made.append(data.ToolCall(id=uuid.uuid4().hex[:9], name=call.name, arguments=arguments, requestor=role))
    if not made and not text.strip():
        return None
    kind = data.AssistantMessage if role == "assistant" else data.UserMessage
    return kind(role=role, content=None if made else text, tool_calls=made or None)
