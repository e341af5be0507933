"""Importers of public corpora, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hamr.data.importers.abcd import import_abcd
from hamr.data.importers.imported import Imported
from hamr.data.importers.multiwoz import import_multiwoz
from hamr.data.importers.star import import_star
from hamr.data.importers.tau import import_tau

WITH_POLICIES = ("star", "abcd", "tau2")
"""Corpora that may have a second file, with policies and tools."""
CHATS = ("messages", "sharegpt", "trl", "verl")
"""Forms of chats (`hamr.data.tickets.read_chats`), whose private values are hidden by default."""
IMPORTERS: Mapping[str, Callable[..., Imported]] = {
    "star": import_star,
    "abcd": import_abcd,
    "tau2": import_tau,
    "multiwoz": import_multiwoz,
}
"""Each takes the paths of its files by option, and as `group` the column whose dialogues are in one split."""
