"""Facts in a text: numbers, with the names before them."""

from __future__ import annotations

import re

HAN = r"\u4e00-\u9fff"
_NO_NAME = r"(?!(?:A|An|At|For|From|In|It|My|Of|On|Only|The|With|Your)\s)"
"""Sentence openings before a number that are not names: "For 29 a month" contains no name."""
FACT = re.compile(rf"(?<![^\W{HAN}])(?:{_NO_NAME}[A-Z][^\W{HAN}]*\s)?\d[^\W{HAN}]*(?:[.,]\d+)*")


def facts(text: str) -> set[str]:
    """Return the numbers of a text, each with the capitalised word directly before it.

    >>> sorted(facts("Ring 400min at $55 would suit you."))
    ['55', 'Ring 400min']
    >>> sorted(facts("推荐Surf 40GB，每月29元。"))
    ['29', 'Surf 40GB']
    """
    return set(FACT.findall(text))
