"""`hamr data import`: a ticket export or a public corpus as samples and whole tickets, with a report."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from hamr.apps.shared.job_options import number, one_of, options, output_folder, require_files
from hamr.config.schema import DataConfig
from hamr.data.hiding import hide_in
from hamr.data.importers import IMPORTERS, Imported, from_trajectories
from hamr.data.language import language_of
from hamr.data.samples import write_rows, write_samples
from hamr.data.splits import Splits, split_samples
from hamr.data.tables import TicketFault
from hamr.data.tickets import Tickets, read_mapping, read_tickets
from hamr.data.trajectories import Trajectory, action_of, windows, write_trajectories
from hamr.errors import BadInput
from hamr.types import ToolCall

SPLITS = ("train", "validation", "test")
_FILES = tuple(f"{name}.jsonl" for name in (*SPLITS, "trajectories"))
_COMMON = ("output", "overwrite", "held_out_frac", "seed", "pii")
_TICKET_FILES = {"input": "JSONL, CSV or Parquet of tickets", "mapping": "YAML that names its columns"}
_SHOWN_FAULTS = 10


def import_data(args: Sequence[str]) -> tuple[Path, Splits]:
    """Read, split by dialogue, write and report. Raises BadInput for invalid input."""
    corpora = (*IMPORTERS, "tickets")
    if not args or args[0] not in corpora:
        given = args[0] if args else None
        raise BadInput("hamr data import", given, f"no such corpus; there are: {', '.join(corpora)}")
    name = args[0]
    files = _TICKET_FILES if name == "tickets" else IMPORTERS[name].files
    own, _ = options(args[1:], (*files, *_COMMON))
    require_files(own, files)
    folder = output_folder(own, _FILES)
    fraction = number(own, "held_out_frac", float, DataConfig.model_fields["held_out_frac"].default)
    if not 0.0 < fraction < 0.5:
        raise BadInput("held_out_frac", fraction, "must be between 0 and 0.5: two splits of this size are held out")
    seed = number(own, "seed", int, 0)
    private = name == "tickets" or IMPORTERS[name].private
    hide = one_of(own, "pii", ("hide", "keep"), "hide" if private else "keep") == "hide"
    print(f"importing {name} from {own['input']} into {folder}", flush=True)
    paths = {option: Path(own[option]).expanduser() for option in files}
    tickets: Tickets | None = None
    hidden: Counter[str] = Counter()
    if name == "tickets":
        mapping = read_mapping(paths["mapping"])
        tickets = read_tickets(paths["input"], mapping, beside=paths["mapping"].parent, hide=hide)
        hidden.update(tickets.hidden)
        imported = from_trajectories(tickets.trajectories)
    else:
        imported = IMPORTERS[name](paths)
        if hide:
            alike = imported.duplicates
            imported = from_trajectories(list(hide_in(imported.trajectories, hidden)))
            imported = dataclasses.replace(imported, duplicates=(*alike, *imported.duplicates))
    faults, duplicates = (tickets.faults, tickets.duplicates) if tickets is not None else ((), imported.duplicates)
    _left_out(folder, faults, duplicates)
    splits = split_samples(imported.samples, {}, held_out_frac=fraction, seed=seed)
    _write(folder, splits, imported, tickets, hidden)
    return folder, splits


def _write(
    folder: Path, splits: Splits, imported: Imported, tickets: Tickets | None, hidden: Mapping[str, int]
) -> None:
    for name in SPLITS:
        write_samples(folder / f"{name}.jsonl", getattr(splits, name))
    write_trajectories(folder / "trajectories.jsonl", _assign_splits(imported.trajectories, splits))
    told = report(imported, tickets, hidden)
    write_rows(folder / "report.json", [told])
    Console().print(_table(told))


def _left_out(folder: Path, faults: Sequence[TicketFault], duplicates: Sequence[str]) -> None:
    """Report and store the rejected tickets before any later step can fail."""
    if duplicates:
        print(f"left out: {len(duplicates)} duplicates of other tickets, such as {duplicates[0]}")
    rejected = folder / "rejected.jsonl"
    if not faults:
        rejected.unlink(missing_ok=True)  # rejected tickets of an earlier import, which is being replaced
        return
    write_rows(rejected, (dataclasses.asdict(fault) for fault in faults))
    for fault in faults[:_SHOWN_FAULTS]:
        print(f"left out: {fault.message}")
    rest = len(faults) - _SHOWN_FAULTS
    print(f"{f'and {rest} more; ' if rest > 0 else ''}all with their rows: {rejected}")


def _assign_splits(trajectories: Sequence[Trajectory], splits: Splits) -> list[Trajectory]:
    """Assign each trajectory the split of its decision points; one without any is training data."""
    split_of = {_dialogue(s.meta, s.id): name for name in SPLITS for s in getattr(splits, name)}
    return [
        dataclasses.replace(t, meta={**t.meta, "split": split_of.get(_dialogue(t.meta, t.id), "train")})
        for t in trajectories
    ]


def _dialogue(meta: Mapping[str, Any], identity: str) -> str:
    return str(meta.get("dialogue", identity))


# --- the report --------------------------------------------------------------------------------


def report(imported: Imported, tickets: Tickets | None, hidden: Mapping[str, int]) -> dict[str, Any]:
    """Return counts, lengths, action types, tools, languages and planning windows; for an export also the rejected
    tickets."""
    lengths = [len(t.turns) for t in imported.trajectories]
    words = [len(turn.content.split()) for t in imported.trajectories for turn in t.turns if turn.content]
    actions = [action_of(turn) for t in imported.trajectories for turn in t.turns if turn.role == "agent"]
    tools = Counter(action.name for action in actions if isinstance(action, ToolCall))
    calls = sum(tools.values())
    cut = Counter(w if isinstance(w, str) else "complete" for t in imported.trajectories for w in windows(t))
    told: dict[str, Any] = {
        "tickets": len(imported.trajectories),
        "decision points": len(imported.samples),
        "references": sum(len(s.references) for s in imported.samples),
        "turns a ticket": {"mean": round(mean(lengths), 1), "longest": max(lengths)},
        "words a turn": {"mean": round(mean(words), 1) if words else 0, "longest": max(words, default=0)},
        "actions": {"reply": len(actions) - calls, "call_tool": calls},
        "tools": dict(tools.most_common()),
        "languages": dict(Counter(_language(t) for t in imported.trajectories)),
        "planning windows": dict(cut.most_common()),
    }
    faults, duplicates = (tickets.faults, tickets.duplicates) if tickets is not None else ((), imported.duplicates)
    told["left out"] = {"faulty": len(faults), "duplicates": len(duplicates)}
    if tickets is not None:
        told["blank turns left out"] = tickets.blank
    told["private values hidden"] = dict(hidden)
    return told


def _language(trajectory: Trajectory) -> str:
    return language_of(" ".join(turn.content for turn in trajectory.turns if turn.role != "tool"))


def _table(told: Mapping[str, Any]) -> Table:
    table = Table("what", "how much", title="tickets")
    for what, value in told.items():
        shown = ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(what, shown or "none")
    return table
