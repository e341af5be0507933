"""`hamr data sampled`: the best responses of an RL run as SFT items for the next stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.table import Table

from hamr.apps.data.recipes.sampling import best_responses
from hamr.apps.data.recipes.thought import ORDERS, Rendering
from hamr.apps.shared.job_options import number, one_of, output_file, require_files
from hamr.data.samples import read_samples, write_rows
from hamr.data.sft_items import write_items
from hamr.errors import BadInput, DataError
from hamr.telemetry.ledger import Ledger

OPTIONS = ("input", "ledger", "output", "overwrite", "best", "min_total", "since", "render")


def build_sampled(own: Mapping[str, str]) -> int:
    """Select the items from the rewards in the run's ledger; no pool is queried."""
    require_files(
        own, {"input": "samples", "ledger": "run folder or ledger.sqlite", "output": "jsonl", "min_total": "number"}
    )
    output = output_file(own)
    best, since, min_total, render = read_options(own)
    samples = {sample.id: sample for sample in read_samples(Path(own["input"]).expanduser())}
    with Ledger(ledger_path(own["ledger"]), readonly=True) as ledger:
        items, counts = best_responses(ledger.rows(since=since), samples, best=best, min_total=min_total, render=render)
    if not counts:
        remedy = f"has no responses to these samples from step {since} on; give the ledger of a run on them"
        raise DataError("ledger", own["ledger"], remedy)
    if not items:
        remedy = f"leaves nothing of {counts.total()} responses ({counts.most_common(1)[0][0]}); give a lower one"
        raise BadInput("min_total", min_total, remedy)
    write_rows(output.with_name(f"{output.name}.counts.jsonl"), [{"what": w, "count": n} for w, n in counts.items()])
    write_items(output, items)
    table = Table("what became of them", "responses", title=f"{counts.total()} responses to {len(samples)} samples")
    for what, count in counts.most_common():
        table.add_row(what, str(count))
    table.add_row("SFT items", str(len(items)))
    table.add_row("samples with a response", str(len({item.sample.id for item in items})))
    Console().print(table)
    print(f"written: {output}")
    return 0


def read_options(own: Mapping[str, str]) -> tuple[int, int, float, Rendering]:
    """Parse (best, since, min_total, render) from the command line's options. Raises BadInput."""
    best, since = number(own, "best", int, 1), number(own, "since", int, 0)
    if best < 1:
        raise BadInput("best", best, "must be 1 or more")
    render = one_of(own, "render", tuple(ORDERS), "pre")
    return best, since, number(own, "min_total", float, 0.0), cast(Rendering, render)


def ledger_path(given: str) -> Path:
    """Return a run folder's ledger, or the file itself. Raises DataError."""
    path = Path(given).expanduser()
    path = path / "ledger.sqlite" if path.is_dir() else path
    if not path.is_file():
        raise DataError("ledger", str(path), "no such file; give a run folder or its ledger.sqlite")
    return path
