"""`hamr scorer check`: whether any wrong reply outscores right ones, before RL finds it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.apps.scorer.fallback import check_scorable, with_allowed_repetitions, with_usable_scorers
from hamr.apps.scorer.gate import UNANSWERED, GateResult, gates, reaching_scorers
from hamr.apps.shared.machine import machine, versions
from hamr.apps.shared.outputs import output_folder
from hamr.apps.shared.pools_up import pools_of, with_pools
from hamr.apps.shared.reply_clusters import scorer_splits
from hamr.calibration.cascade import Cascade
from hamr.data.contrasts import contrasts
from hamr.errors import BadInput, HamrError
from hamr.files import write_atomic
from hamr.protocols import Ask

if TYPE_CHECKING:
    from hamr.apps.scorer.command import ScorerCheckCommand

SEED = 31
FILE = "scorer_check.json"


def check(command: ScorerCheckCommand) -> int:
    """Check the scorers of the configuration's consistency reward. The exit code does not depend on the result.

    Raises HamrError if a scorer, or the cascade, has scored no context.
    """
    output = command.output
    if output is not None:
        output_folder(output, [FILE], overwrite=command.overwrite)
    config = command.config()
    splits = scorer_splits(config, print)
    check_scorable(config, splits)
    config, scored_by = with_usable_scorers(config, splits)
    if scored_by:
        print(scored_by)
    roles = config.rewards.scorers
    if not roles:
        wanted = config.rewards.consistency
        where, value = ("weight", 0) if not wanted.weight else ("mode", wanted.mode)
        raise BadInput(f"rewards.consistency.{where}", value, "no scorer is asked, so there is none to check")
    config = with_allowed_repetitions(config, splits.train)
    drawn = reaching_scorers(contrasts(splits.test, command.contexts, SEED), config.rewards.consistency)

    async def work(asks: Mapping[str, Ask]) -> dict[str, GateResult]:
        cascade = Cascade.from_config(config.rewards.consistency.cascade)
        return await gates({role: asks[name] for role, name in roles.items()}, drawn, cascade)

    found = with_pools(config, tuple(roles.values()), work, run=pools_of("scorer-check", Path.cwd()), splits=splits)
    for name, result in found.items():
        for line in result.lines(name):
            print(line)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        figures: dict[str, object] = {name: result.as_dict() for name, result in found.items()}
        figures |= {"machine": machine(), "versions": versions()}
        write_atomic(output / FILE, json.dumps(figures, indent=1, ensure_ascii=False))
        print(f"figures: {output / FILE}")
    if silent := [name for name, result in found.items() if result.unscored and not result.contexts]:
        raise HamrError(f"scorer check: none of {len(drawn)} contexts is scored by {', '.join(silent)}; {UNANSWERED}")
    return 0
