"""Customers of `env=sage` in a pool's words: the template decides what a message shows, and the pool words it.

The gold of a turn must be known when the policy answers it. A pool that decides itself what to say would have to be
read by a model before every turn, and the model's errors would be wrong labels. Here an error of the reader costs a
customer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from hamr.bench.sage.customer_reading import read_customer
from hamr.bench.sage.customers import CustomerAuditor, is_undecided
from hamr.bench.sage.simulation import message_question, parse_turn, text_of
from hamr.bench.sage.traces import CustomerTurn, DialoguePlan, Exchange, Trace
from hamr.config.sage import SageConfig
from hamr.data.customer_audit import CustomerFault
from hamr.files import encodable
from hamr.procedures import Scenario, Walk
from hamr.procedures.prompts import wording_prompt
from hamr.procedures.schema import Value
from hamr.procedures.words import Wordings, ask_of, one_of
from hamr.prompting.templates import neutralise
from hamr.protocols import Ask
from hamr.types import CustomerFaultError, CustomerUnavailableError


@dataclass(frozen=True, kw_only=True)
class PoolCustomers:
    """Words whole customers by `write` before their dialogue, and audits them by `read` as the SAGE evaluation does.

    All questions depend on the customer alone: the dialogues of a group have the same ones, and share the answers if
    `write` and `read` cache them. `options` has the sampling and the number of retries.
    """

    write: Ask
    read: Ask
    options: SageConfig

    async def reword(
        self, scenario: Scenario, plan: DialoguePlan, wordings: Wordings, turns: Iterable[CustomerTurn]
    ) -> list[CustomerTurn]:
        """Return the turns in other words. A customer with a fault is worded again, up to `reasks` times.

        Raises:
            CustomerFaultError: Every try had a fault.
            CustomerUnavailableError: A pool did not answer.
        """
        turns, fault = list(turns), None
        for attempt in range(self.options.reasks + 1):
            texts = await asyncio.gather(
                *(self._write(scenario, plan, text, (number, attempt)) for number, (text, _, _) in enumerate(turns))
            )
            worded = [(text, shown, walk) for text, (_, shown, walk) in zip(texts, turns, strict=True)]
            fault = await self._find_fault(scenario, plan, wordings, worded)
            if fault is None:
                return worded
        assert fault is not None, "there is at least one try"
        raise CustomerFaultError(str(fault))

    async def _write(self, scenario: Scenario, plan: DialoguePlan, text: str, which: tuple[int, int]) -> str:
        instructions = wording_prompt(scenario, persona=plan.persona, level=plan.level, language=plan.language)
        messages = (
            {"role": "system", "content": instructions},
            {"role": "user", "content": f"<message>\n{neutralise(text)}\n</message>"},
        )
        answer = await self.write(message_question(plan, messages, self.options, *which))
        worded = text_of(answer)
        if not worded and answer.failure is not None:
            raise CustomerUnavailableError(f"env.simulator: {answer.failure}: {answer.detail}"[:300])
        return parse_turn(encodable(worded)).text

    async def _find_fault(
        self, scenario: Scenario, plan: DialoguePlan, wordings: Wordings, turns: list[CustomerTurn]
    ) -> CustomerFault | None:
        """Return the first fault of the audit. The reader is asked only if it depends on the meaning."""
        trace = Trace(
            agent="policy",
            simulator="pool",
            plan=plan,
            turns=tuple(
                Exchange(user=message, agent=_right_reply(plan, wordings, shown, walk), calls=())
                for message, shown, walk in turns
            ),
            outcome="max_turns",
        )
        auditor = _auditor(scenario, plan.language)
        audit = auditor.audit(trace)
        if is_undecided(audit):
            reading = await read_customer({"reader": self.read}, scenario, trace, self.options)
            [vote] = reading.votes
            if vote.failure is not None:
                raise CustomerUnavailableError(f"env.reader: {vote.failure}: {vote.detail}")
            audit = auditor.audit(trace, reading)
        assert audit is not None, "the dialogue is finished and simulated"
        return next(iter(audit.faults), None)


def _right_reply(plan: DialoguePlan, wordings: Wordings, shown: Mapping[str, Value], walk: Walk) -> str:
    """Return the agent's question that the procedure demands: the reading of a customer does not depend on the policy's
    replies."""
    return "" if walk.awaits is None else one_of(ask_of(wordings, walk.awaits, shown), plan.system, Random(plan.seed))


@lru_cache(maxsize=64)
def _auditor(scenario: Scenario, language: str) -> CustomerAuditor:
    return CustomerAuditor({scenario.name: scenario}, language)
