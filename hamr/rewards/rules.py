"""Rule-match reward: explicit violations that need no model (second paper, section 4.3)."""

from __future__ import annotations

import re
import unicodedata
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictInt, StrictStr

from hamr.config.resources import resource
from hamr.config.section import Section
from hamr.config.yaml_files import read_checked
from hamr.data.words import MARKS

_WITHIN = "[^\\W_\u0e00-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
"""A letter or digit, which does not bound a term. Not so in Chinese, Japanese, Thai, Lao and Khmer, which have no
spaces between words, and in Korean, whose particles follow the word directly."""
_WITHIN += rf"|(?=[{MARKS}])[^\u0e00-\u0eff\u1780-\u17ff]"
"""Or a sign of the letter before it, such as a vowel in Hindi."""


def _check_term(term: str) -> str:
    if not term.strip():
        raise ValueError("has to be a text")
    return term.strip()


def _check_expression(expression: str) -> str:
    try:
        re.compile(expression)
    except re.error as error:
        raise ValueError(f"is not a regular expression ({error})") from error
    return expression


class RuleBook(Section):
    """Prohibited content.

    `terms` are prohibited words and phrases. They match as whole words, in any case, with any white space between
    words. `patterns` maps the name of a rule to a case-insensitive regular expression.
    """

    name: StrictStr
    version: StrictInt
    terms: tuple[Annotated[StrictStr, AfterValidator(_check_term)], ...]
    patterns: dict[Any, Annotated[StrictStr, Field(min_length=1), AfterValidator(_check_expression)]]

    @cached_property
    def rules(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        """Name and pattern of each rule, in the order of the file."""
        terms = ((term, r"\s+".join(map(re.escape, term.split()))) for term in self.terms)
        bounded = ((term, rf"(?<!{_WITHIN}){body}(?!{_WITHIN})") for term, body in terms)
        named = ((str(name), unicodedata.normalize("NFC", text)) for name, text in (*bounded, *self.patterns.items()))
        return tuple((name, re.compile(text, re.IGNORECASE)) for name, text in named)

    def violations(self, text: str) -> tuple[str, ...]:
        """Return the names of the rules that `text` breaks. Composed and decomposed letters are the same."""
        text = unicodedata.normalize("NFC", text)
        return tuple(name for name, pattern in self.rules if pattern.search(text))


def rule_match(text: str, rules: RuleBook) -> float:
    """Return 1.0 for a text without violations, else 0.0. An empty text has none."""
    return 0.0 if rules.violations(text) else 1.0


def load_rules(file: str | None = None) -> RuleBook:
    """Read a rule file. None reads the default one. ConfigError names the file and the invalid entry.

    >>> rule_match("Please tell me your password.", load_rules())
    0.0
    """
    path = Path(file) if file is not None else resource("prompts", "rules.default.yaml")
    return read_checked(path, RuleBook, "rewards.rules.file")[0]
