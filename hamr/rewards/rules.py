"""Rule-match reward: explicit violations that need no model (second paper, section 4.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hamr.config.resources import resource
from hamr.config.safe_yaml import load_yaml
from hamr.errors import ConfigError

_KEYS = {"name", "version", "terms", "patterns"}


@dataclass(frozen=True, kw_only=True)
class RuleBook:
    """Prohibited content: (name of the rule, pattern), in the order of the file."""

    name: str
    version: int
    rules: tuple[tuple[str, re.Pattern[str]], ...]

    def violations(self, text: str) -> tuple[str, ...]:
        """Return the names of the rules that `text` breaks."""
        return tuple(name for name, pattern in self.rules if pattern.search(text))


def rule_match(text: str, rules: RuleBook) -> float:
    """Return 1.0 for a text without violations, else 0.0. An empty text has none."""
    return 0.0 if rules.violations(text) else 1.0


def load_rules(file: str | None = None) -> RuleBook:
    """Read a rule file. None reads the default one.

    `terms` are prohibited words and phrases. They match as whole words, in any case, with any white space between
    words. `patterns` maps the name of a rule to a case-insensitive regular expression. ConfigError names the file and
    the invalid entry.

    >>> rule_match("Please tell me your password.", load_rules())
    0.0
    """
    path = Path(file) if file is not None else resource("prompts", "rules.default.yaml")
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
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
        # Chinese has no spaces between words, so only Latin letters and digits bound a term.
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
