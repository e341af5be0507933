"""The section `scorers`: checks of the scorers of the consistency reward."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hamr.config.section import Fraction, NonNegativeInt, SampleCount, Section


class RefitConfig(Section):
    """Further training of the scorers on the policy's replies (`on_alarm: refit`).

    Every scorer of the consistency reward has to be a `cross_encoder` pool with a `finetune` section. The pools load
    the new weights without a restart.
    """

    labels: str = "rule"
    """Source of the labels. `rule`: the rule for exact acts, for data that name their acts. `judge`: the judge's score;
    only the reranker is trained. Otherwise a file of labelled pairs, as `data.labelled_pairs`."""
    examples: Annotated[int, Field(ge=2, le=1_000_000)] = 600
    """Maximum number of pairs of the policy's replies in one refit. As many pairs of the original training are added,
    so that the scorers do not forget it."""


class ScorersConfig(Section):
    contexts: NonNegativeInt = 24
    """Number of references for which the start of a run, and every check during RL, compares wrong replies with right
    ones. 0 disables the check. `hamr scorer check` uses more."""
    check_every: NonNegativeInt = 0
    """Interval in RL steps between checks of the policy's most frequent replies. 0 disables them."""
    replies: SampleCount = 20
    """Number of most frequent replies in a check."""
    max_fooled: Fraction = 0.1
    """Maximum share of contexts in which a wrong reply wins without an alarm (`alarm/scorers_fooled` in RL). In RL also
    the maximum share of an act's replies that are wrong and score like right ones, where the data name their acts. RL
    checks often, so there the share's whole 95 % Wilson interval has to be above the maximum."""
    on_alarm: Literal["warn", "stop", "refit"] = "warn"
    """Action of an alarm: a line on the terminal and in the metrics; the end of the run after a checkpoint; or further
    training of the scorers on the policy's replies, after which RL continues (before RL, only the line)."""
    refit: RefitConfig = RefitConfig()
    accept_chance: bool = False
    """Train even if the check at the start finds a scorer that is no better than chance. By default the run stops."""
