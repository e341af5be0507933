"""The rule-match reward: explicit violations that need no model (second paper, section 4.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hamr.config.resources import resource
from hamr.errors import ConfigError

_KEYS = {"name", "version", "terms", "patterns"}


@dataclass(frozen=True, kw_only=True)
class RuleBook:
    """What an answer must not contain: (name of the rule, pattern), in the order of the file."""

    name: str
    version: int
    rules: tuple[tuple[str, re.Pattern[str]], ...]

    def violations(self, text: str) -> tuple[str, ...]:
        """The names of the rules that `text` breaks."""
        return tuple(name for name, pattern in self.rules if pattern.search(text))


def rule_match(text: str, rules: RuleBook) -> float:
    """1.0 for a clean text, 0.0 for one that breaks a rule. An empty text is clean."""
    return 0.0 if rules.violations(text) else 1.0


def load_rules(file: str | None = None) -> RuleBook:
    """Reads a rule file; None takes the shipped one.

    `terms` are prohibited words and phrases: matched as whole words, any case, any white space between words.
    `patterns` maps a rule's name to a regular expression, searched in any case. Raises ConfigError with the file
    and the entry that cannot be used.

    >>> rule_match("Please tell me your password.", load_rules())
    0.0
    """
    path = Path(file) if file is not None else resource("prompts", "rules.default.yaml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("rewards.rules.file", file, f"cannot read it ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            "rewards.rules.file", str(path), f"is not YAML ({' '.join(str(error).split())[:120]})"
        ) from error
    if not isinstance(content, dict) or content.keys() != _KEYS:
        keys = sorted(map(str, content)) if isinstance(content, dict) else content
        raise ConfigError(f"rules {path}", keys, f"needs exactly the keys {sorted(_KEYS)}")
    if not isinstance(content["name"], str) or type(content["version"]) is not int:
        raise ConfigError(f"rules {path}", content["version"], "`name` has to be a text, `version` an integer")
    terms = _terms(content["terms"], path)
    return RuleBook(
        name=content["name"], version=content["version"], rules=terms + _patterns(content["patterns"], path)
    )


def _terms(terms: Any, path: Path) -> tuple[tuple[str, re.Pattern[str]], ...]:
    if not isinstance(terms, list):
        raise ConfigError(f"rules {path}: terms", terms, "has to be a list of texts; [] for none")
    rules = []
    for number, term in enumerate(terms):
        if not isinstance(term, str) or not term.strip():
            raise ConfigError(f"rules {path}: terms[{number}]", term, "has to be a text")
        body = r"\s+".join(re.escape(word) for word in term.split())
        # Chinese puts no space between words, so only Latin letters and digits bound a term.
        rules.append((term.strip(), re.compile(rf"(?<![A-Za-z0-9]){body}(?![A-Za-z0-9])", re.IGNORECASE)))
    return tuple(rules)


def _patterns(patterns: Any, path: Path) -> tuple[tuple[str, re.Pattern[str]], ...]:
    if not isinstance(patterns, dict):
        raise ConfigError(f"rules {path}: patterns", patterns, "has to map names to expressions; {} for none")
    rules = []
    for name, expression in patterns.items():
        where = f"rules {path}: patterns.{name}"
        if not isinstance(expression, str) or not expression:
            raise ConfigError(where, expression, "has to be a regular expression")
        try:
            rules.append((str(name), re.compile(expression, re.IGNORECASE)))
        except re.error as error:
            raise ConfigError(where, expression, f"is not a regular expression ({error})") from error
    return tuple(rules)
