"""`hamr data sage`: generated dialogues over a scenario."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hamr.apps.data.recipe_job import Team, make_items, optional_team, show
from hamr.apps.data.recipes.rewording import Reword, RewordRecipe, apply_rewordings, reword_items
from hamr.apps.data.write_splits import ITEMS, write_splits, write_thoughts
from hamr.apps.shared.outputs import output_folder
from hamr.config.schema import Config
from hamr.data.sage_samples import generate_samples, scenario_choices
from hamr.data.splits import Splits
from hamr.errors import BadInput
from hamr.procedures import Scenario, load_scenario
from hamr.procedures.words import SPLITS
from hamr.report import terminal
from hamr.report.values import Cell, Column, Table, number_columns

if TYPE_CHECKING:
    from hamr.apps.data.command import SageCommand


def check(command: SageCommand, config: Config) -> Team | None:
    """Check the command against its configuration. Return the pools that reword the customers if a teacher is named.

    Raises BadInput.
    """
    sage = config.data.sage
    if command.form != "actions" and sage.noise:
        raise BadInput("data.sage.noise", sage.noise, "requires form=actions; remove one")
    if command.form != "actions" and not sage.procedure:
        raise BadInput("data.sage.procedure", sage.procedure, "form=sage answers by the procedure; remove one")
    return optional_team(config, command)


def build(command: SageCommand) -> int:
    """Write the splits and print their coverage. If a teacher is named, it rewords the customers."""
    thoughts = command.thoughts
    files = (*SPLITS, "sft", *(ITEMS if thoughts != "none" else ()))
    folder = output_folder(command.output, [f"{name}.jsonl" for name in files], overwrite=command.overwrite)
    config = command.config()
    team, sage = check(command, config), config.data.sage
    print(f"generating dialogues of {sage.scenario} (seed {sage.seed}) into {folder}", flush=True)
    started = time.perf_counter()
    splits = generate_samples(sage, form=command.form)
    total = sage.train + sage.validation + sage.test
    rate = total / max(time.perf_counter() - started, 1e-9) * 60
    scenarios = [load_scenario(name) for name in scenario_choices(sage.scenario)]
    terminal.show(_coverage(scenarios, splits))
    print(f"{total} different samples, at {rate:,.0f} a minute", flush=True)
    if team is not None:
        recipe = RewordRecipe(
            temperature=command.temperature,
            max_new_tokens=command.max_new_tokens,
            judged=bool(team.judge),
            language=sage.language,
        )
        named, output = {each.name: each for each in scenarios}, folder / "reworded"
        items = reword_items(splits, named, recipe, team.by(config))
        done = make_items(config, team, items, Reword(recipe), output, run="reword", at_once=command.at_once)
        splits, counts = apply_rewordings(splits, named, done, sage.language)
        show("customers' messages", done, [(what, str(count)) for what, count in counts.items()])
    if thoughts != "none":
        write_thoughts(folder, splits, thoughts, {each.name: each for each in scenarios})
    write_splits(folder, splits)
    return 0


def _coverage(scenarios: list[Scenario], splits: Splits) -> Table:
    """Return the number of a scenario's paths that end a dialogue of each split."""
    rows: list[tuple[Cell, ...]] = []
    for scenario in scenarios:
        found = {
            split: {
                (tuple(sample.privileged["path"]), sample.privileged["action"])
                for sample in getattr(splits, split)
                if sample.meta["scenario"] == scenario.name and sample.privileged["action"] is not None
            }
            for split in SPLITS
        }
        rows.append((scenario.name, len(scenario.paths()), *(len(found[split]) for split in SPLITS)))
    columns = (Column("scenario"), *number_columns("{}", "paths", *SPLITS))
    return Table("paths with their last action as target", columns, tuple(rows))
