"""A whole evaluation: every customer talks to every agent, with concurrent dialogues that are judged when they end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hamr.bench.sage import compare, metrics
from hamr.bench.sage.assessment import Assessment, assess, needs_judges
from hamr.bench.sage.coverage import CoverageRow, coverage
from hamr.bench.sage.customer_reading import read_customer
from hamr.bench.sage.customers import CustomerAuditor, fidelity, is_faulty, is_undecided
from hamr.bench.sage.judging import judge_turn
from hamr.bench.sage.reader_exam import examine_readers
from hamr.bench.sage.simulation import Simulation
from hamr.bench.sage.store import Store
from hamr.bench.sage.traces import REPLACEMENT, DialoguePlan, Trace
from hamr.bench.statistics import share_interval
from hamr.config.sage import SCRIPTED, SageConfig
from hamr.data.customer_audit import CustomerAudit
from hamr.procedures.graph import Scenario
from hamr.protocols import Ask

ReportDialogues = Callable[[int, int], None]
"""Callback with the number of dialogues held and of dialogues judged, including those of earlier calls."""


@dataclass(frozen=True, kw_only=True)
class Cast:
    """Participants of an evaluation. `simulator` is the name of the pool behind `user`. `native`: the agents that get
    their tools as schemas. `readers`: the judges that read off the customers' messages what no wording tells, if they
    pass an exam on known ones."""

    agents: Mapping[str, Ask]
    user: Ask
    simulator: str
    judges: Mapping[str, Ask]
    native: frozenset[str] = frozenset()
    readers: Mapping[str, Ask] = field(default_factory=dict)


async def hold(
    store: Store,
    scenarios: Mapping[str, Scenario],
    pairs: Sequence[tuple[str, DialoguePlan]],
    cast: Cast,
    config: SageConfig,
    *,
    at_once: int,
    report: ReportDialogues = lambda held, judged: None,
) -> None:
    """Hold and judge the dialogues of these (agent, customer) pairs that the store lacks.

    At most `at_once` dialogues are in progress, and as many are being judged. A pool failure ends a dialogue with a
    typed outcome, and the evaluation continues with the next. Finished dialogues are never lost. Dialogues without an
    assessed turn, and those of faulty customers unless they are kept, are topped up, in at most `config.top_up` rounds.
    """
    auditor = CustomerAuditor(scenarios, config.language)
    talking, judging = asyncio.Semaphore(at_once), asyncio.Semaphore(at_once)
    desks = {
        (agent, name): Simulation(scenario, ask, cast.user, config, native=agent in cast.native)
        for agent, ask in cast.agents.items()
        for name, scenario in scenarios.items()
    }
    held = judged = 0
    faulty: set[tuple[str, str]] = set()
    exams = {name: asyncio.Lock() for name in scenarios}

    def count(*, one_held: bool = False, one_judged: bool = False) -> None:
        nonlocal held, judged
        held, judged = held + one_held, judged + one_judged
        report(held, judged)

    async def may_read(scenario: str) -> bool:
        async with exams[scenario]:
            if scenario not in store.exams:
                exam, final = await examine_readers(cast.readers, scenarios[scenario], config)
                store.add_exam(exam, final=final)
        return store.exams[scenario].may_read

    async def dialogue(agent: str, plan: DialoguePlan, counted: bool) -> None:
        trace = store.finished_trace(agent, plan.id)
        if trace is None:
            async with talking:
                trace = await desks[agent, plan.scenario].run(plan, agent=agent, simulator=cast.simulator)
            store.add_trace(trace)
        count(one_held=counted)
        reading = store.readings.get((agent, plan.id))
        readers = {} if trace.simulator.startswith(SCRIPTED) else cast.readers
        if readers and is_undecided(auditor.audit(trace, reading)) and (reading is None or reading.is_open):
            async with judging:
                if await may_read(plan.scenario):
                    reading = await read_customer(readers, scenarios[plan.scenario], trace, config)
                    store.add_reading(reading)
        if config.faulty_customers == "left_out" and is_faulty(auditor.audit(trace, reading)):
            faulty.add((agent, plan.id))
        else:
            async with judging:
                await _judge(store, cast.judges, scenarios[plan.scenario], trace, config)
        count(one_judged=counted)

    open_dialogues = [_Open(agent, plan, 0) for agent, plan in pairs]
    for number in range(config.top_up + 1):
        try:
            async with asyncio.TaskGroup() as group:
                for one in open_dialogues:
                    group.create_task(dialogue(one.agent, one.plan, not number))
        except ExceptionGroup as stopped:
            # Raise the original error, such as a full disk; the other tasks were only cancelled.
            raise stopped.exceptions[0] from None
        missing = [not one.is_assessed(store) or (one.agent, one.plan.id) in faulty for one in open_dialogues]
        helped = cast.agents.keys() & {o.agent for o, miss in zip(open_dialogues, missing, strict=True) if not miss}
        left = [one for one, miss in zip(open_dialogues, missing, strict=True) if miss]
        open_dialogues = [one.next(store) for one in left if one.agent in helped]


@dataclass(frozen=True)
class _Open:
    """A customer of an agent, or the `number`-th replacement of it."""

    agent: str
    original: DialoguePlan
    number: int

    @property
    def plan(self) -> DialoguePlan:
        return self.original.replacement(self.number)

    def is_assessed(self, store: Store) -> bool:
        trace = store.finished_trace(self.agent, self.plan.id)
        return trace is not None and bool(trace.turns)

    def next(self, store: Store) -> _Open:
        """Return the next try: the same customer if a pool interrupted the dialogue, else a replacement."""
        return replace(self, number=self.number + (store.finished_trace(self.agent, self.plan.id) is not None))


def _customers_of(store: Store, agent: str, plans: Sequence[DialoguePlan], config: SageConfig) -> list[DialoguePlan]:
    """Return the customers, including replacements, with whom the agent has a dialogue."""
    found: dict[str, DialoguePlan] = {}
    for plan in plans:
        for number in range(config.top_up + 1):
            one = plan.replacement(number)
            if (agent, one.id) not in store.traces:
                break
            found[one.id] = one
    return list(found.values())


async def _judge(store: Store, judges: Mapping[str, Ask], scenario: Scenario, trace: Trace, config: SageConfig) -> None:
    """Judge the unjudged turns of a dialogue. A dialogue that a pool failure interrupted is judged when it is
    finished."""
    if not trace.is_finished:
        return
    turns = store.open_turns(trace.agent, trace.plan.id, needs_judges(trace, scenario))
    for judgement in await asyncio.gather(*(judge_turn(judges, scenario, trace, turn, config) for turn in turns)):
        store.add_judgement(judgement)


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Current results of an evaluation: assessed turns by agent and scenario, the audits of the simulated customers by
    agent and dialogue, and all metrics."""

    scenarios: Mapping[str, Scenario]
    assessed: Mapping[str, Mapping[str, Sequence[Assessment]]]
    audits: Mapping[str, Mapping[str, CustomerAudit]]
    summary: Mapping[str, Any]


def summarise(
    store: Store,
    scenarios: Mapping[str, Scenario],
    plans: Sequence[DialoguePlan],
    agents: Iterable[str],
    config: SageConfig,
    *,
    apart: Collection[str] = (),
) -> Evaluated:
    """Compute the results. Only finished dialogues are assessed; interrupted ones, and those of faulty customers unless
    they are kept, are counted. The agents in `apart` are ranked among themselves."""
    auditor = CustomerAuditor(scenarios, config.language)
    audits: dict[str, dict[str, CustomerAudit]] = {}
    assessed: dict[str, dict[str, list[Assessment]]] = {}
    covered: dict[str, list[DialoguePlan]] = {}
    summary: dict[str, Any] = {
        "agents": {},
        "unreadable_rule": config.unreadable,
        "faulty_rule": config.faulty_customers,
        "readers": {name: {**asdict(exam), "passed": exam.may_read} for name, exam in store.exams.items()},
    }
    for agent in agents:
        held = [store.traces[agent, plan.id] for plan in _customers_of(store, agent, plans, config)]
        found = {trace.plan.id: auditor.audit(trace, store.readings.get((agent, trace.plan.id))) for trace in held}
        audits[agent] = own = {name: audit for name, audit in found.items() if audit is not None}
        counted = {
            trace.plan.id: assess(
                scenarios[trace.plan.scenario], trace, store.judgements.get((agent, trace.plan.id), {}), config
            )
            for trace in held
            if trace.is_finished and not (config.faulty_customers == "left_out" and is_faulty(found[trace.plan.id]))
        }
        assessed[agent] = {
            name: [a for some in counted.values() for a in some if a.scenario == name] for name in scenarios
        }
        covered[agent] = [trace.plan for trace in held if any(a.counts for a in counted.get(trace.plan.id, ()))]
        seeds: dict[int, dict[str, list[Assessment]]] = {}
        for plan in (trace.plan for trace in held if trace.plan.id in counted):
            seeds.setdefault(plan.seed, {}).setdefault(plan.scenario, []).extend(counted[plan.id])
        there = {name: [trace for trace in held if trace.plan.scenario == name] for name in scenarios}
        every = _all(assessed[agent])
        levels = dict.fromkeys(level for scenario in scenarios.values() for level in scenario.file.levels)
        summary["agents"][agent] = {
            "scenarios": {
                name: {
                    "dialogues": dict(Counter(trace.outcome for trace in there[name])),
                    "turns": sum(len(trace.turns) for trace in there[name] if trace.plan.id in counted),
                    "customers": fidelity([own[t.plan.id] for t in there[name] if t.plan.id in own]),
                    **_scenario(scenario, assessed[agent][name], config),
                }
                for name, scenario in scenarios.items()
            },
            "customers": fidelity(list(own.values())),
            "production": _production([t for (name, _), t in store.traces.items() if name == agent]),
            "average": metrics.average_scenarios(assessed[agent], config),
            "by_turn": metrics.by_turn(every),
            "levels": metrics.by_level(every, levels, config),
            "judges": metrics.alone(every),
            "by_seed": compare.by_seed(seeds),
        }
    averages = {agent: result["average"] for agent, result in summary["agents"].items()}
    summary["ranks"] = compare.ranks(averages, apart)
    summary["paired"] = compare.paired_tests({agent: _all(turns) for agent, turns in assessed.items()}, config)
    summary["coverage"] = _coverage(scenarios, plans, covered, config)
    every = [a for by_scenario in assessed.values() for a in _all(by_scenario)]
    summary["correlation"] = metrics.correlation(every)
    summary["residuals"] = metrics.residuals(every)
    summary["votes"] = {"tie_rule": config.tie, **metrics.votes(every)}
    return Evaluated(scenarios=scenarios, assessed=assessed, audits=audits, summary=summary)


def _production(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return the rates of resolved issues and of takeovers by a person, with Wilson intervals, where they are known."""
    known = {
        "resolved": [trace.resolved for trace in traces if trace.resolved is not None],
        "taken_over": [trace.taken_over for trace in traces if trace.taken_over is not None],
    }
    return {name: asdict(share_interval(values)) for name, values in known.items() if values}


def _coverage(
    scenarios: Mapping[str, Scenario],
    plans: Sequence[DialoguePlan],
    covered: Mapping[str, Sequence[DialoguePlan]],
    config: SageConfig,
) -> dict[str, list[dict[str, Any]]]:
    """Return the coverage table of each scenario. Customers of a file have no known path."""
    ids = {plan.id for plan in plans}
    planned = [p for p in plans if p.source != "file" and p.id.rpartition(REPLACEMENT)[0] not in ids]

    def rows(name: str, scenario: Scenario) -> list[CoverageRow]:
        done = {a: [p for p in those if p.scenario == name and p.source != "file"] for a, those in covered.items()}
        return coverage(scenario, [p for p in planned if p.scenario == name], config, done)

    return {name: [asdict(row) for row in rows(name, scenario)] for name, scenario in scenarios.items()}


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
