"""Contrasts: for one reference, replies that say the same in other words, and replies that are wrong in known ways.

What a policy under optimisation finds is the best of its wrong replies, so scorers learn from contrasts and are checked
by them: the best wrong reply of a contrast should not outscore its right ones.

| kind       | the wrong reply                                             |
|------------|-------------------------------------------------------------|
| `act`      | does something else: a reference of another act or cluster  |
| `fact`     | names another number, price or product                      |
| `negation` | says the opposite                                           |
| `courtesy` | fits anywhere: thanks, a greeting, a goodbye                |
| `fragment` | some words of the reference in a row, and no more           |
| `shuffled` | words of the reference out of order                         |
| `repeated` | says some words of a right reply twice                      |
| `off_topic`| has nothing to do with the request                          |
| `policy`   | what a policy says where something else is due              |
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

from hamr.config.safe_yaml import load_yaml
from hamr.data.language import language_of
from hamr.data.rendering import dialogue_text
from hamr.data.samples import act_of
from hamr.data.words import REPEATED, plain, repetitions
from hamr.errors import DataError
from hamr.procedures.acts import Context, SageActs
from hamr.procedures.words import Split
from hamr.types import Reply, ServiceSample

ContrastKind = Literal["act", "fact", "negation", "courtesy", "fragment", "shuffled", "repeated", "off_topic", "policy"]
_ACTS_PER_CONTRAST = 3
_FACTS = 2
_NUMBER = re.compile(r"\d+")
_AUXILIARY = re.compile(
    r"\b(can|could|will|would|should|is|are|was|were|am|do|does|did|has|have|may|must)\b(?!'t| not)", re.I
)
_CHINESE_NEGATED = (("可以", "不可以"), ("能", "不能"), ("会", "不会"), ("是", "不是"), ("有", "没有"))
_CONTENT: Mapping[str, Mapping[str, Mapping[Split, Sequence[str]]]] = load_yaml(
    Path(__file__).with_name("stray.yaml").read_text(encoding="utf-8")
)
STRAY, COURTESIES = _CONTENT["stray"], _CONTENT["courtesies"]
"""Replies that fit nowhere, and nearly everywhere, by language and split."""
OPENINGS = {"en": "Certainly. ", "zh": "好的。"}
COMMON_COURTESIES = {
    "en": ("Thank you, have a nice day. Goodbye!", "How can I help you?", "Sorry, I did not understand that."),
    "zh": ("感谢您的来电，再见！", "请问有什么可以帮您？", "抱歉，我没有听懂。"),
}


class Wrong(NamedTuple):
    """`act`: what the reply does instead, where it is another act."""

    kind: ContrastKind
    text: str
    act: str = ""


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """`cluster`: the act that is due, or the name of a cluster of replies. `accepted`: all that are right here."""

    cluster: str
    accepted: frozenset[str]
    history: str
    reference: str
    right: tuple[str, ...]
    partial: tuple[str, ...] = ()
    wrong: tuple[Wrong, ...]


def contrasts(samples: Sequence[ServiceSample], n: int, seed: int) -> list[Contrast]:
    """Return `n` contrasts, the same for the same arguments, every act or cluster in turn.

    Samples of a shipped scenario are worded at will. Of others only their own references are known to be right: where a
    sample has one, the right reply is that one after a polite opening.

    Raises:
        DataError: fewer than two acts or clusters have a reply among their references.
    """
    rng = Random(f"contrasts/{seed}")
    source = _source(samples)
    clusters = source.clusters
    if len(clusters) < 2:
        remedy = "replies of one act or cluster cannot be distinguished from others; give samples of at least two"
        raise DataError("contrasts", len(clusters), remedy)
    names = sorted(clusters)
    return [
        source.contrast(rng.choice(clusters[name]), name, rng) for name in itertools.islice(itertools.cycle(names), n)
    ]


def group_by_cluster(samples: Sequence[ServiceSample]) -> dict[str, list[ServiceSample]]:
    """Return the samples that have a reply, by their acts or clusters."""
    return _source(samples).clusters


def replies_of(sample: ServiceSample) -> list[str]:
    return [r.action.content for r in sample.references if isinstance(r.action, Reply)]


def _source(samples: Sequence[ServiceSample]) -> _Generated | _Logged:
    with_replies = [sample for sample in samples if replies_of(sample)]
    generated = [sample for sample in with_replies if SageActs.of(sample) is not None]
    return _Generated(generated) if generated else _Logged(with_replies)


class _Generated:
    """Samples of shipped scenarios, whose acts can be worded at will."""

    def __init__(self, samples: Sequence[ServiceSample]) -> None:
        self.clusters: dict[str, list[ServiceSample]] = {}
        for sample in samples:
            self.clusters.setdefault(act_of(sample), []).append(sample)

    def contrast(self, sample: ServiceSample, cluster: str, rng: Random) -> Contrast:
        return generated_contrast(sample, rng)


def generated_contrast(sample: ServiceSample, rng: Random) -> Contrast:
    """Return a contrast for a reply sample of a shipped scenario, in the wordings of the sample's split."""
    acts = SageActs.of(sample)
    assert acts is not None, "the sample's meta names a shipped scenario"
    act, context = act_of(sample), Context.of(sample)
    reference = rng.choice(replies_of(sample))
    right = acts.right(act, context)
    return Contrast(
        cluster=act,
        accepted=frozenset({act}),
        history=dialogue_text(sample),
        reference=reference,
        right=tuple(text for text in right if text != reference),
        partial=tuple(acts.related_wordings(act, context, "partial")),
        wrong=tuple(_wrong_replies(acts, act, context, reference, right, rng)),
    )


def _wrong_replies(
    acts: SageActs, act: str, context: Context, reference: str, right: Collection[str], rng: Random
) -> Iterator[Wrong]:
    own, split = acts.complete(context, rng), context.split
    language = language_of(reference)
    for other in acts.names(split):
        # This context's facts or others, so that neither shared facts nor their absence tells that replies agree.
        texts = acts.right(other, own if rng.random() < 0.5 else acts.elsewhere(own, rng))
        if other != act and texts:
            yield Wrong("act", rng.choice(texts), other)
    for text in itertools.islice(_wrong_facts(acts, act, context, reference, right, rng), _FACTS):
        yield Wrong("fact", text)
    opposites = acts.related_wordings(act, context, "negated") or [t for t in [negate(reference)] if t is not None]
    if opposites:
        yield Wrong("negation", rng.choice(opposites))
    action = acts.scenario.file.actions.get(act)
    if action is None or not action.reply:  # a reply that closes a dialogue is a courtesy itself
        yield Wrong("courtesy", rng.choice(COURTESIES[language][split]))
    yield Wrong("fragment", fragment(reference, rng))
    yield Wrong("shuffled", shuffle_words(reference, rng))
    yield from _repeating_reply(right, reference)
    yield Wrong("off_topic", off_topic(split, rng, language))


def _wrong_facts(
    acts: SageActs, act: str, context: Context, reference: str, right: Collection[str], rng: Random
) -> Iterator[str]:
    """The act with other facts, half of them in the reference's very words, so that the fact alone is wrong."""
    names = list(acts.scenario.file.catalogue)
    for _ in range(2 * _FACTS):
        changed: str | None
        if rng.random() < 0.5:
            changed = other_name(reference, names, rng)
            if (changed is None or rng.random() < 0.5) and _NUMBER.search(reference):
                changed = other_number(reference, rng)
        else:
            texts = acts.right(act, acts.elsewhere(context, rng))
            changed = rng.choice(texts) if texts else None
        if changed is not None and changed not in right and changed != reference:
            yield changed


class _Logged:
    """Samples of any origin. Replies of two clusters are wrong for each other; replies of one cluster from two samples
    may be right or wrong for each other, and count as neither."""

    def __init__(self, samples: Sequence[ServiceSample]) -> None:
        self._accept = clusters_of(samples)
        self.clusters: dict[str, list[ServiceSample]] = {}
        roots = _roots(samples)
        for sample in samples:
            for name in dict.fromkeys(sample.meta.get("reply_clusters") or (roots[sample.id],)):
                self.clusters.setdefault(name, []).append(sample)

    def contrast(self, sample: ServiceSample, cluster: str, rng: Random) -> Contrast:
        own = replies_of(sample)
        names = sample.meta.get("reply_clusters") or [cluster] * len(own)
        reference = rng.choice([text for text, name in zip(own, names, strict=True) if name == cluster])
        opening = OPENINGS[language_of(reference)]
        right = tuple(text for text in dict.fromkeys(own) if text != reference)
        return Contrast(
            cluster=_cluster_name(sample, cluster),
            accepted=self._accept[sample.id],
            history=dialogue_text(sample),
            reference=reference,
            right=right or (opening + reference,),
            wrong=tuple(self._wrong(sample, reference, rng)),
        )

    def _wrong(self, sample: ServiceSample, reference: str, rng: Random) -> Iterator[Wrong]:
        accepted = self._accept[sample.id]
        others = [name for name in self.clusters if name not in accepted]
        for name in rng.sample(others, min(_ACTS_PER_CONTRAST, len(others))):
            elsewhere = [other for other in self.clusters[name] if accepted.isdisjoint(self._accept[other.id])]
            if elsewhere:
                other = rng.choice(elsewhere)
                yield Wrong("act", rng.choice(replies_of(other)), _cluster_name(other, name))
        if _NUMBER.search(reference):
            yield Wrong("fact", other_number(reference, rng))
        if (opposite := negate(reference)) is not None:
            yield Wrong("negation", opposite)
        alike = {other.id: other for name in accepted for other in self.clusters.get(name, ())}
        known = {plain(text) for other in alike.values() for text in replies_of(other)}
        courtesies = [t for t in COMMON_COURTESIES[language_of(reference)] if plain(t) not in known]
        if courtesies:
            yield Wrong("courtesy", rng.choice(courtesies))
        yield Wrong("fragment", fragment(reference, rng))
        yield Wrong("shuffled", shuffle_words(reference, rng))
        yield from _repeating_reply([reference], reference)


def clusters_of(samples: Sequence[ServiceSample]) -> dict[str, frozenset[str]]:
    """Sample id -> names of what it asks for. Two samples without a common name ask for different things.

    The names are the root of a union-find over declared acts or clusters and shared references, the acts and clusters
    that samples of this root declare, and the clusters of the sample's replies by meaning, where
    `meta["reply_clusters"]` has them. These are not joined over samples: a sample with references of two meanings would
    make one cluster of both.
    """
    roots = _roots(samples)
    declared: dict[str, set[str]] = {}
    for sample in samples:
        names = {str(sample.meta[name]) for name in ("act", "cluster") if name in sample.meta}
        declared.setdefault(roots[sample.id], set()).update(names)
    return {s.id: frozenset((roots[s.id], *declared[roots[s.id]], *s.meta.get("reply_clusters", ()))) for s in samples}


def _cluster_name(sample: ServiceSample, name: str) -> str:
    """Return the act or cluster that a sample of the cluster `name` declares; `name` if it is a cluster by meaning."""
    if "reply_clusters" in sample.meta:
        return name
    return str(sample.meta.get("act", sample.meta.get("cluster", name)))


def _roots(samples: Sequence[ServiceSample]) -> dict[str, str]:
    """Sample id -> root of the samples that are joined by a declared act, a declared cluster or a shared reference."""
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        parent.setdefault(key, key)
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for sample in samples:
        keys = [f"reference {plain(reply)}" for reply in replies_of(sample)]
        keys += [f"{name} {sample.meta[name]}" for name in ("act", "cluster") if name in sample.meta]
        for key in keys:
            parent[root(key)] = root(f"sample {sample.id}")
    return {sample.id: root(f"sample {sample.id}") for sample in samples}


def off_topic(split: Split, rng: Random, language: str) -> str:
    """Return a sentence that is unrelated to the request, sometimes repeated, as by a degenerate model."""
    return " ".join([rng.choice(STRAY[language][split])] * rng.choice((1, 1, 2, 4)))


def other_name(text: str, names: Sequence[str], rng: Random) -> str | None:
    """Return the text with one of the names in it replaced by another of them, or None where it has none.

    >>> other_name("Take Surf 40GB.", ["Surf 40GB", "Talk 600min"], Random(0))
    'Take Talk 600min.'
    """
    found = [name for name in names if name in text]
    others = [name for name in names if name not in text]
    return text.replace(rng.choice(found), rng.choice(others)) if found and others else None


def fragment(text: str, rng: Random) -> str:
    """At most half of the text's words, in a row; of a text without spaces, of its characters."""
    words, space = _units(text)
    size = rng.randint(1, max(1, len(words) // 2))
    start = rng.randint(0, len(words) - size)
    return space.join(words[start : start + size])


def shuffle_words(text: str, rng: Random) -> str:
    """At most half of the text's words, in random order."""
    words, space = _units(text)
    rng.shuffle(words)
    return space.join(words[: rng.randint(1, max(1, len(words) // 2))])


def _repeating_reply(right: Collection[str], reference: str) -> Iterator[Wrong]:
    rng = Random(f"repeated/{reference}")  # of its own, so that the other replies stay those of earlier versions
    twice = repeat_words(rng.choice([*right]), rng)
    if twice is not None and repetitions(twice):
        yield Wrong("repeated", twice)


def repeat_words(text: str, rng: Random) -> str | None:
    """The text up to a point, and then some of the words before it again: three or more, or six Chinese characters.

    Half of the time they replace the rest of the text, and where a word occurs twice, they are half of the time those
    after its first occurrence, as when a language model falls into a loop. None for a text that is too short.

    >>> repeat_words("Do you use more data, or do you call more?", Random(13))
    'Do you use more data, or do you use more data?'
    """
    chinese = language_of(text) == "zh"
    words, space, fewest = (list(text), "", 2 * REPEATED) if chinese else (text.split(), " ", REPEATED)
    if len(words) < fewest:
        return None
    loops = [
        (first + 1, second + 1)
        for first, second in itertools.combinations(range(len(words)), 2)
        if words[first].lower() == words[second].lower() and second - first >= fewest
    ]
    if loops and rng.random() < 0.5:
        start, end = rng.choice(loops)
    else:
        end = rng.randint(fewest, len(words))
        start = rng.randint(0, end - fewest)
    again = words[start : rng.randint(start + fewest, end)]
    if rng.random() < 0.5:
        return space.join([*words[:end], *again, *words[end:]])
    return space.join([*words[:end], *again]).rstrip(",.?!，。？！") + text[len(text.rstrip(".?!。？！")) :]


def _units(text: str) -> tuple[list[str], str]:
    words = text.split()
    return (words, " ") if len(words) > 2 else (list(text), "")


def other_number(text: str, rng: Random) -> str:
    """The text with one of its numbers replaced by another with as many digits.

    >>> other_number("That is $9.", Random(0)) != "That is $9."
    True
    """
    found = rng.choice(list(_NUMBER.finditer(text)))
    low = 10 ** (len(found[0]) - 1)
    number = str(low + (int(found[0]) - low + rng.randint(1, 9 * low - 1)) % (9 * low))
    return text[: found.start()] + number + text[found.end() :]


def negate(text: str) -> str | None:
    """The text with its first auxiliary verb negated, or None where it has none.

    >>> negate("You can return it."), negate("Goodbye!")
    ('You can not return it.', None)
    """
    if language_of(text) == "zh":
        return next((text.replace(word, other, 1) for word, other in _CHINESE_NEGATED if word in text), None)
    found = _AUXILIARY.search(text)
    return None if found is None else f"{text[: found.end()]} not{text[found.end() :]}"
