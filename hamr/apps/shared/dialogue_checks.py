"""Checks of `experiment.sage`, the dialogues in which a run evaluates its policy."""

from __future__ import annotations

from hamr.bench.sage.coverage import plan_dialogues
from hamr.bench.sage.scripted import scripted_pool
from hamr.bench.sage.simulation import Simulation
from hamr.config.sage import SCRIPTED
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.models.tokenizer import Tokenizer
from hamr.procedures import Scenario, load_scenario
from hamr.procedures.words import load_words
from hamr.rewards.sage_logic import Scenarios, load_scenarios
from hamr.types import Answer, Question


def check_dialogues(config: Config, tokenizer: Tokenizer) -> None:
    """Check the parts of `experiment.sage` that the configuration schema cannot check.

    Raises BadInput for an unknown procedure or script, missing words, and a context that a procedure alone fills.
    """
    sage = config.experiment.sage
    if not sage.scenarios:
        return
    if len(set(sage.judges)) < len(sage.judges):
        raise BadInput("experiment.sage.judges", list(sage.judges), "names one twice; give each its own pool")
    for kind, name in (("simulator", sage.simulator), *(("judges", name) for name in sage.judges)):
        if name.startswith(SCRIPTED):
            scripted_pool(kind, name.removeprefix(SCRIPTED), {}, {})
    for scenario in scenarios_of(config).values():
        if sage.simulator == f"{SCRIPTED}worded":
            load_words(scenario, sage.language)
        _check_room(config, scenario, tokenizer)


def _check_room(config: Config, scenario: Scenario, tokenizer: Tokenizer) -> None:
    plan = plan_dialogues(scenario, config.experiment.sage)[0]
    instructions = Simulation(scenario, _unused_ask, _unused_ask, config.experiment.sage).instructions(plan)
    needed = len(tokenizer.chat_ids([{"role": "system", "content": instructions}])) + answer_tokens(config)
    if needed >= config.model.max_context:
        remedy = f"{scenario.name}'s procedure and one answer take {needed} tokens alone; raise it"
        raise BadInput("model.max_context", config.model.max_context, remedy)


def scenarios_of(config: Config) -> dict[str, Scenario]:
    return {(scenario := load_scenario(name)).name: scenario for name in config.experiment.sage.scenarios}


def customer_scenarios(config: Config) -> Scenarios:
    """Return the procedures of the customers of `env=sage`: the shipped ones and the user's own."""
    own, generated = config.rewards.sage_logic.scenarios, config.data.sage.scenario
    return load_scenarios([*own, *([generated] if config.data.type == "sage" and generated != "all" else [])])


def answer_tokens(config: Config) -> int:
    return config.experiment.sage.max_new_tokens or config.rollout.max_new_tokens


async def _unused_ask(question: Question) -> Answer:
    raise AssertionError("only the agent's instructions are used")
