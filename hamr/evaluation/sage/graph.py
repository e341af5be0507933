"""A service procedure as a directed graph, read from `conf/scenarios/<name>.yaml`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

import yaml
from pydantic import ValidationError

from hamr.config.resources import resource
from hamr.errors import BadInput
from hamr.evaluation.sage.rules import Walk, walk
from hamr.evaluation.sage.schema import ScenarioFile, Value

if TYPE_CHECKING:
    import networkx


class Route(NamedTuple):
    """A way through the graph: the stages in order of visit, and the action at its end."""

    stages: tuple[str, ...]
    action: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting of all variables with what follows from it."""

    fields: Mapping[str, Value]
    system: Mapping[str, Value]
    route: Route


class Scenario:
    """One procedure: its graph, its routes and its rule engine."""

    def __init__(self, file: ScenarioFile) -> None:
        self.file = file
        self.name = file.name

    @cached_property
    def graph(self) -> networkx.DiGraph:
        """Nodes carry `kind` (start, stage, decision, action) and `title`; edges carry `reads`, the variable's
        name or None, and `when`, the conditions that fire them (one per branch with this target)."""
        import networkx

        graph = networkx.DiGraph(name=self.name)
        for name, stage in self.file.stages.items():
            kind = "start" if name == self.file.start else "decision" if stage.reads else "stage"
            graph.add_node(name, kind=kind, title=stage.title)
        for name, title in self.file.actions.items():
            graph.add_node(name, kind="action", title=title)
        for name, stage in self.file.stages.items():
            for target in dict.fromkeys(stage.targets):
                when = tuple(branch for branch in stage.branches if branch.to == target)
                graph.add_edge(name, target, reads=stage.reads, when=when)
        return graph

    def paths(self) -> list[Route]:
        """Every route from the start to an action that some setting of the variables takes, sorted.

        A walk over the edges alone would also list routes whose conditions exclude each other; these
        come from the rule engine over all settings. Telecom Package: 12, with 9 different stage sequences.
        """
        names = list(self.file.fields)
        options = [self.file.fields[name].options or () for name in names]
        found = set()
        for values, system in itertools.product(itertools.product(*options), self.file.system_states):
            stages, action = self.reference(dict(zip(names, values, strict=True)), system)
            found.add(Route(tuple(stages), action))
        return sorted(found)

    def cases(self) -> list[Case]:
        """The settings that an evaluation should cover.

        Fields listed as crossed take all their options and every system state; the others take theirs only
        where the walk reads them, else their filler. Telecom Package: 36, the number the paper gives.
        """
        coverage = self.file.coverage
        crossed = itertools.product(*(self.file.fields[name].options or () for name in coverage.crossed))
        cases = []
        for values, system in itertools.product(crossed, self.file.system_states):
            fixed = dict(zip(coverage.crossed, values, strict=True))
            cases += [
                Case(fields=fields, system=dict(system), route=_route(self.walk(fields, system)))
                for fields in self._filled(fixed, system)
            ]
        return cases

    def _filled(self, known: dict[str, Value], system: Mapping[str, Value]) -> list[dict[str, Value]]:
        """`known` completed in every way that matters."""
        awaited = self.walk(known, system).awaits
        if awaited is None:
            rest = {name: v for name, v in self.file.coverage.filled.items() if name not in known}
            complete = {**known, **rest}
            return [{name: complete[name] for name in self.file.fields}]
        options = self.file.fields[awaited].options or ()
        return [done for option in options for done in self._filled({**known, awaited: option}, system)]

    def walk(self, fields: Mapping[str, object], system: Mapping[str, object]) -> Walk:
        """As far as the known fields carry; see `rules.walk`."""
        return walk(self.file, fields, system)

    def reference(self, fields: Mapping[str, object], system: Mapping[str, object]) -> tuple[list[str], str]:
        """The unique (stages, action) for a complete setting. Fields that the path does not read may be absent.

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


@cache
def load_scenario(name: str) -> Scenario:
    """The scenario of that name. Raises BadInput for an unknown name or a file that contradicts itself."""
    folder = resource("conf", "scenarios")
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise BadInput("scenario", name, f"known: {known}")
    path = folder / f"{name}.yaml"
    try:
        file = ScenarioFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValidationError) as error:
        raise BadInput(str(path), name, " ".join(str(error).split())) from error
    import networkx

    scenario = Scenario(file)
    if not networkx.is_directed_acyclic_graph(scenario.graph):
        raise BadInput(str(path), name, "the stages form a loop; every walk has to end in an action")
    return scenario
