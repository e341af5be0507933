"""Scores of one turn: SAGE Eq. 5 to 9. Pure arithmetic on labels, stages and actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from hamr.config.sage import ActionForm, PathForm
from hamr.procedures.contract import AgentOutput
from hamr.procedures.graph import Scenario
from hamr.procedures.prompts import DIMENSIONS
from hamr.procedures.schema import ScoreWeights, Value


@dataclass(frozen=True, kw_only=True)
class SageReference:
    """Correct output of the agent: the known labels, and the resulting path and action."""

    fields: Mapping[str, Value]
    path: tuple[str, ...]
    nodes: tuple[str, ...]
    action: str


@dataclass(frozen=True, kw_only=True)
class LogicScore:
    """Each part is in [0, 1], `logic` in [0, 100]. None: an agent that acts by tools states no labels and no path, and
    has no action before it calls a tool."""

    classification: float | None
    path: float | None
    action: float | None
    logic: float | None


def reference_of(scenario: Scenario, fields: Mapping[str, Value], system: Mapping[str, Value]) -> SageReference | None:
    """Return the reference (Eq. 4). None if the procedure needs a field that is not in `fields`."""
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
    last: bool = True,
) -> LogicScore:
    """Return 100 x (0.4 classification + 0.4 path + 0.2 action), with the weights of the scenario (section 3.2.4).

    The paper does not state its weights. These reproduce its Table 2 from its Table 4.

    An agent that acts by tools has only the action. Without a call it is still undecided and not scored, except at the
    last turn: then it is right where the reference is done by a reply.
    """
    if output.acts:
        done = None
        if output.action:
            done = action_score(output.action, reference.action, scenario, action)
        elif last:
            done = float(scenario.file.actions[reference.action].reply)
        return LogicScore(classification=None, path=None, action=done, logic=None)
    metrics = scenario.file.metrics
    c = classification(output.fields, reference.fields)
    p = path_score(output.path, reference.path, path)
    a = action_score(output.action, reference.action, scenario, action)
    return LogicScore(classification=c, path=p, action=a, logic=combined_logic(c, p, a, metrics))


def combined_logic(classification: float, path: float, action: float, metrics: ScoreWeights | None = None) -> float:
    """Return the logic score in [0, 100] from parts in [0, 1].

    >>> round(combined_logic(0.880, 0.660, 0.295), 1)
    67.5
    """
    weights = metrics or ScoreWeights()
    return 100 * (weights.classification * classification + weights.path * path + weights.action * action)


def overall(logic: float, chat: float, metrics: ScoreWeights | None = None) -> float:
    """Return Eq. 9 with the weights of its Table 1: 0.8 logic + 0.2 chat, all in [0, 100].

    >>> round(overall(70.10, 77.38), 2)
    71.56
    """
    weights = metrics or ScoreWeights()
    return weights.logic * logic + weights.chat * chat


def classification(given: Mapping[str, Value], known: Mapping[str, Value]) -> float:
    """Return the share of the known fields with the right label (Eq. 5). A missing label is wrong.

    Raises:
        ValueError: No field is known.
    """
    if not known:
        raise ValueError("no field is known")
    return sum(name in given and _same(given[name], value) for name, value in known.items()) / len(known)


def path_score(given: Sequence[str], reference: Sequence[str], form: PathForm = "intersection") -> float:
    """Return the path score in [0, 1].

    `intersection`, Eq. 6: |given ∩ reference| / |reference|. Additional, repeated or reordered stages cost nothing.
    `prefix`: 1 for the same path, else the length of the common prefix divided by that of the longer path.

    >>> path_score(["stage1", "stage2", "stage9", "stage4"], ["stage1", "stage2", "stage4"])
    1.0
    >>> path_score(["stage1", "stage2", "stage9", "stage4"], ["stage1", "stage2", "stage4"], "prefix")
    0.5
    """
    if form == "intersection":
        return len(set(given) & set(reference)) / len(set(reference))
    return departure(given, reference) / max(len(given), len(reference))


def departure(given: Sequence[str], reference: Sequence[str]) -> int:
    """Return the length of the common prefix in stages."""
    pairs = zip(given, reference, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def action_score(given: str, reference: str, scenario: Scenario, form: ActionForm = "exact") -> float:
    """Return 1 for the right action, else 0 (Eq. 7).

    With `group`, the right tool with another of its options scores the `group_credit` of the scenario (released code of
    Online Education: 0.7 for PLAN, 0.3 for the option).
    """
    if given == reference:
        return 1.0
    actions, credit = scenario.file.actions, scenario.file.metrics.group_credit
    if form == "exact" or credit is None or given not in actions:
        return 0.0
    group = actions[reference].group
    return credit if group is not None and actions[given].group == group else 0.0


def quality(dimensions: Mapping[str, int]) -> float:
    """Return Eq. 8 of one judge: ten times the weighted mean of the grades 3, 6 and 9, so in [30, 90].

    >>> quality(dict.fromkeys(DIMENSIONS, 9))
    90.0
    """
    return sum(weight * dimensions[name] for name, weight in DIMENSIONS.items()) / 10


def _same(one: Value, other: Value) -> bool:
    return type(one) is type(other) and one == other
