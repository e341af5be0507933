"""What one turn is worth: SAGE's Eq. 5 to 9. Pure arithmetic on labels, stages and actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hamr.config.sage import ActionForm, PathForm
from hamr.procedures.contract import AgentOutput
from hamr.procedures.graph import Scenario
from hamr.procedures.prompts import DIMENSIONS
from hamr.procedures.schema import Metrics, Value


@dataclass(frozen=True, kw_only=True)
class SageReference:
    """What the agent ought to have said: labels that are known, and the way and the action that follow from them."""

    fields: Mapping[str, Value]
    path: tuple[str, ...]
    nodes: tuple[str, ...]
    action: str


@dataclass(frozen=True, kw_only=True)
class LogicScore:
    """Each part in [0, 1]; `logic` in [0, 100]."""

    classification: float
    path: float
    action: float
    logic: float


def reference_of(scenario: Scenario, fields: Mapping[str, Value], system: Mapping[str, Value]) -> SageReference | None:
    """Eq. 4. None where the procedure needs a field that is not among `fields`: then nobody can say what is right."""
    walk = scenario.walk(fields, system)
    if walk.action is None:
        return None
    return SageReference(fields=dict(fields), path=walk.path, nodes=walk.nodes, action=walk.action)


def logic_score(
    output: AgentOutput,
    reference: SageReference,
    scenario: Scenario,
    *,
    path: PathForm = "intersection",
    action: ActionForm = "exact",
) -> LogicScore:
    """100 x (0.4 classification + 0.4 path + 0.2 action), with the scenario's weights (section 3.2.4).

    The paper leaves its weights open; these give its Table 2 from its Table 4.
    """
    metrics = scenario.file.metrics
    c = classification(output.fields, reference.fields)
    p = path_score(output.path, reference.path, path)
    a = action_score(output.action, reference.action, scenario, action)
    return LogicScore(classification=c, path=p, action=a, logic=combined_logic(c, p, a, metrics))


def combined_logic(classification: float, path: float, action: float, metrics: Metrics | None = None) -> float:
    """In [0, 100] from parts in [0, 1].

    >>> round(combined_logic(0.880, 0.660, 0.295), 1)
    67.5
    """
    weights = metrics or Metrics()
    return 100 * (weights.classification * classification + weights.path * path + weights.action * action)


def overall(logic: float, chat: float, metrics: Metrics | None = None) -> float:
    """Eq. 9 with the weights that its Table 1 was made with: 0.8 logic + 0.2 chat, all in [0, 100].

    >>> round(overall(70.10, 77.38), 2)
    71.56
    """
    weights = metrics or Metrics()
    return weights.logic * logic + weights.chat * chat


def classification(given: Mapping[str, Value], known: Mapping[str, Value]) -> float:
    """Eq. 5: the share of the known fields that the agent labelled alike; one that it left out is wrong.

    Raises ValueError where no field is known: a share of nothing is no number.
    """
    if not known:
        raise ValueError("no field is known")
    return sum(name in given and _same(given[name], value) for name, value in known.items()) / len(known)


def path_score(given: Sequence[str], reference: Sequence[str], form: PathForm = "intersection") -> float:
    """In [0, 1].

    `intersection`, Eq. 6: |given ∩ reference| / |reference|. Stages too many, twice or in another order cost nothing.
    `prefix`: 1 for the same path, else the length of the common beginning over that of the longer path.

    >>> path_score(["stage1", "stage2", "stage9", "stage4"], ["stage1", "stage2", "stage4"])
    1.0
    >>> path_score(["stage1", "stage2", "stage9", "stage4"], ["stage1", "stage2", "stage4"], "prefix")
    0.5
    """
    if form == "intersection":
        return len(set(given) & set(reference)) / len(set(reference))
    return departure(given, reference) / max(len(given), len(reference))


def departure(given: Sequence[str], reference: Sequence[str]) -> int:
    """How many stages both have in common from the start."""
    common = 0
    for said, right in zip(given, reference, strict=False):
        if said != right:
            break
        common += 1
    return common


def action_score(given: str, reference: str, scenario: Scenario, form: ActionForm = "exact") -> float:
    """Eq. 7: 1 for the right action, else 0. With `group`, the right tool with another of its options earns the
    scenario's `group_credit` (the released code of Online Education: 0.7 for PLAN, 0.3 for which)."""
    if given == reference:
        return 1.0
    actions, credit = scenario.file.actions, scenario.file.metrics.group_credit
    if form == "exact" or credit is None or given not in actions:
        return 0.0
    group = actions[reference].group
    return credit if group is not None and actions[given].group == group else 0.0


def quality(dimensions: Mapping[str, int]) -> float:
    """One judge's Eq. 8: ten times the weighted mean of the grades 3, 6 and 9, so in [30, 90].

    >>> quality(dict.fromkeys(DIMENSIONS, 9))
    90.0
    """
    return sum(weight * dimensions[name] for name, weight in DIMENSIONS.items()) / 10


def _same(one: Value, other: Value) -> bool:
    return type(one) is type(other) and one == other
