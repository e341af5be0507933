"""`hamr scorer`: makes the pools' small models carry signal, once, before a run needs them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from hamr.backends.models import cache_dir, resolve_model
from hamr.backends.pair_training import PairExample
from hamr.backends.scorer_pairs import check_installed, check_pair_model
from hamr.backends.scorer_prompt import ScorerPrompt
from hamr.backends.scorer_training import ScorerExample
from hamr.backends.scorers import check_template
from hamr.backends.tokenizer import load_tokenizer
from hamr.config.load import dump_config, load_config
from hamr.config.pools import PoolConfig, ScorerTrainingConfig
from hamr.config.schema import Config
from hamr.data.pairs import ReplyPair, read_pairs, reply_pairs
from hamr.data.splits import Splits
from hamr.errors import BadInput, HamrError
from hamr.evaluation.reliability import Quality, quality
from hamr.evaluation.scorer_check import auc, auc_standard_error
from hamr.jobs.child_process import CHILD_ENV, child_process, environment
from hamr.jobs.preparation import run_path
from hamr.jobs.reply_clusters import scorer_splits
from hamr.jobs.scorer_grader import labelled_responses
from hamr.jobs.scorer_lessons import (
    PAIRS_SEED,
    Exam,
    Lessons,
    compared_exam,
    grader_exam,
    grader_lessons,
    grading_of,
    pair_exam,
    pair_lessons,
)
from hamr.jobs.scorer_report import write_measured
from hamr.observability.run_folder import RunFolder, write_atomic
from hamr.rewards.prompting import PromptTemplate
from hamr.types import ServiceSample

HELP = """\
hamr scorer: fine-tunes the pools' scorers on labelled reply pairs where their raw model carries no signal, and checks
whether wrong replies can please them.

usage:
  hamr scorer [experiment=scorer_lora] [data=FOLDER] [overrides]
  hamr scorer check [output=FOLDER] [contexts=200] [experiment=quickstart] [data=FOLDER] [overrides]

Every pool with a `finetune` section is trained on pairs of replies made from the training samples and measured on pairs
of the test samples (and on `data.labelled_pairs`, if there are any), before and after, beside word overlap: accuracy,
AUC, precision and recall of what is wrong, calibration. A grader (`role: grader`) is trained on labelled responses, the
sets of `hamr data hallucination` in one file, to give one judged reward, and measured on others than it learnt from.
The models are cached and found again by `hamr train`; figures and reliability plots go into the run folder.

`hamr scorer check` asks the scorers of a job whether a wrong reply can beat the right ones, before RL does. For each of
`contexts` references of the test split they see right rewordings and wrong replies: other acts, wrong facts, negations,
courtesies, fragments and shuffled words of the reference, chatter. Printed for reranker, judge and cascade: the share
of contexts in which the best wrong reply outscores the median right one, and these replies. output gets
scorer_check.json.

options (`hamr --help` explains overrides):
  pools.reranker.model=Qwen/Qwen3-4B
  pools.reranker.finetune={when: always, batch_size: 16, epochs: 3, learning_rate: 1.0e-5, warmup_frac: 0.05, lora: {}}
  pools.checker={role: grader, structured: true, finetune: {labelled: judged.jsonl, reward: hallucination}}
  experiment.run_dir=FOLDER"""
RECIPE_VERSION = 4
"""Goes up when a scorer is trained otherwise from the same pairs and settings: cached ones are then made anew."""

MOST_MEASURED = 300
"""Pairs of a set that a scorer is measured on; with 300 an AUC is known to about 0.02."""

_ONE_KIND = (
    "all have the same answer, so that nothing can be told apart; a scorer of pairs needs samples with several replies "
    "as references (`hamr data multigt`), a grader clean and flawed responses: give such data, or remove the section"
)

KILLED = "scorer training was killed, probably for memory; lower finetune.batch_size"
PROGRESS_S = 15.0
"""Longest silence of a training between two of its lines, if a step is no longer than that."""

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class TunedScorer:
    """A pool's model folder and how it came about. `raw_auc` is the untouched model's, asked without reasoning."""

    path: Path
    finetuned: bool
    raw_auc: float | None = None
    raw_word_overlap_auc: float | None = None


def main(args: list[str]) -> int:
    """Prepares every pool that has a `finetune` section, measures it, and prints where its model lies."""
    if args[:1] == ["check"]:
        from hamr.jobs import scorer_check

        return scorer_check.main(args[1:])
    config = load_config(args)
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
            name: {kind: measured(pool, tuned[name], exam) for kind, exam in exams[name].items()}
            for name, pool in wanted.items()
        }
        write_measured(folder, found, {name: str(scorer.path) for name, scorer in tuned.items()})
        for name, scorer in tuned.items():
            print(f"{name}: {scorer.path}" + (" (fine-tuned)" if scorer.finetuned else ""))
        print(f"figures: {folder.path}")
    return 0


def _exams(name: str, pool: PoolConfig, config: Config, splits: Splits) -> dict[str, Exam]:
    """What the pool is measured on, by the name of the set."""
    assert pool.finetune is not None, "only such pools are measured"
    if pool.role == "grader":
        _, rows = labelled_responses(name, pool.finetune)
        return {"held_out": grader_exam(grading_of(pool, config), rows[:MOST_MEASURED])}
    sets = {"held_out": clear_pairs("data.test", reply_pairs(splits.test, 2 * MOST_MEASURED, PAIRS_SEED))}
    if config.data.labelled_pairs:
        sets["labelled_pairs"] = clear_pairs("data.labelled_pairs", read_pairs(config.data.labelled_pairs))
    if pool.compares:
        return {kind: compared_exam(pairs) for kind, pairs in sets.items()}
    prompt = ScorerPrompt(PromptTemplate.load(pool.prompt), load_tokenizer(resolve_model(pool.model)))
    return {kind: pair_exam(prompt, pairs) for kind, pairs in sets.items()}


def clear_pairs(key: str, pairs: Sequence[ReplyPair]) -> list[ReplyPair]:
    """At most MOST_MEASURED of the pairs that are consistent or inconsistent. Raises BadInput where none is."""
    clear = [pair for pair in pairs if pair.label != "partial"]
    if not clear:
        raise BadInput(key, f"{len(pairs)} pairs", "none is consistent or inconsistent; add some that are")
    return random.Random(PAIRS_SEED).sample(clear, min(MOST_MEASURED, len(clear)))


def measured(pool: PoolConfig, tuned: TunedScorer, exam: Exam) -> dict[str, Quality]:
    """Figures of the pool's raw model, of the fine-tuned one if there is one, and of word overlap. The models are asked
    for their verdict at once, a judge without its reasoning: what is compared is what training changed."""
    assert pool.finetune is not None, "only such pools are measured"
    base = resolve_model(pool.model)
    models = {"raw": base} if exam.suits(base) else {}
    models |= {"tuned": tuned.path} if tuned.finetuned else {}
    with environment(CHILD_ENV), child_process(KILLED) as call:
        scores = {model: call(_raw_scores, path, exam, pool.finetune) for model, path in models.items()}
    scores["overlap"] = exam.overlap
    return {model: quality([min(max(s, 0.0), 1.0) for s in own], exam.labels) for model, own in scores.items()}


def prepare_scorers(
    config: Config, train: Sequence[ServiceSample], held_out: Sequence[ServiceSample], progress: Progress
) -> dict[str, TunedScorer]:
    """The model folder of every pool that has a model here: as it is, or fine-tuned where the pool asks for it and it
    is needed.

    Pools are prepared side by side as far as there are cores; one that starts from another waits for it. Raises
    BadInput for a pool whose template cannot be filled, whose library is missing, whose model is of another kind, or
    that would be fine-tuned on data without both kinds of answers.
    """
    for name, pool in config.pools.items():
        check_template(name, pool)
    pools = {name: pool for name, pool in config.pools.items() if pool.type != "openai"}
    for name, pool in pools.items():
        if pool.compares:
            check_installed(name, pool)
        if pool.compares and not pool.finetune:
            check_pair_model(name, pool, resolve_model(pool.model))
    threads = max((pool.finetune.threads for pool in pools.values() if pool.finetune), default=1)
    at_once = max(1, (os.cpu_count() or 1) // threads)
    prepared: dict[str, concurrent.futures.Future[TunedScorer]] = {}
    stop = threading.Event()
    with environment(CHILD_ENV), concurrent.futures.ThreadPoolExecutor(at_once) as side_by_side:
        # Those that wait come last: all that they may wait for is then done or under way.
        for name, pool in sorted(pools.items(), key=lambda item: _start(item[1]) is not None):
            start = prepared.get(_start(pool) or "")
            lessons = partial(_lessons, name, pool, config, train, held_out)
            prepared[name] = side_by_side.submit(prepare_scorer, name, pool, lessons, progress, start, stop)
        try:
            return {name: prepared[name].result() for name in pools}
        except BaseException:
            stop.set()
            side_by_side.shutdown(wait=False, cancel_futures=True)
            _kill_children_until_done(prepared.values())
            raise


def _kill_children_until_done(prepared: Iterable[concurrent.futures.Future[TunedScorer]]) -> None:
    """End the training processes, which may be minutes from their end, and those that a thread starts meanwhile.

    `concurrent.futures.wait` would never count a future that was cancelled before it started."""
    prepared = list(prepared)
    while not all(future.done() for future in prepared):
        for child in multiprocessing.active_children():
            child.kill()
        time.sleep(0.1)


def _start(pool: PoolConfig) -> str | None:
    return pool.finetune.start_from if pool.finetune else None


def _lessons(
    name: str, pool: PoolConfig, config: Config, train: Sequence[ServiceSample], held_out: Sequence[ServiceSample]
) -> Lessons:
    if pool.role == "grader":
        return grader_lessons(name, pool, config)
    return pair_lessons(pool, config.data.max_pairs, train, held_out)


def prepare_scorer(
    name: str,
    pool: PoolConfig,
    lessons: Callable[[], Lessons],
    progress: Progress,
    start: concurrent.futures.Future[TunedScorer] | None = None,
    stop: threading.Event | None = None,
) -> TunedScorer:
    """Fine-tunes in a process of its own, whose memory is gone afterwards, from what `start` results in or else from
    the pool's model. The result is cached by everything that it depends on: models, template, pairs and settings."""
    base = resolve_model(pool.model)
    if pool.finetune is None:
        return TunedScorer(path=base, finetuned=False)
    tuning, taught = pool.finetune, lessons()
    begin = start.result().path if start else base
    models = [str(path.resolve()) for path in (base, begin)]
    recipe = json.dumps([RECIPE_VERSION, models, *taught.basis])
    folder = cache_dir() / "scorers" / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    note = folder.with_name(f"{folder.name}.json")
    if not note.is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"{name}: another process trains the same scorer; waiting for it"
        with _alone(folder, lambda: progress(waiting), stop or threading.Event()):
            if not note.is_file():
                write_atomic(note, json.dumps(_made(name, tuning, taught, base, begin, folder, progress)))
    facts = json.loads(note.read_text())
    return TunedScorer(path=folder if facts["finetuned"] else base, **facts)


def _made(
    name: str,
    tuning: ScorerTrainingConfig,
    taught: Lessons,
    base: Path,
    begin: Path,
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Fine-tunes from `begin` to `folder` where the raw model needs it; what `TunedScorer` is told beside its path."""
    exam = taught.exam()
    if len(set(exam.labels)) < 2:
        raise BadInput(f"pools.{name}.finetune", f"{len(exam.labels)} questions", _ONE_KIND)
    overlap = exam.overlap_auc
    with child_process(KILLED) as call:
        raw = auc(call(_raw_scores, base, exam, tuning), exam.labels) if exam.suits(base) else None
        needed = raw is None or tuning.when == "always" or not clearly_better(raw, overlap, exam.labels)
        found = "no cross-encoder yet" if raw is None else f"raw model AUC {raw:.2f}, word overlap {overlap:.2f}"
        progress(f"{name}: {found}: " + ("fine-tuning" if needed else "kept"))
        if needed and not (folder / "config.json").is_file():
            call(_finetune, taught.train, begin, folder, taught.examples(), tuning, name)
    return {"raw_auc": raw, "raw_word_overlap_auc": overlap, "finetuned": needed}


@contextlib.contextmanager
def _alone(folder: Path, waiting: Callable[[], None], stop: threading.Event) -> Iterator[None]:
    """Hold the lock of `folder`, which the kernel releases when the process ends. `stop` ends the wait for it.

    Raises:
        HamrError: `stop` was set while another process held the lock.
    """
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        told = False
        while not _locked(file):
            if not told:
                waiting()
                told = True
            if stop.wait(0.2):
                raise HamrError(f"stopped while another process held the lock of {folder}")
        yield


def _locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def clearly_better(raw: float, overlap: float, labels: Sequence[bool]) -> bool:
    """Whether a raw model's AUC is above that of word overlap by more than the luck of these few pairs: by two standard
    errors."""
    return raw - 2 * auc_standard_error(raw, sum(labels), len(labels) - sum(labels)) > overlap


def _raw_scores(base: Path, exam: Exam, tuning: ScorerTrainingConfig) -> list[float]:
    return exam.scores(base, tuning)


def _finetune(
    train: Callable[..., None],
    base: Path,
    out: Path,
    examples: list[ScorerExample] | list[PairExample],
    tuning: ScorerTrainingConfig,
    name: str,
) -> None:
    begin = last = time.monotonic()

    def report(step: int, steps: int, loss: float) -> None:
        nonlocal last
        now = time.monotonic()
        if step == steps or now - last >= PROGRESS_S:
            last, left = now, (now - begin) * (steps - step) / step
            print(f"{name}: scorer training {step}/{steps}, loss {loss:.3f}, about {left:.0f} s left", flush=True)

    train(base, out, examples, tuning, seed=PAIRS_SEED, progress=report)
