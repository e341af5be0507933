"""`hamr scorer check`: whether any wrong reply can please the scorers, before RL finds it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from hamr.config.load import load_config
from hamr.config.schema import Config
from hamr.data.contrasts import Contrast, contrasts
from hamr.errors import BadInput
from hamr.evaluation.scorer_gate import Gate, gates
from hamr.jobs.job_options import number, output_folder
from hamr.jobs.pools_up import pools_of, with_pools
from hamr.jobs.reply_clusters import scorer_splits
from hamr.jobs.scorer_fallback import with_usable_scorers
from hamr.observability.run_folder import write_atomic
from hamr.protocols import Ask
from hamr.routing.cascade import Cascade

SEED = 31
FILE = "scorer_check.json"
OPTIONS = ("output", "contexts", "overwrite")


def main(args: Sequence[str]) -> int:
    """Check the scorers that the configuration's consistency reward asks; exit code 0 whatever they answer."""
    own = dict(arg.split("=", 1) for arg in args if arg.partition("=")[0] in OPTIONS)
    output = output_folder(own, [FILE]) if "output" in own else None
    contexts = number(own, "contexts", int, 200)
    if contexts < 1:
        raise BadInput("contexts", contexts, "must be at least 1")
    config = load_config([arg for arg in args if arg.partition("=")[0] not in OPTIONS])
    splits = scorer_splits(config, print)
    drawn = contrasts(splits.test, contexts, SEED)
    config, replaced = with_usable_scorers(config, splits)
    if replaced:
        print(replaced)
    roles = config.rewards.scorers
    if not roles:
        raise BadInput("rewards.consistency.weight", 0, "no scorer is asked, so there is none to check")

    async def work(asks: Mapping[str, Ask]) -> dict[str, Gate]:
        return await checked(config, asks, drawn)

    found = with_pools(config, tuple(roles.values()), work, run=pools_of("scorer-check", Path.cwd()), splits=splits)
    for name, result in found.items():
        for line in result.lines(name):
            print(line)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        figures = {name: result.as_dict() for name, result in found.items()}
        write_atomic(output / FILE, json.dumps(figures, indent=1, ensure_ascii=False))
        print(f"figures: {output / FILE}")
    return 0


async def checked(config: Config, asks: Mapping[str, Ask], drawn: Sequence[Contrast]) -> dict[str, Gate]:
    """Return the gates of the roles of the consistency reward. `asks`: pool -> how to ask it."""
    cascade = Cascade.from_config(config.rewards.consistency.cascade)
    return await gates({role: asks[name] for role, name in config.rewards.scorers.items()}, drawn, cascade)
