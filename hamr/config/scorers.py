"""The section `scorers`: checks of the scorers of the consistency reward."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hamr.config.section import Fraction, Section


class ScorersConfig(Section):
    contexts: Annotated[int, Field(ge=0)] = 24
    """Number of references for which the start of a run, and every check during RL, compares wrong replies with right
    ones. 0 disables the check. `hamr scorer check` uses more."""
    check_every: Annotated[int, Field(ge=0)] = 0
    """Interval in RL steps between checks of the policy's most frequent replies. 0 disables them."""
    replies: Annotated[int, Field(ge=1)] = 20
    """Number of most frequent replies in a check."""
    max_fooled: Fraction = 0.1
    """Maximum share of contexts in which a wrong reply wins without an alarm (`alarm/scorers_fooled` in RL)."""
    on_alarm: Literal["warn", "stop"] = "warn"
    """Action of an alarm: a line on the terminal and in the metrics, or the end of the run after a checkpoint."""
    accept_chance: bool = False
    """Train even if the check at the start finds a scorer that is no better than chance. By default the run stops."""
