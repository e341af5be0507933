"""Commands that show the configuration run as docs/reference/configuration.md and docs/how-to/cluster.md have them."""

from __future__ import annotations

import shlex

import pytest

from hamr import cli
from tests.docs_pages import DOCS, commands

PAGES = (DOCS / "reference" / "configuration.md", DOCS / "how-to" / "cluster.md")
SHOWN = {
    "experiment=quickstart trainer.learning_rate=1e-4": "learning_rate: 0.0001",
    "experiment=quickstart --info": "conf/experiment/quickstart.yaml",
    "algorithm.kl.coef experiment=quickstart": "algorithm.kl.coef",
    "'rollout.engine.extra={quantization: fp8}' 'rollout.sampling_extra={min_p: 0.02}'": "min_p: 0.02",
    "pools.judge.temperature=0.6 pools.judge.top_p=0.95": "top_p: 0.95",
    "experiment=quickstart --cfg job": "experiment:",
    "hamr completion bash": "complete ",
    "hamr completion zsh": "#compdef hamr",
    "hamr completion fish": "complete -c hamr",
}
"""End of a command -> a part of what it prints."""


@pytest.mark.parametrize(
    "command",
    [
        c
        for p in PAGES
        for c in commands(p)
        if c.startswith(("hamr config", "hamr comp")) or " --cfg" in c or "--info" in c
    ],
)
def test_documented_command_shows_the_configuration(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = command.partition(" '>'")[0]
    assert cli.main(shlex.split(command)[1:]) == 0
    [part] = [part for end, part in SHOWN.items() if command.endswith(end)]
    assert part in capsys.readouterr().out
