"""OlaBench's items (second paper, sections 3.1 and A.2): decision points of a service, of three kinds and subsets.

An item is a sample with the additional input that its kind of system gives to the model. In a file, a line is a sample
(`hamr.data.samples`) with some more fields:

    "kind": "rag", "subset": "core", "evidence": [{"question": "...", "answer": "..."}, ...]
    "kind": "workflow", "subset": "risk", "nodes": [{"name": "intent", "task": "...", "output": "..."},
                                                    {"name": "reply", "task": "..."}]
    "kind": "agent", "subset": "hallucination", "trap": "factual"

`evidence`: pairs that were retrieved for the customer's last message; the question of a pair is optional. `nodes`: the
workflow's nodes in order, each with its output, except the last, which is the one under test. An agent item has tools.
Every item has a policy. `trap`: the type of risk or hallucination that the item tempts to, "" for none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hamr.bench.olabench.rates import HALLUCINATIONS
from hamr.data.samples import from_json, read_unique, to_json
from hamr.data.shapes import NonEmptyText, check_shape
from hamr.errors import DataError
from hamr.rewards import risk
from hamr.types import ServiceSample, Turn

ItemKind = Literal["rag", "workflow", "agent"]
Subset = Literal["core", "risk", "hallucination"]
KINDS: tuple[ItemKind, ...] = get_args(ItemKind)
SUBSETS: tuple[Subset, ...] = get_args(Subset)
TRAPS: Mapping[Subset, tuple[str, ...]] = {"core": (), "risk": risk.TYPES, "hallucination": HALLUCINATIONS}

FILE = "items.jsonl"
RETRIEVAL = "knowledge_base"
"""Speaker of the retrieved pairs: a tool, so that judges hold responses to them as to a tool's result."""


@dataclass(frozen=True, kw_only=True)
class ItemEvidence:
    question: str = ""
    answer: NonEmptyText


@dataclass(frozen=True, kw_only=True)
class SkillNode:
    """`output` is None for the node under test."""

    name: NonEmptyText
    task: NonEmptyText
    output: NonEmptyText | None = None


@dataclass(frozen=True, kw_only=True)
class BenchItem:
    sample: ServiceSample
    kind: ItemKind
    subset: Subset = "core"
    evidence: tuple[ItemEvidence, ...] = ()
    nodes: tuple[SkillNode, ...] = ()
    trap: str = ""


# --- visible parts -----------------------------------------------------------------------------


def visible_sample(item: BenchItem) -> ServiceSample:
    """Return the sample as the policy and the judges read it.

    Retrieved pairs and the outputs of earlier nodes are inserted before the customer's last message, as results of
    tools: untrusted texts that a response must be consistent with. A node's task is written by the owner and goes into
    the policy.
    """
    turns = [Turn(role="tool", name=node.name, content=f"{node.name}: {node.output}") for node in item.nodes[:-1]]
    if item.evidence:
        turns.append(Turn(role="tool", name=RETRIEVAL, content=_pairs(item.evidence)))
    history = item.sample.history
    last = len(history) - 1 if history and history[-1].role == "customer" else len(history)
    policy = "\n\n".join(part for part in (item.sample.policy.strip(), _workflow(item.nodes)) if part)
    return dataclasses.replace(item.sample, policy=policy, history=(*history[:last], *turns, *history[last:]))


def _pairs(evidence: tuple[ItemEvidence, ...]) -> str:
    lines = []
    for number, pair in enumerate(evidence, start=1):
        lines.append(f"[{number}] {f'Q: {pair.question} A: {pair.answer}' if pair.question else pair.answer}")
    return "\n".join(lines)


def _workflow(nodes: tuple[SkillNode, ...]) -> str:
    if not nodes:
        return ""
    steps = "\n".join(f"{number}. {node.name}: {node.task}" for number, node in enumerate(nodes, start=1))
    return f"Workflow, node by node:\n{steps}\nYou are the node {nodes[-1].name}."


# --- files -------------------------------------------------------------------------------------


def read_items(path: Path) -> list[BenchItem]:
    """Read the items of a file, or of a folder's items.jsonl.

    Raises DataError at `file:line: field` for the first fault, such as an item without policy, evidence, nodes or
    tools.
    """
    file = path / FILE if path.is_dir() else path
    read = read_unique(file, lambda row, where: item_from_json(row, where=where), lambda item: item.sample.id)
    return [item for _, item in read]


def item_json(item: BenchItem) -> dict[str, Any]:
    """Return the line's object; `item_from_json` gives the same item back."""
    nodes = [{key: text for key, text in vars(node).items() if text} for node in item.nodes]
    more = {"evidence": [dataclasses.asdict(pair) for pair in item.evidence], "nodes": nodes, "trap": item.trap}
    own = {"kind": item.kind, "subset": item.subset, **{key: value for key, value in more.items() if value}}
    return {**to_json(item.sample), **own}


def item_from_json(row: Any, *, where: str, own: Collection[str] = ()) -> BenchItem:
    """Parse an item. Raises DataError whose location is `<where>: <field>`. `own`: fields that the caller reads."""
    sample = from_json(row, where=where, own=("kind", "subset", "evidence", "nodes", "trap", *own))
    kind = _one_of(row, "kind", KINDS, where)
    subset = _one_of({"subset": "core", **row}, "subset", SUBSETS, where)
    if not sample.policy.strip():
        raise DataError(f"{where}: policy", sample.policy, "is empty; give the service policy that responses must keep")
    if kind == "agent" and not sample.tools:
        raise DataError(f"{where}: tools", [], "is empty; an agent's item needs tools")
    if kind == "rag" and not row.get("evidence"):
        remedy = "missing; an item of kind rag needs what was retrieved, a list of {question, answer}"
        raise DataError(f"{where}: evidence", row.get("evidence"), remedy)
    if kind == "workflow" and not row.get("nodes"):
        remedy = "missing; an item of kind workflow needs its nodes, a list of {name, task, output}"
        raise DataError(f"{where}: nodes", row.get("nodes"), remedy)
    trap = row.get("trap", "")
    if trap not in ("", *TRAPS[subset]):
        remedy = f"no such type; of the subset {subset}: {', '.join(TRAPS[subset]) or 'none'}"
        raise DataError(f"{where}: trap", trap, remedy)
    return BenchItem(
        sample=sample,
        kind=kind,
        subset=subset,
        evidence=read_evidence(row.get("evidence", []), where),
        nodes=_nodes(row.get("nodes", []), where),
        trap=trap,
    )


def read_evidence(rows: Any, where: str) -> tuple[ItemEvidence, ...]:
    """Parse retrieved pairs. Raises DataError for a pair without an answer."""
    return tuple(check_shape(list[ItemEvidence], rows, f"{where}: evidence"))


def _nodes(rows: Any, where: str) -> tuple[SkillNode, ...]:
    nodes = check_shape(list[SkillNode], rows, f"{where}: nodes")
    for i, node in enumerate(nodes):
        last = i == len(nodes) - 1
        if last and node.output is not None:
            remedy = "the last node is the one under test; remove its output"
            raise DataError(f"{where}: nodes[{i}].output", node.output, remedy)
        if not last and node.output is None:
            raise DataError(f"{where}: nodes[{i}].output", None, "missing; give a text")
    if len(nodes) == 1:
        raise DataError(f"{where}: nodes", [nodes[0].name], "has one node; a workflow has several")
    return tuple(nodes)


def _one_of(row: Mapping[str, Any], field: str, allowed: tuple[Any, ...], where: str) -> Any:
    if row.get(field) not in allowed:
        raise DataError(f"{where}: {field}", row.get(field), f"give one of {', '.join(allowed)}")
    return row[field]
