"""Verdicts of scorers: labels, values, and parsing.

Three levels with one canonical name each. Templates and papers use different names; all of these are accepted:

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
from hamr.prompting.reading import LONGEST

_WRITTEN: Mapping[str, Label] = {
    "yes": "yes", "consistent": "yes", "是": "yes", "一致": "yes",
    "part": "part", "partial": "part", "partially": "part", "partly": "part", "partially consistent": "part",
    "partially_consistent": "part", "部分": "part", "部分一致": "part",
    "no": "no", "inconsistent": "no", "not consistent": "no", "否": "no", "不一致": "no",
}  # fmt: skip

DIMENSIONS = ("policy", "operation", "collection", "clarification", "scope")
"""Dimensions of the consistency judge: policy and process, operation guidance, information collection, problem
clarification, information scope (first paper, Appendix D.1)."""
_DIMENSIONS = {name: name for name in DIMENSIONS} | dict(
    zip(("政策", "操作", "收集", "澄清", "范围"), DIMENSIONS, strict=True)
)
_DIMENSION = re.compile(
    rf"^[ \t*\-]*(?P<name>{'|'.join(_DIMENSIONS)})[*_`]*\s*[:：](?P<label>[^\n]*)$", re.IGNORECASE | re.MULTILINE
)
_MARKER = re.compile(
    r"(?:" + "|".join(re.escape(word) for word in VERDICT_WORDS) + r")[\"'*_`]*\s*[:：][ \t]*(?P<label>[^\n]*)",
    re.IGNORECASE,
)
_TRIMMED = " \t\r\n\"'`*_.,;!。，；！{}[]()<>|"


def canonical_label(written: str) -> Label | None:
    """Return the level that `written` names, or None. Case and surrounding punctuation are ignored."""
    return _WRITTEN.get(" ".join(written.strip(_TRIMMED).lower().split()))


def soft_score(probabilities: Mapping[str, float], *, renormalise: bool = True) -> float:
    """Return S_J = P(Yes) + 0.5 P(Part), in [0, 1] (hybrid reward, section 3.3).

    `probabilities` are those of the labels at the verdict position, by any name in the table above. Two-level scorers
    have no Part. The paper does not specify the treatment of the mass on other tokens. By default the score is
    renormalised, so that it is conditional on a label and does not decrease with the probability of, for example, a
    line break. An absent label counts as 0, which is valid only if the other labels hold all the mass. Their sum must
    then be 1 (a top-k list may have lost the label).

    Raises ValueError for an unknown or duplicate label, an invalid probability, or missing mass, and VerdictUnparsable
    if no label has any mass.

    >>> round(soft_score({"Yes": 0.3, "Part": 0.2, "No": 0.1}), 6)
    0.666667
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


def hard_score(verdict: str, part: float = LABEL_VALUES["part"]) -> float:
    """Return 1, `part` or 0 for a verdict by any of its names. Raise VerdictUnparsable for anything else."""
    label = canonical_label(verdict)
    if label is None:
        raise VerdictUnparsable(f"{verdict!r} is not a verdict; one of {', '.join(_WRITTEN)} is")
    return part if label == "part" else LABEL_VALUES[label]


def parse_verdict(text: str) -> Label | None:
    """Return the verdict at the end of a written answer, None if unparseable.

    Reasoning before </think> is ignored. The last "Verdict: ..." (or `judge_result`) is used, and is not replaced by an
    earlier one if it is unparseable. Without any, the text must consist of a label only.
    """
    return canonical_label(text[slice(*verdict_place(text))])


def parse_dimensions(text: str) -> dict[str, bool]:
    """Return {dimension: whether the two replies agree in it} from a judge's answer, empty unless all five are there.

    A line of a dimension has its name and a verdict of two levels, as the prompts `judge_dimensions` ask for. The last
    line of a dimension is used, among the last LONGEST characters.

    >>> parse_dimensions("policy: Yes")
    {}
    """
    passed = {}
    for found in _DIMENSION.finditer(text, max(0, len(text) - LONGEST)):
        label = canonical_label(found["label"])
        name = _DIMENSIONS.get(found["name"].lower())  # None: "POLİCY" matches without regard to case
        if name and label in ("yes", "no"):
            passed[name] = label == "yes"
    return {name: passed[name] for name in DIMENSIONS} if passed.keys() == set(DIMENSIONS) else {}


def verdict_place(text: str) -> tuple[int, int]:
    """Return the start and end in `text` of the part that `parse_verdict` parses."""
    start = text.rfind("</think>") + len("</think>") if "</think>" in text else 0
    spans = [found.span("label") for found in _MARKER.finditer(text[start:])]
    first, last = spans[-1] if spans else (0, len(text) - start)
    return start + first, start + last
