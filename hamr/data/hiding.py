"""Aliases for the private values of whole tickets (detected by `hamr.data.pii`)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hamr.data.names import NameFinder
from hamr.data.pii import Aliases
from hamr.data.tools import public_values, tool_spec
from hamr.data.trajectories import Trajectory, trajectory_from_json, trajectory_to_json


def without_pii(row: Mapping[str, Any], aliases: Aliases) -> dict[str, Any]:
    """Return a trajectory row with aliases for every private value, including the policy text and the calls.

    An agent copies values for its replies and calls from policy and dialogue, so they must have the same aliases there.
    `privileged["pii"]` holds {alias: value} of the values in calls. Values that the schema of a tool lists are
    unchanged, because a call must name them. A parameter whose number became an alias also accepts texts.
    """
    aliases.public = public_values(row.get("tools") or ())
    policy = row.get("policy", "")
    aliases.learn(policy)  # first, so that tickets under one policy show the same text
    calls = [turn["parameters"] for turn in row["turns"] if turn.get("action") == "call_tool"]
    for parameters in calls:
        aliases.learn_value("", parameters)
    for section in ("ticket", "privileged"):
        aliases.learn_value("", row.get(section, {}))
    asked = ""
    for turn in row["turns"]:
        content = turn.get("content", "")
        aliases.learn(f"{asked}\n{content}" if asked and turn["role"] == "customer" else content)
        asked = content if content.rstrip().endswith(("?", "？")) else ""  # "Your order number?" labels the answer
    hidden = {section: aliases.hide_value(row.get(section, {})) for section in ("ticket", "privileged")}
    turns = [
        {key: value if key in ("role", "action", "name") else aliases.hide_value(value) for key, value in turn.items()}
        for turn in row["turns"]
    ]
    needed = aliases.named_in([turn["parameters"] for turn in turns if turn.get("action") == "call_tool"])
    if needed:
        hidden["privileged"]["pii"] = needed
    aliased: dict[str, list[str]] = {}
    for turn, original in zip(turns, row["turns"], strict=True):
        for name, value in turn["parameters"].items() if turn.get("action") == "call_tool" else ():
            if isinstance(value, str) and not isinstance(original["parameters"][name], str):
                aliased.setdefault(turn["name"], []).append(name)
    if aliased:
        hidden["tools"] = [_accept_texts(tool, aliased.get(tool_spec(tool)[0], ())) for tool in row.get("tools") or ()]
    return {**row, **hidden, "policy": aliases.hide(policy), "turns": turns}


def _accept_texts(tool: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """Return the tool with parameters of these names that also accept texts."""
    schema = tool_spec(tool)[1]
    properties = dict(schema.get("properties", {}))
    for name in dict.fromkeys(names):
        spec = properties.get(name, schema.get("additionalProperties"))
        if isinstance(spec, Mapping) and spec:
            described = {key: value for key, value in spec.items() if key in ("description", "title")}
            plain = {key: value for key, value in spec.items() if key not in described}
            several = plain["anyOf"] if plain.keys() == {"anyOf"} else [plain]
            properties[name] = {**described, "anyOf": [*several, {"type": "string"}]}
    if properties == schema.get("properties", {}):
        return tool
    parameters = {**schema, "properties": properties}
    if "function" in tool:
        return {**tool, "function": {**tool["function"], "parameters": parameters}}
    return {**tool, "parameters": parameters}


def hide_in(
    trajectories: Iterable[Trajectory], hidden: Counter[str], names: NameFinder | None = None
) -> Iterator[Trajectory]:
    """Yield parsed trajectories with aliases. `hidden` counts the aliases by kind."""
    for trajectory in trajectories:
        aliases = Aliases(names=names)
        row = without_pii(trajectory_to_json(trajectory), aliases)
        hidden.update(aliases.counts)
        yield dataclasses.replace(trajectory_from_json(row, where=trajectory.id), meta=trajectory.meta)
