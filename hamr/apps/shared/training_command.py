"""Arguments that all training jobs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from hamr.apps.shared.commands import ConfiguredCommand, Folder
from hamr.config.custom import names_function
from hamr.config.overrides import expand_env
from hamr.errors import RunFolderError

if TYPE_CHECKING:
    from hamr.config.schema import Config

HARDWARE = frozenset(
    {"trainer.ranks", "trainer.zero_stage", "trainer.num_gpus", "trainer.offload_optimizer", "rollout.workers"}
)
"""Settings that a resumed run may change: on how many GPUs it continues. Its config.yaml gets them."""


def changes_hardware(override: str) -> bool:
    return override.lstrip("+").partition("=")[0] in HARDWARE


class TrainingCommand(ConfiguredCommand):
    target = "experiment.run_dir"

    resume: Folder | None = None
    """Run folder to continue after its newest checkpoint. It keeps its configuration, so no other argument is
    possible, except the paths of its own reward functions, which have to be repeated, and the number of ranks and
    workers, `trainer.zero_stage`, `trainer.num_gpus` and `trainer.offload_optimizer`."""

    def check(self) -> Config:
        from hamr.apps.shared.sinks import check_sinks

        config = self.config()
        check_sinks(config.logging)
        return config

    @model_validator(mode="before")
    @classmethod
    def _as_recorded(cls, given: Any) -> Any:
        """Write the short forms `env=FILE.py:NAME` and `env.command=...` of a resumed run as its configuration does."""
        if not isinstance(given, Mapping) or given.get("resume") is None:
            return given
        return {**given, "overrides": tuple(map(expand_env, given.get("overrides", ())))}

    @model_validator(mode="after")
    def _resume_alone(self) -> TrainingCommand:
        others = [o for o in self.overrides if not names_function(o) and not changes_hardware(o)]
        if self.resume is not None and others:
            raise RunFolderError("resume", others, "a resumed run keeps its configuration; drop the other overrides")
        return self
