"""YAML of users' files: values only, and of a bounded size."""

from __future__ import annotations

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
