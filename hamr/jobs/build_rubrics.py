"""`hamr data rubrics`: a rubric for every sample, by a teacher pool and a judge pool; taken up where it stopped."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hamr.augmentation.rubrics import (
    Responses,
    RubricRecipe,
    RubricResult,
    contrasts,
    make_rubric,
    recipe_key,
    with_rubric,
)
from hamr.config.schema import Config
from hamr.data.samples import read_rows, read_samples, to_json, write_samples
from hamr.errors import BadInput, DataError, HamrError
from hamr.jobs.pools_up import with_pools, writing_pool
from hamr.protocols import Ask
from hamr.rewards.rubric import RubricItem
from hamr.types import ServiceSample

RUN = "rubrics"
AT_ONCE = 16
OPTIONS = (
    "input",
    "output",
    "overwrite",
    "teacher",
    "judge",
    "candidates",
    "worse",
    "min_separation",
    "language",
    "seed",
)


def recipe_of(own: Mapping[str, str]) -> RubricRecipe:
    """The recipe from the command line's options. Raises BadInput."""
    made: dict[str, Any] = {}
    for name, kind in (("candidates", int), ("worse", int), ("min_separation", float), ("seed", int)):
        if name not in own:
            continue
        try:
            made[name] = kind(own[name])
        except ValueError:
            raise BadInput(name, own[name], "must be a number") from None
    for name in ("candidates", "worse"):
        if made.get(name, 1) < 1:
            raise BadInput(name, made[name], "must be 1 or more")
    if not -1.0 <= made.get("min_separation", 0.0) <= 1.0:
        raise BadInput("min_separation", made["min_separation"], "must be between -1 and 1")
    if own.get("language", "en") not in ("en", "zh"):
        raise BadInput("language", own["language"], "must be en or zh")
    return RubricRecipe(**made, language=own.get("language", "en"))


def wanted_pools(config: Config, own: Mapping[str, str]) -> tuple[str, str]:
    """Names of the teacher's and the judge's pool; the judge is the teacher unless another is named."""
    if not own.get("teacher"):
        raise BadInput("teacher", None, f"missing; give teacher=<pool>, one of: {', '.join(sorted(config.pools))}")
    names = (own["teacher"], own.get("judge", own["teacher"]))
    for key, name in zip(("teacher", "judge"), names, strict=True):
        writing_pool(config, key, name)
    return names


def build(own: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Reads, makes what is not made yet, writes every sample with its rubric (or as it came) and says what was dropped.

    Beside the output stands `<output>.progress.jsonl`, one row a finished sample: the same command goes on from it.
    """
    from hamr.config.load import load_config

    for name in ("input", "output"):
        if not own.get(name):
            raise BadInput(name, None, f"missing; give {name}=<jsonl>")
    output = Path(own["output"]).expanduser()
    if output.exists() and own.get("overwrite") != "true":
        raise DataError("output", str(output), "exists already; give another file or overwrite=true")
    recipe = recipe_of(own)
    samples = read_samples(own["input"])
    config = load_config(list(overrides))
    teacher, judge = wanted_pools(config, own)
    by = "/".join(f"{config.pools[name].type}:{config.pools[name].model}" for name in (teacher, judge))
    work = Work.of(samples, recipe, by, output.with_name(f"{output.name}.progress.jsonl"))
    print(f"rubrics for {len(samples)} samples of {own['input']}: {len(work.done)} made already", flush=True)
    if work.left:
        with_pools(config, (teacher, judge), lambda asks: make_all(work, asks[teacher], asks[judge]), run=RUN)
        if work.done and all(result.passing for result in work.done.values()):
            raise HamrError("no sample got an answer of its pools; see their logs, and call again to go on")
    write_samples(output, work.finished())
    Console().print(table(work.done.values(), len(samples)))
    print(f"written: {output}")
    return 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """What is to do and what is done, by sample id. `progress` is appended to as samples finish."""

    samples: Sequence[ServiceSample]
    recipe: RubricRecipe
    keys: Mapping[str, str]
    contrast: Mapping[str, Responses]
    done: dict[str, RubricResult]
    progress: Path

    @classmethod
    def of(cls, samples: Sequence[ServiceSample], recipe: RubricRecipe, by: str, progress: Path) -> Work:
        contrast = {s.id: contrasts(s, [o for o in samples if o.id != s.id], recipe) for s in samples}
        keys = {s.id: recipe_key(to_json(s), contrast[s.id], recipe, by) for s in samples}
        done = {}
        for row in read_progress(progress):
            if keys.get(row.get("id", "")) == row.get("key"):
                items = tuple(RubricItem(**item) for item in row["items"])
                done[row["id"]] = RubricResult(
                    items=items, separation=row["separation"], reason=row["reason"], rejected=tuple(row["rejected"])
                )
        return cls(samples=samples, recipe=recipe, keys=keys, contrast=contrast, done=done, progress=progress)

    @property
    def left(self) -> list[ServiceSample]:
        return [s for s in self.samples if s.id not in self.done]

    def finish(self, sample: ServiceSample, result: RubricResult) -> None:
        """Keeps the result; what failed in passing is tried again by the next call and not written down."""
        self.done[sample.id] = result
        if result.passing:
            return
        row = {"id": sample.id, "key": self.keys[sample.id], **dataclasses.asdict(result)}
        self.progress.parent.mkdir(parents=True, exist_ok=True)
        with self.progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def finished(self) -> list[ServiceSample]:
        """Every sample, in the input's order; one without a kept rubric is as it came."""
        return [with_rubric(s, self.done[s.id].items) if self.done[s.id].items else s for s in self.samples]


def read_progress(path: Path) -> list[dict[str, Any]]:
    """The rows of an earlier call; a last line that was cut off when it was killed does not count."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    return [row for _, row in read_rows(path)] if path.stat().st_size else []


async def make_all(work: Work, teacher: Ask, judge: Ask) -> None:
    """Every sample that is left, some at once."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(sample: ServiceSample) -> None:
        async with room:
            work.finish(sample, await make_rubric(sample, work.contrast[sample.id], work.recipe, teacher, judge))
        if len(work.done) % max(1, len(work.samples) // 10) == 0:
            print(f"{len(work.done)}/{len(work.samples)} samples", flush=True)

    await asyncio.gather(*map(one, work.left))


def table(results: Any, total: int) -> Table:
    """Kept, and dropped by reason; then why candidates were rejected."""
    found = list(results)
    kept = [r for r in found if r.items]
    shown = Table("rubrics", "samples", title=f"{total} samples")
    shown.add_row("kept", str(len(kept)))
    for reason, count in Counter(r.reason for r in found if not r.items).most_common():
        shown.add_row(f"dropped: {reason}", str(count))
    for reason, count in Counter(why for r in found for why in r.rejected).most_common():
        shown.add_row(f"candidates rejected: {reason}", str(count))
    if kept:
        shown.add_row("items, mean", f"{sum(len(r.items) for r in kept) / len(kept):.1f}")
        shown.add_row("separation, mean", f"{sum(r.separation for r in kept) / len(kept):.2f}")
    return shown
