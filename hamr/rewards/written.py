"""Templates for written answers of a judge: an analysis that ends with one JSON object."""

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
    """Prompt of one judge.

    `system` is fixed. The rest is Jinja, as in the templates of the scorers: `user`, then `each` once per entry of a
    list (the responses of a group, the items of a rubric; "" without a list), then `after` ("" for nothing). The shared
    part of a group comes first, so its prefix is computed once.

    >>> sorted(WrittenPrompt.load("dialogue.en").variables)
    ['call', 'history', 'response']
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
        """Read a shipped template by name, or a user's by path. Cached per process. ConfigError describes the invalid
        file."""
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
        """Name, version and digest of the file: the `prompt_version` of a record."""
        return f"{self.name}@{self.version}+{self.digest}"

    @property
    def variables(self) -> frozenset[str]:
        """Variables that `render` needs in addition to those of the entries."""
        return variables_of(self.user) | variables_of(self.after)

    def render(self, variables: Mapping[str, str], each: Sequence[Mapping[str, str]] = ()) -> list[dict[str, str]]:
        """Return chat messages with neutralised texts. Ignore unknown variables. Raise DataError for a variable that is
        missing or not a text."""
        entries = [fill_template(self.each, entry, self.name) for entry in each] if self.each else []
        parts = [
            fill_template(self.user, variables, self.name),
            *entries,
            fill_template(self.after, variables, self.name),
        ]
        user = "\n\n".join(part for part in parts if part)
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]
