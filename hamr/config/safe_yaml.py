"""YAML of users' files: values only, of a bounded size, and the lines of its keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

MAX_VALUES = 100_000
"""Maximum number of values in a document with aliases, counting what an alias names once for each alias."""


def load_yaml(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Return the value of a YAML document. Raises yaml.YAMLError, also where `check_aliases` does."""
    check_aliases(text)
    try:
        return yaml.load(text, Loader=loader)
    except RecursionError:
        raise yaml.MarkedYAMLError(problem="is nested too deeply") from None
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as error:
        # PyYAML converts values without a check: a date without such a month, a number of too many digits, `!!bool x`.
        raise yaml.MarkedYAMLError(problem=f"has a value that cannot be read ({error!r:.100})") from None


def check_aliases(text: str) -> None:
    """Raise yaml.YAMLError for a document that contains itself, or that its aliases expand beyond MAX_VALUES.

    The parser shares what an alias names, but whatever walks through the result visits it once for each alias.
    """
    if "*" not in text or "&" not in text:
        return
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        if id(node) not in sizes:
            children = node.value if isinstance(node, yaml.CollectionNode) else []
            parts = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
            sizes[id(node)] = 1 + sum(map(size, parts))
        if sizes[id(node)] > MAX_VALUES:
            problem = f"has more than {MAX_VALUES} values through its aliases"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return sizes[id(node)]

    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if tree is not None:
            size(tree)
    except RecursionError:
        raise yaml.MarkedYAMLError(problem="is nested too deeply, or contains itself through an alias") from None


def steps_into(node: yaml.Node | None, path: Sequence[Any]) -> Iterator[tuple[yaml.Node, int]]:
    """Yield the value of each part of `path` and the line of its key, as far as the document has them."""
    for part in map(str, path):
        if isinstance(node, yaml.MappingNode):
            found = next(((k.start_mark.line, v) for k, v in node.value if str(k.value).lower() == part.lower()), None)
        elif isinstance(node, yaml.SequenceNode) and part.isdecimal() and int(part) < len(node.value):
            found = node.value[int(part)].start_mark.line, node.value[int(part)]
        else:
            found = None
        if found is None:
            return
        line, node = found
        yield node, line + 1


def line_of(tree: yaml.Node | None, path: Sequence[Any]) -> int:
    """Return the line of the deepest part of `path` that the document has; its first line if it has none of them."""
    lines = [line for _, line in steps_into(tree, path)]
    return lines[-1] if lines else tree.start_mark.line + 1 if tree is not None else 1
