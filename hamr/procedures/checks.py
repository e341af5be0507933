"""Consistency checks of a scenario with well-formed keys: do its parts fit together?"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from hamr.errors import did_you_mean
from hamr.procedures.graph import Scenario
from hamr.procedures.schema import Condition, Fact, Formula, ProcedureStage, ScenarioFile, Value, Variable

_INPUTS = 100
"""Maximum number of values of a fact that are all tried in a formula. Of more, only those at the borders are."""
_COMBINATIONS = 10_000
"""Maximum number of combinations of values that are tried in a formula."""


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
    yield from _tools(file)
    if file.start not in file.stages:
        yield _unknown(("start",), file.start, "is not a stage", file.stages)


def _unknown(where: tuple[str | int, ...], name: str, what: str, known: Collection[str]) -> ScenarioFault:
    """Return the fault of a name that is none of the known ones."""
    return ScenarioFault(where, name, f"{what}; {did_you_mean(name, known)}known: {list(known)}")


def _check_doubles(kinds: Mapping[str, Iterable[str]]) -> Iterator[ScenarioFault]:
    seen: dict[str, str] = {}
    for kind, names in kinds.items():
        for name in names:
            if name in seen:
                yield ScenarioFault((kind, name), name, f"the name is already used in {seen[name]}; rename one")
            seen[name] = kind


def _tools(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check that every call names one action: actions have different tools, or different options of one tool."""
    options: dict[str, dict[str | None, str]] = {}
    for name, action in file.actions.items():
        if action.reply:
            continue
        tool, option = action.tool(name), action.option
        where, value = (("actions", name, "group"), action.group) if action.group else (("actions", name), name)
        if not tool.strip("_"):
            why = "its tool needs a name with a letter from a to z or a digit; rename it (a description may be Chinese)"
            yield ScenarioFault(where, value, why)
        others = options.setdefault(tool, {})
        both = "" if option is None or None in others else f" and its option {option!r}"
        for known, other in others.items():
            if known == option or None in (known, option):
                yield ScenarioFault(where, value, f"shares the tool {tool!r}{both} with {other}; rename one")
        others[option] = name


def _stages(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check that targets and variables exist, and that every value of a variable that is read fires exactly one
    branch."""
    places = [*file.stages, *file.actions]
    variables = {**file.fields, **file.system}
    for name, stage in file.stages.items():
        for index, target in enumerate(stage.targets):
            where = ("stages", name, "next") if stage.next else ("stages", name, "branches", index, "to")
            if target not in places:
                yield _unknown(where, target, "is neither a stage nor an action", places)
        if stage.reads is not None and stage.reads not in variables:
            yield _unknown(("stages", name, "reads"), stage.reads, "is not a variable", variables)
        elif stage.reads is not None:
            yield from _branches(name, stage, variables[stage.reads])


def _branches(name: str, stage: ProcedureStage, variable: Variable) -> Iterator[ScenarioFault]:
    for index, branch in enumerate(stage.branches):
        yield from _condition(("stages", name, "branches", index), branch, variable)
    for value in _values_to_try(stage.branches, variable):
        fired = [branch.to for branch in stage.branches if branch.holds(value)]
        if len(fired) != 1:
            what = "fires no branch; add one for it" if not fired else f"fires {len(fired)} branches; keep one of them"
            yield ScenarioFault(("stages", name, "branches"), value, f"{stage.reads}={value} {what}")


def _values_to_try(tests: Iterable[Condition], variable: Variable) -> tuple[Value, ...]:
    """Return every option of a variable, or for a number the values on both sides of every border."""
    if variable.options is not None:
        return variable.options
    least = variable.minimum
    assert least is not None
    return tuple(sorted({n for edge in (least, *_edges(tests)) for n in (edge, edge + 1) if n >= least}))


def _edges(tests: Iterable[Condition]) -> list[int]:
    """Return the numbers in the conditions."""
    numbers = (number for test in tests for number in (test.above, *(test.values or ())))
    return [number for number in numbers if isinstance(number, int)]


def _condition(where: tuple[str | int, ...], test: Condition, variable: Variable | Fact) -> Iterator[ScenarioFault]:
    """Check that the variable can satisfy the condition; a fact may have any value."""
    if isinstance(variable, Fact):
        return
    if test.above is not None and variable.options is not None:
        yield ScenarioFault((*where, "above"), test.above, "the variable is not a number; give values")
    for index, value in enumerate(test.values or ()):
        if problem := variable.problem(value):
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
    for name, field in file.fields.items():
        if field.options is None:
            why = "a field has options; use enum with an option for each range, or move the number to system"
            yield ScenarioFault(("fields", name, "type"), field.type, why)
    for name, variable in file.system.items():
        if variable.options is None and file.listed_states is None:
            yield ScenarioFault(("system", name), variable.type, "a number has no list of states; write system_states")
    for index, refusal in enumerate(file.refused):
        for name, test in refusal.when.items():
            where = ("refused", index, "when", name)
            if name not in file.system:
                yield _unknown(where, name, "is not a system variable", file.system)
            else:
                yield from _condition(where, test, file.system[name])
    for index, state in enumerate(file.listed_states or ()):
        yield from _state(("system_states", index), state, file)
    if not file.system_states:
        section = "refused" if file.listed_states is None else "system_states"
        reasons = [refusal.why for refusal in file.refused if file.listed_states is None]
        yield ScenarioFault((section,), reasons, "no state is left; allow or list at least one")
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
        yield _unknown(where, name, "no such variable", variables)
        return
    if value is not None and (problem := variables[name].problem(value)):
        yield ScenarioFault(where, value, problem)


def _amounts(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check that formulas read numeric variables of the ticket, with satisfiable conditions, and have a value."""
    numbers = {name for name, fact in file.facts.items() if fact.number}
    numbers |= {name for name, variable in file.system.items() if variable.options is None}
    readable: dict[str, Variable | Fact] = {**file.system, **file.facts}
    unreadable = "a formula can read the numbers among system and facts"
    for name, formula in file.formulas.items():
        for index, case in enumerate(formula.cases):
            where = ("formulas", name, "cases", index)
            for variable, test in case.when.items():
                if variable not in readable:
                    yield _unknown((*where, "when", variable), variable, unreadable, sorted(readable))
                else:
                    yield from _condition((*where, "when", variable), test, readable[variable])
            for variable in sorted(case.value.names - numbers):
                yield _unknown((*where, "value"), variable, unreadable, sorted(numbers))
        yield from _divisions(name, formula, file)
    for name, action in file.actions.items():
        if action.amount is not None and action.amount not in file.formulas:
            yield _unknown(("actions", name, "amount"), action.amount, "is not a formula", file.formulas)


def _divisions(name: str, formula: Formula, file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check that no case divides by zero for the values that the variables of its divisors can have."""
    entries: dict[str, Variable | Fact] = {**file.system, **file.facts}
    tried: dict[str, list[Value]] = {}
    for variable in sorted({read for case in formula.cases for read in (*case.when, *case.value.divisor_names)}):
        tests = [case.when[variable] for case in formula.cases if variable in case.when]
        tried[variable] = _inputs(entries[variable], tests)
        tried[variable] += [state[variable] for state in file.system_states if variable in state]
    rest = {variable: 1 for variable in formula.names - tried.keys()}
    for values in itertools.islice(itertools.product(*map(dict.fromkeys, tried.values())), _COMBINATIONS):
        given = dict(zip(tried, values, strict=True))
        index, case = next((i, c) for i, c in enumerate(formula.cases) if c.applies(given))
        try:
            case.value.value({**rest, **given})
        except ZeroDivisionError:
            why = f"divides by zero with {given}; add a case for it, or exclude it from the values"
            yield ScenarioFault(("formulas", name, "cases", index, "value"), case.value.text, why)
            return


def _inputs(entry: Variable | Fact, tests: Iterable[Condition]) -> list[Value]:
    """Return the values of a variable to try in a formula with these conditions."""
    if isinstance(entry, Variable):
        return [*_values_to_try(tests, entry), *entry.examples]
    if len(entry.values) <= _INPUTS or not entry.number:
        return [*entry.values]
    borders = (0, int(entry.values[0]), int(entry.values[-1]), *_edges(tests))
    return [value for value in entry.values if any(abs(int(value) - border) <= entry.step for border in borders)]


def _logic(file: ScenarioFile) -> Iterator[ScenarioFault]:
    """Check combinations of conditions that the single edges allow but no setting reaches, and fields without an
    intent or an adversarial level."""
    scenario = Scenario(file)
    visited = set()
    for fields, system, done in scenario.settings():
        visited |= {*done.nodes, str(done.action)}
        if not scenario.levels_of(fields, system):
            limited = {name: fields[name] for name in done.read if name in file.fitting_levels}
            yield ScenarioFault(("fitting_levels",), limited, "no level fits these together; add one to an option")
        if not scenario.intents_of(fields):
            yield ScenarioFault(("intents",), fields, "no intent allows these fields; add one, or pin less")
    for kind, names in (("stages", file.stages), ("actions", file.actions)):
        for name in names:
            if name not in visited:
                yield ScenarioFault((kind, name), name, "unreachable: no setting of the variables leads to it")
