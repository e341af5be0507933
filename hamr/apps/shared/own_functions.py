"""The user's functions of a job other than rewards: checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable

from hamr.config.schema import Config
from hamr.data.importer_function import IMPORTER_ARGUMENTS
from hamr.pools.function_pool import check_functions
from hamr.security.functions import FunctionSource, load_function
from hamr.telemetry.callbacks import CALLBACK_ARGUMENTS, Callbacks


def check_own_functions(config: Config) -> Config:
    """Load every function. Return the configuration with the digests of their files.

    Raises:
        ConfigError: A function does not exist, cannot be imported or called, or a loss function returns no losses.
    """
    found = {}
    for key, section in config.functions.items():
        if key.startswith("rewards."):
            continue
        function = load_function(FunctionSource.of_config(key, section), _arguments(key))
        if key == "algorithm.loss":
            from hamr.algorithms.losses import checked_objective

            checked_objective(function)
        found[key] = section.model_copy(update={"sha256": function.sha256})
    checked = config.model_copy(update={"rewards": check_functions(config.rewards)})
    return checked.with_functions(found)


def load_callbacks(config: Config, note: Callable[[str], None]) -> Callbacks | None:
    """Return the run's callbacks, None without any. Raises ConfigError."""
    functions = {
        name: load_function(FunctionSource.of_config(f"logging.callbacks.{name}", section), CALLBACK_ARGUMENTS[name])
        for name, section in config.logging.callbacks.given.items()
    }
    return Callbacks(functions, note) if functions else None


def _arguments(key: str) -> tuple[str, ...]:
    if key == "data.importer":
        return IMPORTER_ARGUMENTS
    return CALLBACK_ARGUMENTS.get(key.removeprefix("logging.callbacks."), ("tokens",))
