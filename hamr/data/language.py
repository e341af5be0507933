"""Detection of English or Chinese by script, the two languages of hamr's prompts and checks."""

from __future__ import annotations

import re

from hamr.types import Language

_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_WORD = re.compile(r"[^\W\d_]+")
CHINESE_FROM = 0.3
"""Minimum share of Chinese. Names of tools and products in Latin letters are common in Chinese tickets; the reverse is
rare."""


def chinese_share(text: str) -> float | None:
    """Return the share of Chinese characters among Chinese characters and words of other scripts. None without any.

    A word has about as much content as a character or two.

    >>> chinese_share("调用 lookup 查询")
    0.8
    """
    chinese = len(_CHINESE.findall(text))
    words = len(_WORD.findall(_CHINESE.sub(" ", text)))
    return chinese / (chinese + words) if chinese + words else None


def language_of(text: str) -> Language:
    """Return the language of a text. A text without words is English."""
    return "zh" if (chinese_share(text) or 0.0) >= CHINESE_FROM else "en"
