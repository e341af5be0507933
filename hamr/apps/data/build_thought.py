"""`hamr data thought`: thoughts extracted from experts and migrated to other cases, as SFT items."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from hamr.apps.data.chain_ratings import agreement, write_to_rate
from hamr.apps.data.recipe_job import Team, make_items, show, sibling_path, team_of
from hamr.apps.data.recipes.migration import Migration, MigrationRecipe
from hamr.apps.data.recipes.runner import Make
from hamr.apps.data.recipes.thought import Extraction, renderings, thought_items
from hamr.apps.shared.outputs import output_file
from hamr.apps.shared.pools_up import writing_pool
from hamr.config.schema import Config
from hamr.data.progress import ItemResult, WorkProgress
from hamr.data.samples import read_samples, write_rows
from hamr.data.sft_items import write_items
from hamr.errors import BadInput

if TYPE_CHECKING:
    from hamr.apps.data.recipe_command import ThoughtsCommand


def build_thought(command: ThoughtsCommand) -> int:
    """Run one step and write its kept items: `decision_dra`, `decision_post` or both."""
    from hamr.apps.data.recipe_command import ExtractThoughts  # it imports the recipes

    output = output_file(command.output, overwrite=command.overwrite, source=command.input)
    rating = command if isinstance(command, ExtractThoughts) else None
    to_rate = sibling_path(output, "to_rate")
    if rating and rating.to_rate and rating.ratings and rating.ratings.resolve() == to_rate.resolve():
        raise BadInput("ratings", str(to_rate), "would be overwritten and its ratings lost; give a copy of it")
    recipe, render = command.recipe, command.render
    samples = read_samples(command.input)
    config, team = command.config_and_team()
    items = thought_items(samples, recipe, team.by(config))
    make: Make = Migration(recipe) if isinstance(recipe, MigrationRecipe) else Extraction(recipe)
    done = make_items(config, team, items, make, output, run="thought", at_once=command.at_once)
    progress = WorkProgress.of(sibling_path(output, "progress"), items)

    def results() -> dict[str, ItemResult]:
        return {item.id: progress.whole(item.id) for item in items if item.id in progress.done}

    kept = [
        (item.content, record)
        for item in items
        if (made := done[item.id]).kept is not None
        for record in (made.kept, *made.kept.get("more", ()))
    ]
    found = [one for sample, made in kept for one in renderings(sample, made, render)]
    write_items(output, found)
    figures = [("chain's quality, mean", "cot_quality"), ("dialogue quality, mean", "quality")]
    more = [
        (what, f"{fmean(made[key] for _, made in kept):.2f}") for what, key in figures if kept and key in kept[0][1]
    ]
    if rating and rating.to_rate:
        count = write_to_rate(to_rate, samples, results(), rating.to_rate)
        print(f"for people: {to_rate} ({count} chains); fill in rating in a copy, then give ratings=<the copy>")
    if rating and rating.ratings:
        figures_of_people = agreement(rating.ratings, results())
        write_rows(sibling_path(output, "ratings"), [figures_of_people])
        rho = figures_of_people["spearman"]
        more += [
            ("chains rated by people", str(figures_of_people["rated"])),
            ("their mean, and the judge's", "{people_mean:.2f}, {judge_mean:.2f}".format(**figures_of_people)),
            ("Spearman's rho of both", "none, one side is constant" if rho is None else f"{rho:.3f}"),
        ]
    show(f"thoughts: {command.words.partition('=')[2]}", done, [*more, (f"SFT items, {render}-CoT", str(len(found)))])
    print(f"written: {output}")
    return 0


def thought_team(config: Config, command: ThoughtsCommand) -> Team:
    """Return the teachers, the judge, and the Zero-Think pool if there is one. Raises BadInput."""
    team = team_of(config, command)
    if command.writer is None:
        return team
    second = writing_pool(config, "zero_think", command.writer)
    return Team(teachers=team.teachers, judge=team.judge, second=second)
