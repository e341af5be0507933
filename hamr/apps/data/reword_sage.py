"""`hamr data sage teacher=...`: generated customer messages reworded by a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.apps.data.recipe_job import Team, make_items, show, teachers_of
from hamr.apps.data.recipes.rewording import Reword, RewordRecipe, apply_rewordings, reword_items
from hamr.apps.shared.pools_up import writing_pool
from hamr.config.schema import Config
from hamr.data.splits import Splits
from hamr.procedures import Scenario

if TYPE_CHECKING:
    from hamr.apps.data.command import SageCommand


class Rewording:
    """Rewording of the customers. Its pools are checked before anything is generated."""

    def __init__(self, command: SageCommand, config: Config) -> None:
        """Raises BadInput."""
        self.config, self.at_once = config, command.at_once
        judge = writing_pool(config, "judge", command.judge) if command.judge else ""
        self.team = Team(teachers=teachers_of(config, command), judge=judge)
        self.recipe = RewordRecipe(
            temperature=command.temperature,
            max_new_tokens=command.max_new_tokens,
            judged=bool(judge),
            language=config.data.sage.language,
        )

    def apply(self, splits: Splits, scenarios: Mapping[str, Scenario], folder: Path) -> Splits:
        """Return the splits with the kept messages; write reworded.progress.jsonl and reworded.records.jsonl next to
        them."""
        items = reword_items(splits, scenarios, self.recipe, self.team.by(self.config))
        output = folder / "reworded"
        done = make_items(
            self.config, self.team, items, Reword(self.recipe), output, run="reword", at_once=self.at_once
        )
        after, counts = apply_rewordings(splits, scenarios, done, self.recipe.language)
        show("customers' messages", done, [(what, str(count)) for what, count in counts.items()])
        return after
