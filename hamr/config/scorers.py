"""The section `scorers`: what a run checks of the scorers that its consistency reward asks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hamr.config.section import Fraction, Section


class ScorersConfig(Section):
    contexts: Annotated[int, Field(ge=0)] = 24
    """References for which the start of a run, and every check during RL, tries whether a wrong reply beats the right
    ones; 0: none. `hamr scorer check` does it with more."""
    check_every: Annotated[int, Field(ge=0)] = 0
    """During RL: try the policy's most frequent replies every so many steps; 0: never."""
    replies: Annotated[int, Field(ge=1)] = 20
    """How many of them."""
    max_fooled: Fraction = 0.1
    """Share of contexts in which a wrong reply may win before an alarm is raised (`alarm/scorers_fooled` in RL)."""
    on_alarm: Literal["warn", "stop"] = "warn"
    """What an alarm does: a line on the terminal and in the metrics, or the end of the run after a checkpoint."""
    accept_chance: bool = False
    """Train although the check at the start finds a scorer that is no better than chance. Default: stop."""
