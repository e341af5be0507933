"""Tools of a scenario for one customer: what a call does and returns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hamr.bench.sage.traces import DialoguePlan, ToolUse
from hamr.data.actions import parse_arguments
from hamr.data.sage_samples import tools_of
from hamr.data.tools import parameter_problem, tool_spec
from hamr.errors import BadInput
from hamr.files import encodable
from hamr.procedures.graph import Scenario
from hamr.types import MalformedResponse, RequestedCall


class ServiceDesk:
    """Executes the tool calls of an agent in a dialogue with one customer."""

    def __init__(self, scenario: Scenario, plan: DialoguePlan) -> None:
        self.scenario, self.plan = scenario, plan
        self.tools = tools_of(scenario, plan.language)
        self._schemas = dict(tool_spec(tool) for tool in self.tools)

    def use(self, call: RequestedCall, before: Sequence[ToolUse] = ()) -> ToolUse:
        """Do the action and return the result as JSON text, or an error that the agent can correct.

        An amount is accepted as it is, because an error would tell the right one. `before`: earlier calls of the
        dialogue; the same action is done once.
        """
        arguments = parse_arguments(call.arguments)
        problem = self._problem(call.name, arguments)
        if problem or isinstance(arguments, MalformedResponse):
            return self._make_use(call, {"status": "error", "error": problem})
        action = self._action(call.name, arguments)
        status = "already done" if any(use.action == action for use in before) else "done"
        described = self.scenario.file.actions[action].description.of(self.plan.language)
        expected = self._amount(action)
        wrong = expected is not None and arguments.get("amount") != expected
        return self._make_use(call, {"status": status, "action": described}, action=action, wrong_amount=wrong)

    def _make_use(self, call: RequestedCall, result: Mapping[str, Any], **how: Any) -> ToolUse:
        text = json.dumps(result, ensure_ascii=False)
        return ToolUse(name=encodable(call.name), arguments=encodable(call.arguments), result=text, **how)

    def _problem(self, name: str, arguments: Mapping[str, Any] | MalformedResponse) -> str:
        if name not in self._schemas:
            return f"no such tool; there are: {', '.join(self._schemas)}"
        if isinstance(arguments, MalformedResponse):
            return arguments.detail
        found = parameter_problem(arguments, self._schemas[name])
        if found is not None:
            return f"{found[0]}: {found[1]}"
        amount = arguments.get("amount", 0)
        return "" if isinstance(amount, int) and not isinstance(amount, bool) else "amount: must be a whole number"

    def _action(self, name: str, arguments: Mapping[str, Any]) -> str:
        option = arguments.get("option")
        actions = self.scenario.file.actions.items()
        return next(key for key, action in actions if action.tool(key) == name and action.option == option)

    def _amount(self, action: str) -> int | None:
        formula = self.scenario.file.actions[action].amount
        if formula is None:
            return None
        try:
            return self.scenario.amount(formula, self.plan.system)
        except BadInput:
            return None
