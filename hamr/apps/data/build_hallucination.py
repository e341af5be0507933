"""`hamr data hallucination`: simple, hard and confirmed responses for a hallucination judge, with human review."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from hamr.apps.data.recipe_job import Team, make_items, show
from hamr.apps.data.recipes.hallucination_loop import SETS, HallucinationLoop, hallucination_items, read_labels, sets_of
from hamr.apps.shared.job_options import one_of, output_folder, require_files
from hamr.apps.shared.pools_up import writing_pool
from hamr.config.load import load_config
from hamr.data.formats import Formats
from hamr.data.language import Language
from hamr.data.progress import WorkItem
from hamr.data.responses import stream_groups
from hamr.data.samples import read_rows, write_rows
from hamr.errors import BadInput, DataError

OPTIONS = ("input", "output", "overwrite", "judge", "second", "labels", "language", "at_once")
LABELS = "labelled.jsonl"


def build_hallucination(own: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Write the non-empty sets. `labels` is the review file with people's labels.

    Labels are stored in labelled.jsonl, including those of responses that the input does not have (any more), so a
    later review file only needs the new ones.
    """
    require_files(
        own, {"input": "samples with response or responses", "output": "folder", "judge": "pool", "second": "pool"}
    )
    folder = output_folder(own, [f"{name}.jsonl" for name in SETS])
    language = cast(Language, one_of(own, "language", ("en", "zh"), "en"))
    groups = [group for group, _ in stream_groups(Path(own["input"]).expanduser())]
    labels, given = {}, []
    if own.get("labels"):
        if Path(own["labels"]).expanduser().resolve() == (folder / "review.jsonl").resolve():
            raise BadInput("labels", own["labels"], "would be overwritten and its labels lost; give a copy of it")
        given = [(f"{own['labels']}:{line}", row) for line, row in read_rows(own["labels"])]
        labels = read_labels(given)
    config = load_config(list(overrides))
    if own["judge"] == own["second"]:
        raise BadInput("second", own["second"], "is the judge itself; name another pool")
    judge, second = (writing_pool(config, key, own[key]) for key in ("judge", "second"))
    team = Team(teachers=(), judge=judge, second=second)
    items = hallucination_items(groups, language, team.by(config))
    unknown = sorted(labels.keys() - {item.id for item in items})
    if unknown:
        raise BadInput(
            "labels", unknown[0], "is the id of no response in the input; give the review file of this input"
        )
    said = {item.id: item.content.response for item in items}
    for where, row in given:
        if row["id"] in labels and row.get("response", said[row["id"]]) != said[row["id"]]:
            remedy = "is another response in the input, which has changed since; give the review file of this input"
            raise DataError(f"{where}: id", row["id"], remedy)
    known, others = read_known_labels(folder / LABELS, items)
    labels = {**known, **labels}
    if labels or others:
        rows = [{"id": i, "response": said[i], "label": label, "reason": why} for i, (label, why) in labels.items()]
        write_rows(folder / LABELS, [*rows, *others])
    if others:
        print(f"{len(others)} labels are of responses that the input does not have; they stay in {folder / LABELS}")
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
