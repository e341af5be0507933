"""Options of `hamr evaluate benchmark=sage` in addition to the overrides of a job. Every default lives here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hamr.config.benchmarks import AnswerConfig, RetryConfig
from hamr.config.section import NonNegativeInt, PositiveInt, SampleCount, Seed, Temperature

TieRule = Literal["first", "smallest", "none"]
PathForm = Literal["intersection", "prefix"]
ActionForm = Literal["exact", "group"]
UnreadableScore = Literal["zero", "left_out"]
FaultyCustomers = Literal["left_out", "kept"]
AgentPrompt = Literal["service", "sample", "actions"]
SCRIPTED = "scripted:"
"""Prefix of the names of participants that need no pool."""


class SageConfig(RetryConfig, AnswerConfig):
    """Options of SAGE. Where the paper and its released code differ or are silent, there is a named choice."""

    language: Literal["en", "zh"] = "en"
    """Language of the procedure, the prompts and the dialogues."""
    seed: Seed = 0
    """Determines the customers."""
    per_intent: Annotated[int, Field(ge=0, le=1_000_000)] = 3
    """Dialogues of each intent before the top-up by path."""
    per_path: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    """Dialogues of every path after the top-up."""
    cover: Literal["cases", "routes"] = "cases"
    """Unit of coverage: `cases` also distinguishes what customers say on the same route through the graph (the paper's
    36 of the Telecom Package), `routes` are the routes alone (12)."""
    top_up: Annotated[int, Field(ge=0, le=1_000_000)] = 2
    """Maximum number of rounds that replace dialogues that are not assessed: a customer that left immediately, broke
    character or has another fault is replaced by another one on the same path, and a dialogue that a pool interrupted
    is repeated. The rounds for an agent end when one of them helps none of its dialogues."""
    limit: PositiveInt | None = None
    """Maximum number of dialogues per scenario, for a quick check. The paths are then not covered, as the table
    shows."""
    max_turns: PositiveInt = 30
    """Maximum number of turns of the agent in a dialogue."""
    agent_prompt: AgentPrompt | None = None
    """`service`: the paper's prompt for answers in JSON, with the variables of the system. `sample`: the exact training
    prompt of policies trained on `hamr data sage form=sage`, where the variables are in the ticket. `actions`: the
    prompt of the default form; the agent calls tools, which are executed, and answers with a text. null: `actions` for
    agents with native tools, else `service`."""
    max_rounds: PositiveInt = 8
    """Rounds of tool calls before an agent has to answer with a text (`agent_prompt=actions`)."""
    user_temperature: Temperature = 0.7
    """Sampling temperature of the customers."""
    user_tokens: PositiveInt = 96
    """Maximum length of a customer's message in tokens."""
    agent_temperature: Temperature = 0.0
    """Sampling temperature of the agents."""
    reasks: NonNegativeInt = 2
    """Retries of a customer message that breaks character, or of an unparseable judgement."""
    attempts: PositiveInt = 3
    """Attempts per question to a pool that does not answer."""
    at_once: PositiveInt | None = None
    """Concurrent dialogues. null: the capacity of the pools."""
    tie: TieRule = "first"
    """Label of a field on a tie of the votes: the label of the `first` listed judge that voted for one of the tied, the
    `smallest` of them as a text (the paper's released code), or `none`: the field is undecided and not counted."""
    path: PathForm = "intersection"
    """`intersection`: the paper's Eq. 6. `prefix`: order and additional stages count too."""
    action: ActionForm = "exact"
    """`exact`: Eq. 7. `group`: the right tool with the wrong option scores the `group_credit` of the scenario."""
    unreadable: UnreadableScore = "zero"
    """`zero`: a turn with unparseable output counts as 0. `left_out`: it is excluded from the averages, as in the
    paper's released code; they are 0 if no turn is parseable. Both report the share of readable turns next
    to the scores."""
    faulty_customers: FaultyCustomers = "left_out"
    """Dialogues whose simulated customer has a fault (showed more or less than its case, wanted something else, left
    early, left its role, or wrote in another language). `left_out`: excluded from the scores, counted, and replaced
    like dialogues without an assessed turn. `kept`: scored like the others, and counted."""
    resamples: SampleCount = 1000
    """Resamples of the bootstrap intervals."""


class DialoguesConfig(SageConfig):
    """SAGE with the policy in training: customers talk to the rollout engines, in addition to the held-out decision
    points."""

    scenarios: tuple[str, ...] = ()
    """Procedures, by name or file. Empty: no dialogues."""
    simulator: str = "scripted:worded"
    """Pool that plays the customers, or a script: `scripted:worded` needs no model."""
    judges: tuple[str, ...] = ("scripted:gold",)
    """Pools of the run, or scripts, which need no model."""
    stages: tuple[Literal["base", "sft", "rl"], ...] = ("base", "sft", "rl")
    """Evaluate before training, after the warm-up, and at the end."""
    every: NonNegativeInt = 0
    """Also evaluate every this number of RL steps. 0: never."""
    max_new_tokens: PositiveInt | None = None
    """Maximum length of one answer of the policy. null: `rollout.max_new_tokens`."""
    agent_prompt: AgentPrompt | None = "sample"
    """`service`: the paper's prompt for answers in JSON, with the variables of the system. `sample`: the exact training
    prompt of policies trained on `hamr data sage form=sage`, where the variables are in the ticket. `actions`: the
    prompt of the default form; the agent calls tools, which are executed, and answers with a text. null: `actions` for
    agents with native tools, else `service`."""
    limit: PositiveInt | None = 24
    """Maximum number of dialogues per scenario, for a quick check. The paths are then not covered, as the table
    shows."""

    @property
    def dialogue_pools(self) -> dict[str, str]:
        """Setting -> pool that it uses. Scripts use none."""
        if not self.scenarios:
            return {}
        named = {"simulator": self.simulator, **{f"judges[{i}]": name for i, name in enumerate(self.judges)}}
        return {key: name for key, name in named.items() if not name.startswith(SCRIPTED)}
