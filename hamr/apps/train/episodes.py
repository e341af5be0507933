"""Dialogues of RL: the episode function of a run, and the runner that holds its dialogues with the engines."""

from __future__ import annotations

from hamr.apps.shared.preparation import Prepared
from hamr.config.custom import ARGUMENTS
from hamr.protocols import Rewarder, RolloutEngine
from hamr.rollout.episodes import EpisodeRunner, OwnEpisode
from hamr.security.functions import FunctionSource, load_function


def episode_runner(prepared: Prepared, engine: RolloutEngine, rewarder: Rewarder) -> EpisodeRunner:
    """Return the runner of the configured dialogues. Raises ConfigError for an unusable function."""
    rollout = prepared.config.rollout
    assert rollout.episode is not None, "Config.holds_dialogues says so"
    source = FunctionSource.of_config("rollout.episode", rollout.episode)
    return EpisodeRunner(
        run=OwnEpisode(load_function(source, ARGUMENTS["rollout.episode"])),
        engine=engine,
        rewarder=rewarder,
        encode=prepared.codec.turn,
        context=prepared.config.model.max_context,
        max_turns=rollout.max_turns,
        deadline_s=rollout.episode.deadline_s,
    )
