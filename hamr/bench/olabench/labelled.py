"""Responses with known verdicts, by construction or by human labels, for grading judges.

In a file, a line is an item (`items`), or just a sample, with two more fields:

    "response": "...", "labels": {"hallucination": "misuse", "risk": ["overcommitment"], "tool": "wrong_tool",
                                  "grades": {"dialogue": 4}, "good": {"policy": true}}

`hallucination`: one of the five labels, or yes or no where the type is not known. `risk`: the types, [] for none, or
yes or no. `tool`: `right`, or the fault (FAULTS). `grades`: human grades, 1 to 5. `good`: whether a grade has to be
high, where there are no human grades. At least one of them has to be present. Only judges for which a line has a label
are asked. `template` may
name the wording that several responses share. Without `kind` a line needs neither policy nor references, and may have
`evidence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hamr.bench.olabench.items import BenchItem, item_from_json, item_json, read_evidence
from hamr.data.samples import from_json, read_unique
from hamr.errors import DataError
from hamr.rewards import hallucination, risk

ToolFault = Literal["right", "wrong_tool", "wrong_parameters", "missing_call", "needless_call"]
FAULTS: tuple[ToolFault, ...] = ("wrong_tool", "wrong_parameters", "missing_call", "needless_call")
GRADED = ("dialogue", "policy", "tool")
UNKNOWN = ("yes", "no")
_KEYS = ("hallucination", "risk", "tool", "grades", "good")
_BARE: Mapping[str, Any] = {
    "ticket": {}, "policy": "", "tools": [], "history": [],
    "references": [{"action": "reply", "content": "-", "source": "none"}],
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Labels:
    """None and empty: not labelled. `risk` is a tuple of types, or yes or no."""

    hallucination: str | None = None
    risk: tuple[str, ...] | Literal["yes", "no"] | None = None
    tool: ToolFault | None = None
    grades: Mapping[str, int] = field(default_factory=dict)
    good: Mapping[str, bool] = field(default_factory=dict)

    @property
    def components(self) -> tuple[str, ...]:
        """Return the judges to which the labels apply."""
        found = [name for name in GRADED if name in self.grades or name in self.good]
        if self.tool is not None and "tool" not in found:
            found.append("tool")
        safety = (("risk", self.risk), ("hallucination", self.hallucination))
        return (*found, *(name for name, label in safety if label is not None))


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """`template`: name of the wording that responses share, so that they are not independent; "" for none."""

    item: BenchItem
    response: str
    labels: Labels
    template: str = ""

    @property
    def id(self) -> str:
        return self.item.sample.id


def read_labelled(path: Path) -> list[Labelled]:
    """Read labelled responses. Raises DataError at `file:line: field` for the first fault."""
    return [one for _, one in read_unique(path, parse_labelled, lambda one: one.id)]


def labelled_json(one: Labelled) -> dict[str, Any]:
    labels = one.labels
    risks = list(labels.risk) if isinstance(labels.risk, tuple) else labels.risk
    fields = {
        "hallucination": labels.hallucination,
        "risk": risks,
        "tool": labels.tool,
        "grades": dict(labels.grades) or None,
        "good": dict(labels.good) or None,
    }
    return {
        **item_json(one.item),
        "response": one.response,
        "labels": {key: value for key, value in fields.items() if value is not None},
        **({"template": one.template} if one.template else {}),
    }


def parse_labelled(row: Any, where: str) -> Labelled:
    """Parse a line; `where` is its `file:line`. Raises DataError at `<where>: <field>`."""
    if not isinstance(row, dict):
        raise DataError(f"{where}: line", row, "must be a JSON object")
    if not isinstance(row.get("response"), str):
        raise DataError(f"{where}: response", row.get("response"), "missing; give the response's text")
    if "kind" in row:
        item = item_from_json(row, where=where, own=("response", "labels", "template"))
    else:
        line, own = where.rpartition(":")[2], ("response", "labels", "template", "evidence")
        sample = from_json({"id": f"line {line}", **_BARE, **row}, where=where, own=own)
        # Without a kind: agent, the kind that shows nothing besides the sample.
        item = BenchItem(sample=sample, kind="agent", evidence=read_evidence(row.get("evidence", []), where))
    template = row.get("template", "")
    if not isinstance(template, str):
        raise DataError(f"{where}: template", template, "must be a text")
    labels = _labels(row.get("labels"), f"{where}: labels")
    return Labelled(item=item, response=row["response"], labels=labels, template=template)


def _labels(given: Any, where: str) -> Labels:
    if not isinstance(given, dict) or not given or not given.keys() <= set(_KEYS):
        raise DataError(where, given, f"give an object with some of {', '.join(_KEYS)}")
    judged = given.get("hallucination")
    if judged not in (None, *hallucination.LABELS, *UNKNOWN):
        allowed = ", ".join((*hallucination.LABELS, *UNKNOWN))
        raise DataError(f"{where}.hallucination", judged, f"give one of {allowed}")
    fault = given.get("tool")
    if fault not in (None, "right", *FAULTS):
        raise DataError(f"{where}.tool", fault, f"give one of right, {', '.join(FAULTS)}")
    return Labels(
        hallucination=judged,
        risk=_risk(given.get("risk"), where),
        tool=fault,
        grades=_by_judge(given.get("grades", {}), f"{where}.grades", _is_grade, "an integer from 1 to 5"),
        good=_by_judge(given.get("good", {}), f"{where}.good", lambda v: isinstance(v, bool), "true or false"),
    )


def _risk(label: Any, where: str) -> Any:
    if label is None or label in UNKNOWN:
        return label
    if not isinstance(label, list) or not all(kind in risk.TYPES for kind in label):
        raise DataError(f"{where}.risk", label, f"give a list of {', '.join(risk.TYPES)}, or yes or no")
    return tuple(kind for kind in risk.TYPES if kind in label)


def _by_judge(given: Any, where: str, fits: Any, what: str) -> dict[str, Any]:
    if not isinstance(given, dict) or not given.keys() <= set(GRADED):
        raise DataError(where, given, f"give an object with some of {', '.join(GRADED)}")
    for name, value in given.items():
        if not fits(value):
            raise DataError(f"{where}.{name}", value, f"must be {what}")
    return given


def _is_grade(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 5
