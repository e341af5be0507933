"""`hamr data hallucination`: simple, hard and confirmed responses for a hallucination judge, with human review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.apps.data.recipe_job import Team, make_items, show
from hamr.apps.data.recipes.hallucination_loop import (
    SETS,
    HallucinationLoop,
    hallucination_items,
    read_labels,
    reason_items,
    sets_of,
)
from hamr.apps.shared.outputs import output_folder
from hamr.apps.shared.pools_up import judging_pool, writing_pool
from hamr.data.formats import Formats
from hamr.data.progress import WorkItem
from hamr.data.responses import stream_groups
from hamr.data.samples import read_rows, write_rows
from hamr.errors import BadInput, DataError

if TYPE_CHECKING:
    from hamr.apps.data.command import HallucinationCommand

LABELS = "labelled.jsonl"
JUDGE = "judge.jsonl"
"""Training set of a judge: all sets but the open ones, and those of earlier rounds."""


def build_hallucination(command: HallucinationCommand) -> int:
    """Write the non-empty sets. `command.labels` is the review file with people's labels.

    Labels are stored in labelled.jsonl, including those of responses that the input does not have (any more), so a
    later review file only needs the new ones.
    """
    names = [*(f"{name}.jsonl" for name in SETS), JUDGE]
    folder = output_folder(command.output, names, overwrite=command.overwrite)
    language = command.language
    groups = [group for group, _ in stream_groups(command.input)]
    labels, given = {}, []
    if command.labels is not None:
        if command.labels.resolve() == (folder / "review.jsonl").resolve():
            raise BadInput("labels", str(command.labels), "would be overwritten and its labels lost; give a copy of it")
        given = [(f"{command.labels}:{line}", row) for line, row in read_rows(command.labels)]
        labels = read_labels(given)
    config = command.config()
    if command.judge == command.second:
        raise BadInput("second", command.second, "is the judge itself; name another pool")
    judge = judging_pool(config, "judge", command.judge, "hallucination")
    second = writing_pool(config, "second", command.second)
    earlier = read_earlier(command.earlier)
    team = Team(teachers=(), judge=judge, second=second)
    items = hallucination_items(groups, language, team.by(config))
    unknown = sorted(labels.keys() - {item.id for item in items})
    if unknown:
        raise BadInput(
            "labels", unknown[0], "is the id of no response in the input; give the review file of this input"
        )
    responses = {item.id: item.content.response for item in items}
    for where, row in given:
        if row["id"] in labels and row.get("response", responses[row["id"]]) != responses[row["id"]]:
            remedy = "is another response in the input, which has changed since; give the review file of this input"
            raise DataError(f"{where}: id", row["id"], remedy)
    known, others = read_known_labels(folder / LABELS, items)
    labels = {**known, **labels}
    if labels or others:
        rows = [
            {"id": i, "response": responses[i], "label": label, "reason": why} for i, (label, why) in labels.items()
        ]
        write_rows(folder / LABELS, [*rows, *others])
    if others:
        print(f"{len(others)} labels are of responses that the input does not have; they stay in {folder / LABELS}")
    loop = HallucinationLoop(language, Formats.of_model(config.model))
    done = make_items(
        config, team, items, loop, folder / "responses.jsonl", run="hallucination", at_once=command.at_once
    )
    wording = reason_items(items, labels, language, team.by(config)) if command.refine else []
    if wording:
        only = Team(teachers=(), judge="", second=second)
        made = make_items(
            config, only, wording, loop.refine_reason, folder / "reasons.jsonl", run="reasons", at_once=command.at_once
        )
        for item in wording:
            if (kept := made[item.id].kept) is not None:
                labels[item.id] = (labels[item.id][0], kept["reason"])
        show("reasons of people", made)
    sets = sets_of(items, done, labels)
    for name in SETS:
        if sets[name]:
            write_rows(folder / f"{name}.jsonl", sets[name])
        else:
            (folder / f"{name}.jsonl").unlink(missing_ok=True)
    learnt = {(row["id"], row["response"]): row for row in earlier}
    for row in sets["simple"]:  # two models do not replace an earlier label, which people may have given
        learnt.setdefault((row["id"], row["response"]), row)
    learnt |= {(row["id"], row["response"]): row for row in (*sets["hard"], *sets["confirmed"])}
    write_rows(folder / JUDGE, learnt.values())
    show("responses", done, [(name, str(len(sets[name]))) for name in SETS])
    if sets["review"]:
        print(f"for people: {folder / 'review.jsonl'}; fill in label and reason in a copy, then give labels=<the copy>")
    print(f"written: {', '.join(str(folder / f'{name}.jsonl') for name in SETS if sets[name])}")
    print(f"to train a judge: {folder / JUDGE} ({len(learnt)} responses)")
    return 0


def read_earlier(folder: Path | None) -> list[Mapping[str, Any]]:
    """Return the training rows of an earlier round. Raises BadInput for another folder."""
    if folder is None:
        return []
    if not (folder / JUDGE).is_file():
        raise BadInput("earlier", str(folder), f"has no {JUDGE}; give the output of an earlier round")
    return [row for _, row in read_rows(folder / JUDGE)]


def read_known_labels(
    path: Path, items: Sequence[WorkItem]
) -> tuple[dict[str, tuple[str, str]], list[Mapping[str, str]]]:
    """Return (earlier labels of these very responses, the rows of other responses).

    A response is identified independently of its sample's line number.
    """
    places: dict[tuple[str, str], list[str]] = {}
    for item in items:
        places.setdefault((item.content.sample.id, item.content.response), []).append(item.id)
    found, others = [], []
    for line, row in read_rows(path) if path.is_file() else []:
        sample = row["id"].partition("/")[2].rpartition("/")[0]
        here = places.get((sample, row["response"]), [])
        found += [(f"{path}:{line}", {**row, "id": place}) for place in here]
        others += [] if here else [row]
    return read_labels(found), others
