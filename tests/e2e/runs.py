"""What whole runs have in common."""

from __future__ import annotations

import sys

COMPARED = {
    "experiment": "smoke",
    "experiment.steps": 4,
    "experiment.prompts_per_step": 4,
    "experiment.sft.steps": 1,
    "experiment.checkpoint.every": 1,
    "rollout.samples_per_prompt": 4,
    "algorithm.dynamic_sampling.enabled": False,
    "logging": "offline",
}
"""The settings of runs whose prompts have to be the same. With a filter on groups the rewards would decide."""

LIGHT_RERANKER = {
    "pools.reranker.type": "cross_encoder",
    "pools.reranker.model": "compact-encoder",
    "pools.reranker.prompt": "''",
    "scorers.accept_chance": True,
}
"""A reranker that starts in half the time of an engine. It is untrained: its scores are about 0.5, so that the judge is
always asked."""


def hamr(*args: str, **settings: object) -> list[str]:
    """The command line of a process of its own; a setting's name is given in a dictionary, for its dots."""
    return [sys.executable, "-m", "hamr", *args, *(f"{key}={value}" for key, value in settings.items())]
