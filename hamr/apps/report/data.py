"""Input of a report, read once from a finished or running run folder."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hamr.config.yaml_files import read_config
from hamr.data.columns import value_at
from hamr.errors import RunFolderError
from hamr.files import numbered_rows
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import dialogue_reward, read_metrics
from hamr.telemetry.record_json import record_from_json
from hamr.telemetry.recorder import show_response
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.summary import STAGES, StageSummary, Summary, read_summary
from hamr.types import RewardRecord

STAGE_NAMES = {"base": "before", "sft": "after SFT", "rl": "after RL"}


@dataclass(frozen=True, kw_only=True)
class StageComparison:
    """One held-out message and the policy's response at each evaluated stage."""

    customer: str
    reference: str
    replies: Mapping[str, tuple[str, float | None]]
    """Stage -> (response, total reward or None where scoring failed)."""


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """A run folder in memory. `steps` has the rows of metrics.jsonl per stage (sft, validation, rl), in order."""

    folder: RunFolder
    config_text: str
    config: Mapping[str, Any]
    summary: Summary
    steps: Mapping[str, Sequence[Mapping[str, Any]]]
    evaluations: Mapping[str, tuple[int, Mapping[str, Any]]]
    """Name (base, sft, rl, rl-<step>) -> (step, the row's metrics without the prefix `eval/<name>/`)."""
    samples: Sequence[Mapping[str, Any]]
    s_r: Sequence[float]
    """Reranker scores of all training responses that the reranker scored."""
    responses: int
    comparisons: Sequence[StageComparison]
    dialogues: Sequence[Sequence[RewardRecord]] = ()
    """Turns of some dialogues of the newest evaluation: the lowest mean rewards, then the highest."""

    @classmethod
    def read(cls, path: Path | str) -> ReportData:
        """Read a run folder. Missing parts are left empty. Raises RunFolderError if the path is not a run folder."""
        folder = RunFolder.open(path, "RUN")
        config = read_config(folder.config)
        steps: dict[str, list[Mapping[str, Any]]] = {}
        evaluations: dict[str, tuple[int, Mapping[str, Any]]] = {}
        for row in read_metrics(folder.metrics):
            kind, _, name = row["stage"].partition("-")
            if row["stage"] == "eval-validation":
                steps.setdefault(name, []).append(row)  # validation rows have their own steps
            elif kind == "eval":
                prefix = f"eval/{name}/"
                figures = {k.removeprefix(prefix): v for k, v in row.items() if k.startswith(prefix)}
                # A stage may have two rows: decisions, and whole dialogues.
                evaluations[name] = (row["step"], {**evaluations.get(name, (0, {}))[1], **figures})
            else:
                steps.setdefault(row["stage"], []).append(row)
        for rows in steps.values():
            rows.sort(key=lambda r: r["step"])
        samples = _read_samples(folder.samples)
        s_r, responses, comparisons, dialogues = _from_ledger(folder, samples)
        return cls(
            folder=folder,
            config_text=folder.config.read_text(encoding="utf-8"),
            config=config,
            summary=read_summary(folder),
            steps=steps,
            evaluations=evaluations,
            samples=samples,
            s_r=s_r,
            responses=responses,
            comparisons=comparisons,
            dialogues=dialogues,
        )

    @property
    def name(self) -> str:
        given = self.summary.get("name") or self.option("experiment.name")
        return str(given or self.folder.path.name)

    @property
    def stages(self) -> dict[str, StageSummary]:
        """Return held-out metrics per stage, in order; from the evaluations if the summary is not written yet."""
        known = self.summary.get("stages") or {}
        found = [stage for stage in STAGES if stage in known or stage in self.evaluations]
        return {s: known[s] if s in known else _stage(self.evaluations[s][1]) for s in found}

    def option(self, dotted: str) -> Any:
        """Return a value of the configuration, or None."""
        return value_at(self.config, dotted)

    def series(self, key: str, stage: str = "rl") -> tuple[list[int], list[float]]:
        """Return steps and values of a metric, without missing and non-finite values."""
        rows = [(r["step"], r[key]) for r in self.steps.get(stage, ()) if r.get(key) is not None]
        rows = [(s, v) for s, v in rows if math.isfinite(v)]
        return [s for s, _ in rows], [v for _, v in rows]

    def examples(self, n: int = 3, seed: int = 0) -> list[tuple[str, Mapping[str, Any]]]:
        """Return (best | worst | random, row) from the last third of the RL steps: n of each, without duplicates."""
        last = max((r["step"] for r in self.steps.get("rl", ())), default=0)
        rows = [r for r in self.samples if r["stage"] == "rl" and r["step"] > last * 2 / 3]
        seen: dict[str, Mapping[str, Any]] = {}
        for row in rows:  # skip duplicate texts
            seen.setdefault(row["response"], row)
        scored = sorted((r for r in seen.values() if r["total"] is not None), key=lambda r: r["total"], reverse=True)
        best, worst = scored[:n], scored[n:][-n:]
        rest = [r for r in seen.values() if not any(r is p for p in (*best, *worst))]
        drawn = random.Random(seed).sample(rest, min(n, len(rest)))
        groups = (("best", best), ("worst", worst), ("random", drawn))
        return [(kind, row) for kind, chosen in groups for row in chosen]


def _read_samples(path: Path) -> list[dict[str, Any]]:
    rows = []
    for place, row in numbered_rows(path):
        if not (isinstance(row.get("stage"), str) and isinstance(row.get("step"), int) and "response" in row):
            remedy = "has no `stage`, `step` and `response`; restore the line, or remove it"
            raise RunFolderError(place, str(row)[:60], remedy)
        rows.append(row)
    return rows


def _stage(figures: Mapping[str, Any]) -> StageSummary:
    reward = {k.removeprefix("reward/"): v for k, v in figures.items() if k.startswith("reward/")}
    plain: Any = {k: v for k, v in figures.items() if "/" not in k}
    return {**plain, "reward": reward}


def _from_ledger(
    folder: RunFolder, samples: Sequence[Mapping[str, Any]]
) -> tuple[list[float], int, list[StageComparison], list[list[RewardRecord]]]:
    if not folder.ledger.is_file():
        return [], 0, [], []
    with Ledger(folder.ledger, readonly=True) as ledger:
        training = "run NOT LIKE '%/eval-%'"
        s_r = [v for (v,) in ledger.query(f"SELECT s_r FROM records WHERE s_r IS NOT NULL AND {training}")]
        (responses,) = ledger.query(f"SELECT COUNT(*) FROM records WHERE {training}")[0]
        return s_r, responses, _comparisons(ledger, samples), _dialogues(ledger)


def _comparisons(ledger: Ledger, samples: Sequence[Mapping[str, Any]], most: int = 6) -> list[StageComparison]:
    """Return sampled held-out prompts that every stage answered: those with the largest gains and the largest loss."""
    made = []
    # One prompt per wording: repeated customer messages would show nothing new.
    by_words = {r["customer"]: r for r in samples if r["stage"].startswith("eval-") and r.get("customer")}
    held_out = "SELECT run, prompt, record, total FROM records WHERE run LIKE '%/eval-%' ORDER BY rowid"
    last = {(run.rpartition("/eval-")[2], prompt): (text, total) for run, prompt, text, total in ledger.query(held_out)}
    for row in by_words.values():
        replies: dict[str, tuple[str, float | None]] = {}
        for stage in STAGES:
            if found := last.get((stage, row["prompt"])):
                text, total = found
                replies[stage] = (show_response(record_from_json(text)), total)
        if len(replies) > 1:
            made.append(StageComparison(customer=row["customer"], reference=row.get("reference", ""), replies=replies))
    made.sort(key=_gain, reverse=True)
    return made if len(made) <= most else [*made[: most - 1], made[-1]]


def _dialogues(ledger: Ledger, each: int = 2) -> list[list[RewardRecord]]:
    """Return dialogues without a failed reward, by the mean reward of a turn, and by the sum where turns have none."""
    newest = "SELECT run FROM records WHERE run LIKE '%/eval-%/dialogues' ORDER BY rowid DESC LIMIT 1"
    turns = f"SELECT record FROM records WHERE run = ({newest}) ORDER BY prompt, sample, turn"
    found: dict[tuple[str, int], list[RewardRecord]] = {}
    for (text,) in ledger.query(turns):
        record = record_from_json(text)
        found.setdefault((record.key.prompt, record.key.sample), []).append(record)
    totals = {key: total for key, own in found.items() if (total := dialogue_reward(own)) is not None}
    order = sorted(totals, key=lambda key: (fmean(turn.reward or 0.0 for turn in found[key]), totals[key]))
    ordered = [found[key] for key in order]
    return [*ordered[:each], *ordered[each:][-each:]]


def _gain(c: StageComparison) -> float:
    totals = [total for _, total in c.replies.values()]
    first, last = totals[0], totals[-1]
    return 0.0 if first is None or last is None else last - first
