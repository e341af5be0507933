"""What the jobs of all recipes do alike: name the pools, run what is left, write what was kept and the records of all.

Beside the output stand `<output>.progress.jsonl`, one row a finished item as it came, which the same command goes on
from, and `<output>.records.jsonl`, every item in order: kept or dropped by which check, with every text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hamr.augmentation.progress import Item, Made, Progress, summary
from hamr.augmentation.runner import Make, Pools, run_recipe
from hamr.augmentation.teachers import Teacher, Teachers
from hamr.config.schema import Config
from hamr.data.samples import write_rows
from hamr.errors import BadInput, HamrError
from hamr.jobs.job_options import number
from hamr.jobs.pools_up import pools_of, with_pools, writing_pool
from hamr.jobs.reply_clusters import scorer_splits
from hamr.protocols import Ask

OPTIONS = ("input", "output", "overwrite", "teachers", "teacher", "judge", "at_once", "max_new_tokens", "language")


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
        """Which models: what they make depends on it."""
        named = [name for name in (*self.teachers, self.judge, self.second) if name]
        return "/".join(f"{config.pools[name].type}:{config.pools[name].model}" for name in named)


def team_of(config: Config, own: Mapping[str, str]) -> Team:
    """From `teacher=a` or `teachers=a,b` and `judge=c` (the first teacher unless another is named). Raises BadInput."""
    given = own.get("teachers") or own.get("teacher")
    if not given:
        pools = ", ".join(sorted(config.pools))
        raise BadInput("teacher", None, f"missing; give teacher=<pool> or teachers=<pool>,<pool>, of: {pools}")
    teachers = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    for name in teachers:
        writing_pool(config, "teacher", name)
    return Team(teachers=teachers, judge=writing_pool(config, "judge", own.get("judge", teachers[0])))


def beside(output: Path, what: str) -> Path:
    return output.with_name(f"{output.name}.{what}.jsonl")


def make_items(
    config: Config, team: Team, items: Sequence[Item], make: Make, own: Mapping[str, str], output: Path, *, run: str
) -> dict[str, Made]:
    """What became of every item, by id. Starts the pools only if something is left; writes the records.

    Raises HamrError where no item got an answer: nothing is written then, and the same command tries again.
    """
    progress = Progress.of(beside(output, "progress"), items)
    at_once = number(own, "at_once", int, sum(config.pools[name].places for name in team.names))
    if at_once < 1:
        raise BadInput("at_once", at_once, "must be 1 or more")
    print(f"{run}: {len(items)} items, {len(progress.done)} made already", flush=True)

    async def work(asks: Mapping[str, Ask]) -> None:
        teachers = {name: Teacher(ask=asks[name], capacity=config.pools[name].places) for name in team.teachers}
        judge = asks[team.judge] if team.judge else None
        second = asks[team.second] if team.second else None
        pools = Pools(teachers=Teachers(teachers), judge=judge, second=second)
        await run_recipe(items, make, pools, progress, at_once=at_once, tell=tell)
        for name, count in pools.teachers.answered.items():
            tell(f"teacher {name}: {count} answers")

    if len(progress.done) < len(items):
        # A judge that is fine-tuned is the one that training has, made from the same samples (and cached).
        tuned = any(config.pools[name].finetune for name in team.names)
        splits = scorer_splits(config, tell) if tuned else None
        with_pools(config, team.names, work, run=pools_of(run, output), splits=splits)
        if all(made.passing for made in progress.done.values()):
            raise HamrError("no item got an answer of its pools; see their logs, and call again to go on")
    write_rows(
        beside(output, "records"), ({"id": item.id, **dataclasses.asdict(progress.whole(item.id))} for item in items)
    )
    return progress.done


def tell(line: str) -> None:
    print(line, flush=True)


def show(title: str, done: Mapping[str, Made], more: Sequence[tuple[str, str]] = ()) -> None:
    """The table of what was kept and dropped by which check."""
    table = Table("what became of them", "items", title=f"{title}: {len(done)} items")
    for what, count in summary(done.values()):
        table.add_row(what, str(count))
    for what, figure in more:
        table.add_row(what, figure)
    Console().print(table)
    passing = sum(made.passing for made in done.values())
    if passing:
        print(f"{passing} failed in passing; the same command with overwrite=true asks for these alone again")
