"""The user's functions of a job other than rewards: checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from hamr.config.custom import ARGUMENTS, EpisodeFunctionConfig, FunctionConfig, HarnessConfig, ImporterConfig
from hamr.config.schema import Config
from hamr.data.importer_function import imported_samples
from hamr.pools.function_pool import check_functions
from hamr.rollout.environments import ClassEpisode
from hamr.rollout.episodes import load_episode
from hamr.rollout.harness import check_harness
from hamr.security.functions import FunctionSource, LoadedFunction, load_function, within
from hamr.telemetry.callbacks import Callbacks

CHECK_S = 120.0
"""Longest time in which a function is loaded and tried, in seconds."""


def check_own_functions(config: Config) -> Config:
    """Load every function, rewards too, and call the importer. Return the configuration with the digests of their files
    and the imported samples.

    Raises:
        ConfigError: A function does not exist, cannot be imported or called, or a loss function returns no losses.
    """
    found: dict[str, FunctionConfig] = {}
    for key, section in config.functions.items():
        if isinstance(section, HarnessConfig):
            check_harness(key, section)
        if key not in ARGUMENTS or not isinstance(section, FunctionConfig):
            continue
        source = FunctionSource.of_config(key, section)
        function = within(CHECK_S, source, partial(_load_and_check, key, source))
        if isinstance(function.call, ClassEpisode):
            if keys := config.rewards.pool_keys:
                remedy = f"set rewards.{keys[0]}.weight=0, or write a function that asks with `point=`"
                why = "is a class, whose get_reward is its only reward, but pools would be asked"
                raise source.error(f"{why}; {remedy}")
            section = cast(EpisodeFunctionConfig, section).as_class()
        found[key] = section.model_copy(update={"sha256": function.sha256})
    if "data.importer" in found:
        importer = cast(ImporterConfig, found["data.importer"])
        found["data.importer"] = importer.as_called(imported_samples(importer))
    checked = config.model_copy(update={"rewards": check_functions(config.rewards)})
    return checked.with_functions(found)


def _load_and_check(key: str, source: FunctionSource) -> LoadedFunction:
    if key == "rollout.episode":
        return load_episode(source)
    function = load_function(source, ARGUMENTS[key])
    if key == "algorithm.loss":
        from hamr.algorithms.own_objective import checked_objective

        checked_objective(function)
    return function


def load_callbacks(config: Config, note: Callable[[str], None]) -> Callbacks | None:
    """Return the run's callbacks, None without any. Raises ConfigError."""
    functions = {}
    for name, section in config.logging.callbacks.sections.items():
        key = f"logging.callbacks.{name}"
        functions[name] = load_function(FunctionSource.of_config(key, section), ARGUMENTS[key])
    return Callbacks(functions, note) if functions else None
