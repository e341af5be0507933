"""A scorer's verdict: its labels, what they are worth, and how it is read.

Three levels with one canonical name each. Templates and papers write them differently; all of these are read:

| canonical | value | as a token | as a level                     |
|-----------|-------|------------|--------------------------------|
| yes       | 1.0   | Yes, 是    | consistent, 一致               |
| part      | 0.5   | Part, 部分 | partially (consistent), 部分一致 |
| no        | 0.0   | No, 否     | inconsistent, 不一致           |
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from hamr.errors import VerdictUnparsable
from hamr.prompting.labels import LABEL_VALUES, VERDICT_WORDS, Label

_WRITTEN: Mapping[str, Label] = {
    "yes": "yes", "consistent": "yes", "是": "yes", "一致": "yes",
    "part": "part", "partial": "part", "partially": "part", "partly": "part", "partially consistent": "part",
    "partially_consistent": "part", "部分": "part", "部分一致": "part",
    "no": "no", "inconsistent": "no", "not consistent": "no", "否": "no", "不一致": "no",
}  # fmt: skip

_MARKER = re.compile(
    r"(?:" + "|".join(re.escape(word) for word in VERDICT_WORDS) + r")[\"'*_`]*\s*[:：][ \t]*(?P<said>[^\n]*)",
    re.IGNORECASE,
)
_TRIMMED = " \t\r\n\"'`*_.,;!。，；！{}[]()<>|"


def canonical_label(written: str) -> Label | None:
    """The level that `written` names, None if it names none. Case and surrounding punctuation do not matter."""
    return _WRITTEN.get(" ".join(written.strip(_TRIMMED).lower().split()))


def soft_score(probabilities: Mapping[str, float], *, renormalise: bool = True) -> float:
    """S_J = P(Yes) + 0.5 P(Part), in [0, 1] (hybrid reward, section 3.3).

    `probabilities` are those of the labels at the verdict position, by any name of the table above; two-level
    scorers have no Part. The paper leaves open what happens to the mass on other tokens: by default it is divided
    out, so that the score says what the model thinks given that it answers at all, and does not sink with the
    odds of, say, a line break. A label that is absent counts as 0, which is only sound if the others are all
    there is: their sum has to be 1, else ValueError (a top-k list may have lost it).

    >>> round(soft_score({"Yes": 0.3, "Part": 0.2, "No": 0.1}), 6)
    0.666667

    Raises ValueError for an unknown or doubled label or a number that is no probability, VerdictUnparsable when
    no label has any mass.
    """
    mass: dict[Label, float] = {}
    for written, p in probabilities.items():
        label = canonical_label(written)
        if label is None or label in mass:
            raise ValueError(f"label {written!r} is {'unknown' if label is None else 'given twice'}")
        if not math.isfinite(p) or not 0.0 <= p <= 1.0 + 1e-6:
            raise ValueError(f"P({written})={p!r} is not a probability")
        mass[label] = p
    total = math.fsum(mass.values())
    if total <= 0.0:
        raise VerdictUnparsable(f"no label has any probability at the verdict position: {dict(probabilities)}")
    if total > 1.0 + 1e-4:
        raise ValueError(f"the labels' probabilities sum to {total}, which is above 1")
    if not {"yes", "no"} <= mass.keys() and not math.isclose(total, 1.0, abs_tol=1e-6):
        raise ValueError(f"labels {sorted(mass)} hold only {total} of the mass and another one is absent")
    expected = math.fsum(LABEL_VALUES[label] * p for label, p in mass.items())
    return min(1.0, expected / total if renormalise else expected)


def hard_score(verdict: str) -> float:
    """1, 0.5 or 0 for a verdict by any of its names. Raises VerdictUnparsable for anything else."""
    label = canonical_label(verdict)
    if label is None:
        raise VerdictUnparsable(f"{verdict!r} is not a verdict; one of {', '.join(_WRITTEN)} is")
    return LABEL_VALUES[label]


def parse_verdict(text: str) -> Label | None:
    """The verdict that a written answer ends with, None if it cannot be read.

    Reasoning before </think> does not count. The last "Verdict: ..." (or `judge_result`) wins, and is not replaced
    by an earlier one when it cannot be read itself; without any, the text has to be a label and nothing else.
    """
    return canonical_label(text[slice(*verdict_place(text))])


def verdict_place(text: str) -> tuple[int, int]:
    """Where what `parse_verdict` reads begins and ends in `text`."""
    start = text.rfind("</think>") + len("</think>") if "</think>" in text else 0
    said = [found.span("said") for found in _MARKER.finditer(text[start:])]
    first, last = said[-1] if said else (0, len(text) - start)
    return start + first, start + last
