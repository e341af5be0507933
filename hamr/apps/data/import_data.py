"""`hamr data import`: a ticket export or a public corpus as samples and whole tickets, with a report."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

from hamr.apps.data.write_splits import show_splits
from hamr.apps.shared.outputs import output_folder
from hamr.data.helpdesk import HelpdeskOptions, read_intercom, read_zendesk
from hamr.data.hiding import hide_in
from hamr.data.importers import CHATS, IMPORTERS
from hamr.data.importers.imported import Imported, from_trajectories
from hamr.data.importers.messages import TABLES
from hamr.data.language import language_of
from hamr.data.names import NameFinder, name_finder
from hamr.data.residual import NOT_LOOKED_FOR, Risk, residual_risks
from hamr.data.samples import write_rows, write_samples
from hamr.data.splits import Splits, split_samples
from hamr.data.tickets import read_chats, read_mapping, read_tickets
from hamr.data.trajectories import Trajectory, action_of, windows, write_trajectories
from hamr.errors import BadInput, DataError
from hamr.procedures.words import SPLITS
from hamr.report.terminal import show
from hamr.report.values import Column, Table
from hamr.types import ServiceSample, ToolCall

if TYPE_CHECKING:
    from hamr.apps.data.import_command import (
        HelpdeskCommand,
        ImportCommand,
        ImportCorpus,
        ImportIntercom,
        ImportTickets,
        ImportZendesk,
    )

_FILES = (*(f"{name}.jsonl" for name in (*SPLITS, "trajectories")), "report.json")
_SHOWN_FAULTS = 10
_DATA_SET = re.compile(r"[\w.-]+/[\w.-]+")
"""Id of a data set of the Hugging Face Hub."""
_NAMES = "names=<spaCy pipelines> hides them"


def import_tickets(command: ImportTickets) -> int:
    """Import a ticket export. Raises BadInput for invalid input."""
    hide = command.pii != "keep"
    names = _begin(command, "tickets", command.input, hide=hide)
    mapping = read_mapping(command.mapping)
    imported = read_tickets(
        command.input,
        mapping,
        folder=command.mapping.parent,
        hide=hide,
        names=names,
        encoding=command.encoding,
        delimiter=command.delimiter,
        dates=command.dates,
        group=command.group,
    )
    return _finish(command, imported, hide=hide)


def import_zendesk(command: ImportZendesk) -> int:
    """Import tickets of Zendesk. Raises BadInput for invalid input."""
    return _import_helpdesk(command, "zendesk", read_zendesk)


def import_intercom(command: ImportIntercom) -> int:
    """Import conversations of Intercom. Raises BadInput for invalid input."""
    return _import_helpdesk(command, "intercom", read_intercom, bots=command.bots)


def _import_helpdesk(
    command: HelpdeskCommand,
    name: str,
    read: Callable[[Path, HelpdeskOptions], Imported],
    bots: Literal["agent", "drop"] = "agent",
) -> int:
    hide = command.pii != "keep"
    names = _begin(command, name, command.input, hide=hide)
    policy = ""
    if command.policy is not None:
        try:
            policy = command.policy.read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput("policy", str(command.policy), f"cannot be read ({error})") from error
    options = HelpdeskOptions(
        internal=command.internal, bots=bots, policy=policy, group=command.group, hide=hide, names=names
    )
    return _finish(command, read(command.input, options), hide=hide)


def import_corpus(command: ImportCorpus) -> int:
    """Import a public corpus or chats. Raises BadInput for invalid input."""
    hide = (command.pii or ("hide" if command.corpus in CHATS else "keep")) == "hide"
    names = _begin(command, command.corpus, command.input, hide=hide)
    if command.corpus in CHATS:
        chats = read_chats(data_set_folder(command.input), group=command.group, hide=hide, names=names)
        return _finish(command, chats, hide=hide)
    files = {"input": command.input}
    if command.policies is not None:
        files["policies"] = command.policies
    imported = IMPORTERS[command.corpus](files, group=command.group)
    if hide:
        hidden: Counter[str] = Counter()
        alike = imported.duplicates
        imported = from_trajectories(list(hide_in(imported.trajectories, hidden, names)))
        imported = dataclasses.replace(imported, duplicates=(*alike, *imported.duplicates), hidden=hidden)
    return _finish(command, imported, hide=hide)


def data_set_folder(source: Path) -> Path:
    """Return `source`, or where it is the id of a data set (owner/name), the folder of its downloaded tables.

    They stay in the cache of the Hub's client (HF_HOME). Raises BadInput if the Hub does not have it either.
    """
    name = str(source)
    if source.exists() or source.suffix in TABLES or not _DATA_SET.fullmatch(name):
        return source
    from huggingface_hub import snapshot_download

    print(f"no file {name}: taking the data set {name} of the Hugging Face Hub", flush=True)
    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=[f"*{ending}" for ending in TABLES]))
    except (OSError, ValueError) as error:  # a malformed name; connection and server errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        remedy = f"neither a file or folder here nor found on the Hub ({reason}); give a path, or the id owner/name"
        raise BadInput("input", name, remedy) from error


def _begin(command: ImportCommand, name: str, source: Path, *, hide: bool) -> NameFinder | None:
    """Check the options, print what is imported, and return the finder of names."""
    if command.names and not hide:
        raise BadInput("names", ",".join(command.names), "requires pii=hide; add it, or remove names")
    names = name_finder(command.names) if command.names else None
    written = source.parent.resolve() == command.output.resolve() and source.name in (*_FILES, "rejected.jsonl")
    if written or (source.is_dir() and source.resolve() == command.output.resolve()):
        raise BadInput("output", str(command.output), f"would overwrite the input {source}; give another folder")
    folder = output_folder(command.output, _FILES, overwrite=command.overwrite)
    print(f"importing {name} from {source} into {folder}", flush=True)
    return names


def _finish(command: ImportCommand, imported: Imported, *, hide: bool) -> int:
    """Split by dialogue, write and report."""
    if imported.form:
        print(f"read as {imported.form}", flush=True)
    if not imported.samples:
        remedy = "none has an agent's turn after one of the customer, so there is nothing to learn from"
        raise DataError("input", f"{len(imported.trajectories)} dialogues", remedy)
    folder = command.output
    _left_out(folder, imported)
    splits = _splits(command, imported.samples)
    summary = report(imported)
    risks: dict[str, Risk] = {}
    skipped: tuple[str, ...] = ()
    if hide:
        risks = residual_risks(imported.trajectories)
        skipped = NOT_LOOKED_FOR if command.names else (f"names of persons ({_NAMES})", *NOT_LOOKED_FOR)
    left = {kind: risk.hits for kind, risk in risks.items()}
    _write(folder, splits, imported, {**summary, "may still be private": left, "not looked for": skipped})
    show(_table(summary))
    show_splits(folder, splits)
    for kind, risk in risks.items():
        print(f"may still be private: {kind}: {risk.hits} in {risk.tickets} tickets, such as {risk.first!r}")
    if skipped:
        print(f"not looked for: {'; '.join(skipped)}")
    return 0


def _splits(command: ImportCommand, samples: Sequence[ServiceSample]) -> Splits:
    if not command.split:
        return Splits(train=tuple(samples), validation=(), test=())
    found = f"{len({_dialogue(sample.meta, sample.id) for sample in samples})} dialogues"
    if groups := {sample.meta["group"] for sample in samples if "group" in sample.meta}:
        found += f" in {len(groups)} groups"
    given = {name: [s for s in samples if s.meta.get("split") == name] for name in ("validation", "test")}
    given = {name: kept for name, kept in given.items() if kept}
    train = [sample for sample in samples if sample.meta.get("split") not in given]
    try:
        return split_samples(train, given, held_out_frac=command.held_out_frac, seed=command.seed)
    except DataError as error:
        if error.where != "data.train":
            raise
        remedy = f"too few for three splits with held_out_frac={command.held_out_frac:g}; give split=false, or more"
        raise DataError("input", found, remedy) from error


def _write(folder: Path, splits: Splits, imported: Imported, summary: Mapping[str, Any]) -> None:
    for name in SPLITS:
        if samples := getattr(splits, name):
            write_samples(folder / f"{name}.jsonl", samples)
        else:
            (folder / f"{name}.jsonl").unlink(missing_ok=True)  # of an earlier import
    write_trajectories(folder / "trajectories.jsonl", _assign_splits(imported.trajectories, splits))
    write_rows(folder / "report.json", [dict(summary)])


def _left_out(folder: Path, imported: Imported) -> None:
    """Report and store the rejected tickets before any later step can fail."""
    faults, duplicates = imported.faults, imported.duplicates
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


def report(imported: Imported) -> dict[str, Any]:
    """Return counts, lengths, action types, tools, languages, planning windows and excluded tickets."""
    lengths = [len(t.turns) for t in imported.trajectories]
    words = [len(turn.content.split()) for t in imported.trajectories for turn in t.turns if turn.content]
    actions = [action_of(turn) for t in imported.trajectories for turn in t.turns if turn.role == "agent"]
    tools = Counter(action.name for action in actions if isinstance(action, ToolCall))
    calls = sum(tools.values())
    cut = Counter(w if isinstance(w, str) else "complete" for t in imported.trajectories for w in windows(t))
    summary: dict[str, Any] = {
        "tickets": len(imported.trajectories),
        "decision points": len(imported.samples),
        "references": sum(len(s.references) for s in imported.samples),
        "turns a ticket": {"mean": round(mean(lengths), 1), "longest": max(lengths)},
        "words a turn": {"mean": round(mean(words), 1) if words else 0, "longest": max(words, default=0)},
        "actions": {"reply": len(actions) - calls, "call_tool": calls},
        "tools": dict(tools.most_common()),
        "language of the prompts": dict(
            Counter(
                language_of(" ".join(turn.content for turn in t.turns if turn.role != "tool"))
                for t in imported.trajectories
            )
        ),
        "planning windows": dict(cut.most_common()),
        "left out": {"faulty": len(imported.faults), "duplicates": len(imported.duplicates)},
    }
    if imported.form:
        summary["read as"] = imported.form
        summary["blank turns left out"] = imported.blank
    summary["private values hidden"] = dict(imported.hidden)
    return summary


def _table(summary: Mapping[str, Any]) -> Table:
    def text(value: Any) -> str:
        return ", ".join(f"{key} {count}" for key, count in value.items()) if isinstance(value, dict) else str(value)

    rows = tuple((what, text(value) or "none") for what, value in summary.items())
    return Table("tickets", (Column("what"), Column("how much")), rows)
