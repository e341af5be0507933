"""A whole evaluation: every customer talks to every agent, with concurrent dialogues that are judged when they end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hamr.bench.sage import metrics
from hamr.bench.sage.assessment import Assessment, assess, needs_judges
from hamr.bench.sage.coverage import coverage
from hamr.bench.sage.judging import SageJudges
from hamr.bench.sage.simulation import Simulation
from hamr.bench.sage.store import Store
from hamr.bench.sage.traces import DialoguePlan, Trace
from hamr.config.sage import SageConfig
from hamr.procedures.graph import Scenario
from hamr.protocols import Ask

Report = Callable[["DialogueProgress"], None]


@dataclass(frozen=True, kw_only=True)
class DialogueProgress:
    """Number of dialogues held and of dialogues judged, including those of earlier calls."""

    total: int
    held: int
    judged: int


@dataclass(frozen=True, kw_only=True)
class Cast:
    """Participants of an evaluation. `simulator` is the name of the pool behind `user`. `native`: the agents that get
    their tools as schemas."""

    agents: Mapping[str, Ask]
    user: Ask
    simulator: str
    judges: Mapping[str, Ask]
    native: frozenset[str] = frozenset()


async def hold(
    store: Store,
    scenarios: Mapping[str, Scenario],
    pairs: Sequence[tuple[str, DialoguePlan]],
    cast: Cast,
    config: SageConfig,
    *,
    at_once: int,
    report: Report = lambda progress: None,
) -> None:
    """Hold and judge the dialogues of these (agent, customer) pairs that the store lacks.

    At most `at_once` dialogues are in progress, and as many are being judged. A pool failure ends a dialogue with a
    typed outcome, and the evaluation continues with the next. Finished dialogues are never lost.
    """
    panel = SageJudges(cast.judges, config)
    talking, judging = asyncio.Semaphore(at_once), asyncio.Semaphore(at_once)
    desks = {
        (agent, name): Simulation(scenario, ask, cast.user, config, native=agent in cast.native)
        for agent, ask in cast.agents.items()
        for name, scenario in scenarios.items()
    }
    total, held, judged = len(pairs), 0, 0

    def count(*, one_held: bool = False, one_judged: bool = False) -> None:
        nonlocal held, judged
        held, judged = held + one_held, judged + one_judged
        report(DialogueProgress(total=total, held=held, judged=judged))

    async def dialogue(agent: str, plan: DialoguePlan) -> None:
        trace = store.finished(agent, plan.id)
        if trace is None:
            async with talking:
                trace = await desks[agent, plan.scenario].run(plan, agent=agent, simulator=cast.simulator)
            store.add_trace(trace)
        count(one_held=True)
        async with judging:
            await _judge(store, panel, scenarios[plan.scenario], trace)
        count(one_judged=True)

    try:
        async with asyncio.TaskGroup() as group:
            for agent, plan in pairs:
                group.create_task(dialogue(agent, plan))
    except ExceptionGroup as stopped:
        # Raise the original error, such as a full disk; the other tasks were only cancelled.
        raise stopped.exceptions[0] from None


async def _judge(store: Store, panel: SageJudges, scenario: Scenario, trace: Trace) -> None:
    """Judge the unjudged turns of a dialogue. A dialogue that a pool failure interrupted is judged when it is
    finished."""
    if not trace.finished:
        return
    turns = store.open_turns(trace.agent, trace.plan.id, needs_judges(trace, scenario))
    for judgement in await asyncio.gather(*(panel.judge(scenario, trace, turn) for turn in turns)):
        store.add_judgement(judgement)


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Current results of an evaluation: assessed turns by agent and scenario, and all metrics."""

    scenarios: Mapping[str, Scenario]
    assessed: Mapping[str, Mapping[str, Sequence[Assessment]]]
    summary: Mapping[str, Any]


def summarise(
    store: Store,
    scenarios: Mapping[str, Scenario],
    plans: Sequence[DialoguePlan],
    agents: Iterable[str],
    config: SageConfig,
) -> Evaluated:
    """Compute the results. Only finished dialogues are assessed; interrupted ones are counted."""
    assessed: dict[str, dict[str, list[Assessment]]] = {}
    simulated = [plan for plan in plans if plan.source != "file"]
    summary: dict[str, Any] = {
        "agents": {},
        "unreadable_rule": config.unreadable,
        "coverage": {
            name: [asdict(row) for row in coverage(scenario, [p for p in simulated if p.scenario == name], config)]
            for name, scenario in scenarios.items()
        },
    }
    for agent in agents:
        assessed[agent] = {name: [] for name in scenarios}
        outcomes: dict[str, Counter[str]] = {name: Counter() for name in scenarios}
        turns: Counter[str] = Counter()
        for plan in plans:
            trace = store.traces.get((agent, plan.id))
            if trace is None:
                continue
            outcomes[plan.scenario][trace.outcome] += 1
            if trace.finished:
                turns[plan.scenario] += len(trace.turns)
                judgements = store.judgements.get((agent, plan.id), {})
                assessed[agent][plan.scenario] += assess(scenarios[plan.scenario], trace, judgements, config)
        summary["agents"][agent] = {
            "scenarios": {
                name: {
                    "dialogues": dict(outcomes[name]),
                    "turns": turns[name],
                    **_scenario(scenarios[name], assessed[agent][name], config),
                }
                for name in scenarios
            },
            "average": metrics.average_scenarios(assessed[agent], config),
            "by_turn": metrics.by_turn(_all(assessed[agent])),
            "levels": metrics.by_level(
                _all(assessed[agent]),
                list(dict.fromkeys(level for scenario in scenarios.values() for level in scenario.file.levels)),
                config,
            ),
            "judges": metrics.alone(_all(assessed[agent])),
        }
    every = [a for by_scenario in assessed.values() for a in _all(by_scenario)]
    summary["correlation"] = metrics.correlation(every)
    summary["votes"] = {"tie_rule": config.tie, **metrics.votes(every)}
    return Evaluated(scenarios=scenarios, assessed=assessed, summary=summary)


def _scenario(scenario: Scenario, assessed: Sequence[Assessment], config: SageConfig) -> dict[str, Any]:
    return {
        "code": scenario.file.code,
        "assessed": len(assessed),
        "figures": metrics.figures(assessed, config),
        "execution_gap": metrics.execution_gap(assessed),
        "by_turn": metrics.by_turn(assessed),
        "levels": metrics.by_level(assessed, scenario.file.levels, config),
        "faults": metrics.fault_rates(assessed),
        "stages": metrics.stages(assessed),
    }


def _all(by_scenario: Mapping[str, Sequence[Assessment]]) -> list[Assessment]:
    return [a for assessed in by_scenario.values() for a in assessed]
