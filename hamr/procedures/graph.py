"""A service procedure as a directed graph: its routes, its rule engine, and the settings that an evaluation covers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hamr.errors import BadInput
from hamr.procedures.rules import Walk, stage_name, walk
from hamr.procedures.schema import ScenarioFile, Value

if TYPE_CHECKING:
    import networkx


class Route(NamedTuple):
    """A path through the graph: the stages in order of visit, and the final action."""

    stages: tuple[str, ...]
    action: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting of all variables with its result."""

    fields: Mapping[str, Value]
    system: Mapping[str, Value]
    route: Route


class Scenario:
    """One procedure: its graph, its routes and its rule engine."""

    def __init__(self, file: ScenarioFile, source: Path | None = None) -> None:
        """`source` is the path of the file. The wordings of generated dialogues are in its folder."""
        self.file = file
        self.source = source
        self.name = file.name

    @cached_property
    def graph(self) -> networkx.DiGraph:
        """Graph of the procedure.

        Nodes have `kind` (start, stage, decision, action), `title` (a Text) and `stage`, the name in paths (None for an
        action). Edges have `reads`, the name of the variable or None, and `when`, the conditions that fire them (one
        per branch with this target).
        """
        import networkx

        graph = networkx.DiGraph(name=self.name)
        for name, stage in self.file.stages.items():
            kind = "start" if name == self.file.start else "decision" if stage.reads else "stage"
            graph.add_node(name, kind=kind, title=stage.title, stage=stage_name(name))
        for name, action in self.file.actions.items():
            graph.add_node(name, kind="action", title=action.description, stage=None)
        for name, stage in self.file.stages.items():
            for target in dict.fromkeys(stage.targets):
                when = tuple(branch for branch in stage.branches if branch.to == target)
                graph.add_edge(name, target, reads=stage.reads, when=when)
        return graph

    def paths(self) -> list[Route]:
        """Return every route from the start to an action that some setting of the variables takes, sorted.

        A walk over the edges alone would also list routes whose conditions exclude each other, so the routes come from
        the rule engine. Telecom Package: 12, with 9 different stage sequences.
        """
        return sorted({_route(done) for _, _, done in self.settings()})

    def settings(self) -> Iterator[tuple[dict[str, Value], Mapping[str, Value], Walk]]:
        """Yield (fields that are read, state of the system, complete walk) for every combination of fields in every
        state.

        Fields are filled in the order in which the walk asks for them. There are as many settings as different walks,
        so the cost of a procedure with many fields depends only on its branches.
        """
        for system in self.file.system_states:
            for fields in self._complete({}, system):
                yield fields, system, self.walk(fields, system)

    def _complete(self, known: dict[str, Value], system: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
        """Yield `known`, completed in every way that the walk asks for."""
        awaited = self.walk(known, system).awaits
        if awaited is None:
            yield known
            return
        for option in self.file.fields[awaited].options or ():
            yield from self._complete({**known, awaited: option}, system)

    def cases(self) -> list[Case]:
        """Return the settings that an evaluation should cover.

        Crossed fields take all their options with every system state. The others take theirs only if the walk reads
        them, else their filler.

        Telecom Package: 36, the number of valid paths that the paper states (B.3.4) without a list. Routes cannot be
        meant: there are 9 (12 with their actions). Three ways of counting settings give 36: the 3*3*2*2 labels alone,
        which ignore the system; the 9 sequences times profile and emotion, which never use Hesitate; and this one,
        which contains the three examples of the paper verbatim: intent, profile and the three possible states are
        crossed; the tendency is used only if something is recommended, else Agree as in the paper's Path 2; the emotion
        only if stage7 reads it, else Calm.
        """
        coverage = self.file.coverage
        crossed = itertools.product(*(self.file.fields[name].options or () for name in coverage.crossed))
        cases = []
        for values, system in itertools.product(crossed, self.file.system_states):
            fixed = dict(zip(coverage.crossed, values, strict=True))
            for known in self._complete(fixed, system):
                complete = {**coverage.filled, **known}
                fields = {name: complete[name] for name in self.file.fields}
                cases.append(Case(fields=fields, system=dict(system), route=_route(self.walk(fields, system))))
        return cases

    def intents_of(self, fields: Mapping[str, object]) -> list[str]:
        """Return the intents that are consistent with these fields of a dialogue: the inverse configuration."""
        return [name for name, intent in self.file.intents.items() if intent.allows(fields)]

    def levels_of(self, fields: Mapping[str, Value], system: Mapping[str, object]) -> tuple[str, ...]:
        """Return the adversarial levels that contradict no field that the path of this customer reads."""
        read = self.walk(fields, system).read
        fits = [self.file.fitting_levels.get(name, {}).get(fields[name]) for name in read if name in fields]
        return tuple(level for level in self.file.levels if all(own is None or level in own for own in fits))

    def furnish(self, system: Mapping[str, Value], *, seed: object) -> dict[str, Value]:
        """Return `system` with random values for the other facts of the ticket. The same seed gives the same values on
        every machine. Facts in `system` are kept."""
        rng = random.Random(f"{self.name}/{seed}")
        drawn = {name: rng.choice(fact.values) for name, fact in self.file.facts.items()}
        return {**system, **{name: value for name, value in drawn.items() if name not in system}}

    def amount(self, formula: str, values: Mapping[str, object]) -> int:
        """Return the value of the formula in whole units, rounded down.

        Raises:
            BadInput: A variable is missing in `values`, or a division by zero.
        """
        try:
            cases = self.file.formulas[formula].cases
            return floor(next(case for case in cases if case.applies(values)).value.value(values))
        except KeyError as error:
            raise BadInput(f"{self.name}.formulas.{formula}", dict(values), f"needs {error.args[0]}") from error
        except ZeroDivisionError as error:
            remedy = "divides by zero; add a case for it"
            raise BadInput(f"{self.name}.formulas.{formula}", dict(values), remedy) from error

    def walk(self, fields: Mapping[str, object], system: Mapping[str, object]) -> Walk:
        """Walk as far as the known fields allow; see `rules.walk`."""
        return walk(self.file, fields, system)

    def reference(self, fields: Mapping[str, object], system: Mapping[str, object]) -> tuple[list[str], str]:
        """Return the unique (stages, action) of a complete setting. Fields that the path does not read may be absent.

        >>> from hamr.procedures.files import load_scenario
        >>> load_scenario("telecom_package").reference(
        ...     {"ConsumptionType": "Change"}, {"PackageStatus": "NoContract", "Penalty": 0})
        (['stage1', 'stage2', 'stage4'], 'ChangeOrder')

        Raises BadInput when a field that the path needs is not given, and as `rules.walk`.
        """
        done = self.walk(fields, system)
        if done.awaits is not None:
            where = f"{self.name}.fields.{done.awaits}"
            raise BadInput(where, None, f"{done.path[-1]} needs it; allowed: {self.file.fields[done.awaits].options}")
        route = _route(done)
        return list(route.stages), route.action


def _route(done: Walk) -> Route:
    assert done.action is not None
    return Route(done.path, done.action)
