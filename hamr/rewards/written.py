"""Templates that ask a judge for a written answer: an analysis that ends with one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hamr.errors import ConfigError
from hamr.prompting.templates import (
    check_kinds,
    check_system,
    check_wrapped,
    fill_template,
    read_template,
    variables_of,
)

_KEYS = {"name", "version", "language", "system", "user", "each", "after"}


@dataclass(frozen=True, kw_only=True)
class WrittenPrompt:
    """One judge's prompt. `system` is fixed. What follows is Jinja, as in the scorers' templates: `user`, then `each`
    once per entry of a list (the responses of a group, the items of a rubric; "" where there is none), then `after`
    ("" for nothing). What a group shares stands in front, so that its prefix is computed once.

    >>> sorted(WrittenPrompt.load("dialogue.en").variables)
    ['history', 'response']
    """

    name: str
    version: int
    language: str
    system: str
    user: str
    each: str
    after: str
    digest: str

    @classmethod
    @lru_cache(maxsize=256)
    def load(cls, name: str) -> WrittenPrompt:
        """Reads a shipped template by its name, or the user's own by its path; once per process. Raises ConfigError
        that says what is wrong with the file."""
        content, path, digest = read_template(name)
        if not isinstance(content, dict) or content.keys() != _KEYS:
            keys = sorted(map(str, content)) if isinstance(content, dict) else content
            raise ConfigError(f"prompt {path}", keys, f"needs exactly the keys {sorted(_KEYS)}")
        texts = sorted(_KEYS - {"version"})
        check_kinds(content, texts, path)
        check_system(content["system"], path)
        for key in ("user", "each", "after"):
            check_wrapped(content[key], f"prompt {path}: {key}")
        return cls(version=content["version"], digest=digest, **{key: content[key].strip() for key in texts})

    @property
    def id(self) -> str:
        """Name, version and the file's digest: what a record keeps as `prompt_version`."""
        return f"{self.name}@{self.version}+{self.digest}"

    @property
    def variables(self) -> frozenset[str]:
        """The variables that `render` needs beside those of the entries."""
        return variables_of(self.user) | variables_of(self.after)

    @property
    def each_variables(self) -> frozenset[str]:
        """The variables of one entry; none for a template without a list."""
        return variables_of(self.each)

    def render(self, variables: Mapping[str, str], each: Sequence[Mapping[str, str]] = ()) -> list[dict[str, str]]:
        """Chat messages with neutralised texts; variables that the template does not have are ignored.

        Raises DataError for a variable that is missing or is no text.
        """
        entries = [fill_template(self.each, entry, self.name) for entry in each] if self.each else []
        parts = [
            fill_template(self.user, variables, self.name),
            *entries,
            fill_template(self.after, variables, self.name),
        ]
        user = "\n\n".join(part for part in parts if part)
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]
