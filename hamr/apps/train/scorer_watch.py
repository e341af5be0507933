"""Scorer checks of a run: at the start on pairs and contrasts, during RL on the policy's replies."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from hamr.apps.scorer.gate import MARGIN, UNANSWERED, GateResult, ask_decisive, gate, gates, reaching_scorers
from hamr.apps.scorer.pair_check import ScorerCheck, check_scorer
from hamr.apps.scorer.prepare import TunedScorer
from hamr.apps.shared.reply_clusters import embed_in_child
from hamr.apps.train.scorer_refit import ScoredReply
from hamr.bench.statistics import share_interval
from hamr.calibration.cascade import Cascade
from hamr.config.schema import Config
from hamr.data.contrasts import Contrast, Wrong, contrasts, replies_of
from hamr.data.pairs import ReplyPair, read_pairs, reply_pairs, unlabelled_pairs
from hamr.data.reply_clusters import ReplyClusters
from hamr.data.splits import Splits
from hamr.errors import BadInput, DataError, UnreliableScorer
from hamr.protocols import Ask
from hamr.rewards.truth import ExactAct
from hamr.telemetry.watch import effective_number
from hamr.types import Reply, ServiceSample

CHECK_SEED = 29
RANDOM_MODEL = "tiny"
"""The bundled model with random weights, which tests use, may be at chance."""
MOST_PAIRS = 120
FEWEST_REPLIES = 10
"""Fewest replies to prompts of one act for the share of false accepts, and per expected act for their diversity."""
MOST_NAMED = 500
"""Replies of the policy, the most frequent ones, whose act or cluster is looked for."""
SETS = {"held_out": "held-out pairs", "labelled_pairs": "labelled pairs", "easy": "easy pairs"}


def check_tuned(config: Config, scorers: Mapping[str, TunedScorer]) -> None:
    """Refuse fine-tuned scorers that are no better than chance on held-out pairs, before their pools are started.

    Raises:
        BadInput: one of them is, and `scorers.accept_chance` is false.
    """
    for name in config.rewards.scorers.values():
        tuned, error = (scorers[name].tuned_auc, scorers[name].tuned_error) if name in scorers else (None, None)
        if tuned is None or error is None or config.scorers.accept_chance:
            continue
        if tuned - 2 * error <= 0.5 and (model := config.pools[name].model) != RANDOM_MODEL:
            raise chance_error(name, model, f"AUC {tuned:.2f} ± {error:.2f} after fine-tuning")


def chance_error(name: str, model: str, found: str) -> BadInput:
    """Return the error about a scorer that cannot tell right replies from wrong ones."""
    remedy = (
        f"is no better than chance ({found}), so that the policy would learn noise; give the pool another model or an "
        f"endpoint (pools.{name}.type=openai pools.{name}.endpoint=URL pools.{name}.model=NAME), fine-tune it on more "
        "samples, or accept it with scorers.accept_chance=true"
    )
    return BadInput(f"pools.{name}.model", model, remedy)


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
    pools: Mapping[str, Ask]
    note: Callable[[str], None]
    embed: Callable[[Sequence[str]], NDArray[np.float32]] = embed_in_child
    checks: dict[str, dict[str, ScorerCheck]] = field(default_factory=dict)
    gates: dict[str, GateResult] = field(default_factory=dict)

    async def at_start(self) -> None:
        """Measure every pool that the consistency reward asks on held-out pairs and on the user's own; then whether
        wrong replies beat right ones.

        Where every sample has one reference, the pairs are easy ones that need no labels. Without any reply among the
        references nothing is asked.

        Raises:
            BadInput: a scorer is no better than chance and `scorers.accept_chance` is false.
            UnreliableScorer: wrong replies win in more than `scorers.max_fooled` of the contexts and `scorers.on_alarm`
                is `stop`.
        """
        sets: dict[str, list[ReplyPair]] = {}
        with contextlib.suppress(DataError):  # no sample has a reply
            sets["held_out"] = reply_pairs(self.splits.test, MOST_PAIRS, CHECK_SEED)
        if "held_out" in sets and "consistent" not in {pair.label for pair in sets["held_out"]}:
            sets = {"easy": unlabelled_pairs(self._every, MOST_PAIRS, CHECK_SEED)}
        if self.config.data.labelled_pairs:
            pairs = read_pairs(self.config.data.labelled_pairs)
            sets["labelled_pairs"] = random.Random(CHECK_SEED).sample(pairs, min(MOST_PAIRS, len(pairs)))
        for name, ask in self.pools.items():
            if self.config.pools[name].role == "grader":
                continue  # has no labels for a pair
            found = {kind: await check_scorer(ask, pairs) for kind, pairs in sets.items()}
            self.checks[name] = {kind: check for kind, check in found.items() if check is not None}
            if not self.checks[name]:
                self.note(f"{name}: no AUC; it takes scores of both consistent and inconsistent pairs")
            for kind, check in self.checks[name].items():
                self._judge_auc(name, kind, check)
        await self._check_contrasts()

    def _judge_auc(self, name: str, kind: str, check: ScorerCheck) -> None:
        model = self.config.pools[name].model
        pairs = f"{check.n - check.failed} {SETS[kind]}"
        line = f"{name}: AUC {check.auc:.2f} on {pairs} (word overlap {check.word_overlap_auc:.2f})"
        self.note(line)
        if check.failed:
            self.note(f"WARNING: {name}: {check.failed} of {check.n} {SETS[kind]} have no score; {UNANSWERED}")
        if not check.is_at_chance or model == RANDOM_MODEL:
            return
        if not self.config.scorers.accept_chance:
            raise chance_error(name, model, line.partition(": ")[2])
        self.note(f"WARNING: scorer check: pool {name!r} ({model}) is no better than chance")

    async def _check_contrasts(self) -> None:
        asks = self._asks()
        drawn = self._draw(self.splits.test)
        if asks and not drawn and (drawn := self._draw(self._every)):
            self.note("scorer check: the test split has replies of one act; contexts are taken from all splits")
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
        if decisive.unscored and not decisive.contexts:
            self._alarm(f"none of {decisive.unscored} contexts could be scored; {UNANSWERED}")
        if decisive.share > self.config.scorers.max_fooled and not random_models:
            self._alarm(
                f"in {decisive.share:.0%} of the contexts a wrong reply beats the right ones, more than "
                f"scorers.max_fooled={self.config.scorers.max_fooled:g}; RL will find it. Give the pools better models "
                "(hamr scorer check shows more)"
            )

    async def of_replies(self, replies: Sequence[ScoredReply]) -> dict[str, float]:
        """Return `scorers/*`, `watch/*` of acts and `alarm/scorers_fooled` of the policy's replies.

        The most frequent ones are tried in the contexts of acts that they are not. Where the data name their acts, the
        replies' own scores are compared with the truth too.

        Raises:
            UnreliableScorer: a limit is exceeded and `scorers.on_alarm` is `stop`.
        """
        ordered = [text for text, _ in Counter(reply.text for reply in replies).most_common()]
        acts = await self._acts_of(ordered[: max(MOST_NAMED, self.config.scorers.replies)])
        found = {"watch/distinct_acts": float(len(set(acts.values()) - {None}))} if acts else {}
        found |= self._act_diversity(replies, acts)
        found |= self._check_accepted(replies)
        for name, value in (await self._check_replies(ordered[: self.config.scorers.replies], acts)).items():
            found[name] = max(value, found.get(name, 0.0))
        return found

    def _act_diversity(self, replies: Sequence[ScoredReply], acts: Mapping[str, str | None]) -> dict[str, float]:
        """Return `watch/act_diversity`: effective number of acts among the replies, over that of the expected acts.

        Only replies with a known act to prompts with a reply among their references count. A prompt with references of
        several clusters calls for the reply's, if it is one of them, else for each of them in equal parts. Nothing is
        returned for fewer than two expected acts, for fewer replies than FEWEST_REPLIES times the effective number of
        these, or for dialogues, whose later turns call for other acts than the sample.
        """
        if self.config.holds_dialogues:
            return {}
        taken, due = Counter[str](), defaultdict[str, float](float)
        for reply in replies:
            act, accepted = acts.get(reply.text), self._due_acts(reply.sample)
            if act is None or not accepted:
                continue
            taken[act] += 1
            expected = {act} if act in accepted else accepted
            for name in expected:
                due[name] += 1 / len(expected)
        if len(due) < 2 or taken.total() < FEWEST_REPLIES * (wanted := effective_number(due)):
            return {}
        return {"watch/act_diversity": effective_number(taken) / wanted}

    def _due_acts(self, sample: ServiceSample) -> set[str]:
        """Return the acts, or clusters, of the replies among a sample's references."""
        if self.truth is None:
            return set(sample.meta.get("reply_clusters", ()))
        return {str(sample.meta["act"])} if replies_of(sample) else set()

    def _check_accepted(self, replies: Sequence[ScoredReply]) -> dict[str, float]:
        """Return the share of wrong replies that score like right ones, of the expected act in which it is largest. The
        turns of the user's own dialogues have no expected act."""
        if self.truth is None or self.config.rollout.episode is not None:
            return {}
        exact: dict[str, list[tuple[ScoredReply, float, bool]]] = {}
        for reply in replies:
            if reply.score is not None:
                right = self.truth.is_exact(Reply(content=reply.text), reply.sample)
                exact.setdefault(str(reply.sample.meta["act"]), []).append((reply, reply.score, right))
        scores = [score for judged in exact.values() for _, score, right in judged if right]
        if not scores:
            return {}
        accepted = median(scores) - MARGIN
        wrong = {
            act: [(score, reply) for reply, score, right in judged if not right and score >= accepted]
            for act, judged in exact.items()
            if len(judged) >= FEWEST_REPLIES
        }
        shares = {act: len(found) / len(exact[act]) for act, found in wrong.items()}
        worst = max(shares, key=lambda act: shares[act], default=None)
        if worst is None:
            return {}
        fooled = [act for act in shares if self._exceeds_limit(len(wrong[act]), len(exact[act]))]
        if fooled:
            act = max(fooled, key=lambda act: shares[act])
            score, reply = max(wrong[act], key=lambda each: each[0])
            self._alarm(
                f"{shares[act]:.0%} of the replies where {act} is due are wrong and score like right ones, e.g. "
                f"{reply.text!r} with {score:.2f}"
            )
        return {"scorers/false_accept_frac": shares[worst], "alarm/scorers_fooled": float(bool(fooled))}

    async def _check_replies(self, replies: Sequence[str], acts: Mapping[str, str | None]) -> dict[str, float]:
        drawn, asks = self._draw(self.splits.train), self._asks()
        if not replies or not drawn or not asks:
            return {}
        tried = self._reaching_scorers([replace(c, wrong=tuple(Wrong("policy", t) for t in replies)) for c in drawn])
        decisive = await ask_decisive(asks, tried, self._cascade)
        own = acts or {text: self._liked_by(text, tried, decisive) for text in replies}
        judged = [replace(c, wrong=tuple(w for w in c.wrong if own[w.text] not in c.accepted)) for c in tried]
        found = gate(judged, decisive)
        if found.unscored:
            self.note(
                f"scorer check: {found.unscored} of {found.unscored + found.contexts} contexts have unscored replies"
            )
        fooled = self._exceeds_limit(len(found.fooled), found.contexts)
        if fooled:
            for line in found.lines("cascade" if len(asks) == 2 else next(iter(asks))):
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
        """The declared cluster whose references get the highest scores with the reply."""
        by_cluster: dict[str, list[float]] = {}
        for number, contrast in enumerate(tried):
            if (number, text) in scores:
                by_cluster.setdefault(contrast.cluster, []).append(scores[number, text])
        return max(by_cluster, key=lambda name: sum(by_cluster[name]) / len(by_cluster[name]), default=None)

    def _exceeds_limit(self, wrong: int, tried: int) -> bool:
        """Return whether a share is above `scorers.max_fooled` with its whole 95 % interval: RL checks it often."""
        low = share_interval([i < wrong for i in range(tried)]).low
        return low is not None and low > self.config.scorers.max_fooled

    def _alarm(self, problem: str) -> None:
        if self.config.scorers.on_alarm == "stop":
            raise UnreliableScorer(f"scorer check: {problem}; use scorers.on_alarm=warn to continue despite alarms")
        self.note(f"WARNING: scorer check: {problem}")

    def _draw(self, samples: Sequence[ServiceSample]) -> list[Contrast]:
        with contextlib.suppress(DataError):  # fewer than two acts or clusters
            return self._reaching_scorers(contrasts(samples, self.config.scorers.contexts, CHECK_SEED))
        return []

    def _reaching_scorers(self, drawn: Sequence[Contrast]) -> list[Contrast]:
        return reaching_scorers(drawn, self.config.rewards.consistency)

    @property
    def _every(self) -> tuple[ServiceSample, ...]:
        return (*self.splits.test, *self.splits.validation, *self.splits.train)

    def _asks(self) -> dict[str, Ask]:
        return {role: self.pools[name] for role, name in self.config.rewards.scorers.items() if name in self.pools}

    @property
    def _cascade(self) -> Cascade:
        return Cascade.from_config(self.config.rewards.consistency.cascade)
