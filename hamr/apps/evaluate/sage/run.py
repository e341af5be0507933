"""`hamr evaluate benchmark=sage`: participants, dialogues, judging, and the written results."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hamr.apps.evaluate.policies import check_native, find_functions, open_functions
from hamr.apps.evaluate.sage.costs import show_cost
from hamr.apps.shared.pools_up import pools_of, with_pools, writing_pool
from hamr.apps.shared.progress import progress
from hamr.bench.folder import CALLS, counted_calls, usage, usage_table
from hamr.bench.sage.coverage import plan_dialogues
from hamr.bench.sage.finished import read_dialogues
from hamr.bench.sage.judging import AGAIN
from hamr.bench.sage.merge import merge_into, merged_settings
from hamr.bench.sage.run import Cast, Evaluated, hold, summarise
from hamr.bench.sage.scripted import KINDS, scripted_pool
from hamr.bench.sage.store import JUDGEMENTS, TRACES, Store, read_settings
from hamr.bench.sage.traces import DialoguePlan, Exchange, Trace
from hamr.config.benchmarks import names_function
from hamr.config.pools import SPEED_ONLY
from hamr.config.sage import SCRIPTED, SageConfig
from hamr.config.schema import Config
from hamr.data.samples import write_rows
from hamr.errors import BadInput, HamrError, did_you_mean, first_failure
from hamr.files import write_atomic
from hamr.procedures import Scenario, load_scenario
from hamr.procedures.prompts import prompt_ids
from hamr.procedures.words import load_words
from hamr.protocols import Ask
from hamr.report.terminal import show
from hamr.report.values import Page
from hamr.rewards.custom import AgentSource

if TYPE_CHECKING:
    from hamr.apps.evaluate.command import EvaluateSage

RUN = "sage"
FREE = frozenset(
    {
        "tie", "path", "action", "unreadable", "faulty_customers",
        "resamples", "attempts", "longest_wait_s", "at_once", "top_up",
    }
)  # fmt: skip
"""Options that may change when a folder is resumed: they affect only speed, the metrics of the same dialogues and
votes, or the number of replacements."""
SCRIPTED_AT_ONCE = 64


def start(request: EvaluateSage, *, merge: Sequence[Path] = ()) -> int:
    """Run the evaluation, or merge finished ones. Raises BadInput for invalid input, before anything starts; HamrError
    if no dialogue was held."""
    scenarios = {name: load_scenario(given) for name, given in request.scenarios.items()}
    functions = find_functions("agent", [] if request.rejudge or merge else request.agents, request)
    config = None if merge else _pools(request)
    if request.simulator == f"{SCRIPTED}worded":
        for scenario in scenarios.values():
            load_words(scenario, request.language)
    finished = _finished_traces(request, scenarios)
    settings = merged_settings(merge) if merge else settings_of(request, scenarios, config, functions)
    console = Console()
    with Store(request.output, settings, rejudge=request.rejudge) as store:
        merge_into(store, merge)
        for trace in finished:
            if store.finished_trace(trace.agent, trace.plan.id) is None:
                store.add_trace(trace)
        pairs = [(trace.agent, trace.plan) for trace in finished] or _pairs(
            request, scenarios, store, held=request.rejudge or bool(merge)
        )
        plans = list({plan.id: plan for _, plan in pairs}.values())
        done = sum(store.finished_trace(agent, plan.id) is not None for agent, plan in pairs)
        counts = f"{len(request.agent_names)} agents, {len(scenarios)} scenarios, {len(pairs)} dialogues"
        console.print(f"sage: {counts}, {done} held before", highlight=False)
        if config is not None:
            show_cost(request, scenarios, config, store, pairs, console)
        try:
            if not merge:
                _work(request, scenarios, config, functions, store, pairs, console)
        finally:
            found = summarise(store, scenarios, plans, request.agent_names, request, apart=request.ranked_apart)
            write_figures(request.output, request, found)
        show(write_report(request.output, found, store), console=console)
        print(f"written: {request.output / 'report.html'}", flush=True)
    _check_agents(trace for trace in store.traces.values() if trace.agent in found.summary["agents"])
    return _exit_code(found, store, judged=bool(request.judges))


# --- participants ------------------------------------------------------------------------------


def _pools(request: EvaluateSage) -> Config | None:
    """Return the configuration if a participant is a pool; check every name. Raises BadInput."""
    wanted = list(_asked_pools(request))
    without = all(_needs_no_pool(name) for _, name in wanted) and not request.overrides
    config = None if without else request.config()
    for key, name in wanted:
        _check_name(config, key, name)
        if config is not None and key == "agent" and not _needs_no_pool(name) and request.is_native(name):
            check_native(config, name)
    return config


def _needs_no_pool(name: str) -> bool:
    return name.startswith(SCRIPTED) or names_function(name)


def _asked_pools(request: EvaluateSage) -> Iterator[tuple[str, str]]:
    """Yield (key, pool or script) of every participant that may be queried."""
    if not request.is_held:
        yield from (("agent", name) for name in request.agents)
        yield "simulator", request.simulator
    yield from (("judges", name.partition(AGAIN)[0]) for name in request.judges)


def _check_name(config: Config | None, key: str, name: str) -> None:
    if name.startswith(SCRIPTED):
        scripted_pool(key, name.removeprefix(SCRIPTED), {}, {})
        return
    if names_function(name) and key == "agent":
        return
    if config is None:
        raise BadInput(key, name, "is a function; only an agent may be one")
    if name not in config.pools:
        known = [*sorted(config.pools), *(SCRIPTED + script for script in KINDS[key])]
        raise BadInput(key, name, f"no such pool or script; {did_you_mean(name, known)}there are: {', '.join(known)}")
    writing_pool(config, key, name)


def _finished_traces(request: EvaluateSage, scenarios: Mapping[str, Scenario]) -> list[Trace]:
    """Return the dialogues of `dialogues=`. Raises DataError, and BadInput where there are none."""
    if request.dialogues is None:
        return []
    found = read_dialogues(request.dialogues, scenarios, request, agent=request.agent_names[0])
    if not found:
        raise BadInput("dialogues", str(request.dialogues), "is empty; give one dialogue per line")
    return found


def settings_of(
    request: EvaluateSage,
    scenarios: Mapping[str, Scenario],
    config: Config | None,
    functions: Mapping[str, AgentSource],
) -> dict[str, Any]:
    """Return the settings that determine the dialogues and the votes, to be stored in the folder."""
    sage = request.model_dump(mode="json", include=set(SageConfig.model_fields) - FREE)
    prompts = prompt_ids(request.language)
    return {
        **_who_talks(request, config, functions),
        "scenarios": {
            name: {"given": request.scenarios[name], "digest": digest_of(scenario)}
            for name, scenario in scenarios.items()
        },
        "sage": sage,
        "prompts": {name: prompts[name] for name in ("service", "user", "phrases")},
        "judging": {
            "judges": {name: _pool_settings(config, name.partition(AGAIN)[0]) for name in request.judges},
            "prompt": prompts["judge"],
            "customer_prompt": prompts["customer"],
        },
    }


def _who_talks(request: EvaluateSage, config: Config | None, functions: Mapping[str, AgentSource]) -> dict[str, Any]:
    """Return the settings of the agents and the simulator: those of the folder where it is judged again."""
    if request.rejudge:
        before = read_settings(request.output) or {}
        return {key: before[key] for key in ("agents", "simulator", "merged") if key in before}
    if request.dialogues is not None:
        digest = hashlib.sha256(request.dialogues.read_bytes()).hexdigest()
        return {"agents": {request.agent_names[0]: {"sha256": digest}}, "simulator": {"name": "file"}}
    native = {name: {"tools": "native"} if request.is_native(name) else {} for name in request.agents}
    return {
        "agents": {name: _pool_settings(config, name, functions) | native[name] for name in request.agents},
        "simulator": _pool_settings(config, request.simulator),
    }


def _pool_settings(
    config: Config | None, name: str, functions: Mapping[str, AgentSource] = MappingProxyType({})
) -> dict[str, Any]:
    if name.startswith(SCRIPTED):
        return {"name": name}
    if name in functions:
        return {"name": name, "sha256": functions[name].sha256}
    assert config is not None
    return {"name": name, **config.pools[name].model_dump(mode="json", exclude=SPEED_ONLY)}


def digest_of(scenario: Scenario) -> str:
    return hashlib.sha256(repr(scenario.file).encode()).hexdigest()[:16]


# --- the work ----------------------------------------------------------------------------------


def _pairs(
    request: EvaluateSage, scenarios: Mapping[str, Scenario], store: Store, *, held: bool
) -> list[tuple[str, DialoguePlan]]:
    """Return every agent with every customer; the finished dialogues of the folder if these are all."""
    if held:
        finished = [trace for trace in store.traces.values() if trace.is_finished and trace.agent in request.agents]
        return [(trace.agent, trace.plan) for trace in finished if trace.plan.scenario in scenarios]
    plans = [plan for scenario in scenarios.values() for plan in plan_dialogues(scenario, request)]
    return [(agent, plan) for agent in request.agents for plan in plans]


def _work(
    request: EvaluateSage,
    scenarios: Mapping[str, Scenario],
    config: Config | None,
    functions: Mapping[str, AgentSource],
    store: Store,
    pairs: Sequence[tuple[str, DialoguePlan]],
    console: Console,
) -> None:
    plans = {plan.id: plan for _, plan in pairs}
    pools = [(key, name) for key, name in _asked_pools(request) if not _needs_no_pool(name)]
    talking = {name for key, name in pools if key != "judges"}
    at_once = request.at_once or SCRIPTED_AT_ONCE
    if talking and config is not None and request.at_once is None:
        at_once = sum(config.pools[name].places for name in talking)

    async def work(asks: Mapping[str, Ask]) -> None:
        with counted_calls(asks, request.output) as counted:
            async with open_functions(functions, request) as own:
                await talk({**counted, **own})

    async def talk(asks: Mapping[str, Ask]) -> None:
        def find_ask(key: str, name: str) -> Ask:
            if name.startswith(SCRIPTED):
                return scripted_pool(key, name.removeprefix(SCRIPTED), scenarios, plans)
            return asks[name]

        cast = Cast(
            agents={} if request.is_held else {name: find_ask("agent", name) for name in request.agents},
            user=_unused_ask if request.is_held else find_ask("simulator", request.simulator),
            simulator=request.simulator,
            judges={name: find_ask("judges", name.partition(AGAIN)[0]) for name in request.judges},
            native=frozenset(filter(request.is_native, request.agents)),
            readers={name: asks[pool] for name in request.judges if (pool := name.partition(AGAIN)[0]) in asks},
        )
        with progress({"held": len(pairs), "judged": len(pairs)}, console, "dialogues") as report:

            def news(held: int, judged: int) -> None:
                report("held", held)
                report("judged", judged)

            await hold(store, scenarios, pairs, cast, request, at_once=at_once, report=news)

    if pools:
        assert config is not None
        with_pools(config, [name for _, name in pools], work, run=pools_of(RUN, request.output))
        show(usage_table(usage(request.output, (CALLS,))), console=console)
    else:
        asyncio.run(work({}))


async def _unused_ask(question: Any) -> Any:
    raise AssertionError("finished dialogues have no customer to query")


def write_figures(folder: Path, sage: SageConfig, found: Evaluated) -> None:
    """Write metrics.json, assessments.jsonl and customers.jsonl."""
    options = sage.model_dump(mode="json", include=set(FREE))
    metrics = {"options": options, "usage": usage(folder, (CALLS,)), **found.summary}
    write_atomic(folder / "metrics.json", json.dumps(metrics, ensure_ascii=False, indent=1) + "\n")
    turns = (asdict(a) for by_scenario in found.assessed.values() for some in by_scenario.values() for a in some)
    customers = (
        {"agent": agent, "dialogue": dialogue, **asdict(audit)}
        for agent, audits in found.audits.items()
        for dialogue, audit in audits.items()
    )
    write_rows(folder / "assessments.jsonl", turns)
    write_rows(folder / "customers.jsonl", customers)


def write_report(folder: Path, found: Evaluated, store: Store) -> Page:
    """Write report.html, plots/*.png and transcripts.html; return the page."""
    # Import lazily: only the report needs it.
    from hamr.apps.evaluate.sage.report import sage_page
    from hamr.apps.evaluate.sage.transcripts import write_transcripts
    from hamr.report.html import write_page

    page = sage_page(found)
    write_page(page, folder)
    write_transcripts(found, list(store.traces.values()), folder)
    return page


def _check_agents(traces: Iterable[Trace]) -> None:
    """Raise HamrError for an agent whose function failed in every turn: its scores say nothing about the agent."""
    turns: dict[str, list[Exchange]] = {}
    for trace in traces:
        turns.setdefault(trace.agent, []).extend(trace.turns)
    for agent, exchanges in turns.items():
        if exchanges and all(exchange.fault in ("function_failed", "function_timeout") for exchange in exchanges):
            last = exchanges[-1]
            remedy = "mend the function, or raise agent_deadline_s, and use another output folder"
            raise HamrError(f"every turn of {agent} failed ({last.fault}: {last.detail}); {remedy}")


def _exit_code(found: Evaluated, store: Store, *, judged: bool) -> int:
    """Return 0 where every agent has an assessed turn and a judge voted. Raises HamrError otherwise."""
    for agent, result in found.summary["agents"].items():
        outcomes = [entry["dialogues"] for entry in result["scenarios"].values()]
        if not any(count for counts in outcomes for name, count in counts.items() if not name.endswith("_failed")):
            cause = first_failure(trace.detail for trace in store.traces.values() if trace.agent == agent)
            remedy = f"see {store.folder / TRACES} and run the command again"
            raise HamrError(f"no dialogue with {agent} was finished ({outcomes}){cause}; {remedy}")
        if not any(entry["assessed"] for entry in result["scenarios"].values()):
            remedy = "use another simulator, or see its messages in traces.jsonl"
            raise HamrError(f"no turn of {agent} was assessed, because no customer talked to it ({outcomes}); {remedy}")
    turns = [a for by in found.assessed.values() for turns in by.values() for a in turns if a.readable]
    votes = [a.consensus for a in turns if a.consensus is not None]
    if judged and turns and not any(vote.fields or vote.quality is not None for vote in votes):
        judgements = (one for by_turn in store.judgements.values() for one in by_turn.values())
        cause = first_failure(vote.detail for one in judgements for vote in one.votes)
        remedy = f"see {store.folder / JUDGEMENTS} and run the command again"
        raise HamrError(f"no judge gave a vote on any of {len(turns)} turns{cause}; {remedy}")
    return 0
