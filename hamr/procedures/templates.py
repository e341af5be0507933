"""Fixed texts of the SAGE prompts: texts with tagged variables, and the sentences that describe a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hamr.errors import BadInput, ConfigError
from hamr.procedures.schema import LANGUAGES
from hamr.prompting.templates import check_kinds, check_wrapped, fill_template, read_template


@dataclass(frozen=True, kw_only=True)
class TextPrompt:
    """A text with variables, each alone in a tag.

    >>> TextPrompt.load("sage_user.en").language
    'en'
    """

    name: str
    version: int
    language: str
    text: str
    digest: str

    @classmethod
    @lru_cache(maxsize=64)
    def load(cls, name: str) -> TextPrompt:
        """Load a template. ConfigError describes the invalid file."""
        content, path, digest = _read(name, "text")
        check_kinds(content, ("name", "language", "text"), path)
        check_wrapped(content["text"], f"prompt {path}: text")
        return cls(digest=digest, **{**content, "text": content["text"].strip()})

    @property
    def id(self) -> str:
        """Name, version and digest of the file: the `prompt_version` of a record."""
        return f"{self.name}@{self.version}+{self.digest}"

    def render(self, variables: Mapping[str, str]) -> str:
        """Return the text with the variables. Raise DataError for a variable that is missing or not a text."""
        return fill_template(self.text, variables, self.name)


@dataclass(frozen=True, kw_only=True)
class Phrases:
    """Sentences by name."""

    id: str
    phrases: Mapping[str, str]

    @classmethod
    @lru_cache(maxsize=16)
    def load(cls, name: str) -> Phrases:
        """Load the phrases. ConfigError describes the invalid file."""
        content, path, digest = _read(name, "phrases")
        check_kinds(content, ("name", "language"), path)
        phrases = content["phrases"]
        if not isinstance(phrases, dict) or not all(isinstance(text, str) for text in phrases.values()):
            raise ConfigError(f"prompt {path}: phrases", phrases, "must map names to texts")
        return cls(id=f"{content['name']}@{content['version']}+{digest}", phrases=phrases)

    def say(self, phrase: str, **values: object) -> str:
        return self.phrases[phrase].format(**values)


def phrases_in(language: str) -> Phrases:
    """Return the shipped sentences of a language. Raise BadInput for an unknown language."""
    if language not in LANGUAGES:
        raise BadInput("language", language, f"known: {list(LANGUAGES)}")
    return Phrases.load(f"sage_phrases.{language}")


def _read(name: str, body: str) -> tuple[dict[str, Any], str, str]:
    content, path, digest = read_template(name)
    keys = {"name", "version", "language", body}
    if not isinstance(content, dict) or content.keys() != keys:
        given = sorted(map(str, content)) if isinstance(content, dict) else content
        raise ConfigError(f"prompt {path}", given, f"needs exactly the keys {sorted(keys)}")
    return content, path, digest
