"""Fine-tune the pools' scorers where needed, each in its own process, and cache the results."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hamr.apps.scorer.lessons import PAIRS_SEED, Lessons, grader_lessons, pair_lessons
from hamr.apps.scorer.pair_check import auc, auc_standard_error
from hamr.apps.shared.child_process import CHILD_ENV, child_process, environment, send_to_parent
from hamr.config.pools import PoolConfig, ScorerTrainingConfig
from hamr.config.schema import Config
from hamr.errors import BadInput, HamrError
from hamr.files import try_lock, write_atomic
from hamr.models.bundled import cache_dir, resolve_model
from hamr.pools.pair_training import PairExample
from hamr.pools.scorer_pairs import check_installed, check_pair_model
from hamr.pools.scorers import check_template
from hamr.trainer.scorer_training import ScorerExample
from hamr.types import ServiceSample

RECIPE_VERSION = 4
"""Increased when the same pairs and settings give another scorer, so that cached ones are trained again."""

_ONE_KIND = (
    "all have the same answer, so that there is nothing to distinguish; a scorer of pairs needs samples with several "
    "replies as references (`hamr data multigt`), a grader clean and flawed responses: give such data, or remove "
    "the section"
)

KILLED = "scorer training was killed, probably for memory; lower finetune.batch_size"
PROGRESS_S = 15.0
"""Interval between two progress lines of a training, if no step takes longer."""


class Progress:
    """Shows the messages and steps of scorer training. Without `steps`, steps are shown as lines."""

    def __init__(self, note: Callable[[str], None], steps: Callable[[int, int, str], None] | None = None) -> None:
        self.note = note
        self.steps = steps
        self._begun: dict[str, float] = {}
        self._shown: dict[str, float] = {}

    def step(self, sent: tuple[str, int, int, float]) -> None:
        """Show a step as `finetune_scorer` sends it: scorer, step, number of steps, loss."""
        name, step, steps, loss = sent
        if self.steps is not None:
            return self.steps(step, steps, f"training steps of the {name}")
        now = time.monotonic()
        begun = self._begun.setdefault(name, now)
        if step == steps or now - self._shown.setdefault(name, now) >= PROGRESS_S:
            self._shown[name] = now
            left = (now - begun) * (steps - step) / max(1, step - 1)
            self.note(f"{name}: scorer training {step}/{steps}, loss {loss:.3f}, about {left:.0f} s left")


@dataclass(frozen=True, kw_only=True)
class TunedScorer:
    """A pool's model folder and its origin. `raw_auc`: AUC of the original model, without reasoning. `tuned_auc` and
    `tuned_error`: AUC of the fine-tuned model and its standard error."""

    path: Path
    finetuned: bool
    raw_auc: float | None = None
    raw_word_overlap_auc: float | None = None
    tuned_auc: float | None = None
    tuned_error: float | None = None


def prepare_scorers(
    config: Config,
    train: Sequence[ServiceSample],
    held_out: Sequence[ServiceSample],
    note: Callable[[str], None],
    steps: Callable[[int, int, str], None] | None = None,
) -> dict[str, TunedScorer]:
    """Return the model folder of every pool that has a local model, fine-tuned where configured and needed.

    Pools are prepared concurrently, as far as there are cores, or in sequence if one is trained on the GPU. A pool that
    starts from another waits for it. `steps` gets the finished training steps, their total and the scorer; without it,
    `note` gets a line at intervals.

    Raises BadInput for a pool with an invalid template, a missing library, a model of another kind or a missing GPU,
    and for fine-tuning on data without both kinds of answers.
    """
    for name, pool in config.pools.items():
        check_template(name, pool)
    pools = {name: pool for name, pool in config.pools.items() if pool.type != "openai"}
    for name, pool in pools.items():
        if pool.compares:
            check_installed(name, pool)
        if pool.compares and not pool.finetune:
            check_pair_model(name, pool, resolve_model(pool.model))
    progress = Progress(note, steps)
    trained = {name: pool.finetune for name, pool in pools.items() if pool.finetune}
    on_gpu = [name for name, tuning in trained.items() if tuning.num_gpus]
    _check_gpu(on_gpu)
    threads = max((tuning.threads for tuning in trained.values()), default=1)
    at_once = 1 if on_gpu else max(1, (os.cpu_count() or 1) // threads)
    prepared: dict[str, concurrent.futures.Future[TunedScorer]] = {}
    stop = threading.Event()
    with environment(CHILD_ENV), concurrent.futures.ThreadPoolExecutor(at_once) as side_by_side:
        # Pools that wait for another come last, so that the others are finished or running by then.
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
    """End the running training processes, and those that a thread starts in the meantime.

    `concurrent.futures.wait` would never count a future that was cancelled before it started."""
    prepared = list(prepared)
    while not all(future.done() for future in prepared):
        for child in multiprocessing.active_children():
            child.kill()
        time.sleep(0.1)


def _check_gpu(names: Sequence[str]) -> None:
    if names:
        import torch

        if not torch.cuda.is_available():
            raise BadInput(f"pools.{names[0]}.finetune.num_gpus", 1, "there is no GPU on this machine; set it to 0")


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
    """Fine-tune the result of `start`, or else the pool's model, in a process of its own, which frees its memory.

    The result is cached by everything that it depends on: models, template, pairs and settings.
    """
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
        with _alone(folder, lambda: progress.note(waiting), stop or threading.Event()):
            if not note.is_file():
                write_atomic(note, json.dumps(_train_scorer(name, tuning, taught, base, begin, folder, progress)))
    facts = json.loads(note.read_text())
    return TunedScorer(path=folder if facts["finetuned"] else base, **facts)


def _train_scorer(
    name: str,
    tuning: ScorerTrainingConfig,
    taught: Lessons,
    base: Path,
    begin: Path,
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Fine-tune from `begin` to `folder` if the raw model needs it. Return the fields of `TunedScorer` but its path."""
    exam = taught.exam()
    if len(set(exam.labels)) < 2:
        raise BadInput(f"pools.{name}.finetune", f"{len(exam.labels)} questions", _ONE_KIND)
    overlap = auc(exam.overlap, exam.labels)
    with child_process(KILLED, progress.step) as call:
        raw = auc(call(exam.scores, base, tuning), exam.labels) if exam.suits(base) else None
        needed = raw is None or tuning.when == "always" or not clearly_better(raw, overlap, exam.labels)
        found = "no cross-encoder yet" if raw is None else f"raw model AUC {raw:.2f}, word overlap {overlap:.2f}"
        progress.note(f"{name}: {found}: " + ("fine-tuning" if needed else "kept"))
        if needed and not (folder / "config.json").is_file():
            call(finetune_scorer, taught.train, begin, folder, taught.examples(), tuning, name)
        facts = {"raw_auc": raw, "raw_word_overlap_auc": overlap, "finetuned": needed}
        if needed:
            tuned = auc(call(exam.scores, folder, tuning), exam.labels)
            right = sum(exam.labels)
            facts |= {"tuned_auc": tuned, "tuned_error": auc_standard_error(tuned, right, len(exam.labels) - right)}
            progress.note(f"{name}: fine-tuned model AUC {tuned:.2f} on {len(exam.labels)} held-out pairs")
    return facts


@contextlib.contextmanager
def _alone(folder: Path, waiting: Callable[[], None], stop: threading.Event) -> Iterator[None]:
    """Hold the lock of `folder`, which the kernel releases when the process ends. `stop` ends the wait for it.

    Raises:
        HamrError: `stop` was set while another process held the lock.
    """
    with folder.with_name(f".{folder.name}.lock").open("w") as file:
        announced = False
        while not try_lock(file):
            if not announced:
                waiting()
                announced = True
            if stop.wait(0.2):
                raise HamrError(f"stopped while another process held the lock of {folder}")
        yield


def clearly_better(raw: float, overlap: float, labels: Sequence[bool]) -> bool:
    """Return True if the AUC of a raw model exceeds that of word overlap by more than two standard errors."""
    return raw - 2 * auc_standard_error(raw, sum(labels), len(labels) - sum(labels)) > overlap


def finetune_scorer(
    train: Callable[..., None],
    base: Path,
    out: Path,
    examples: list[ScorerExample] | list[PairExample],
    tuning: ScorerTrainingConfig,
    name: str,
) -> None:
    """Train from `base` to `out`. The parent process gets each step: name, step, steps, loss."""

    def report(step: int, steps: int, loss: float) -> None:
        send_to_parent((name, step, steps, loss))

    train(base, out, examples, tuning, seed=PAIRS_SEED, progress=report)
