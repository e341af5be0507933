"""summary.json: stages trained, held-out metrics before and after, durations, hardware."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from hamr.errors import RunFolderError
from hamr.files import read_object, write_atomic
from hamr.security.redaction import redact
from hamr.telemetry.run_folder import RunFolder

STAGES = ("base", "sft", "rl")
_BY_NAME = ("stages", "dialogues", "scorers", "scorer_gate")
"""Sections of the summary with one object per name."""


class StageSummary(TypedDict, total=False):
    """Held-out metrics of one stage; shares in [0, 1]. `n` is the number of responses.

    `action_accuracy` is the share that takes the decision of a reference (a reply, or the same tool), and `by_act` the
    same per kind of decision. `tool_exact_match` is None if the split has no tool decisions. `reward` has `total` and
    one mean per component, without the responses that could not be scored (`failed_frac`). `by_format` has `n` and the
    means per response format, to the end of the answer. `exact_act` also checks the facts and distinguishes replies
    (`hamr.rewards.truth`); `exact_by_act` is the same per act, with `n` and the 95 % Wilson interval (`low`, `high`).
    They are None and empty without labelled acts. `debiased` has the mean consistency and total corrected by audits,
    with intervals; it is empty with too few audits.
    """

    n: int
    action_accuracy: float
    tool_exact_match: float | None
    format_error_rate: float
    failed_frac: float
    reward: dict[str, float]
    debiased: dict[str, dict[str, float]]
    by_act: dict[str, float]
    by_format: dict[str, dict[str, float]]
    exact_act: float | None
    exact_by_act: dict[str, dict[str, float]]


class ScorerSummary(TypedDict, total=False):
    """Signal of a scorer: AUC per set of labelled pairs (`held_out`, `labelled_pairs`); 0.5 is chance.

    `pairs` is the number of pairs asked, `failed` of which had no score. `raw_auc` is that of the model before any
    fine-tuning, with a direct verdict; None if no fine-tuning was requested.
    """

    auc: dict[str, float]
    word_overlap_auc: dict[str, float]
    pairs: dict[str, int]
    failed: dict[str, int]
    raw_auc: float | None
    finetuned: bool


class Summary(TypedDict, total=False):
    """Content of summary.json.

    `dialogues`: SAGE's figures by stage, with their step. `scorer_gate`: per role, the number and list of contexts in
    which a wrong reply beat the right ones before RL, and the table of acts. `timing`: seconds per phase of the run.
    Memory is in GB over all processes.
    """

    name: str
    stages: dict[str, StageSummary]
    dialogues: dict[str, dict[str, float]]
    scorers: dict[str, ScorerSummary]
    scorer_gate: dict[str, dict[str, Any]]
    timing: dict[str, float]
    steps: int
    seed: int
    dropped_prompts: dict[str, int]
    versions: dict[str, str]
    machine: dict[str, Any]
    memory_gb_peak: float


def write_summary(folder: RunFolder, summary: Summary | Mapping[str, Any]) -> Path:
    """Write summary.json atomically, without secrets. Non-finite numbers become null."""
    write_atomic(folder.summary, json.dumps(_finite(redact(summary, names=False)), indent=2) + "\n")
    return folder.summary


def read_summary(folder: RunFolder) -> Summary:
    """Return the summary, or an empty one if the run has not ended. Raises RunFolderError if it is damaged."""
    found = read_object(folder.summary)
    for section in (*_BY_NAME, "timing", "machine"):
        rows = found.get(section, {})
        if not isinstance(rows, dict) or (section in _BY_NAME and any(not isinstance(v, dict) for v in rows.values())):
            form = "an object of objects" if section in _BY_NAME else "an object"
            raise RunFolderError("file", str(folder.summary), f"{section} is not {form}; restore it")
    return cast(Summary, found)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
