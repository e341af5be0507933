"""The commands of the page about asynchronous training set what its text says."""

from __future__ import annotations

import shlex

from hamr.config.load import load_config
from tests.docs_pages import DOCS, commands

PAGE = DOCS / "how-to" / "asynchronous.md"


def test_documented_commands_are_valid_and_set_one_switch_each() -> None:
    chosen = [load_config(shlex.split(command)[2:]) for command in commands(PAGE) if command.startswith("hamr train")]
    switches = [
        (c.experiment.asynchrony.max_policy_age, sampling.oversample, sampling.surplus, c.experiment.name)
        for c in chosen
        for sampling in [c.algorithm.dynamic_sampling]
    ]
    assert switches == [
        (1, 1.0, "abort", "quickstart"),
        (0, 1.7, "abort", "quickstart"),
        (0, 1.7, "keep", "quickstart"),
    ]
