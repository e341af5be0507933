"""Selection of the customers of an evaluation: some per intent, then more for under-covered paths (section 3.2.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from hamr.bench.sage.traces import CustomerSource, DialoguePlan
from hamr.config.sage import SageConfig
from hamr.errors import BadInput
from hamr.procedures.graph import Case, Route, Scenario


@dataclass(frozen=True, kw_only=True)
class CoverageRow:
    """One line of the coverage table: a path, by its customers' fields, with its route and nodes.

    `by_intent` and `by_path`: planned customers, by reason. `contradictions`: those whose adversarial level contradicts
    a field that their path reads. `assessed`: dialogues with an assessed turn, by agent.
    """

    case: str
    route: Route
    nodes: tuple[str, ...]
    by_intent: int
    by_path: int
    contradictions: int
    assessed: Mapping[str, int]


def plan_dialogues(scenario: Scenario, config: SageConfig) -> list[DialoguePlan]:
    """Return the customers of one scenario. The result is deterministic for a configuration.

    First `per_intent` customers of every intent, whose other fields, ticket, persona and level are drawn. Then every
    path with fewer than `per_path` gets the difference by inverse configuration: a customer with the path's own fields
    and ticket, and a compatible intent. Personas alternate, and so do levels among those that fit the fields that the
    path reads. `limit` keeps the first customers of a shuffled order.

    Raises BadInput where no customer results, an intent fits no path, or no level fits a case.
    """
    rng = Random(f"sage/{scenario.name}/{config.seed}")
    cases = scenario.cases()
    chosen: list[tuple[str, Case, CustomerSource]] = []
    for intent, meaning in scenario.file.intents.items():
        fitting = [case for case in cases if meaning.allows(case.fields)]
        if not fitting:
            raise BadInput(f"{scenario.name}.intents.{intent}", dict(meaning.pins), "no path has these fields")
        chosen += [(intent, case, "intent") for case in _draw_cases(fitting, config.per_intent, rng)]
    counts = Counter(_key(case, config) for _, case, _ in chosen)
    for key, ways in _paths(cases, config).items():
        for case in _draw_cases(ways, max(0, config.per_path - counts[key]), rng):
            chosen.append((_intent_of(scenario, case, rng), case, "path"))
    if not chosen:
        raise BadInput("per_intent", 0, "and per_path=0 give no customers; set one of them to 1 or more")
    if config.limit is not None:
        rng.shuffle(chosen)
        chosen = chosen[: config.limit]
    return list(_plans(scenario, chosen, rng, config))


def coverage(
    scenario: Scenario,
    plans: Sequence[DialoguePlan],
    config: SageConfig,
    assessed: Mapping[str, Sequence[DialoguePlan]] = MappingProxyType({}),
) -> list[CoverageRow]:
    """Return the number of customers per path, in the order of the paths.

    `assessed`: by agent, the customers whose dialogue has an assessed turn.
    """

    def key_of(plan: DialoguePlan) -> str:
        walk = scenario.walk(plan.fields, plan.system)
        assert walk.action is not None
        system = {name: plan.system[name] for name in scenario.file.system}
        return _key(Case(fields=plan.fields, system=system, route=Route(walk.path, walk.action)), config)

    counts = Counter((key_of(plan), plan.source) for plan in plans)
    against = Counter(key_of(p) for p in plans if p.level not in scenario.levels_of(p.fields, p.system))
    done = Counter((agent, key_of(plan)) for agent, those in assessed.items() for plan in those)
    return [
        CoverageRow(
            case=key,
            route=ways[0].route,
            nodes=scenario.walk(ways[0].fields, ways[0].system).nodes,
            by_intent=counts[key, "intent"],
            by_path=counts[key, "path"],
            contradictions=against[key],
            assessed={agent: done[agent, key] for agent in assessed},
        )
        for key, ways in _paths(scenario.cases(), config).items()
    ]


def _paths(cases: Sequence[Case], config: SageConfig) -> dict[str, list[Case]]:
    """Return the cases of every path, by its key."""
    found: dict[str, list[Case]] = {}
    for case in cases:
        found.setdefault(_key(case, config), []).append(case)
    return found


def _key(case: Case, config: SageConfig) -> str:
    if config.cover == "routes":
        return " > ".join((*case.route.stages, case.route.action))
    return ", ".join(f"{name}={value}" for name, value in {**case.fields, **case.system}.items())


def _draw_cases(cases: Sequence[Case], count: int, rng: Random) -> list[Case]:
    """Draw `count` cases; none is repeated before all were drawn."""
    found: list[Case] = []
    while len(found) < count:
        found += rng.sample(list(cases), min(len(cases), count - len(found)))
    return found


def _intent_of(scenario: Scenario, case: Case, rng: Random) -> str:
    fitting = scenario.intents_of(case.fields)
    if not fitting:
        raise BadInput(f"{scenario.name}.intents", dict(case.fields), "no intent fits this path; add one")
    return rng.choice(fitting)


def _plans(
    scenario: Scenario, chosen: Sequence[tuple[str, Case, CustomerSource]], rng: Random, config: SageConfig
) -> Iterator[DialoguePlan]:
    personas = _turns(list(scenario.file.personas), rng)
    given: Counter[str] = Counter()
    for number, (intent, case, source) in enumerate(chosen):
        name = f"{scenario.name}/{number:04d}"
        fitting = scenario.levels_of(case.fields, case.system)
        if not fitting:
            raise BadInput(f"{scenario.name}.fitting_levels", dict(case.fields), "no level fits this case; add one")
        level = min(rng.sample(fitting, len(fitting)), key=lambda one: given[one])
        given[level] += 1
        yield DialoguePlan(
            id=name,
            scenario=scenario.name,
            intent=intent,
            persona=next(personas),
            level=level,
            fields=dict(case.fields),
            system=scenario.furnish(case.system, seed=f"{config.seed}/{name}"),
            source=source,
            language=config.language,
            seed=config.seed,
        )


def _turns(names: Sequence[str], rng: Random) -> Iterator[str]:
    """Yield all names in a random order, repeatedly in new orders."""
    while True:
        yield from rng.sample(list(names), len(names))
