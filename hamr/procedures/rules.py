"""Rule engine: from known variables to the stages passed and the action (SAGE Eq. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamr.errors import BadInput, did_you_mean
from hamr.procedures.schema import ScenarioFile


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Progress of the procedure with the known variables.

    `path` holds the stages in order of visit (not always numeric), by the names that an agent uses. `nodes` holds the
    same stages by their names in the graph (`stage6@course` for `stage6` in the path). Either `action` is the end, or
    `awaits` names the variable that the last stage of `path` needs and that is not known yet. `read` holds the
    variables that decided, in order.
    """

    path: tuple[str, ...]
    action: str | None = None
    awaits: str | None = None
    read: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


def stage_name(node: str) -> str:
    """Return the name of the stage in paths.

    >>> stage_name("stage6@course")
    'stage6'
    """
    return node.partition("@")[0]


def walk(scenario: ScenarioFile, fields: Mapping[str, object], system: Mapping[str, object]) -> Walk:
    """Follow the graph from its start. A field that is absent or None is unknown. `system` may also contain the facts
    of the ticket, which have no effect.

    Raises:
        BadInput: Unknown variable, value outside its options or range, missing system variable, or impossible
            combination of system variables.
    """
    known = _check_fields(scenario, fields, system)
    at, awaits = scenario.start, None
    nodes: list[str] = []
    read: list[str] = []
    while at in scenario.stages and awaits is None:
        nodes.append(at)
        stage = scenario.stages[at]
        if stage.next is not None:
            at = stage.next
            continue
        assert stage.reads is not None
        value = known.get(stage.reads)
        if value is None:
            awaits = stage.reads
        else:
            read.append(stage.reads)
            at = next(branch.to for branch in stage.branches if branch.holds(value))
    return Walk(
        path=tuple(map(stage_name, nodes)),
        action=at if awaits is None else None,
        awaits=awaits,
        read=tuple(read),
        nodes=tuple(nodes),
    )


def _check_fields(
    scenario: ScenarioFile, fields: Mapping[str, object], system: Mapping[str, object]
) -> dict[str, object]:
    _check_values(scenario, "fields", fields)
    _check_values(scenario, "system", {name: v for name, v in system.items() if name not in scenario.facts})
    for name in scenario.system:
        if name not in system:
            raise BadInput(f"{scenario.name}.system.{name}", None, "missing; give every system variable")
    refusal = scenario.refusal(system)
    if refusal is not None:
        raise BadInput(f"{scenario.name}.system", {name: system[name] for name in refusal.when}, refusal.why)
    return {**fields, **system}


def _check_values(scenario: ScenarioFile, section: str, given: Mapping[str, object]) -> None:
    allowed = scenario.fields if section == "fields" else scenario.system
    for name, value in given.items():
        where = f"{scenario.name}.{section}.{name}"
        if name not in allowed:
            raise BadInput(where, value, f"no such variable; {did_you_mean(name, allowed)}known: {sorted(allowed)}")
        problem = None if section == "fields" and value is None else allowed[name].problem(value)
        if problem:
            raise BadInput(where, value, problem)
