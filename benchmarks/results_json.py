"""JSON of results files: numbers of a list or an object share a line, and so does whatever else fits on one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WIDTH = 128
"""Longest line with anything else than numbers."""


def results_text(body: Any) -> str:
    """Return the JSON of `body`, without a newline at the end."""
    return _text(json.loads(json.dumps(body)), 0)


def write_results(file: Path, body: Any) -> None:
    """Write `body` as the results file of a benchmark."""
    file.write_text(results_text(body) + "\n", encoding="utf-8")


def _text(value: Any, depth: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if depth + len(line) <= WIDTH or not isinstance(value, dict | list):
        return line
    inside = value.values() if isinstance(value, dict) else value
    if all(isinstance(own, int | float | None) for own in inside):
        return line
    parts = [_text(own, depth + 1) for own in inside]
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {part}" for key, part in zip(value, parts, strict=True)]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    inner = " " * (depth + 1)
    return f"{begin}\n{inner}" + f",\n{inner}".join(parts) + f"\n{' ' * depth}{end}"
