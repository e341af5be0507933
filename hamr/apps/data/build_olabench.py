"""`hamr data olabench`: items of three kinds, and responses with known faults for grading judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
    from hamr.apps.data.command import OlabenchItemsCommand, OlabenchLabels, OlabenchSamples, OlabenchScenarios

PLANTED = "planted.jsonl"


def from_scenarios(command: OlabenchScenarios) -> int:
    """Build the items from the rule engines of scenarios. Raises BadInput."""
    named = scenario_names() if command.scenario == "all" else command.scenario.split(",")

    def draft(sizes: Mapping[Subset, int]) -> list[ItemDraft]:
        scenarios = [load_scenario(name) for name in named]
        return draft_scenarios(
            scenarios, sizes, seed=command.seed, language=command.language, proportions=command.proportions
        )

    return _build(command, draft)


def from_samples(command: OlabenchSamples) -> int:
    """Build the items from samples. Raises BadInput."""

    def draft(sizes: Mapping[Subset, int]) -> list[ItemDraft]:
        samples = [s for file in _files(command.samples) for s in read_samples(file)]
        return draft_samples(
            samples, sizes, seed=command.seed, language=command.language, proportions=command.proportions
        )

    return _build(command, draft)


def _build(command: OlabenchItemsCommand, draft: Callable[[Mapping[Subset, int]], list[ItemDraft]]) -> int:
    """Write the items and the planted responses."""
    folder = output_folder(command.output, [FILE, PLANTED], overwrite=command.overwrite)
    words = bench_words(command.language)
    sizes: dict[Subset, int] = {subset: getattr(command, subset) for subset in SUBSETS}
    drafts = draft(sizes)
    rows = plant(drafts[: command.planted], words, seed=command.seed)
    write_rows(folder / FILE, (item_json(draft.item) for draft in drafts))
    write_rows(folder / PLANTED, map(labelled_json, rows))
    show(_items(drafts), _planted_table(rows))
    print(f"written: {folder / FILE} ({len(drafts)}), {folder / PLANTED} ({len(rows)})")
    return 0


def convert_labels(command: OlabenchLabels) -> int:
    """Convert a labelled public corpus into the labelled responses that an evaluation takes."""
    output = output_file(command.output, overwrite=command.overwrite)
    rows = convert(command.labels, command.input, command.policies)
    write_rows(output, rows)
    print(f"written: {output} ({len(rows)} labelled responses)")
    return 0


def _files(path: Path) -> list[Path]:
    """Return a file of samples; for a folder its test split, or else its training split."""
    if not path.is_dir():
        return [path]
    for name in ("test.jsonl", "train.jsonl"):
        if (path / name).is_file():
            return [path / name]
    raise BadInput("samples", str(path), "contains neither test.jsonl nor train.jsonl; give a file of samples")


def _items(drafts: Sequence[ItemDraft]) -> Table:
    counts = Counter((draft.item.subset, draft.item.kind) for draft in drafts)
    rows = tuple((subset, *(counts[subset, kind] for kind in KINDS)) for subset in SUBSETS)
    return Table("items", (Column("subset"), *number_columns("{}", *KINDS)), rows)


def _planted_table(rows: Sequence[Labelled]) -> Table:
    """Return the number of responses, of distinct texts and of wordings by planted label."""
    by_label: dict[str, list[Labelled]] = {}
    for row in rows:
        by_label.setdefault(row.id.rpartition("/")[2], []).append(row)
    counts = tuple(
        (name, len(some), len({row.response for row in some}), len({row.template or row.id for row in some}))
        for name, some in sorted(by_label.items())
    )
    columns = (Column("planted"), *number_columns("{}", "responses", "distinct texts", "wordings"))
    return Table("planted responses", columns, counts)
