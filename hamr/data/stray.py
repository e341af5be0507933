"""Replies that fit nowhere, or nearly everywhere, by language and split, from stray.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hamr.config.safe_yaml import load_yaml
from hamr.procedures.words import Split

Replies = Mapping[str, Mapping[Split, Sequence[str]]]
_CONTENT: Mapping[str, Replies] = load_yaml(Path(__file__).with_name("stray.yaml").read_text(encoding="utf-8"))
STRAY, COURTESIES = _CONTENT["stray"], _CONTENT["courtesies"]
