"""Results of a pipeline's stages, read from their folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.apps.pipeline.log import PLAN, Attempts, PipelineLog
from hamr.config.pipeline import references
from hamr.errors import RunFolderError
from hamr.files import read_jsonl, read_object


@dataclass(frozen=True, kw_only=True)
class LearningPoint:
    """A policy on held-out samples: at the start of a stage (`base`), after its warm-up (`sft`), at its end (`rl`)."""

    stage: str
    when: str
    figures: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class StageFacts:
    number: int
    name: str
    job: str
    takes: Sequence[str]
    folder: Path
    attempts: Attempts
    produced: str
    summary: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PipelineData:
    """Results of all stages. `independent`: the stages are the runs of a multirun."""

    name: str
    folder: Path
    stages: Sequence[StageFacts]
    points: Sequence[LearningPoint]
    independent: bool = False

    @classmethod
    def read(cls, folder: Path) -> PipelineData:
        plan, log = read_object(folder / PLAN), PipelineLog(folder)
        if not isinstance(plan.get("name"), str) or not isinstance(plan.get("stages"), list):
            raise RunFolderError("file", str(folder / PLAN), "has no `name` or no list `stages`; restore it")
        stages = [_facts(folder, row, log) for row in plan["stages"]]
        return cls(
            name=plan["name"],
            folder=folder,
            stages=stages,
            points=[
                LearningPoint(stage=stage.name, when=when, figures=figures)
                for stage in stages
                for when, figures in (stage.summary.get("stages") or {}).items()
            ],
            independent=plan.get("independent", False),
        )


def _facts(folder: Path, row: Mapping[str, Any], log: PipelineLog) -> StageFacts:
    own = folder / row["folder"]
    takes = list(dict.fromkeys(f"{stage}.{output}" for _, stage, output in references(row["args"])))
    return StageFacts(
        number=row["number"],
        name=row["name"],
        job=row["job"],
        takes=takes,
        folder=own,
        attempts=log.of(row["name"]),
        produced=_product_of(own, row["job"]),
        summary=read_object(own / "summary.json"),
    )


def _product_of(folder: Path, job: str) -> str:
    if job in ("train", "sft"):
        steps = read_object(folder / "summary.json").get("steps")
        return "" if steps is None else f"a policy after {steps} steps"
    if job == "calibrate":
        fit = read_object(folder / "calibration.json")
        return _calibration_text(fit) if fit else ""
    rows = {file.stem: _rows(file) for file in _outputs(folder)}
    if set(rows) == {"output"}:
        return f"{rows['output']:,} rows"
    return ", ".join(f"{name} {count:,}" for name, count in rows.items())


def _calibration_text(fit: Mapping[str, Any]) -> str:
    cascade = fit["cascade"]
    values = ", ".join(f"{name} {value:g}" for name, value in cascade.items())
    return f"{values}; rho {fit['spearman']:.3f} on {fit['n']} rows, {fit['escalated_frac']:.0%} to the judge"


def _outputs(folder: Path) -> list[Path]:
    """Return a stage's own files, without the auxiliary files of recipes."""
    return sorted(file for file in folder.glob("*.jsonl") if file.name.count(".") == 1)


def _rows(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def ecs_scores(stage: StageFacts) -> Iterator[tuple[str, Mapping[str, Mapping[str, float | None]]]]:
    """Yield each policy of an ECS stage with its scores, by the names of the metrics: `mean`, `low`, `high`."""
    found = read_object(stage.folder / "metrics.json") if stage.job == "evaluate" else {}
    if "between_judges" in found:
        for name, figures in found["policies"].items():
            yield name, figures["values"]


def sft_losses(stage: StageFacts) -> Iterator[tuple[str, int, float | None, float | None]]:
    """Yield each set's name, items trained on, and loss on held-out items before and after, in nats per token."""
    summary = stage.summary.get("sft") or {}
    validations = summary.get("validations") or []
    for name, figures in (summary.get("sets") or {}).items():
        known = [v["sets"][name]["loss"] for v in validations if name in v["sets"]]
        yield name, figures["train"], *((known[0], known[-1]) if known else (None, None))


def item_counts(stage: StageFacts) -> Iterator[tuple[int, Mapping[str, int]]]:
    """Yield the rows that a recipe wrote and the outcomes of its items, the most frequent first.

    They are counted in the records next to its output, or in the counts of a recipe that queries no pool.
    """
    for output in _outputs(stage.folder) if stage.job.startswith("data ") else ():
        counted: Counter[str] = Counter()
        for row in read_jsonl(output.with_name(f"{output.name}.counts.jsonl")):
            counted[row["what"]] += row["count"]
        for row in read_jsonl(output.with_name(f"{output.name}.records.jsonl")):
            counted["kept" if row["kept"] is not None else f"dropped: {row['reason']}"] += 1
            counted.update(note for note in row.get("notes", ()))
        if counted:
            yield _rows(output), dict(counted.most_common())
