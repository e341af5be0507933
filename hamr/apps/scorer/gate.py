"""Gate before RL: in how many contexts does the best wrong reply outscore the median right one?

Mean AUC does not show this. A scorer that is right about nine pairs in ten may give one courtesy a high score in every
context, which is enough for a policy to exploit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from hamr.calibration.cascade import Cascade
from hamr.config.rewards import ConsistencyConfig
from hamr.data.contrasts import Contrast
from hamr.protocols import Ask
from hamr.rewards.matching import repeats_itself
from hamr.types import Question

MARGIN = 0.25
BOTH = "both"
"""Contexts in which the same wrong reply beats the right ones with both scorers, so that no cascade can help."""
UNANSWERED = "see why with `hamr score` on a few responses, which names the failure of every answer"
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Fooled:
    """A context in which a wrong reply won. `score` is that reply's, `right` the median of the right ones.

    `context` is the number of the contrast.
    """

    context: int
    cluster: str
    reference: str
    kind: str
    sentence: str
    score: float
    right: float


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """One scorer's result. `contexts` are those in which it scored a right and every wrong reply, `unscored` the others
    that have right and wrong replies.

    `close`: in how many of them the best wrong reply is above the median right one or less than MARGIN below it. Where
    no response of a group is right, such a reply is learned. `acts`: expected act -> act of a wrong reply -> for each
    such reply, whether it outscores the median right one.
    """

    contexts: int
    close: int
    fooled: tuple[Fooled, ...]
    unscored: int = 0
    acts: Mapping[str, Mapping[str, Sequence[bool]]] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Return the share of contexts in which the best wrong reply outscores the median right one; 0 of none."""
        return len(self.fooled) / self.contexts if self.contexts else 0.0

    def lines(self, name: str) -> list[str]:
        """Return one line of result and one for each of the worst offending sentences."""
        lines = [
            f"{name}: {'the same' if name == BOTH else 'the best'} wrong reply outscores the median right one in "
            f"{len(self.fooled)} of {self.contexts} contexts ({self.share:.1%}), and is close to it in {self.close}"
        ]
        if self.unscored:
            lines.append(f"  WARNING: {self.unscored} contexts do not count: the scorer has not answered about a reply")
        often = Counter((f.kind, f.sentence) for f in self.fooled)
        worst = {(f.kind, f.sentence): f for f in sorted(self.fooled, key=lambda f: f.score - f.right)}
        for (kind, sentence), times in often.most_common(_SHOWN):
            f = worst[kind, sentence]
            lines.append(
                f"  {kind}, {times}x: {sentence!r} has {f.score:.2f} where {f.cluster} is due, e.g. "
                f"{f.reference!r}; the right replies' median is {f.right:.2f}"
            )
        return lines

    def as_dict(self) -> dict[str, object]:
        return {
            "contexts": self.contexts,
            "unscored": self.unscored,
            "fooled": len(self.fooled),
            "close": self.close,
            "share": self.share,
            "sentences": [vars(f) for f in self.fooled],
            "acts": {
                due: {act: {"contexts": len(won), "share": fmean(won)} for act, won in acts.items()}
                for due, acts in sorted(self.acts.items())
            },
        }


Scores = Mapping[tuple[int, str], float]
"""(number of the contrast, reply) -> score."""


async def ask_all(
    ask: Ask, contrasts: Sequence[Contrast], wanted: Callable[[tuple[int, str]], bool] = lambda _: True
) -> dict[tuple[int, str], float]:
    """Return the scorer's answer about every wanted reply of every contrast; replies without a score are left out.

    The pool's client limits the number of questions under way.
    """

    async def one(number: int, contrast: Contrast, reply: str) -> tuple[tuple[int, str], float | None]:
        variables = {"history": contrast.history, "statement_a": contrast.reference, "statement_b": reply}
        answer = await ask(Question(variables=variables))
        if answer.failure == "unparsable":
            answer = await ask(Question(variables=variables, attempt=1))
        return (number, reply), answer.score

    questions = [
        one(number, contrast, reply)
        for number, contrast in enumerate(contrasts)
        for reply in dict.fromkeys((*contrast.right, *(wrong.text for wrong in contrast.wrong)))
        if wanted((number, reply))
    ]
    return {key: score for key, score in await asyncio.gather(*questions) if score is not None}


async def ask_decisive(asks: Mapping[str, Ask], contrasts: Sequence[Contrast], cascade: Cascade) -> Scores:
    """Return the scores that the reward would use: those of the only role, or the cascade's.

    The judge is asked only about the replies that the cascade would send to it.
    """
    if len(asks) == 1:
        return await ask_all(next(iter(asks.values())), contrasts)
    s_r = await ask_all(asks["reranker"], contrasts)
    s_j = await ask_all(asks["judge"], contrasts, lambda key: key in s_r and cascade.needs_judge(s_r[key]))
    return mix_scores(cascade, s_r, s_j)


def reaching_scorers(contrasts: Sequence[Contrast], rules: ConsistencyConfig) -> list[Contrast]:
    """Return the contrasts without the wrong replies that `repeated_words` of `rules` rejects."""
    size, allowed = rules.repeated_words, rules.allowed_repetitions
    if size is None:
        return list(contrasts)
    return [
        replace(
            c, wrong=tuple(w for w in c.wrong if not repeats_itself(w.text, (c.reference, *c.right), size, allowed))
        )
        for c in contrasts
    ]


def gate(contrasts: Sequence[Contrast], scores: Scores) -> GateResult:
    """Compare the best wrong reply of every contrast with the median of its right ones."""
    fooled, contexts, close, unscored = [], 0, 0, 0
    acts: dict[str, dict[str, list[bool]]] = {}
    for number, contrast in enumerate(contrasts):
        right = [scores[number, text] for text in contrast.right if (number, text) in scores]
        wrong = [(scores[number, w.text], w) for w in contrast.wrong if (number, w.text) in scores]
        if not contrast.right or not contrast.wrong:
            continue
        if not right or len(wrong) < len(contrast.wrong):
            unscored += 1
            continue
        contexts += 1
        for score, reply in wrong:
            if reply.act:
                acts.setdefault(contrast.cluster, {}).setdefault(reply.act, []).append(score > median(right))
        best, reply = max(wrong, key=lambda scored: scored[0])
        close += best > median(right) - MARGIN
        if best > median(right):
            fooled.append(
                Fooled(
                    context=number,
                    cluster=contrast.cluster,
                    reference=contrast.reference,
                    kind=reply.kind,
                    sentence=reply.text,
                    score=best,
                    right=median(right),
                )
            )
    return GateResult(contexts=contexts, close=close, fooled=tuple(fooled), unscored=unscored, acts=acts)


def mix_scores(cascade: Cascade, s_r: Scores, s_j: Scores) -> dict[tuple[int, str], float]:
    """Return the cascade's scores from both scorers' answers."""
    return {
        key: cascade.mix(score, s_j.get(key))
        for key, score in s_r.items()
        if not cascade.needs_judge(score) or key in s_j
    }


async def gates(asks: Mapping[str, Ask], contrasts: Sequence[Contrast], cascade: Cascade) -> dict[str, GateResult]:
    """Return the result of every role in `asks` (`reranker`, `judge`); where there are two, of the cascade and BOTH."""
    answers = await asyncio.gather(*(ask_all(ask, contrasts) for ask in asks.values()))
    scores = dict(zip(asks, answers, strict=True))
    found = {role: gate(contrasts, own) for role, own in scores.items()}
    if {"reranker", "judge"} <= found.keys():
        found["cascade"] = gate(contrasts, mix_scores(cascade, scores["reranker"], scores["judge"]))
        found[BOTH] = gate_of_both(contrasts, scores["reranker"], scores["judge"])
    return found


def gate_of_both(contrasts: Sequence[Contrast], s_r: Scores, s_j: Scores) -> GateResult:
    """Compare by the smaller of a wrong reply's margins over the two scorers' medians of the right ones.

    The shown scores are those of the reranker.
    """
    margins: dict[tuple[int, str], float] = {}
    medians: dict[int, float] = {}
    for number, contrast in enumerate(contrasts):
        rights = [
            [scores[number, text] for text in contrast.right if (number, text) in scores] for scores in (s_r, s_j)
        ]
        if all(rights):
            medians[number], other = map(median, rights)
            margins |= {(number, text): 0.0 for text in contrast.right}
            for key in ((number, wrong.text) for wrong in contrast.wrong):
                if key in s_r and key in s_j:
                    margins[key] = min(s_r[key] - medians[number], s_j[key] - other)
    found = gate(contrasts, margins)
    fooled = (replace(f, score=s_r[f.context, f.sentence], right=medians[f.context]) for f in found.fooled)
    return replace(found, fooled=tuple(fooled), acts={})
