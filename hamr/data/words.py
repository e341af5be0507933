"""Words and facts of a text: its plain words, its numbers with the names before them, and the words that it repeats."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter


def _marks() -> str:
    """Return the ranges of a character class: combining marks, which continue a word, and joiners. Variation selectors
    are none."""
    ranges: list[list[int]] = [[0x200C, 0x200D]]
    for code in range(0x300, 0x20000):
        if unicodedata.category(chr(code)) in ("Mn", "Mc") and not 0xFE00 <= code <= 0xFE0F:
            if ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


MARKS = _marks()
HAN = r"\u4e00-\u9fff"
_NO_NAME = r"(?!(?:A|An|At|For|From|In|It|My|Of|On|Only|The|With|Your)\s)"
"""Sentence openings before a number that are not names: "For 29 a month" contains no name."""
_FACT = re.compile(rf"(?<![^\W{HAN}])(?:{_NO_NAME}[A-Z][^\W{HAN}]*\s)?\d[^\W{HAN}]*(?:[.,]\d+)*")
REPEATED = 3
"""Words in a row, or twice as many Chinese characters, that a short reply should not say twice."""
_WORD = re.compile(rf"[{HAN}]|[^\W\d_{HAN}](?:[^\W\d_{HAN}]|[{MARKS}])*")
"""A word, or one Chinese character. The signs of vowels in Hindi, Bengali and Arabic belong to their word."""
_HAN = re.compile(f"[{HAN}]")


def facts(text: str) -> set[str]:
    """Return the numbers of a text, each with the capitalised word directly before it.

    >>> sorted(facts("Ring 400min at $55 would suit you."))
    ['55', 'Ring 400min']
    >>> sorted(facts("推荐Surf 40GB，每月29元。"))
    ['29', 'Surf 40GB']
    """
    return set(_FACT.findall(unicodedata.normalize("NFC", text)))


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without its facts, in composed form (NFC).

    >>> words_of("Take Surf 40GB, it is 29.")
    ['take', 'it', 'is']
    """
    return [word.lower() for word in _WORD.findall(_FACT.sub(" ", unicodedata.normalize("NFC", text)))]


def plain(text: str) -> str:
    """Return the letters, their marks and the digits of a text in lower case, with single spaces between words."""
    text = unicodedata.normalize("NFC", text.lower())
    return " ".join("".join(c if c.isalnum() or unicodedata.category(c)[0] == "M" else " " for c in text).split())


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
