"""Further training of the scorers during RL, on the policy's own replies (`scorers.on_alarm=refit`)."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from hamr.apps.scorer.lessons import contrast_examples
from hamr.apps.scorer.prepare import KILLED, Progress, finetune_scorer
from hamr.apps.shared.child_process import CHILD_ENV, child_process, environment
from hamr.config.pools import ScorerTrainingConfig
from hamr.config.schema import Config
from hamr.data.contrasts import replies_of
from hamr.data.pairs import read_pairs
from hamr.errors import BadInput
from hamr.files import write_atomic
from hamr.pools.pair_training import PairExample, finetune_pairs
from hamr.protocols import Ask
from hamr.rewards.questions import consistency_question
from hamr.rewards.truth import ExactAct
from hamr.types import Reply, ServiceSample

RATE = 0.3
"""Learning rate of a refit, as a share of the original training's."""
TARGETS = {"consistent": 1.0, "partial": 0.5, "inconsistent": 0.0}


class ScoredReply(NamedTuple):
    """A reply of the policy and its consistency reward in [0, 1]; None: scoring failed."""

    sample: ServiceSample
    text: str
    score: float | None


def check_refit(config: Config, truth: ExactAct | None) -> None:
    """Check before Ray starts that the scorers can be refitted, if the configuration asks for it.

    Raises:
        BadInput: a scorer is of another type or has no `finetune` section, or the source of the labels is missing.
        DataError: the file of labelled pairs cannot be read.
    """
    refit = config.scorers.refit
    if config.scorers.on_alarm != "refit":
        return
    for role, name in _pools_to_train(config).items():
        pool = config.pools[name]
        if pool.type != "cross_encoder" or pool.finetune is None:
            remedy = f"is the {role} and cannot be refitted; use type=cross_encoder with a finetune section, or "
            raise BadInput(f"pools.{name}.type", pool.type, f"{remedy}scorers.on_alarm=warn")
    if refit.labels == "rule" and truth is None:
        remedy = "the samples name no act (meta.act), so that there is no rule; use judge, or a file of labelled pairs"
        raise BadInput("scorers.refit.labels", "rule", remedy)
    if refit.labels == "judge" and not {"reranker", "judge"} <= config.rewards.scorers.keys():
        raise BadInput("scorers.refit.labels", "judge", "needs a reranker and a judge (rewards.consistency.mode)")
    if refit.labels not in ("rule", "judge"):
        read_pairs(refit.labels)


def _pools_to_train(config: Config) -> dict[str, str]:
    """Role -> pool of the scorers that a refit trains."""
    roles = ("reranker",) if config.scorers.refit.labels == "judge" else ("reranker", "judge")
    return {role: name for role, name in config.rewards.scorers.items() if role in roles}


@dataclass(kw_only=True)
class ScorerRefit:
    """Trains the scorers further and lets their pools load the result.

    Each refit writes `<pool>-<step>/` and `pairs-<step>.jsonl` to `folder`. Later refits repeat earlier ones' pairs.

    Attributes:
        paths: Pool -> its present model folder.
        reload: Lets running pools load other folders.
        steps: RL steps after which the scorers were refitted.
    """

    config: Config
    truth: ExactAct | None
    train: Sequence[ServiceSample]
    folder: Path
    paths: Mapping[str, Path]
    judge: Ask | None
    reload: Callable[[Mapping[str, Path]], Awaitable[None]]
    progress: Progress
    steps: list[int] = field(default_factory=list)

    async def run(
        self,
        step: int,
        replies: Sequence[ScoredReply],
        hold: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Refit every scorer on labelled replies. Without a usable reply nothing happens. The pools load the scorers
        inside `hold()`."""
        pairs = await self._label(step, replies)
        if not pairs:
            return
        self.folder.mkdir(exist_ok=True)
        write_atomic(self.folder / f"pairs-{step}.jsonl", "".join(json.dumps(pair) + "\n" for pair in pairs))
        known = [pair for each in (*self.steps, step) for pair in self._read(each)]
        wrong = sum(pair.target < 0.5 for pair in pairs)
        self.progress.note(f"scorers: refit on {len(pairs)} pairs of the policy's replies, {wrong} of them wrong")
        try:
            made = await asyncio.to_thread(self._train, step, known)
        except asyncio.CancelledError:
            for child in multiprocessing.active_children():
                child.kill()
            raise
        with hold():
            await self.reload(made)
        self.paths = {**self.paths, **made}
        self.steps.append(step)

    def state(self) -> list[int]:
        return list(self.steps)

    async def restore(self, steps: Sequence[int]) -> None:
        """Let the pools load the result of the last of these refits."""
        self.steps = list(steps)
        if self.steps:
            made = {name: self.folder / f"{name}-{self.steps[-1]}" for name in _pools_to_train(self.config).values()}
            await self.reload(made)
            self.paths = {**self.paths, **made}

    async def _label(self, step: int, replies: Sequence[ScoredReply]) -> list[PairExample]:
        refit, rng = self.config.scorers.refit, Random(f"refit/{step}")
        if refit.labels not in ("rule", "judge"):
            pairs = [PairExample(p.statement_a, p.statement_b, TARGETS[p.label]) for p in read_pairs(refit.labels)]
            return rng.sample(pairs, min(refit.examples, len(pairs)))
        usable = [reply for reply in replies if reply.score is not None and replies_of(reply.sample)]
        shown = {(rng.choice(replies_of(reply.sample)), reply.text): reply for reply in usable}
        if refit.labels == "rule":
            return self._by_rule(shown)
        return await self._by_judge(dict(rng.sample(list(shown.items()), min(refit.examples, len(shown)))))

    async def _by_judge(self, shown: Mapping[tuple[str, str], ScoredReply]) -> list[PairExample]:
        judge = self.judge
        assert judge is not None, "check_refit"

        async def score(a: str, reply: ScoredReply) -> float | None:
            question = consistency_question(reply.sample, Reply(content=a), Reply(content=reply.text))
            return (await judge(question)).score

        scores = await asyncio.gather(*(score(a, reply) for (a, _), reply in shown.items()))
        return [PairExample(a, b, s) for (a, b), s in zip(shown, scores, strict=True) if s is not None]

    def _by_rule(self, shown: Mapping[tuple[str, str], ScoredReply]) -> list[PairExample]:
        """Return the wrong replies with the highest scores and the right ones with the lowest, at most half of
        `refit.examples` of each."""
        assert self.truth is not None, "check_refit"
        half = self.config.scorers.refit.examples // 2
        wrong: list[tuple[float, PairExample]] = []
        right: list[tuple[float, PairExample]] = []
        for (a, b), reply in shown.items():
            exact = self.truth.is_exact(Reply(content=reply.text), reply.sample)
            (right if exact else wrong).append((reply.score or 0.0, PairExample(a, b, float(exact))))
        wrong.sort(key=lambda scored: -scored[0])
        right.sort(key=lambda scored: scored[0])
        return [pair for _, pair in (*wrong[:half], *right[:half])]

    def _read(self, step: int) -> list[PairExample]:
        lines = (self.folder / f"pairs-{step}.jsonl").read_text(encoding="utf-8").splitlines()
        return [PairExample(*json.loads(line)) for line in lines]

    def _train(self, step: int, pairs: Sequence[PairExample]) -> dict[str, Path]:
        made: dict[str, Path] = {}
        with environment(CHILD_ENV), child_process(KILLED, self.progress.step) as call:
            for name in _pools_to_train(self.config).values():
                out = self.folder / f"{name}-{step}"
                tuning = self._tuning(name)
                examples = [*pairs, *contrast_examples(self.train, len(pairs), seed=step, part=tuning.part)]
                shutil.rmtree(out, ignore_errors=True)  # of a run that was resumed from an earlier step
                call(finetune_scorer, finetune_pairs, self.paths[name], out, examples, tuning, name)
                made[name] = out
        return made

    def _tuning(self, name: str) -> ScorerTrainingConfig:
        tuning = self.config.pools[name].finetune
        assert tuning is not None, "check_refit"
        settings: dict[str, Any] = {"epochs": 1, "learning_rate": RATE * tuning.learning_rate, "layers": None}
        return tuning.model_copy(update=settings)
