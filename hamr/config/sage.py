"""What `hamr evaluate benchmark=sage` takes beside the overrides of a job. Every default lives here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from hamr.config.section import NonNegative, Section

TieRule = Literal["first", "smallest", "none"]
PathForm = Literal["intersection", "prefix"]
ActionForm = Literal["exact", "group"]
Unreadable = Literal["left_out", "zero"]
SCRIPTED = "scripted:"
"""In front of the names of those who need no pool."""


class SageConfig(Section):
    """SAGE's numbers; where the paper and its released code differ, or say nothing, a choice with a name."""

    language: Literal["en", "zh"] = "en"
    """Of the procedure, the prompts and the dialogues."""
    seed: int = 0
    per_intent: Annotated[int, Field(ge=0)] = 3
    """Dialogues of each intent before any path is looked at."""
    per_path: Annotated[int, Field(ge=0)] = 5
    """Dialogues that every path has after the top-up."""
    cover: Literal["cases", "routes"] = "cases"
    """What counts as a path: `cases` tells apart what customers say on the same way through the graph (the paper's 36
    of the Telecom Package), `routes` the ways alone (12)."""
    limit: PositiveInt | None = None
    """At most so many dialogues per scenario, for a look; the paths are then not covered, which the table shows."""
    max_turns: PositiveInt = 30
    agent_prompt: Literal["service", "sample"] = "service"
    """`service`: the paper's, with the system's variables in it. `sample`: word for word what policies were trained on
    that learned from `hamr data sage form=sage`, where the variables stand in the ticket."""
    user_temperature: NonNegative = 0.7
    user_tokens: PositiveInt = 96
    agent_temperature: NonNegative = 0.0
    reasks: Annotated[int, Field(ge=0)] = 2
    """How often a customer's message that breaks character, or a judgement that cannot be read, is asked for again."""
    attempts: PositiveInt = 3
    """How often a question is put to a pool that does not answer."""
    longest_wait_s: PositiveFloat = 60.0
    """Between two of those attempts, where the pool says how long to leave it alone."""
    at_once: PositiveInt | None = None
    """Dialogues under way at a time; null: as many as the pools can work on."""
    tie: TieRule = "first"
    """What a field's label is where no label has more votes than every other: the label of the `first` judge named that
    voted for one of the tied, the `smallest` of them as a text (the paper's released code), or `none`: the field is
    undecided and counts nowhere."""
    path: PathForm = "intersection"
    """`intersection`: the paper's Eq. 6. `prefix`: order matters, and so do stages too many."""
    action: ActionForm = "exact"
    """`exact`: Eq. 7. `group`: the right tool with the wrong option earns what the scenario's `group_credit` says."""
    unreadable: Unreadable = "left_out"
    """A turn whose output cannot be read is left out of the averages (they are 0 if none can), or counts as 0."""
    resamples: PositiveInt = 1000
    """Of the bootstrap behind the intervals."""


class DialoguesConfig(SageConfig):
    """SAGE with the policy in training: customers talk to the rollout engines, beside the held-out decision points."""

    scenarios: tuple[str, ...] = ()
    """Procedures, by name or file; none: no dialogues."""
    simulator: str = "scripted:worded"
    judges: tuple[str, ...] = ("scripted:gold",)
    """Pools of the run, or scripts, which need no model."""
    stages: tuple[Literal["base", "sft", "rl"], ...] = ("base", "sft", "rl")
    """Before anything, after the warm-up, at the end."""
    every: Annotated[int, Field(ge=0)] = 0
    """Also after every so many RL steps; 0: never."""
    max_new_tokens: PositiveInt | None = None
    """Of one answer of the policy; null: `rollout.max_new_tokens`."""
    agent_prompt: Literal["service", "sample"] = "sample"
    limit: PositiveInt | None = 24

    @property
    def asked(self) -> dict[str, str]:
        """Setting -> pool that it has asked; scripts are nobody's."""
        if not self.scenarios:
            return {}
        named = {"simulator": self.simulator, **{f"judges[{i}]": name for i, name in enumerate(self.judges)}}
        return {key: name for key, name in named.items() if not name.startswith(SCRIPTED)}
