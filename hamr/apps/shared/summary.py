"""summary.json of a training run: configuration, results before and after, machine and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hamr.apps.scorer.prepare import TunedScorer
from hamr.apps.shared.machine import machine, versions
from hamr.apps.train.stages import Run
from hamr.cluster.placement import Node
from hamr.config.schema import TrainerConfig
from hamr.telemetry.metrics import read_metrics
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.summary import ScorerSummary, Summary


def summarise_run(
    run: Run, scorers: Mapping[str, TunedScorer], seconds: Mapping[str, float], memory_gib: float, nodes: Sequence[Node]
) -> Summary:
    """Return the complete summary, ready to be written. `nodes` are those of the cluster at the start."""
    experiment = run.config.experiment
    return {
        "name": experiment.name,
        "stages": run.evaluations,
        "dialogues": run.dialogues,
        "scorers": {name: _scorer(run, name, tuned) for name, tuned in scorers.items()},
        "scorer_gate": {role: found.as_dict() for role, found in run.scorers.gates.items()},
        "timing": dict(seconds),
        "steps": experiment.steps,
        "seed": experiment.seed,
        "dropped_prompts": run.prepared.dropped,
        "versions": versions(),
        "machine": {
            **machine(),
            "gpus": gpu_types(nodes),
            "attention": attention(run.config.trainer, read_metrics(RunFolder(run.folder, locked=False).metrics)),
        },
        "memory_gb_peak": memory_gib,
    }


def _scorer(run: Run, name: str, tuned: TunedScorer) -> ScorerSummary:
    checks = run.scorers.checks.get(name, {})
    return {
        "auc": {kind: check.auc for kind, check in checks.items()},
        "word_overlap_auc": {kind: check.word_overlap_auc for kind, check in checks.items()},
        "pairs": {kind: check.n for kind, check in checks.items()},
        "failed": {kind: check.failed for kind, check in checks.items()},
        "raw_auc": tuned.raw_auc,
        "finetuned": tuned.finetuned,
    }


def gpu_types(nodes: Sequence[Node]) -> list[str]:
    """Return the types of the nodes' GPUs, as Ray names them.

    >>> gpu_types([Node(name="a", resources={"CPU": 8, "GPU": 2, "accelerator_type:H100": 1})])
    ['H100']
    """
    kind = "accelerator_type:"
    return sorted({name.removeprefix(kind) for node in nodes for name in node.resources if name.startswith(kind)})


def attention(trainer: TrainerConfig, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return layout and kernel of the last step in `rows`. A model may support padded rows only.

    >>> attention(TrainerConfig(backend="nccl", num_gpus=1), [{"sft/padded": 0.0}, {"policy/padded": 1.0}])
    'padded, kernel sdpa'
    """
    padded = [row[key] for row in rows for key in ("sft/padded", "policy/padded") if row.get(key) is not None]
    if padded and padded[-1]:
        trainer = trainer.model_copy(update={"attention": "padded"})
    return f"{trainer.attention}, kernel {trainer.kernel}"
