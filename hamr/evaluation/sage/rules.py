"""The rule engine: known variables in, the stages passed and the action out (SAGE Eq. 4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamr.errors import BadInput
from hamr.evaluation.sage.schema import ScenarioFile


@dataclass(frozen=True, kw_only=True)
class Walk:
    """How far the procedure gets with what is known.

    `path` are the stages in the order visited (not always numeric). Either `action` is the end, or
    `awaits` names the variable that the last stage of `path` needs and nobody has given yet.
    `read` are the variables that decided, in order.
    """

    path: tuple[str, ...]
    action: str | None = None
    awaits: str | None = None
    read: tuple[str, ...] = ()


def walk(scenario: ScenarioFile, fields: Mapping[str, object], system: Mapping[str, object]) -> Walk:
    """Follow the graph from its start. A field that is absent or None is not known yet.

    Raises BadInput for an unknown variable, a value outside its options or range, a missing system
    variable and a combination of system variables that cannot be.
    """
    known = _checked(scenario, fields, system)
    at = scenario.start
    path: list[str] = []
    read: list[str] = []
    while at in scenario.stages:
        path.append(at)
        stage = scenario.stages[at]
        if stage.next is not None:
            at = stage.next
            continue
        assert stage.reads is not None
        value = known.get(stage.reads)
        if value is None:
            return Walk(path=tuple(path), awaits=stage.reads, read=tuple(read))
        read.append(stage.reads)
        at = next(branch.to for branch in stage.branches if branch.holds(value))
    return Walk(path=tuple(path), action=at, read=tuple(read))


def _checked(scenario: ScenarioFile, fields: Mapping[str, object], system: Mapping[str, object]) -> dict[str, object]:
    for section, given, allowed in (("fields", fields, scenario.fields), ("system", system, scenario.system)):
        for name, value in given.items():
            where = f"{scenario.name}.{section}.{name}"
            if name not in allowed:
                raise BadInput(where, value, f"no such variable; known: {sorted(allowed)}")
            problem = None if section == "fields" and value is None else allowed[name].problem(value)
            if problem:
                raise BadInput(where, value, problem)
    for name in scenario.system:
        if name not in system:
            raise BadInput(f"{scenario.name}.system.{name}", None, "missing; every system variable has to be given")
    for refusal in scenario.refused:
        if all(test.holds(system[name]) for name, test in refusal.when.items()):
            shown = {name: system[name] for name in refusal.when}
            raise BadInput(f"{scenario.name}.system", shown, refusal.why)
    return {**fields, **system}
