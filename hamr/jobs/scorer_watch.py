"""What a run checks of its scorers: at the start on pairs and contrasts, during RL on what the policy says."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hamr.config.schema import Config
from hamr.data.contrasts import Contrast, Wrong, contrasts
from hamr.data.pairs import ReplyPair, read_pairs, reply_pairs, unlabelled_pairs
from hamr.data.splits import Splits
from hamr.errors import DataError, UnreliableScorer
from hamr.evaluation.reply_clusters import ReplyClusters
from hamr.evaluation.scorer_check import ScorerCheck, check_scorer
from hamr.evaluation.scorer_gate import Gate, ask_all, gate, gates, mixed
from hamr.evaluation.truth import ExactAct
from hamr.jobs.reply_clusters import embedded
from hamr.protocols import Ask
from hamr.routing.cascade import Cascade
from hamr.types import Reply, ServiceSample

CHECK_SEED = 29
RANDOM_MODEL = "tiny"
"""The bundled model with random weights, which tests use, may be at chance."""
MOST_PAIRS = 120
MOST_NAMED = 500
"""Replies of the policy, the most frequent ones, whose act or cluster is looked for."""
SETS = {"held_out": "held-out pairs", "labelled_pairs": "labelled pairs", "easy": "easy pairs"}


class Pool(Protocol):
    @property
    def ask(self) -> Ask: ...


@dataclass(kw_only=True)
class ScorerWatch:
    """`checks` (pool -> set -> AUC) and `gates` (role -> result) fill up at the start.

    `truth` or `clusters`, whichever the data have, says what a reply of the policy does; `embed` gives the embeddings
    that clusters need.
    """

    config: Config
    splits: Splits
    truth: ExactAct | None
    clusters: ReplyClusters | None = None
    pools: Mapping[str, Pool]
    note: Callable[[str], None]
    embed: Callable[[Sequence[str]], NDArray[np.float32]] = embedded
    checks: dict[str, dict[str, ScorerCheck]] = field(default_factory=dict)
    gates: dict[str, Gate] = field(default_factory=dict)

    async def at_start(self) -> None:
        """Measure every pool that the consistency reward asks on held-out pairs and on the user's own; then whether
        wrong replies beat right ones.

        Where every sample has one reference, the pairs are easy ones that need no labels. Without any reply among the
        references nothing is asked.

        Raises:
            UnreliableScorer: a scorer is no better than chance and `scorers.accept_chance` is false, or wrong replies
                win in more than `scorers.max_fooled` of the contexts and `scorers.on_alarm` is `stop`.
        """
        sets: dict[str, list[ReplyPair]] = {}
        with contextlib.suppress(DataError):  # no sample has a reply
            sets["held_out"] = reply_pairs(self.splits.test, MOST_PAIRS, CHECK_SEED)
        if "held_out" in sets and "consistent" not in {pair.label for pair in sets["held_out"]}:
            every = (*self.splits.test, *self.splits.validation, *self.splits.train)
            sets = {"easy": unlabelled_pairs(every, MOST_PAIRS, CHECK_SEED)}
        if self.config.data.labelled_pairs:
            pairs = read_pairs(self.config.data.labelled_pairs)
            sets["labelled_pairs"] = random.Random(CHECK_SEED).sample(pairs, min(MOST_PAIRS, len(pairs)))
        for name, pool in self.pools.items():
            if self.config.pools[name].role == "grader":
                continue  # has no labels for a pair
            found = {kind: await check_scorer(pool.ask, pairs) for kind, pairs in sets.items()}
            self.checks[name] = {kind: check for kind, check in found.items() if check is not None}
            if not self.checks[name]:
                self.note(f"{name}: no AUC; it takes scores of both consistent and inconsistent pairs")
            for kind, check in self.checks[name].items():
                self._judge_auc(name, kind, check)
        await self._check_contrasts()

    def _judge_auc(self, name: str, kind: str, check: ScorerCheck) -> None:
        model = self.config.pools[name].model
        line = f"{name}: AUC {check.auc:.2f} on {check.n} {SETS[kind]} (word overlap {check.word_overlap_auc:.2f})"
        self.note(line)
        if not check.is_at_chance or model == RANDOM_MODEL:
            return
        problem = f"scorer check: pool {name!r} ({model}) is no better than chance: {line.partition(': ')[2]}"
        if not self.config.scorers.accept_chance:
            raise UnreliableScorer(
                f"{problem}; the policy would learn noise. Give the pool another model or an endpoint "
                f"(pools.{name}.type=openai pools.{name}.endpoint=URL), fine-tune it (pools.{name}.finetune), or "
                "accept it with scorers.accept_chance=true"
            )
        self.note(f"WARNING: {problem}")

    async def _check_contrasts(self) -> None:
        drawn = self._drawn(self.splits.test)
        asks = self._asks()
        if not drawn or not asks:
            return
        self.gates = await gates(asks, drawn, self._cascade)
        for role, found in self.gates.items():
            for line in found.lines(role):
                self.note(line)
        decisive = self.gates.get("cascade") or next(iter(self.gates.values()))
        random_models = {self.config.pools[name].model for name in self.config.rewards.scorers.values()} == {
            RANDOM_MODEL
        }
        if decisive.share > self.config.scorers.max_fooled and not random_models:
            self._alarm(
                f"in {decisive.share:.0%} of the contexts a wrong reply beats the right ones, more than "
                f"scorers.max_fooled={self.config.scorers.max_fooled:g}; RL will find it. Give the pools better models "
                "(hamr scorer check shows more)"
            )

    async def of_replies(self, said: Mapping[str, int]) -> dict[str, float]:
        """Return `scorers/*` and `watch/distinct_acts` of the policy's most frequent replies, each of which is tried in
        the contexts of acts that it is not. `said`: reply -> how often.

        Raises:
            UnreliableScorer: one of them wins in more than `scorers.max_fooled` of the contexts and `scorers.on_alarm`
                is `stop`.
        """
        ordered = sorted(said, key=lambda text: -said[text])
        acts = await self._acts_of(ordered[: max(MOST_NAMED, self.config.scorers.replies)])
        found = {"watch/distinct_acts": float(len(set(acts.values()) - {None}))} if acts else {}
        return found | await self._tried(ordered[: self.config.scorers.replies], acts)

    async def _tried(self, replies: Sequence[str], acts: Mapping[str, str | None]) -> dict[str, float]:
        drawn, asks = self._drawn(self.splits.train), self._asks()
        if not replies or not drawn or not asks:
            return {}
        tried = [replace(c, wrong=tuple(Wrong("policy", text) for text in replies)) for c in drawn]
        scores = {role: await ask_all(ask, tried) for role, ask in asks.items()}
        decisive = (
            mixed(self._cascade, scores["reranker"], scores["judge"])
            if len(scores) == 2
            else next(iter(scores.values()))
        )
        own = acts or {text: self._liked_by(text, tried, decisive) for text in replies}
        judged = [replace(c, wrong=tuple(w for w in c.wrong if own[w.text] not in c.accepted)) for c in tried]
        found = gate(judged, decisive)
        fooled = found.share > self.config.scorers.max_fooled
        if fooled:
            for line in found.lines("cascade" if len(scores) == 2 else next(iter(scores))):
                self.note(line)
            self._alarm("the policy's own replies beat the right ones where they are wrong")
        return {"scorers/fooled_frac": found.share, "alarm/scorers_fooled": float(fooled)}

    async def _acts_of(self, replies: Sequence[str]) -> dict[str, str | None]:
        """Reply -> its act by the rule for exact acts, or the nearest reference's cluster; empty without either."""
        if self.truth is not None:
            return {text: self.truth.act_of(Reply(content=text)) for text in replies}
        if self.clusters is None or not replies:
            return {}
        vectors = await asyncio.to_thread(self.embed, replies)
        return dict(zip(replies, self.clusters.nearest(vectors), strict=True))

    def _liked_by(self, text: str, tried: Sequence[Contrast], scores: Mapping[tuple[int, str], float]) -> str | None:
        """The declared cluster whose references the scorers like best beside the reply."""
        by_cluster: dict[str, list[float]] = {}
        for number, contrast in enumerate(tried):
            if (number, text) in scores:
                by_cluster.setdefault(contrast.cluster, []).append(scores[number, text])
        return max(by_cluster, key=lambda name: sum(by_cluster[name]) / len(by_cluster[name]), default=None)

    def _alarm(self, problem: str) -> None:
        if self.config.scorers.on_alarm == "stop":
            raise UnreliableScorer(f"scorer check: {problem}. scorers.on_alarm=warn goes on all the same")
        self.note(f"WARNING: scorer check: {problem}")

    def _drawn(self, samples: Sequence[ServiceSample]) -> list[Contrast]:
        with contextlib.suppress(DataError):  # fewer than two acts or clusters
            return contrasts(samples, self.config.scorers.contexts, CHECK_SEED)
        return []

    def _asks(self) -> dict[str, Ask]:
        return {role: self.pools[name].ask for role, name in self.config.rewards.scorers.items() if name in self.pools}

    @property
    def _cascade(self) -> Cascade:
        return Cascade.from_config(self.config.rewards.consistency.cascade)
