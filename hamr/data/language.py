"""English or Chinese, by script: all that hamr's prompts and checks have to tell apart."""

from __future__ import annotations

import re
from typing import Literal

Language = Literal["en", "zh"]

_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_WORD = re.compile(r"[^\W\d_]+")
CHINESE_FROM = 0.3
"""Names of tools and products in Latin letters are common in Chinese tickets, the reverse is rare."""


def chinese_share(text: str) -> float | None:
    """Chinese characters among characters and words of other scripts; a word says about as much as a character or two.
    None: no words at all.

    >>> chinese_share("调用 lookup 查询")
    0.8
    """
    chinese = len(_CHINESE.findall(text))
    words = len(_WORD.findall(_CHINESE.sub(" ", text)))
    return chinese / (chinese + words) if chinese + words else None


def language_of(text: str) -> Language:
    """Of a text without words: English."""
    return "zh" if (chinese_share(text) or 0.0) >= CHINESE_FROM else "en"
