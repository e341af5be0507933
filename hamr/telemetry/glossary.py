"""Glossary of all metrics, for W&B, `metrics.jsonl` and the documentation.

The metrics are in glossary.txt. A name is `area/subject/stat`. `<...>` in a pattern is one word, `<stat>` for
mean, std, min, max, sum or a percentile, `<percentile>` for p10 and the like.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast

from hamr.errors import HamrError

log = logging.getLogger(__name__)

Good = Literal["up", "down", "zero", "watch"]
BETTER: dict[Good, str] = {"up": "higher", "down": "lower", "zero": "near 0", "watch": "-"}
STRICT_ENV = "HAMR_STRICT_METRICS"

_WORD = r"[A-Za-z0-9_.-]+"
_WORDS = {"stat": r"mean|std|min|max|sum|p\d+", "percentile": r"p\d+"}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Entry of the glossary. `good`: up, down, zero (closer is better) or watch (neither direction is better)."""

    pattern: str
    meaning: str
    unit: str
    good: Good


def _read(line: str) -> Metric:
    pattern, good, unit, meaning = line.split(" | ", 3)
    return Metric(pattern=pattern, meaning=meaning, unit=unit if unit != "-" else "", good=cast(Good, good))


_LINES = Path(__file__).with_name("glossary.txt").read_text("utf-8").splitlines()
METRICS = tuple(_read(line) for line in _LINES if line and not line.startswith("#"))


class UnknownMetric(HamrError):
    """A metric that is not in the glossary."""


@cache
def lookup(name: str) -> Metric | None:
    """Return the glossary's entry for a name, or None. Earlier, more specific patterns take precedence."""
    return next((m for m, regex in _compiled_patterns() if regex.fullmatch(name)), None)


@cache
def _compiled_patterns() -> tuple[tuple[Metric, re.Pattern[str]], ...]:
    return tuple((m, pattern_regex(m.pattern)) for m in METRICS)


def pattern_regex(pattern: str) -> re.Pattern[str]:
    """Compile a pattern to a regular expression with one group per placeholder."""
    parts = re.split(r"<(\w+)>", pattern)  # text, placeholder, text, ...
    return re.compile("".join(f"({_WORDS.get(p, _WORD)})" if i % 2 else re.escape(p) for i, p in enumerate(parts)))


_warned: set[str] = set()


def check_names(names: Iterable[str], *, strict: bool | None = None) -> None:
    """Check names against the glossary.

    In strict mode (tests; the default if `HAMR_STRICT_METRICS=1`) an unknown name raises UnknownMetric. Otherwise it is
    recorded, with one warning per process.
    """
    strict = os.environ.get(STRICT_ENV) == "1" if strict is None else strict
    unknown = [n for n in names if lookup(n) is None and (strict or n not in _warned)]
    if not unknown:
        return
    message = f"metrics that are not in hamr/telemetry/glossary.txt: {', '.join(sorted(unknown))}"
    if strict:
        raise UnknownMetric(message)
    _warned.update(unknown)
    log.warning(message)
