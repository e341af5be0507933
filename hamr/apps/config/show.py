"""Text of `hamr config show` and `hamr config explain`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from hamr.config.explain import Origin, UnknownKey, did_you_mean, known_keys
from hamr.config.load import dump_config, load_with_origin
from hamr.config.reference import KeyEntry, entries
from hamr.config.schema import Config
from hamr.data.columns import value_at

COMMENT_COLUMN = 56
WIDTH = 100


def show_config(overrides: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the configuration as YAML, with the origin of every value in a comment."""
    config, origin = load_with_origin(overrides)
    return _lines(yaml.safe_load(dump_config(config)), origin, ())


def show_files(overrides: Sequence[str]) -> list[str]:
    """Return the chosen files in the order of composition."""
    return load_with_origin(overrides)[1].files


def explain_key(key: str, overrides: Sequence[str]) -> Iterator[str]:
    """Yield the description of a key, or of every key of a section. Raises UnknownKey."""
    config, origin = load_with_origin(overrides)
    values = config.model_dump(mode="json")
    known = list(known_keys(Config, values))
    reference = list(entries())
    if key not in known:  # a name of the user's choice that the configuration does not have yet
        parts = key.split(".")
        named = {".".join((*parts, *e.key.split(".")[len(parts) :])): e for e in reference if _is_in(e, parts)}
        if not named:
            raise UnknownKey(key, None, did_you_mean(key, known))
        for each, own in named.items():
            yield from _explanation(each, own, {}, origin)
        return
    for each in known:
        if each == key or each.startswith(f"{key}."):
            entry = next((entry for entry in reference if _is_of(entry, each)), None)
            if entry is not None:
                yield from _explanation(each, entry, value_at(values, each), origin)


def _explanation(key: str, entry: KeyEntry, value: Any, origin: Origin) -> Iterator[str]:
    yield key
    yield from textwrap.wrap(entry.meaning, WIDTH, initial_indent="  ", subsequent_indent="  ")
    yield f"  type     {entry.type}"
    yield f"  default  {entry.default or 'required'}"
    if not isinstance(value, Mapping):
        yield f"  value    {_inline(value)}  ({origin.describe(key.split('.'))})"


def _is_of(entry: KeyEntry, key: str) -> bool:
    """Return whether a key of the reference, with `<name>` for names of the user's choice, matches this key."""
    return re.fullmatch(re.escape(entry.key).replace("<name>", "[^.]+"), key) is not None


def _is_in(entry: KeyEntry, section: Sequence[str]) -> bool:
    """Return whether a key of the reference is this key or in this section."""
    own = entry.key.split(".")[: len(section)]
    return len(own) == len(section) and all(a in ("<name>", b) for a, b in zip(own, section, strict=True))


def _lines(values: Mapping[str, Any], origin: Origin, path: tuple[str, ...]) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in values.items():
        here = (*path, key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _lines(value, origin, here)
        else:
            yield f"{f'{indent}{key}: {_inline(value)}':<{COMMENT_COLUMN}}  # {origin.describe(here)}"


def _inline(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    return text.removesuffix("...\n").strip()
