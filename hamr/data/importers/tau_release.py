"""tau2-bench as it is published: the results of simulations, and the tasks of a domain.

Results are {"info": {"environment_info": {"domain_name", "policy", "tool_defs"?}}, "tasks": [task], "simulations":
[{"id", "task_id", "trial", "reward_info": {"reward"}, "messages": [chat messages]}]}, in one file, or with every
simulation in a file of the folder `simulations`. A domain is a folder with `tasks.json` and `policy.md`. A task is
{"id", "user_scenario", "ticket"?, "evaluation_criteria": {"actions": [{"name", "arguments"}]}}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hamr.data.columns import check_column, group_meta
from hamr.data.importers.messages import chat_row
from hamr.data.importers.reading import json_file
from hamr.data.importers.widen import add_called_tools, calls_in, derived_tools, widened_tool
from hamr.data.shapes import Shape, check_shape
from hamr.data.trajectories import Trajectory, trajectory_from_json
from hamr.errors import DataError


class _Action(Shape):
    name: str
    arguments: dict[str, Any] | None = None


class _Criteria(Shape):
    actions: list[_Action] | None = None


class _UserScenario(Shape):
    instructions: str | dict[str, Any] | None = None


class _Task(Shape):
    id: str
    user_scenario: _UserScenario
    ticket: str | None = None
    evaluation_criteria: _Criteria | None = None


class _Signature(Shape):
    doc: str | None = None
    params: dict[str, Any] | None = None


class _Environment(Shape):
    domain_name: str
    policy: str
    tool_defs: dict[str, _Signature] | None = None


class _Info(Shape):
    environment_info: _Environment


class _Results(Shape):
    info: _Info
    tasks: list[_Task]
    simulations: list[Any] | None = None


class _Reward(Shape):
    reward: float


class _Message(Shape):
    role: str
    content: str | None = None
    tool_calls: list[_Action] | None = None
    tool_messages: list[dict[str, Any]] | None = None


class _Run(Shape):
    id: str
    task_id: str | int
    messages: list[_Message] | None = None
    reward_info: _Reward | None = None
    policy: str | None = None


_SIGNAL = re.compile(r"###(?:STOP|TRANSFER|OUT-OF-SCOPE)###")
"""Words of a simulated customer that end the simulation."""


def read_release(input: Path, group: str | None) -> list[Trajectory]:
    """Return the successful simulations (reward 1), or the tasks of a domain that have a ticket.

    All simulations of a task are in one split. Calls that the customer makes on its own device are left out: the agent
    does not see them. A task with a ticket (tau2's solo mode) becomes the ticket and its expected calls, up to
    the first with an id that the agent has to look up. DataError names the simulation or task.
    """
    rows = list(_simulations(input) if _is_results(input) else _tasks(input))
    check_column("group", group, (whole for _, whole, _, _ in rows), input.name)
    calls = calls_in(row["turns"] for _, _, row, _ in rows)
    derived = derived_tools(calls)
    made = []
    for where, whole, row, defined in rows:
        widened = (widened_tool(tool, calls.get(tool["name"], [])) for tool in defined)
        row["meta"] |= group_meta(whole, group)
        row["tools"] = add_called_tools(widened, row["turns"], derived)
        made.append(trajectory_from_json(row, where=where))
    return made


def _is_results(input: Path) -> bool:
    if input.is_dir():
        return not (input / "tasks.json").exists()
    content = json_file(input, "input")
    return isinstance(content, dict)


ReleaseRow = tuple[str, Mapping[str, Any], dict[str, Any], list[dict[str, Any]]]
"""(place, object of the file, trajectory row without tools, tools that the file describes)."""

# --- simulations -------------------------------------------------------------------------------


def _simulations(input: Path) -> Iterator[ReleaseRow]:
    path = input / "results.json" if input.is_dir() else input
    results = json_file(path, "input")
    check_shape(_Results, results, str(path))
    environment = results["info"]["environment_info"]
    tasks = {task["id"]: task for task in results["tasks"]}
    simulations = results.get("simulations") or [
        json_file(file, "input") for file in sorted(path.with_name("simulations").glob("*.json"))
    ]
    tools = [_tool(name, given) for name, given in (environment.get("tool_defs") or {}).items()]
    successes = 0
    for i, run in enumerate(simulations):
        where = f"{path}: simulations[{i}]"
        check_shape(_Run, run, where)
        reward = (run.get("reward_info") or {}).get("reward", 0.0)
        if reward >= 1.0:
            successes += 1
            yield where, run, _trajectory(run, tasks, environment, where), tools
    if not successes:
        raise DataError(
            str(path), f"{len(simulations)} simulations", "none has reward 1; there is nothing to learn from"
        )


def _trajectory(
    run: Mapping[str, Any], tasks: Mapping[str, Any], environment: Mapping[str, Any], where: str
) -> dict[str, Any]:
    number, domain = str(run.get("task_id")), environment["domain_name"]
    row = chat_row({"messages": list(_agent_view(run.get("messages") or ()))}, run["id"], where)
    meta = {
        "dataset": "tau2",
        "dialogue": run["id"],
        "group": f"{domain}/{number}",
        "reward": run["reward_info"]["reward"],
    }
    policy = run.get("policy") or environment["policy"]
    return {**row, "policy": policy, "privileged": _hidden_facts(tasks.get(number, {})), "meta": meta}


def _agent_view(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the messages that the agent writes and sees, as those of chat APIs."""
    for message in messages:
        if message["role"] == "tool":
            for result in message.get("tool_messages") or [message]:
                if result.get("requestor") != "user":
                    yield {**result, "tool_call_id": result.get("id")}
        elif message["role"] == "user":
            text = _SIGNAL.sub("", message.get("content") or "").strip()
            yield {"role": "user", "content": text}
        elif message["role"] != "system":
            yield message


def _tool(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tool of a signature {"doc", "params": JSON schema}."""
    schema = given.get("params")
    schema = schema if isinstance(schema, dict) and "properties" in schema else {"type": "object", "properties": {}}
    return {"name": name, "description": given.get("doc") or "", "parameters": schema}


# --- tasks -------------------------------------------------------------------------------------


def _tasks(input: Path) -> Iterator[ReleaseRow]:
    path = input / "tasks.json" if input.is_dir() else input
    tasks = json_file(path, "input")
    policy = next(
        (path.with_name(name) for name in ("policy.md", "main_policy.md") if path.with_name(name).exists()), None
    )
    if not isinstance(tasks, list) or policy is None:
        raise DataError(
            "input", str(input), "must be results of simulations, or tasks.json with policy.md in its folder"
        )
    found = 0
    check_shape(list[_Task], tasks, str(path))
    for i, task in enumerate(tasks):
        where = f"{path}: [{i}]"
        actions = (task.get("evaluation_criteria") or {}).get("actions") or []
        ticket = task.get("ticket") or ""
        end = next((k for k, act in enumerate(actions) if not _is_known(act.get("arguments"), ticket)), len(actions))
        expected = actions[:end]
        if ticket and expected:
            found += 1
            domain = path.parent.name
            turns = [{"role": "customer", "content": ticket}, *map(_call, expected)]
            yield (
                where,
                task,
                {
                    "id": f"{domain}-{task['id']}",
                    "ticket": {},
                    "policy": policy.read_text(encoding="utf-8"),
                    "turns": turns,
                    "privileged": _hidden_facts(task),
                    "meta": {"dataset": "tau2", "dialogue": f"{domain}-{task['id']}"},
                },
                [],
            )
    if not found:
        remedy = "none has a ticket and expected calls; a task is not a dialogue; give the results of simulations"
        raise DataError(str(path), f"{len(tasks)} tasks", remedy)


def _is_known(value: Any, ticket: str) -> bool:
    """Return False for arguments with a number or id that the ticket lacks: they come from the result of a call."""
    if isinstance(value, dict | list):
        return all(_is_known(inner, ticket) for inner in (value.values() if isinstance(value, dict) else value))
    return not re.search(r"\d", str(value)) or str(value) in ticket


def _call(action: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "agent", "action": "call_tool", "name": action["name"], "parameters": action.get("arguments") or {}}


def _hidden_facts(task: Mapping[str, Any]) -> dict[str, Any]:
    scenario = task.get("user_scenario") or {}
    instructions = scenario.get("instructions") or ""
    if isinstance(instructions, dict):
        instructions = "\n".join(f"{name}: {text}" for name, text in instructions.items() if text)
    actions = (task.get("evaluation_criteria") or {}).get("actions") or []
    calls = [{"name": action["name"], "parameters": action.get("arguments") or {}} for action in actions]
    return {"user_instructions": instructions, "gold_actions": calls}
