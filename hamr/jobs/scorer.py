"""`hamr scorer`: makes the pools' small models carry signal, once, before a run needs them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import dataclasses
import hashlib
import json
import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.backends.cpu_env import ALLOCATOR_ENV, WAITING_ENV
from hamr.backends.models import cache_dir, resolve_model
from hamr.backends.scorer_pairs import check_installed, check_pair_model
from hamr.backends.scorer_prompt import ScorerPrompt
from hamr.backends.scorer_training import ScorerExample, finetune, verdict_scores
from hamr.backends.scorers import check_template
from hamr.backends.tokenizer import load_tokenizer
from hamr.config.load import dump_config, load_config
from hamr.config.pools import PoolConfig, ScorerTrainingConfig
from hamr.config.schema import Config
from hamr.data.pairs import ReplyPair, read_pairs, reply_pairs
from hamr.errors import BadInput, HamrError
from hamr.evaluation.reliability import Quality, quality
from hamr.evaluation.scorer_check import auc, auc_standard_error, pair_question, word_overlap
from hamr.jobs.preparation import load_splits, run_path
from hamr.jobs.scorer_report import write_measured
from hamr.observability.run_folder import RunFolder
from hamr.rewards.prompting import PromptTemplate
from hamr.types import ServiceSample

HELP = """\
hamr scorer: fine-tunes the pools' scorers on labelled reply pairs, where their raw model carries no signal.

usage:
  hamr scorer [experiment=scorer_lora] [data=FOLDER] [overrides]

Every pool with a `finetune` section is trained on pairs of replies made from the training samples and measured on pairs
of the test samples (and on `data.labelled_pairs`, if there are any), before and after: accuracy, AUC and calibration.
The models are cached and found again by `hamr train`; figures and reliability plots go into the run folder.

options (`hamr --help` explains overrides):
  pools.reranker.model=Qwen/Qwen3-4B
  pools.reranker.finetune={when: always, batch_size: 16, epochs: 3, learning_rate: 1.0e-5, warmup_frac: 0.05, lora: {}}
  experiment.run_dir=FOLDER"""
PR_SET_PDEATHSIG = 1
PAIRS_SEED = 17
RECIPE_VERSION = 4
"""Goes up when a scorer is trained otherwise from the same pairs and settings: cached ones are then made anew."""

MOST_MEASURED = 300
"""Pairs of a set that a scorer is measured on; with 300 an AUC is known to about 0.02."""

CHECK_PAIRS = 60
"""Held-out pairs on which the raw model is tried before it is decided whether to fine-tune."""

CHILD_ENV = {**ALLOCATOR_ENV, **WAITING_ENV, "DS_ACCELERATOR": "cpu"}
"""Of the training process: glibc reads its settings when a process starts, and what looks for a GPU is told."""

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
    config = load_config(args)
    wanted = {name: pool for name, pool in config.pools.items() if pool.finetune}
    if not wanted:
        raise BadInput("pools.<name>.finetune", None, "no pool asks for fine-tuning; set it, e.g. pools=cpu_small")
    path = run_path(config.experiment)
    RunFolder.refuse_if_used(path)
    splits = load_splits(config.data, config.experiment.seed)
    sets = {"held_out": clear_pairs("data.test", reply_pairs(splits.test, 2 * MOST_MEASURED, PAIRS_SEED))}
    if config.data.labelled_pairs:
        sets["labelled_pairs"] = clear_pairs("data.labelled_pairs", read_pairs(config.data.labelled_pairs))
    with RunFolder.create(path, dump_config(config)) as folder:
        config = config.model_copy(update={"pools": wanted})
        tuned = prepare_scorers(config, splits.train, splits.validation, print)
        found = {
            name: {kind: measured(pool, tuned[name], pairs) for kind, pairs in sets.items()}
            for name, pool in wanted.items()
        }
        write_measured(folder, found, {name: str(scorer.path) for name, scorer in tuned.items()})
        for name, scorer in tuned.items():
            print(f"{name}: {scorer.path}" + (" (fine-tuned)" if scorer.finetuned else ""))
        print(f"figures: {folder.path}")
    return 0


def clear_pairs(key: str, pairs: Sequence[ReplyPair]) -> list[ReplyPair]:
    """At most MOST_MEASURED of the pairs that are consistent or inconsistent. Raises BadInput where none is."""
    clear = [pair for pair in pairs if pair.label != "partial"]
    if not clear:
        raise BadInput(key, f"{len(pairs)} pairs", "none is consistent or inconsistent; add some that are")
    return random.Random(PAIRS_SEED).sample(clear, min(MOST_MEASURED, len(clear)))


def measured(pool: PoolConfig, tuned: TunedScorer, pairs: Sequence[ReplyPair]) -> dict[str, Quality]:
    """Figures of the pool's raw model and, if there is one, of the fine-tuned one on clear pairs. They are asked for
    their verdict at once, a judge without its reasoning: what is compared is what training changed."""
    assert pool.finetune is not None, "only such pools are measured"
    base = resolve_model(pool.model)
    template = PromptTemplate.load(pool.prompt)
    prompt = ScorerPrompt(template, load_tokenizer(base))
    questions = [question_ids(prompt, pair, think=False) for pair in pairs]
    values = {prompt.labels[label]: verdict.value for label, verdict in template.labels.items()}
    labels = [pair.label == "consistent" for pair in pairs]
    models = {"raw": base} | ({"tuned": tuned.path} if tuned.finetuned else {})
    with _environment(CHILD_ENV), _child() as call:
        scores = {model: call(_raw_scores, path, questions, values, pool.finetune) for model, path in models.items()}
    return {model: quality([min(max(s, 0.0), 1.0) for s in own], labels) for model, own in scores.items()}


def prepare_scorers(
    config: Config, train: Sequence[ServiceSample], held_out: Sequence[ServiceSample], progress: Progress
) -> dict[str, TunedScorer]:
    """The model folder of every pool that has a model here: as it is, or fine-tuned where the pool asks for it and it
    is needed.

    Pools are prepared side by side as far as there are cores; one that starts from another waits for it. Raises
    BadInput for a pool whose template cannot be filled, whose library is missing or whose model is of another kind.
    """
    for name, pool in config.pools.items():
        check_template(name, pool)
    pools = {name: pool for name, pool in config.pools.items() if pool.type != "openai"}
    for name, pool in pools.items():
        if pool.compares:
            check_installed(name, pool)
            check_pair_model(name, pool, resolve_model(pool.model))
    threads = max((pool.finetune.threads for pool in pools.values() if pool.finetune), default=1)
    at_once = max(1, (os.cpu_count() or 1) // threads)
    prepared: dict[str, concurrent.futures.Future[TunedScorer]] = {}
    with _environment(CHILD_ENV), concurrent.futures.ThreadPoolExecutor(at_once) as side_by_side:
        # Those that wait come last: all that they may wait for is then done or under way.
        for name, pool in sorted(pools.items(), key=lambda item: _start(item[1]) is not None):
            start = prepared.get(_start(pool) or "")
            prepared[name] = side_by_side.submit(
                prepare_scorer, name, pool, config.data.max_pairs, train, held_out, progress, start
            )
        return {name: prepared[name].result() for name in pools}


def _start(pool: PoolConfig) -> str | None:
    return pool.finetune.start_from if pool.finetune else None


def prepare_scorer(
    name: str,
    pool: PoolConfig,
    max_pairs: int,
    train: Sequence[ServiceSample],
    held_out: Sequence[ServiceSample],
    progress: Progress,
    start: concurrent.futures.Future[TunedScorer] | None = None,
) -> TunedScorer:
    """Fine-tunes in a process of its own, whose memory is gone afterwards, from what `start` results in or else from
    the pool's model. The result is cached by everything that it depends on: models, template, pairs and settings."""
    base = resolve_model(pool.model)
    if pool.finetune is None:
        return TunedScorer(path=base, finetuned=False)
    tuning, template = pool.finetune, PromptTemplate.load(pool.prompt)
    pairs = reply_pairs(train, min(tuning.examples, max_pairs), PAIRS_SEED)
    checks = [p for p in reply_pairs(held_out, 2 * CHECK_PAIRS, PAIRS_SEED) if p.label != "partial"][:CHECK_PAIRS]
    begin = start.result().path if start else base
    models = [str(path.resolve()) for path in (base, begin)]
    recipe = json.dumps(
        [RECIPE_VERSION, models, template.id, tuning.model_dump(), [dataclasses.astuple(p) for p in (*pairs, *checks)]]
    )
    folder = cache_dir() / "scorers" / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    note = folder.with_suffix(".json")
    if not note.is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        prompt = ScorerPrompt(template, load_tokenizer(base))
        questions = [question_ids(prompt, pair, think=False) for pair in checks]
        values = {prompt.labels[label]: verdict.value for label, verdict in template.labels.items()}
        examples = training_examples(prompt, pairs)
        labels = [pair.label == "consistent" for pair in checks]
        overlap = auc([word_overlap(pair.statement_a, pair.statement_b) for pair in checks], labels)
        with _child() as call:
            raw = auc(call(_raw_scores, base, questions, values, tuning), labels)
            needed = tuning.when == "always" or not clearly_better(raw, overlap, labels)
            progress(
                f"{name}: raw model AUC {raw:.2f}, word overlap {overlap:.2f}: " + ("fine-tuning" if needed else "kept")
            )
            if needed and not (folder / "config.json").is_file():
                call(_finetune, begin, folder, examples, tuning, name)
        note.write_text(json.dumps({"raw_auc": raw, "raw_word_overlap_auc": overlap, "finetuned": needed}))
    facts = json.loads(note.read_text())
    return TunedScorer(path=folder if facts["finetuned"] else base, **facts)


def clearly_better(raw: float, overlap: float, labels: Sequence[bool]) -> bool:
    """Whether a raw model's AUC is above that of word overlap by more than the luck of these few pairs: by two standard
    errors."""
    return raw - 2 * auc_standard_error(raw, sum(labels), len(labels) - sum(labels)) > overlap


def training_examples(prompt: ScorerPrompt, pairs: Sequence[ReplyPair]) -> list[ScorerExample]:
    """The pairs as examples. A scorer that reasons is shown every second pair without its reasoning or, in turns, with
    another's (and is taught neither): its own reasoning will be wrong at times, and a verdict that only ever followed
    right reasoning would believe it rather than look at the statements."""
    if not prompt.template.thinks:
        return [example(prompt, pair) for pair in pairs]
    heard = [None if i % 2 == 0 else "" if i % 4 == 1 else _mistaken(pairs, i) for i in range(len(pairs))]
    return [example(prompt, pair, said) for pair, said in zip(pairs, heard, strict=True)]


def _mistaken(pairs: Sequence[ReplyPair], i: int) -> str:
    """The reasoning of the nearest pair whose own differs, if possible about the same statement: it sounds right."""
    others = sorted((j for j in range(len(pairs)) if pairs[j].thought != pairs[i].thought), key=lambda j: abs(j - i))
    alike = [j for j in others if pairs[j].statement_a == pairs[i].statement_a]
    return next((pairs[j].thought for j in (*alike, *others)), "")


def example(prompt: ScorerPrompt, pair: ReplyPair, heard: str | None = None) -> ScorerExample:
    """A labelled pair as the template's question and the scorer's whole answer to it. `heard`: what stands in the place
    of the pair's reasoning, and is not learnt."""
    level = {"consistent": "yes", "partial": "part", "inconsistent": "no"}[pair.label]
    verdict = {level: 1.0} if level in prompt.labels else {"yes": 0.5, "no": 0.5}
    said: list[int] = []
    if prompt.template.thinks:
        reasoning = pair.thought if heard is None else heard
        said = prompt.tokenizer.encode(reasoning) + prompt.verdict_ids(after_thinking=True)
    most_likely = max(verdict, key=lambda label: verdict[label])
    return ScorerExample(
        prompt_ids=tuple(question_ids(prompt, pair, think=True)),
        target_ids=(*said, prompt.labels[most_likely]),
        verdict=tuple((prompt.labels[label], probability) for label, probability in verdict.items()),
        family=pair.statement_a,
        sound=heard is None,
    )


def question_ids(prompt: ScorerPrompt, pair: ReplyPair, *, think: bool) -> list[int]:
    """The rendered question up to where the scorer speaks: before its reasoning, or right before its verdict."""
    asked = prompt.question_ids(pair_question(pair).variables)
    if not prompt.template.thinks:
        return asked + prompt.verdict_ids(after_thinking=False)
    opened = asked + prompt.thinking_ids()
    return opened if think else opened + prompt.verdict_ids(after_thinking=True)


def _raw_scores(
    base: Path, questions: list[list[int]], values: dict[int, float], tuning: ScorerTrainingConfig
) -> list[float]:
    return verdict_scores(base, [tuple(q) for q in questions], values, threads=tuning.threads)


def _finetune(base: Path, out: Path, examples: list[ScorerExample], tuning: ScorerTrainingConfig, name: str) -> None:
    def report(step: int, steps: int, loss: float) -> None:
        if step % max(1, steps // 4) == 0:
            print(f"{name}: scorer training {step}/{steps}, loss {loss:.3f}", flush=True)

    finetune(base, out, examples, tuning, seed=PAIRS_SEED, progress=report)


@contextlib.contextmanager
def _child() -> Iterator[Callable[..., Any]]:
    """A fresh process: what it is called with runs there, and its result (or what it raised) comes back."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context, initializer=_die_with_parent) as pool:
        try:
            yield lambda function, *args: pool.submit(function, *args).result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise HamrError(
                f"scorer training was killed, probably for memory; lower finetune.batch_size ({error})"
            ) from error


def _die_with_parent() -> None:
    """A killed hamr leaves no training behind: the kernel kills this process when its parent ends (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for processes that start inside, and puts the old ones back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
