"""Abbreviations are defined at their first use on each page: in words, or by a link to the page that defines them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs_pages import FENCE, PAGES, ROOT

ALGORITHM = r"algorithms\.md|#choose-an-algorithm|index\.md#papers|arxiv\.org"
BENCHMARK = r"[Bb]enchmark|evaluat\w+\.md"
TERMS = {
    "RL": r"[Rr]einforcement\s+learning",
    "SFT": r"[Ss]upervised",
    "ρ": r"rank\s+correlation|probability\s+ratio",
    "AUC": r"[Aa]rea\s+under",
    "KL": r"divergence|penalty",
    "DAPO": ALGORITHM,
    "GRPO": ALGORITHM,
    "GDPO": ALGORITHM,
    "SAGE": BENCHMARK,
    "OlaBench": BENCHMARK,
    "ECS": BENCHMARK,
    "STAR": r"corpus|RasaHQ/STAR|data\.md",
    "CoT": r"thought|reasoning",
    "LoRA": r"low-rank",
    "ZeRO": r"shard",
    "NCCL": r"NVIDIA's",
    "IPC": r"between\s+processes",
    "MFU": r"peak",
    "AIPW": r"doubly\s+robust",
    "AMX": r"matri",
}
"""An abbreviation, and what defines it where it is first used."""
NOT_PROSE = re.compile(r"^ {4}.*$|^#.*$|!\[[^\]]*\]|`[^`]*`|(?<=\])\([^)]*\)|^<!--.*$", re.MULTILINE)


def undefined(text: str) -> list[str]:
    """Return the abbreviations that are used before a definition, or in a paragraph or table without one."""
    found, so_far = {}, ""
    for block in FENCE.sub("", text).split("\n\n"):
        so_far += block + "\n\n"
        prose = NOT_PROSE.sub("", block)
        for term, definition in TERMS.items():
            if term not in found and re.search(rf"(?<![\w-]){term}(?!\w)", prose):
                found[term] = bool(re.search(definition, so_far))
    return [term for term, is_defined in found.items() if not is_defined]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_terms_are_defined_at_their_first_use(page: Path) -> None:
    assert undefined(page.read_text()) == []


def test_a_definition_after_the_first_use_is_too_late() -> None:
    assert undefined("RL trains it.\n\nReinforcement learning (RL) is a method.") == ["RL"]
    assert undefined("# RL\n\nReinforcement learning (RL) trains `SFT`.") == []
