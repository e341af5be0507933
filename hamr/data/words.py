"""Words of a text: plain, without its facts, and those that it says twice."""

from __future__ import annotations

import re
from collections import Counter

from hamr.data.facts import FACT, HAN

REPEATED = 3
"""Words in a row, or twice as many Chinese characters, that a short reply should not say twice."""
_WORD = re.compile(rf"[{HAN}]|[^\W\d_{HAN}]+")
"""A word, or one Chinese character."""
_HAN = re.compile(f"[{HAN}]")


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without its facts.

    >>> words_of("Take Surf 40GB, it is 29.")
    ['take', 'it', 'is']
    """
    return [word.lower() for word in _WORD.findall(FACT.sub(" ", text))]


def plain(text: str) -> str:
    """Return the letters and digits of a text in lower case, with single spaces between words."""
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def repetitions(text: str, size: int = REPEATED) -> set[tuple[str, ...]]:
    """Return the sequences of `size` words, or of twice as many if one is Chinese, that a text has more than once.

    >>> sorted(repetitions("Do you use data, or do you use data?"))
    [('do', 'you', 'use'), ('you', 'use', 'data')]
    """
    words = words_of(text)
    return _repeated_sequences(words, size, chinese=False) | _repeated_sequences(words, 2 * size, chinese=True)


def _repeated_sequences(words: list[str], size: int, *, chinese: bool) -> set[tuple[str, ...]]:
    """Return the sequences with a Chinese character, or those without one, that occur more than once."""
    sequences = Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))
    return {s for s, count in sequences.items() if count > 1 and (_HAN.search("".join(s)) is not None) == chinese}
