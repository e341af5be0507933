"""Options of `hamr evaluate benchmark=tau2`. Every default lives here."""

from __future__ import annotations

from typing import Literal

from hamr.config.section import NonNegative, PositiveFloat, PositiveInt, Section, Seed


class Tau2Config(Section):
    """Options of tau2-bench. The limits are the defaults of the package."""

    domain: Literal["retail", "airline", "telecom"] = "retail"
    """Domain of the tasks."""
    split: Literal["train", "test", "base"] = "test"
    """Tasks: the package's split for training, for tests, or both (`base`)."""
    trials: PositiveInt = 4
    """Dialogues about each task. pass^k needs at least k."""
    limit: PositiveInt | None = None
    """Maximum number of tasks, for a quick check."""
    max_steps: PositiveInt = 200
    """Maximum number of messages in a dialogue."""
    max_errors: PositiveInt = 10
    """Maximum number of failed tool calls in a dialogue."""
    agent_temperature: NonNegative = 0.0
    """Sampling temperature of the agents."""
    user_temperature: NonNegative = 0.0
    """Sampling temperature of the customer."""
    seed: Seed = 300
    """Seed of the first trial."""
    at_once: PositiveInt = 8
    """Concurrent dialogues."""
    attempts: PositiveInt = 3
    """Attempts per question to a pool that does not answer."""
    longest_wait_s: PositiveFloat = 60.0
    """Maximum wait between two attempts, if the pool states a retry time."""
