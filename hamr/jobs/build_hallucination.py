"""`hamr data hallucination`: simple, hard and confirmed responses for a hallucination judge, people in the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from hamr.augmentation.hallucination_loop import SETS, HallucinationLoop, hallucination_items, read_labels, sets_of
from hamr.augmentation.progress import Item
from hamr.config.load import load_config
from hamr.data.formats import Formats
from hamr.data.language import Language
from hamr.data.responses import stream_groups
from hamr.data.samples import read_rows, write_rows
from hamr.errors import BadInput
from hamr.jobs.job_options import one_of, output_folder, required
from hamr.jobs.pools_up import writing_pool
from hamr.jobs.recipe_job import Team, make_items, show

OPTIONS = ("input", "output", "overwrite", "judge", "second", "labels", "language", "at_once")
LABELS = "labelled.jsonl"


def build_hallucination(own: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Writes the sets that have rows; `labels` is the review file with people's labels in it. They are kept in
    labelled.jsonl, so that a later review file needs the new ones alone."""
    required(
        own, {"input": "samples with response or responses", "output": "folder", "judge": "pool", "second": "pool"}
    )
    folder = output_folder(own, [f"{name}.jsonl" for name in SETS])
    language = cast(Language, one_of(own, "language", ("en", "zh"), "en"))
    groups = [group for group, _ in stream_groups(Path(own["input"]).expanduser())]
    labels = {}
    if own.get("labels"):
        if Path(own["labels"]).expanduser().resolve() == (folder / "review.jsonl").resolve():
            raise BadInput("labels", own["labels"], "would be replaced, and the labels lost; give a copy of it")
        labels = read_labels([(f"{own['labels']}:{line}", row) for line, row in read_rows(own["labels"])])
    config = load_config(list(overrides))
    if own["judge"] == own["second"]:
        raise BadInput("second", own["second"], "is the judge itself, which would confirm itself; name another pool")
    judge, second = (writing_pool(config, key, own[key]) for key in ("judge", "second"))
    team = Team(teachers=(), judge=judge, second=second)
    items = hallucination_items(groups, language, team.by(config))
    unknown = sorted(labels.keys() - {item.id for item in items})
    if unknown:
        raise BadInput(
            "labels", unknown[0], "is the id of no response in the input; give the review file of this input"
        )
    labels = {**remembered(folder / LABELS, items), **labels}
    if labels:
        said = {item.id: item.content.response for item in items}
        rows = [{"id": i, "response": said[i], "label": label, "reason": why} for i, (label, why) in labels.items()]
        write_rows(folder / LABELS, rows)
    loop = HallucinationLoop(language, Formats.of_model(config.model))
    done = make_items(config, team, items, loop, own, folder / "responses.jsonl", run="hallucination")
    sets = sets_of(items, done, labels)
    for name in SETS:
        if sets[name]:
            write_rows(folder / f"{name}.jsonl", sets[name])
        else:
            (folder / f"{name}.jsonl").unlink(missing_ok=True)
    show("responses", done, [(name, str(len(sets[name]))) for name in SETS])
    if sets["review"]:
        print(f"for people: {folder / 'review.jsonl'}; fill in label and reason in a copy, then give labels=<the copy>")
    print(f"written: {', '.join(str(folder / f'{name}.jsonl') for name in SETS if sets[name])}")
    return 0


def remembered(path: Path, items: Sequence[Item]) -> dict[str, tuple[str, str]]:
    """What people said of these very responses in earlier calls."""
    said = {item.id: item.content.response for item in items}
    rows = read_rows(path) if path.is_file() else []
    return read_labels([(f"{path}:{line}", row) for line, row in rows if said.get(row["id"]) == row["response"]])
