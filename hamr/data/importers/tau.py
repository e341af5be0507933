"""tau-bench and tau2-bench (Sierra Research, MIT): conversations of agents with simulated customers, and their reward.

The input is published results or tasks (`tau_release`), or a file whose lines are conversations: `id, policy_ref,
tools_ref, messages, reward, instruction, gold_actions`, with messages in the format of a sample's history. The policies
file is {"policies": {ref: {"text"}}, "tools": {ref: [tools]}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hamr.data.columns import group_meta
from hamr.data.importers.imported import Imported, from_trajectories
from hamr.data.importers.reading import ReferringConversation, is_release, read_listed_policies, referring_rows
from hamr.data.importers.tau_release import read_release
from hamr.data.importers.widen import Calls, add_called_tools, calls_in, derived_tools, widened_tool
from hamr.data.trajectories import trajectory_from_json
from hamr.errors import DataError


def import_tau(files: Mapping[str, Path], *, group: str | None = None) -> Imported:
    """Return the successful conversations (reward 1), in the order of the file. Actions of failed ones are not
    references.

    All runs of a task (`source.task_id`) are in one split. The instruction of the customer and the correct calls go to
    `privileged`. Tools are widened to accept the calls, and a tool without a description is derived from its calls.
    DataError has the place `file:line: field`; it also covers the benchmark's tasks, which are not conversations, and a
    file without successes.
    """
    input, policies = files["input"], files.get("policies")
    if is_release(input, ("timestamp", "info", "tasks", "simulations"), policies):
        return from_trajectories(read_release(input, group))
    known = read_listed_policies(policies)
    rows = referring_rows(input, ReferringConversation, known, policies, group)
    calls = calls_in(row["messages"] for _, row in rows)
    derived = derived_tools(calls)
    found = [
        trajectory_from_json(_convert(row, known, calls, derived, group), where=where)
        for where, row in rows
        if row["reward"] >= 1.0
    ]
    if not found:
        raise DataError(str(input), f"{len(rows)} conversations", "none has reward 1; there is nothing to learn from")
    return from_trajectories(found)


def _convert(
    row: Mapping[str, Any],
    known: Mapping[str, Any],
    calls: Calls,
    derived: Mapping[str, dict[str, Any]],
    group: str | None,
) -> dict[str, Any]:
    tools = [tool.get("function", tool) for ref in row["tools_ref"] for tool in known["tools"][ref]]
    widened = (widened_tool(tool, calls.get(tool["name"], [])) for tool in tools)
    task = (row.get("source") or {}).get("task_id", row["id"])  # runs of one task share their answers
    privileged = {"user_instructions": row.get("instruction", ""), "gold_actions": row.get("gold_actions", [])}
    return {
        "id": row["id"],
        "ticket": {},
        "policy": known["policies"][row["policy_ref"]],
        "tools": add_called_tools(widened, row["messages"], derived),
        "turns": row["messages"],
        "privileged": privileged,
        "meta": {
            "dataset": "tau",
            "dialogue": row["id"],
            "group": f"{row['policy_ref']}/{task}",
            "reward": row["reward"],
            **group_meta(row, group),
        },
    }
