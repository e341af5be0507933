"""OpenAPI description of `hamr serve`, for clients in other languages."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hamr import __version__


@cache
def describe() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    document = yaml.safe_load(Path(__file__).with_name("openapi.yaml").read_text(encoding="utf-8"))
    document["info"]["version"] = __version__
    return document
