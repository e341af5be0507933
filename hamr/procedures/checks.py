"""Consistency checks of a scenario with well-formed keys: do its parts fit together?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from hamr.errors import did_you_mean
from hamr.procedures.graph import Scenario
from hamr.procedures.schema import Condition, Fact, ProcedureStage, ScenarioFile, Value, Variable


class ScenarioFault(NamedTuple):
    """Location in the file (keys and list positions), the value there, and the correction."""

    where: tuple[str | int, ...]
    value: object
    why: str


def faults(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Yield the faults of one kind after the other.

    Use only the first: a later check assumes that the earlier ones found nothing, since it walks the graph that they
    validate.
    """
    yield from _names(file)
    yield from _stages(file)
    yield from _graph(file)
    yield from _values(file)
    yield from _amounts(file)
    yield from _logic(file)


def _names(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check that no name has two meanings."""
    kinds = {"fields": file.fields, "system": file.system, "facts": file.facts, "formulas": file.formulas}
    yield from _check_doubles(kinds)
    yield from _check_doubles({"stages": file.stages, "actions": file.actions})
    if file.start not in file.stages:
        yield ScenarioFault(
            ("start",), file.start, f"is not a stage; {did_you_mean(file.start, file.stages)}known: {list(file.stages)}"
        )


def _check_doubles(kinds: Mapping[str, Iterable[str]]) -> Iterator[ScenarioFault]:
    seen: dict[str, str] = {}
    for kind, names in kinds.items():
        for name in names:
            if name in seen:
                yield ScenarioFault((kind, name), name, f"the name is already used in {seen[name]}; rename one")
            seen[name] = kind


def _stages(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check that targets and variables exist, and that every value of a variable that is read fires exactly one
    branch."""
    places = [*file.stages, *file.actions]
    variables = {**file.fields, **file.system}
    for name, stage in file.stages.items():
        for index, target in enumerate(stage.targets):
            where = ("stages", name, "next") if stage.next else ("stages", name, "branches", index, "to")
            if target not in places:
                yield ScenarioFault(
                    where, target, f"is neither a stage nor an action; {did_you_mean(target, places)}known: {places}"
                )
        if stage.reads is not None and stage.reads not in variables:
            hint = did_you_mean(stage.reads, variables)
            yield ScenarioFault(
                ("stages", name, "reads"), stage.reads, f"is not a variable; {hint}known: {list(variables)}"
            )
        elif stage.reads is not None:
            yield from _branches(name, stage, variables[stage.reads])


def _branches(name: str, stage: ProcedureStage, variable: Variable) -> Iterator[ScenarioFault]:
    for index, branch in enumerate(stage.branches):
        yield from _condition(("stages", name, "branches", index), branch, variable)
    for value in _values_to_try(stage, variable):
        fired = [branch.to for branch in stage.branches if branch.holds(value)]
        if len(fired) != 1:
            what = "fires no branch; add one for it" if not fired else f"fires {len(fired)} branches; keep one of them"
            yield ScenarioFault(("stages", name, "branches"), value, f"{stage.reads}={value} {what}")


def _values_to_try(stage: ProcedureStage, variable: Variable) -> tuple[Value, ...]:
    """Return every option of a variable, or for a number the values on both sides of every border."""
    if variable.options is not None:
        return variable.options
    least = variable.minimum
    assert least is not None
    edges = [least, *(b.above for b in stage.branches if b.above is not None)]
    edges += [v for b in stage.branches for v in b.values or () if isinstance(v, int)]
    return tuple(sorted({n for e in edges for n in (e, e + 1) if n >= least}))


def _condition(where: tuple[str | int, ...], test: Condition, variable: Variable | Fact) -> Iterator[ScenarioFault]:
    """Check that the variable can satisfy the condition."""
    if test.above is not None and (variable.options is not None if isinstance(variable, Variable) else False):
        yield ScenarioFault((*where, "above"), test.above, "the variable is not a number; give values")
    for index, value in enumerate(test.values or ()):
        problem = variable.problem(value) if isinstance(variable, Variable) else None
        if problem:
            yield ScenarioFault((*where, "values", index), value, problem)


def _graph(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check that there is no loop, no unreachable stage and no unused action."""
    import networkx

    graph = Scenario(file).graph
    if not networkx.is_directed_acyclic_graph(graph):
        loop = [edge[0] for edge in networkx.find_cycle(graph)]
        why = "the stages form a loop; every walk must end in an action"
        yield ScenarioFault(("stages", loop[0]), " -> ".join([*loop, loop[0]]), why)
    reached = {file.start, *networkx.descendants(graph, file.start)}
    for name in file.stages:
        if name not in reached:
            yield ScenarioFault(
                ("stages", name), name, f"unreachable: nothing leads there from {file.start}; remove it or branch to it"
            )
    for name in file.actions:
        if name not in reached:
            yield ScenarioFault(("actions", name), name, "never used: no branch ends in it; remove it or branch to it")


def _values(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check the references of the other sections to the variables."""
    for name, variable in file.system.items():
        if variable.options is None and file.listed_states is None:
            yield ScenarioFault(("system", name), variable.type, "a number has no list of states; write system_states")
    for index, refusal in enumerate(file.refused):
        for name, test in refusal.when.items():
            where = ("refused", index, "when", name)
            if name not in file.system:
                yield ScenarioFault(
                    where,
                    name,
                    f"is not a system variable; {did_you_mean(name, file.system)}known: {list(file.system)}",
                )
            else:
                yield from _condition(where, test, file.system[name])
    for index, state in enumerate(file.listed_states or ()):
        yield from _state(("system_states", index), state, file)
    for index, name in enumerate(file.coverage.crossed):
        yield from _check_reference(("coverage", "crossed", index), name, None, file.fields)
    for name, value in file.coverage.filled.items():
        yield from _check_reference(("coverage", "filled", name), name, value, file.fields)
    missing = [n for n in file.fields if (n in file.coverage.crossed) == (n in file.coverage.filled)]
    if missing:
        yield ScenarioFault(("coverage",), missing[0], "name every field in one of crossed and filled")
    for name, options in file.fitting_levels.items():
        for option, levels in options.items():
            place = ("fitting_levels", name, str(option))
            yield from _check_reference(place, name, option, file.fields)
            for level in levels:
                if level not in file.adversity:
                    hint = did_you_mean(level, file.adversity)
                    yield ScenarioFault(place, level, f"no such level; {hint}levels: {', '.join(file.adversity)}")
    for intent in file.intents:
        for name, value in file.intents[intent].pins.items():
            yield from _check_reference(("intents", intent, "pins", name), name, value, file.fields)


def _state(where: tuple[str | int, ...], state: Mapping[str, Value], file: ScenarioFile) -> Iterator[ScenarioFault]:
    known = list(file.system)
    for name, value in state.items():
        yield from _check_reference((*where, name), name, value, file.system)
    missing = [name for name in known if name not in state]
    if missing:
        yield ScenarioFault(where, missing[0], f"is missing; a state gives all of {known}")
        return
    refusal = file.refusal(state)
    if refusal is not None:
        yield ScenarioFault(where, dict(state), f"is refused: {refusal.why}")


def _check_reference(
    where: tuple[str | int, ...], name: str, value: Value | None, variables: Mapping[str, Variable]
) -> Iterator[ScenarioFault]:
    """Check that the variable exists and may have `value` (None: check only the name)."""
    if name not in variables:
        yield ScenarioFault(where, name, f"no such variable; {did_you_mean(name, variables)}known: {list(variables)}")
        return
    problem = None if value is None else variables[name].problem(value)
    if problem:
        yield ScenarioFault(where, value, problem)


def _amounts(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check that formulas read numeric variables of the ticket, with satisfiable conditions."""
    numbers = {name for name, fact in file.facts.items() if fact.number}
    numbers |= {name for name, variable in file.system.items() if variable.options is None}
    readable: dict[str, Variable | Fact] = {**file.system, **file.facts}
    for name, formula in file.formulas.items():
        for index, case in enumerate(formula.cases):
            where = ("formulas", name, "cases", index)
            for variable, test in case.when.items():
                if variable not in readable:
                    yield ScenarioFault((*where, "when", variable), variable, _no_readable(variable, readable))
                else:
                    yield from _condition((*where, "when", variable), test, readable[variable])
            for variable in sorted(case.value.names - numbers):
                yield ScenarioFault((*where, "value"), variable, _no_readable(variable, numbers))
    for name, action in file.actions.items():
        if action.amount is not None and action.amount not in file.formulas:
            hint = did_you_mean(action.amount, file.formulas)
            yield ScenarioFault(
                ("actions", name, "amount"), action.amount, f"is not a formula; {hint}known: {list(file.formulas)}"
            )


def _no_readable(name: str, known: Iterable[str]) -> str:
    return f"a formula can read the numbers among system and facts; {did_you_mean(name, known)}known: {sorted(known)}"


def _logic(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check combinations of conditions that the single edges allow but no setting reaches, and fields without an
    intent."""
    scenario = Scenario(file)
    visited = set()
    for fields, _, done in scenario.settings():
        visited |= {*done.nodes, str(done.action)}
        if not scenario.intents_of(fields):
            yield ScenarioFault(("intents",), fields, "no intent allows these fields; add one, or pin less")
    for kind, names in (("stages", file.stages), ("actions", file.actions)):
        for name in names:
            if name not in visited:
                yield ScenarioFault((kind, name), name, "unreachable: no setting of the variables leads to it")
