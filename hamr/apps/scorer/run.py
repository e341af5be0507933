"""`hamr scorer`: fine-tune and measure the scorers of the pools before a run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hamr.apps.scorer.grader import labelled_responses
from hamr.apps.scorer.lessons import PAIRS_SEED, Exam, grader_exam, grading_of, pair_exam
from hamr.apps.scorer.prepare import KILLED, TunedScorer, prepare_scorers
from hamr.apps.scorer.reliability import Quality, quality
from hamr.apps.scorer.report import write_measured
from hamr.apps.shared.child_process import CHILD_ENV, child_process, environment
from hamr.apps.shared.preparation import run_path
from hamr.apps.shared.reply_clusters import scorer_splits
from hamr.config.load import dump_config
from hamr.config.pools import PoolConfig
from hamr.config.schema import Config
from hamr.data.pairs import ReplyPair, read_pairs, reply_pairs
from hamr.data.splits import Splits
from hamr.errors import BadInput
from hamr.models.bundled import resolve_model
from hamr.telemetry.run_folder import RunFolder

if TYPE_CHECKING:
    from hamr.apps.scorer.command import ScorerCommand

MOST_MEASURED = 300
"""Pairs of a set on which a scorer is measured. With 300, the standard error of an AUC is about 0.02."""


def start(command: ScorerCommand) -> int:
    """Prepare every pool that has a `finetune` section, measure it, and print the path of its model."""
    config = command.config()
    wanted = {name: pool for name, pool in config.pools.items() if pool.finetune}
    if not wanted:
        raise BadInput("pools.<name>.finetune", None, "no pool asks for fine-tuning; set it, e.g. pools=cpu_small")
    path = run_path(config.experiment)
    RunFolder.refuse_if_used(path)
    pairs = any(pool.role != "grader" for pool in wanted.values())
    splits = scorer_splits(config, print) if pairs else Splits(train=(), validation=(), test=())
    exams = {name: _exams(name, pool, config, splits) for name, pool in wanted.items()}
    with RunFolder.create(path, dump_config(config)) as folder:
        config = config.model_copy(update={"pools": wanted})
        tuned = prepare_scorers(config, splits.train, splits.validation, print)
        found = {
            name: {kind: measure_scorer(pool, tuned[name], exam) for kind, exam in exams[name].items()}
            for name, pool in wanted.items()
        }
        write_measured(folder, found, {name: str(scorer.path) for name, scorer in tuned.items()})
        for name, scorer in tuned.items():
            print(f"{name}: {scorer.path}" + (" (fine-tuned)" if scorer.finetuned else ""))
        print(f"figures: {folder.path}")
    return 0


def _exams(name: str, pool: PoolConfig, config: Config, splits: Splits) -> dict[str, Exam]:
    """Return the sets that the pool is measured on, by name."""
    assert pool.finetune is not None, "only such pools are measured"
    if pool.role == "grader":
        _, rows = labelled_responses(name, pool.finetune)
        return {"held_out": grader_exam(grading_of(pool, config), rows[:MOST_MEASURED])}
    sets = {"held_out": clear_pairs("data.test", reply_pairs(splits.test, 2 * MOST_MEASURED, PAIRS_SEED))}
    if config.data.labelled_pairs:
        sets["labelled_pairs"] = clear_pairs("data.labelled_pairs", read_pairs(config.data.labelled_pairs))
    return {kind: pair_exam(pool, pairs) for kind, pairs in sets.items()}


def clear_pairs(key: str, pairs: Sequence[ReplyPair]) -> list[ReplyPair]:
    """Return at most MOST_MEASURED consistent or inconsistent pairs. Raises BadInput if there are none."""
    clear = [pair for pair in pairs if pair.label != "partial"]
    if not clear:
        raise BadInput(key, f"{len(pairs)} pairs", "none is consistent or inconsistent; add some that are")
    return random.Random(PAIRS_SEED).sample(clear, min(MOST_MEASURED, len(clear)))


def measure_scorer(pool: PoolConfig, tuned: TunedScorer, exam: Exam) -> dict[str, Quality]:
    """Return the quality of the pool's raw model, of the fine-tuned one if there is one, and of word overlap.

    All models give their verdict without reasoning, so that the comparison shows the effect of training.
    """
    assert pool.finetune is not None, "only such pools are measured"
    base = resolve_model(pool.model)
    models = {"raw": base} if exam.suits(base) else {}
    models |= {"tuned": tuned.path} if tuned.finetuned else {}
    with environment(CHILD_ENV), child_process(KILLED) as call:
        scores = {model: call(exam.scores, path, pool.finetune) for model, path in models.items()}
    scores["overlap"] = exam.overlap
    return {model: quality([min(max(s, 0.0), 1.0) for s in own], exam.labels) for model, own in scores.items()}
