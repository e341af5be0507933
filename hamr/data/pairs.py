"""Labelled pairs of replies: what scorers are trained on and checked with.

`statement_a` is always an acceptable reply, `statement_b` is to be judged against it:
consistent: the same act with the same facts, mostly in other words (one in eight word for word, so that closeness
in wording is not a sign of inconsistency); partial: a detail is missing or too much; inconsistent: another act,
another fact, the opposite, or no sensible reply.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator

from hamr.data.contrasts import (
    COMMON_COURTESIES,
    OPENINGS,
    Contrast,
    ContrastKind,
    clusters_of,
    generated_contrast,
    replies_of,
)
from hamr.data.language import language_of
from hamr.data.rendering import dialogue_text, turns_text
from hamr.data.samples import history_from_json, read_rows
from hamr.data.shapes import NonEmptyText, Shape, check_shape
from hamr.data.words import facts, plain
from hamr.errors import DataError
from hamr.procedures.acts import SageActs
from hamr.types import ServiceSample

PairLabel = Literal["consistent", "partial", "inconsistent"]
LABELS: tuple[PairLabel, ...] = get_args(PairLabel)
_TRIES = 20
_VERBATIM = 1 / 8
_SHARES: Mapping[ContrastKind, int] = {
    "act": 4, "fact": 3, "negation": 2, "courtesy": 2, "fragment": 1, "shuffled": 1, "off_topic": 2,
}  # fmt: skip
"""Relative frequency of each kind of wrong reply. Other acts replace a kind that a contrast lacks."""
_WHY: Mapping[ContrastKind, str] = {
    "negation": "the opposite",
    "courtesy": "courtesy",
    "fragment": "a fragment",
    "shuffled": "nonsense",
    "off_topic": "off the point",
}
_PER_REFERENCE = 6
"""Generated pairs in a row that share a reference: each label twice. A scorer's training computes it once for all."""


@dataclass(frozen=True, kw_only=True)
class ReplyPair:
    """Two replies to one history. `thought`: a judge's reasoning in at most 16 words, "" if there is none."""

    history: str
    statement_a: str
    statement_b: str
    label: PairLabel
    thought: str = ""


def reply_pairs(samples: Sequence[ServiceSample], n: int, seed: int) -> list[ReplyPair]:
    """At most `n` different pairs, the same for the same arguments, the labels in turn.

    Samples of a shipped scenario give the labels that its wordings allow, at best all three. Others give `consistent`
    (two references of one sample) and `inconsistent` (a reference of a sample that asks for something else), where
    there are such. Decision points whose references are tool calls are passed over: no scorer is ever asked about them.
    Raises DataError when no sample has a reply to start from.
    """
    rng = Random(f"pairs/{seed}")
    sources: list[_Generated | _Logged] = []
    with_replies = [s for s in samples if replies_of(s)]
    generated = [s for s in with_replies if SageActs.of(s) is not None]
    logged = [s for s in with_replies if SageActs.of(s) is None]
    if generated:
        sources.append(_Generated(generated, rng))
    if logged:
        sources.append(_Logged(logged, rng))
    if not sources:
        raise DataError("pairs", len(samples), "no sample has a reply among its references; give some that have")
    weights = [len(source.samples) for source in sources]
    pairs: dict[ReplyPair, None] = {}
    for _ in range(n):
        source = rng.choices(sources, weights)[0]
        pair = next((p for i in range(_TRIES) if (p := source.draw(i)) is not None and p not in pairs), None)
        source.turn()
        if pair is not None:
            pairs[pair] = None
    return list(pairs)


def unlabelled_pairs(samples: Sequence[ServiceSample], n: int, seed: int) -> list[ReplyPair]:
    """Return up to `n` easy pairs from samples with one reference each, half of each label.

    `consistent`: a reference after a polite opening. `inconsistent`: another cluster's reference, or a courtesy that
    fits anywhere. A scorer that cannot order these carries no signal; one that can may still be poor.
    """
    rng = Random(f"unlabelled pairs/{seed}")
    with_replies = [sample for sample in samples if replies_of(sample)]
    cluster = clusters_of(with_replies)
    pairs: dict[ReplyPair, None] = {}
    for sample in rng.sample(with_replies, min(n // 2, len(with_replies))):
        reference, other = rng.choice(replies_of(sample)), rng.choice(with_replies)
        language = language_of(reference)
        courtesies = [text for text in COMMON_COURTESIES[language] if plain(text) != plain(reference)]
        wrong = replies_of(other) if cluster[other.id].isdisjoint(cluster[sample.id]) else courtesies
        for text, label in ((OPENINGS[language] + reference, "consistent"), (rng.choice(wrong), "inconsistent")):
            pair = ReplyPair(
                history=dialogue_text(sample), statement_a=reference, statement_b=text, label=cast(PairLabel, label)
            )
            pairs[pair] = None
    return list(pairs)


class _Generated:
    """Pairs from samples of shipped scenarios, whose acts can be worded at will."""

    def __init__(self, samples: list[ServiceSample], rng: Random) -> None:
        self.samples, self.rng = samples, rng
        self.labels: Iterator[PairLabel] = itertools.cycle(LABELS)
        self.turns = 0
        self.turn()

    def turn(self) -> None:
        self.label = next(self.labels)
        if self.turns % _PER_REFERENCE == 0:
            self._take_contrast()
        self.turns += 1

    def _take_contrast(self) -> None:
        self.contrast = generated_contrast(self.rng.choice(self.samples), self.rng)

    def draw(self, tried: int) -> ReplyPair | None:
        if tried >= _TRIES // 2:
            self._take_contrast()
        found = self._draw_reply(self.contrast)
        if found is None:
            return None
        text, gist = found
        own = _gist(self.contrast.cluster, self.contrast.reference)
        return ReplyPair(
            history=self.contrast.history,
            statement_a=self.contrast.reference,
            statement_b=text,
            label=self.label,
            thought=f"A: {own}; B: {gist}.",
        )

    def _draw_reply(self, contrast: Contrast) -> tuple[str, str] | None:
        """(reply of the label, what it says in few words), or None where the contrast has no such reply."""
        own = _gist(contrast.cluster, contrast.reference)
        if self.label == "consistent":
            verbatim = self.rng.random() < _VERBATIM or not contrast.right
            return contrast.reference if verbatim else self.rng.choice(contrast.right), own
        if self.label == "partial":
            return (self.rng.choice(contrast.partial), f"partly {own}") if contrast.partial else None
        kind = self.rng.choices(list(_SHARES), list(_SHARES.values()))[0]
        wrong = [w for w in contrast.wrong if w.kind == kind] or [w for w in contrast.wrong if w.kind == "act"]
        if not wrong:
            return None
        drawn = self.rng.choice(wrong)
        return drawn.text, _WHY.get(drawn.kind) or _gist(drawn.act or contrast.cluster, drawn.text)


def _gist(act: str, text: str) -> str:
    """An act and its facts in the fewest words: a judge's reasoning is the most expensive part of its answer.

    >>> _gist("ask EmotionTag", "There is a penalty of 30.")
    'ask EmotionTag 30'
    """
    return " ".join([act, *sorted(facts(text))])


class _Logged:
    """Pairs from samples of any origin: only their own references are known to be acceptable.

    Two samples ask for the same thing when their `meta["cluster"]` is the same, when they share a reference, directly
    or through others, or when replies of both are in one cluster by meaning; only replies from elsewhere count as
    inconsistent.
    """

    def __init__(self, samples: list[ServiceSample], rng: Random) -> None:
        self.samples, self.rng = samples, rng
        self.cluster = clusters_of(samples)
        self.labels: Iterator[PairLabel] = itertools.cycle(("consistent", "inconsistent"))
        self.turn()

    def turn(self) -> None:
        self.label = next(self.labels)

    def draw(self, tried: int) -> ReplyPair | None:
        sample = self.rng.choice(self.samples)
        replies = replies_of(sample)
        first = self.rng.choice(replies)
        if self.label == "consistent":
            others = [reply for reply in replies if plain(reply) != plain(first)]
            thought = "B says the same as A."
        else:
            other = self.rng.choice(self.samples)
            others = replies_of(other) if self.cluster[other.id].isdisjoint(self.cluster[sample.id]) else []
            thought = "B says something else than A."
        if not others:
            return None
        return ReplyPair(
            history=dialogue_text(sample),
            statement_a=first,
            statement_b=self.rng.choice(others),
            label=self.label,
            thought=thought,
        )


def _label_of(value: Any) -> Any:
    """Return the label that a number stands for, any other value as it is."""
    numbers: Mapping[float, PairLabel] = {1.0: "consistent", 0.5: "partial", 0.0: "inconsistent"}
    return numbers.get(value, value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class _PairRow(Shape):
    content_A: NonEmptyText
    content_B: NonEmptyText
    label: Annotated[PairLabel, BeforeValidator(_label_of)]


def read_pairs(path: str | Path) -> list[ReplyPair]:
    """Return the labelled pairs of a JSONL of {"content_A", "content_B", "label"}, and "history" if there is one.

    The history has turns as in a sample. A label is "consistent", "partial" or "inconsistent", or the number 1, 0.5 or
    0. Raises DataError at `file:line: field`.
    """
    pairs = []
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        pair = check_shape(_PairRow, row, where)
        history = turns_text(history_from_json(row.get("history", []), where=where))
        pairs.append(
            ReplyPair(history=history, statement_a=pair.content_A, statement_b=pair.content_B, label=pair.label)
        )
    return pairs
