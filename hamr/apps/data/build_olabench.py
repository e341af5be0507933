"""`hamr data olabench`: items of three kinds, and responses with known faults for grading judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.apps.data.recipe_job import Team, make_items, teachers_of
from hamr.apps.data.recipe_job import show as show_results
from hamr.apps.data.recipes.planted_rewording import PlantedReword, apply_planted, is_held_out, planted_items
from hamr.apps.shared.outputs import output_file, output_folder
from hamr.bench.olabench.drafts import ItemDraft
from hamr.bench.olabench.from_samples import draft_samples
from hamr.bench.olabench.from_scenarios import draft_scenarios
from hamr.bench.olabench.items import FILE, KINDS, SUBSETS, Subset, item_json
from hamr.bench.olabench.labelled import Labelled, labelled_json
from hamr.bench.olabench.planting import plant
from hamr.bench.olabench.public import convert
from hamr.bench.olabench.words import bench_words
from hamr.data.samples import read_samples, write_rows
from hamr.errors import BadInput
from hamr.procedures import load_scenario, scenario_names
from hamr.report.terminal import show
from hamr.report.values import Column, Table, number_columns

if TYPE_CHECKING:
    from hamr.apps.data.olabench_command import OlabenchItemsCommand, OlabenchLabels, OlabenchSamples, OlabenchScenarios

PLANTED = "planted.jsonl"
HELD_OUT = "held_out.jsonl"
"""Planted responses in the wordings that no teacher has seen."""


def from_scenarios(command: OlabenchScenarios) -> int:
    """Build the items from the rule engines of scenarios. Raises BadInput."""
    named = scenario_names() if command.scenario == "all" else command.scenario.split(",")
    return _build(command, draft_scenarios, lambda: [load_scenario(name) for name in named])


def from_samples(command: OlabenchSamples) -> int:
    """Build the items from samples. Raises BadInput."""
    return _build(command, draft_samples, lambda: read_samples(_file(command.samples)))


def _build(
    command: OlabenchItemsCommand, draft: Callable[..., list[ItemDraft]], source: Callable[[], Sequence[Any]]
) -> int:
    """Write the items that `draft` makes of the source, and the planted responses."""
    folder = output_folder(command.output, [FILE, PLANTED, HELD_OUT], overwrite=command.overwrite)
    config = command.config() if command.teachers else None
    team = Team(teachers=teachers_of(config, command), judge="") if config else None
    words = bench_words(command.language)
    sizes: dict[Subset, int] = {subset: getattr(command, subset) for subset in SUBSETS}
    settings = {"seed": command.seed, "language": command.language, "proportions": command.proportions}
    drafts = draft(source(), sizes, **settings)
    rows = plant(drafts[: command.planted], words, seed=command.seed)
    write_rows(folder / FILE, (item_json(draft.item) for draft in drafts))
    written = {PLANTED: rows}
    if config and team:
        held_out, others = [row for row in rows if is_held_out(row)], [row for row in rows if not is_held_out(row)]
        items = planted_items(others, command.language, team.by(config))
        recipe = PlantedReword(language=command.language)
        done = make_items(config, team, items, recipe, folder / "reworded", run="reword", at_once=command.at_once)
        show_results("planted responses", done)
        written = {PLANTED: apply_planted(others, done), HELD_OUT: held_out}
    for name, some in written.items():
        write_rows(folder / name, map(labelled_json, some))
    if HELD_OUT not in written:
        (folder / HELD_OUT).unlink(missing_ok=True)  # of an earlier call
    show(_items(drafts), *(_planted_table(name, some) for name, some in written.items()))
    files = ", ".join(f"{folder / name} ({len(some)})" for name, some in written.items())
    print(f"written: {folder / FILE} ({len(drafts)}), {files}")
    return 0


def convert_labels(command: OlabenchLabels) -> int:
    """Convert a labelled public corpus into the labelled responses that an evaluation takes."""
    output = output_file(command.output, overwrite=command.overwrite, source=command.input)
    rows = convert(command.labels, command.input, command.policies)
    write_rows(output, rows)
    print(f"written: {output} ({len(rows)} labelled responses)")
    return 0


def _file(path: Path) -> Path:
    """Return a file of samples; for a folder its test split, or else its training split."""
    if not path.is_dir():
        return path
    for name in ("test.jsonl", "train.jsonl"):
        if (path / name).is_file():
            return path / name
    raise BadInput("samples", str(path), "contains neither test.jsonl nor train.jsonl; give a file of samples")


def _items(drafts: Sequence[ItemDraft]) -> Table:
    counts = Counter((draft.item.subset, draft.item.kind) for draft in drafts)
    rows = tuple((subset, *(counts[subset, kind] for kind in KINDS)) for subset in SUBSETS)
    return Table("items", (Column("subset"), *number_columns("{}", *KINDS)), rows)


def _planted_table(name: str, rows: Sequence[Labelled]) -> Table:
    """Return the number of responses, of distinct texts and of wordings by planted label."""
    by_label: dict[str, list[Labelled]] = {}
    for row in rows:
        by_label.setdefault(row.id.rpartition("/")[2], []).append(row)
    counts = tuple(
        (label, len(some), len({row.response for row in some}), len({row.template or row.id for row in some}))
        for label, some in sorted(by_label.items())
    )
    columns = (Column("planted"), *number_columns("{}", "responses", "distinct texts", "wordings"))
    return Table(f"planted responses in {name}", columns, counts)
