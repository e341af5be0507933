"""Griffe extension for the documentation site: examples in docstrings (`>>> ...`) become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLES = re.compile(r"(?:^>>> .*\n?(?:^(?!\s*$).*\n?)*)+", re.MULTILINE)


class Examples(griffe.Extension):
    """Put fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = EXAMPLES.sub(_fence, obj.docstring.value)


def _fence(found: re.Match[str]) -> str:
    return f"```pycon\n{found[0].rstrip()}\n```\n"
