"""`hamr data sampled`: the best responses of an RL run as SFT items for the next stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hamr.apps.data.recipes.sampling import best_responses, samples_out_of_reach
from hamr.apps.shared.outputs import output_file
from hamr.data.samples import read_samples, write_rows
from hamr.data.sft_items import write_items
from hamr.errors import BadInput, DataError
from hamr.report.terminal import show
from hamr.report.values import Column, Table
from hamr.telemetry.ledger import Ledger

if TYPE_CHECKING:
    from hamr.apps.data.command import SampledCommand


def build_sampled(command: SampledCommand) -> int:
    """Select the items from the rewards in the run's ledger; no pool is queried."""
    output = output_file(command.output, overwrite=command.overwrite, source=command.input)
    since = command.since
    samples = {sample.id: sample for sample in read_samples(command.input)}
    with Ledger(ledger_path(command.ledger), readonly=True) as ledger:
        items, counts = best_responses(
            ledger.rows(since=since),
            samples,
            best=command.best,
            min_total=command.min_total,
            min_mean=command.min_mean,
            render=command.render,
        )
        unreached = samples_out_of_reach(ledger.rows(since=since), samples, command.min_total)
    if not counts:
        remedy = f"has no responses to these samples from step {since} on; give the ledger of a run on them"
        raise DataError("ledger", str(command.ledger), remedy)
    if not items:
        remedy = f"leaves nothing of {counts.total()} responses ({counts.most_common(1)[0][0]}); give a lower one"
        key = "min_mean" if command.min_total is None else "min_total"
        raise BadInput(key, command.min_total if command.min_mean is None else command.min_mean, remedy)
    write_rows(output.with_name(f"{output.name}.counts.jsonl"), [{"what": w, "count": n} for w, n in counts.items()])
    write_items(output, items)
    rows = (
        *counts.most_common(),
        ("SFT items", len(items)),
        ("samples with a response", len({item.sample.id for item in items})),
        *([("samples that cannot reach min_total", unreached)] if unreached else []),
    )
    title = f"{counts.total()} responses to {len(samples)} samples"
    show(Table(title, (Column("what became of them"), Column("responses", "{}")), rows))
    print(f"written: {output}")
    return 0


def ledger_path(path: Path) -> Path:
    """Return a run folder's ledger, or the file itself. Raises DataError."""
    path = path / "ledger.sqlite" if path.is_dir() else path
    if not path.is_file():
        raise DataError("ledger", str(path), "no such file; give a run folder or its ledger.sqlite")
    return path
