"""`hamr data olabench`: items of three kinds, and responses with known faults for grading judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hamr.apps.shared.job_options import number, options, output_file, output_folder, require_files
from hamr.bench.olabench.drafts import ItemDraft
from hamr.bench.olabench.from_samples import draft_samples
from hamr.bench.olabench.from_scenarios import draft_scenarios
from hamr.bench.olabench.items import FILE, KINDS, SUBSETS, Subset, item_json
from hamr.bench.olabench.labelled import Labelled, labelled_json
from hamr.bench.olabench.planting import plant
from hamr.bench.olabench.public import PUBLIC, convert
from hamr.bench.olabench.words import bench_words
from hamr.data.samples import read_samples, write_rows
from hamr.errors import BadInput
from hamr.procedures import load_scenario, scenario_names

PLANTED = "planted.jsonl"
OPTIONS = ("scenario", "samples", "output", "overwrite", "language", "seed", "planted", *SUBSETS)
LABEL_OPTIONS = ("labels", "input", "policies", "output", "overwrite")
SIZES: Mapping[Subset, int] = {"core": 90, "risk": 30, "hallucination": 30}


def build_olabench(args: Sequence[str]) -> int:
    """Build the items and the planted responses. Raises BadInput for invalid input."""
    if any(arg.startswith("labels=") for arg in args):
        return _convert(options(args, LABEL_OPTIONS)[0])
    own, _ = options(args, OPTIONS)
    if bool(own.get("scenario")) == bool(own.get("samples")):
        remedy = "give either scenario=<name, path or all> or samples=<jsonl or folder of samples>"
        raise BadInput("scenario", own.get("scenario"), remedy)
    folder = output_folder(own, [FILE, PLANTED])
    seed, language = number(own, "seed", int, 0), own.get("language", "en")
    words = bench_words(language)
    sizes = {subset: _size(own, subset, SIZES[subset]) for subset in SUBSETS}
    planted = _size(own, "planted", sum(sizes.values()))
    if not sum(sizes.values()):
        raise BadInput("core", 0, "asks for no items; ask for at least one in some subset")
    if own.get("scenario"):
        named = scenario_names() if own["scenario"] == "all" else own["scenario"].split(",")
        scenarios = [load_scenario(name) for name in named]
        drafts = draft_scenarios(scenarios, sizes, seed=seed, language=language)
    else:
        samples = [s for file in _files(Path(own["samples"]).expanduser()) for s in read_samples(file)]
        drafts = draft_samples(samples, sizes, seed=seed, language=language)
    rows = plant(drafts[:planted], words, seed=seed)
    write_rows(folder / FILE, (item_json(draft.item) for draft in drafts))
    write_rows(folder / PLANTED, map(labelled_json, rows))
    Console().print(_items(drafts))
    Console().print(_planted_table(rows))
    print(f"written: {folder / FILE} ({len(drafts)}), {folder / PLANTED} ({len(rows)})")
    return 0


def _convert(own: Mapping[str, str]) -> int:
    """Convert a labelled public corpus into the labelled responses that an evaluation takes."""
    if own["labels"] not in PUBLIC:
        raise BadInput("labels", own["labels"], f"no such corpus; there are: {', '.join(PUBLIC)}")
    require_files(own, {"input": "the corpus's JSONL", **({"policies": "its JSON"} if own["labels"] == "tau" else {})})
    output = output_file(own)
    policies = Path(own["policies"]).expanduser() if own.get("policies") else None
    rows = convert(own["labels"], Path(own["input"]).expanduser(), policies)
    write_rows(output, rows)
    print(f"written: {output} ({len(rows)} labelled responses)")
    return 0


def _size(own: Mapping[str, str], name: str, default: int) -> int:
    size = number(own, name, int, default)
    if size < 0:
        raise BadInput(name, size, "must be 0 or more")
    return size


def _files(path: Path) -> list[Path]:
    """Return a file of samples; for a folder its test split, or else its training split."""
    if not path.is_dir():
        return [path]
    for name in ("test.jsonl", "train.jsonl"):
        if (path / name).is_file():
            return [path / name]
    raise BadInput("samples", str(path), "contains neither test.jsonl nor train.jsonl; give a file of samples")


def _items(drafts: Sequence[ItemDraft]) -> Table:
    table = Table("subset", *KINDS, title="items")
    counts = Counter((draft.item.subset, draft.item.kind) for draft in drafts)
    for subset in SUBSETS:
        table.add_row(subset, *(str(counts[subset, kind]) for kind in KINDS))
    return table


def _planted_table(rows: Sequence[Labelled]) -> Table:
    table = Table("planted", "responses", title="planted responses")
    counts = Counter(row.id.rpartition("/")[2] for row in rows)
    for name, count in sorted(counts.items()):
        table.add_row(name, str(count))
    return table
