"""Dialogues of RL: the episode function of a run, and the runner that holds its dialogues with the engines."""

from __future__ import annotations

from hamr.apps.shared.dialogue_checks import customer_scenarios
from hamr.apps.shared.preparation import Prepared
from hamr.bench.sage.episodes import SageEnvironment
from hamr.config.custom import ARGUMENTS
from hamr.protocols import Rewarder, RolloutEngine
from hamr.rollout.episodes import EpisodeRunner, OwnEpisode
from hamr.security.functions import FunctionSource, load_function
from hamr.types import EpisodeFunction


def episode_runner(prepared: Prepared, engine: RolloutEngine, rewarder: Rewarder) -> EpisodeRunner:
    """Return the runner of the configured dialogues. Raises ConfigError for an unusable function."""
    config = prepared.config
    rollout, deadline_s = config.rollout, config.rollout.deadline_s * config.rollout.max_turns
    run: EpisodeFunction
    if rollout.episode is not None:
        source = FunctionSource.of_config("rollout.episode", rollout.episode)
        run, deadline_s = OwnEpisode(load_function(source, ARGUMENTS["rollout.episode"])), rollout.episode.deadline_s
    else:
        run = SageEnvironment(
            config=config.env,
            scenarios=customer_scenarios(config),
            max_turns=rollout.max_turns,
            format_of=prepared.codec.formats.of,
        )
    return EpisodeRunner(
        run=run,
        engine=engine,
        rewarder=rewarder,
        encode=prepared.codec.turn,
        context=config.model.max_context,
        max_turns=rollout.max_turns,
        deadline_s=deadline_s,
    )
