"""Files and screen at the end of an evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hamr.files import write_atomic
from hamr.report.html import write_page
from hamr.report.terminal import show
from hamr.report.values import Page


def write_results(
    page: Page, metrics: Mapping[str, Any], rows: Sequence[Mapping[str, Any]] | None, file: Path, console: Console
) -> None:
    """Write the metrics to `file`, and items.jsonl and the report next to it. Print the page."""
    write_atomic(file, json.dumps(metrics, ensure_ascii=False, indent=1) + "\n")
    if rows is not None:
        write_atomic(file.with_name("items.jsonl"), "".join(json.dumps(row) + "\n" for row in rows))
    written = write_page(page, file.parent)
    show(page, console=console)
    print(f"written: {written}", flush=True)
