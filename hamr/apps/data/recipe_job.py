"""Common steps of the recipe jobs: name the pools, process the remaining items, write the kept items and all records.

Next to the output are `<output>.progress.jsonl`, one row per finished item, from which the same command resumes, and
`<output>.records.jsonl`, every item in order: kept or dropped by which check, with every text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from hamr.apps.data.recipes.runner import Make, Pools, run_recipe
from hamr.apps.data.recipes.teachers import Teacher, Teachers
from hamr.apps.shared.pools_up import pools_of, with_pools, writing_pool
from hamr.apps.shared.progress import progress
from hamr.apps.shared.reply_clusters import scorer_splits
from hamr.config.schema import Config
from hamr.data.progress import ItemResult, WorkItem, WorkProgress, summary
from hamr.data.samples import write_rows
from hamr.errors import BadInput, HamrError
from hamr.protocols import Ask
from hamr.report import terminal
from hamr.report.values import Column, Table

if TYPE_CHECKING:
    from hamr.apps.data.command import SageCommand, WordsCommand
    from hamr.apps.data.olabench_command import OlabenchItemsCommand
    from hamr.apps.data.recipe_command import RecipeCommand


@dataclass(frozen=True, kw_only=True)
class Team:
    """The pools of a recipe, by name: teachers that share the items, a judge, and a second one ("": none)."""

    teachers: tuple[str, ...]
    judge: str
    second: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in (*self.teachers, self.judge, self.second) if name))

    def by(self, config: Config) -> str:
        """Return the models of the pools, which determine the results."""
        named = [name for name in (*self.teachers, self.judge, self.second) if name]
        return "/".join(f"{config.pools[name].type}:{config.pools[name].model}" for name in named)


def team_of(config: Config, command: RecipeCommand) -> Team:
    """Return the teachers and the judge (default: the first teacher) that a command names. Raises BadInput."""
    teachers = teachers_of(config, command)
    return Team(teachers=teachers, judge=writing_pool(config, "judge", command.judge or teachers[0]))


def optional_team(config: Config, command: SageCommand | WordsCommand) -> Team | None:
    """Return the teachers and the judge ("" for none) that a command names; None without a teacher. Raises BadInput."""
    if not command.teacher and not command.teachers:
        return None
    judge = writing_pool(config, "judge", command.judge) if command.judge else ""
    return Team(teachers=teachers_of(config, command), judge=judge)


def teachers_of(
    config: Config, command: RecipeCommand | SageCommand | OlabenchItemsCommand | WordsCommand
) -> tuple[str, ...]:
    """Return the pools of `teachers=a,b` or `teacher=a`. Raises BadInput."""
    teachers = command.teachers or ((command.teacher,) if command.teacher else ())
    if not teachers:
        pools = ", ".join(sorted(config.pools))
        raise BadInput("teacher", None, f"missing; give teacher=<pool> or teachers=<pool>,<pool>, of: {pools}")
    return tuple(writing_pool(config, "teacher", name) for name in teachers)


def sibling_path(output: Path, what: str) -> Path:
    return output.with_name(f"{output.name}.{what}.jsonl")


def make_items(
    config: Config,
    team: Team,
    items: Sequence[WorkItem],
    make: Make,
    output: Path,
    *,
    run: str,
    at_once: int | None = None,
) -> dict[str, ItemResult]:
    """Return the result of every item, by id. Starts the pools only if items remain; writes the records.

    Raises HamrError where no item got an answer. Nothing is written then, and the same command tries again.
    """
    results = WorkProgress.of(sibling_path(output, "progress"), items)
    places = sum(config.pools[name].places for name in team.names)
    print(f"{run}: {len(items)} items, {len(results.done)} already done", flush=True)

    async def work(asks: Mapping[str, Ask]) -> None:
        teachers = {name: Teacher(ask=asks[name], capacity=config.pools[name].places) for name in team.teachers}
        judge = asks[team.judge] if team.judge else None
        second = asks[team.second] if team.second else None
        pools = Pools(teachers=Teachers(teachers), judge=judge, second=second)
        with progress({"items": len(items) - len(results.done)}, Console(), run) as report:
            limit = at_once or places
            await run_recipe(items, make, pools, results, at_once=limit, report=partial(report, "items"), tell=tell)
        for name, count in pools.teachers.answered.items():
            tell(f"teacher {name}: {count} answers")

    if len(results.done) < len(items):
        # A fine-tuned judge is the one of the training run, trained on the same samples (and cached).
        tuned = any(config.pools[name].learns_pairs for name in team.names)
        splits = scorer_splits(config, tell) if tuned else None
        with_pools(config, team.names, work, run=pools_of(run, output), splits=splits)
        if all(made.passing for made in results.done.values()):
            raise HamrError("no item got an answer of its pools; see their logs and run the command again")
    write_rows(
        sibling_path(output, "records"),
        ({"id": item.id, **dataclasses.asdict(results.whole(item.id))} for item in items),
    )
    return results.done


def tell(line: str) -> None:
    print(line, flush=True)


def show(title: str, done: Mapping[str, ItemResult], more: Sequence[tuple[str, str]] = ()) -> None:
    """Print the table of items kept, and dropped by each check."""
    columns = (Column("what became of them"), Column("items", "{}"))
    terminal.show(Table(f"{title}: {len(done)} items", columns, (*summary(done.values()), *more)))
    passing = sum(made.passing for made in done.values())
    if passing:
        print(f"{passing} transient failures; the same command with overwrite=true retries only these")
