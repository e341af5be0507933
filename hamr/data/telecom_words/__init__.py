"""Wording banks of the generated telecom dialogues, one per split. No sentence stands in two of them.

CUSTOMER: fragments by move. A fragment starts in lower case (unless with "I") and ends with its own mark, so
that an opening can precede it and a tail can slip in before the mark. Of [a|b|c] one is drawn: with a dozen wordings
of a move a small policy learns the wordings; with some hundreds, what they have in common.
AGENT: whole replies by act, each with everything that the act has to say.
PARTIAL: the same acts with a detail missing or added. NEGATED: the act turned into its opposite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

from hamr.data.telecom_words import test, train, validation

Split = Literal["train", "validation", "test"]
Words = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Bank:
    customer: Words
    agent: Words
    partial: Words
    negated: Words


def _bank(words: ModuleType) -> Bank:
    return Bank(customer=words.CUSTOMER, agent=words.AGENT, partial=words.PARTIAL, negated=words.NEGATED)


BANKS: Mapping[Split, Bank] = {"train": _bank(train), "validation": _bank(validation), "test": _bank(test)}
