"""`hamr data sage teacher=...`: generated customer messages reworded by a teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from hamr.apps.data.recipe_job import Team, make_items, show, team_of
from hamr.apps.data.recipes.rewording import Reword, RewordRecipe, apply_rewordings, reword_items
from hamr.apps.shared.job_options import number
from hamr.apps.shared.pools_up import writing_pool
from hamr.config.load import load_config
from hamr.data.language import Language
from hamr.data.splits import Splits
from hamr.errors import BadInput
from hamr.procedures import Scenario


class Rewording:
    """Rewording of the customers. Its options are checked before anything is generated."""

    def __init__(self, own: Mapping[str, str], overrides: Sequence[str], language: str) -> None:
        """Parse the options. Raises BadInput."""
        self.own, self.config = own, load_config(list(overrides))
        team = team_of(self.config, own)
        judge = writing_pool(self.config, "judge", own["judge"]) if own.get("judge") else ""
        self.team = Team(teachers=team.teachers, judge=judge)
        default = RewordRecipe()
        self.recipe = RewordRecipe(
            temperature=number(own, "temperature", float, default.temperature),
            max_new_tokens=number(own, "max_new_tokens", int, default.max_new_tokens or 0),
            judged=bool(judge),
            language=cast(Language, language),
        )
        if not 0.0 <= self.recipe.temperature <= 2.0:
            raise BadInput("temperature", self.recipe.temperature, "must be 0 to 2")
        if (self.recipe.max_new_tokens or 0) < 1:
            raise BadInput("max_new_tokens", self.recipe.max_new_tokens, "must be 1 or more")

    def apply(self, splits: Splits, scenarios: Mapping[str, Scenario], folder: Path) -> Splits:
        """Return the splits with the kept messages; write reworded.progress.jsonl and reworded.records.jsonl next to
        them."""
        items = reword_items(splits, scenarios, self.recipe, self.team.by(self.config))
        output = folder / "reworded"
        done = make_items(self.config, self.team, items, Reword(self.recipe), self.own, output, run="reword")
        after, counts = apply_rewordings(splits, scenarios, done, self.recipe.language)
        show("customers' messages", done, [(what, str(count)) for what, count in counts.items()])
        return after
