"""`hamr data patm` and `hamr data dra`: planning trajectories and decision reasoning, as SFT items."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.apps.data.recipe_job import make_items, show
from hamr.apps.data.recipes.dra import Decided, Dra, decided_item, dra_items, logged_decision, with_rationale
from hamr.apps.data.recipes.patm import Patm, kept_plans, patm_items
from hamr.apps.shared.outputs import output_file
from hamr.data.samples import from_json, read_rows
from hamr.data.sft_items import item_from_json, write_items
from hamr.data.trajectories import Window, read_trajectories, windows
from hamr.errors import DataError

if TYPE_CHECKING:
    from hamr.apps.data.recipe_command import DraCommand, PatmCommand


def build_patm(command: PatmCommand) -> int:
    """Rewrite windows of one split's tickets; write the kept ones as `kind: patm` items."""
    output = output_file(command.output, overwrite=command.overwrite, source=command.input)
    split = command.split
    trajectories = read_trajectories(command.input)
    wanted = [t for t in trajectories if split == "all" or t.meta.get("split", "train") == split]
    found = [window for trajectory in wanted for window in windows(trajectory)]
    whole = [window for window in found if isinstance(window, Window)]
    incomplete = Counter(window for window in found if isinstance(window, str))
    cut = "".join(f", {count} incomplete: {why}" for why, count in incomplete.most_common())
    print(
        f"{len(wanted)} of {len(trajectories)} tickets (split={split}): {len(whole)} complete windows{cut}", flush=True
    )
    if not whole:
        raise DataError(
            "input", str(command.input), f"no complete window in split={split}; give other tickets or split=all"
        )
    config, team = command.config_and_team()
    recipe = command.recipe
    items = patm_items(whole, recipe, team.by(config))
    done = make_items(config, team, items, Patm(recipe), output, run="patm", at_once=command.at_once)
    write_items(output, kept_plans(items, done, recipe.language))
    show("planning windows", done, [(f"no window: {why}", str(count)) for why, count in incomplete.most_common()])
    print(f"written: {output}")
    return 0


def build_dra(command: DraCommand) -> int:
    """Generate rationales for samples or SFT items; write the kept `decision_dra` and `patm_dra` items."""
    output = output_file(command.output, overwrite=command.overwrite, source=command.input)
    found = read_decided(command.input)
    config, team = command.config_and_team()
    recipe = command.recipe
    items = dra_items(found, recipe, team.by(config))
    done = make_items(config, team, items, Dra(recipe), output, run="dra", at_once=command.at_once)
    kept = [(item, made.kept) for item in items if (made := done[item.id]).kept is not None]
    write_items(output, (with_rationale(item.content, kept["rationale"]) for item, kept in kept))
    show("rationales", done)
    print(f"written: {output}")
    return 0


def read_decided(path: Path) -> list[Decided]:
    """Read a file of samples or of SFT items; the first line decides which. Raises DataError."""
    rows = [(f"{path}:{number}", row) for number, row in read_rows(path)]
    if isinstance(rows[0][1], dict) and "kind" in rows[0][1]:
        return [decided_item(item_from_json(row, where=where), where) for where, row in rows]
    return [logged_decision(from_json(row, where=where)) for where, row in rows]
