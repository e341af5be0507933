"""Placement plan of a run on the nodes of a cluster, checked before anything starts.

Ray waits indefinitely for an actor that no node can hold. Here every unit is assigned a node first, by Ray's own rules
(a unit is on one node; labels and resources have to fit). A failure is reported in one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hamr.cluster.resource_requests import KEYS, ResourceRequest, demands, learners
from hamr.config.schema import Config
from hamr.errors import CapacityError

SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node and its free resources."""

    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlacementRow:
    """Number of units of a demand on each node."""

    demand: ResourceRequest
    placed: Mapping[str, int]

    @property
    def missing(self) -> int:
        return self.demand.count - sum(self.placed.values())


def check_capacity(wanted: Sequence[ResourceRequest], available: Mapping[str, float]) -> None:
    """Raise CapacityError if the cluster as a whole is too small.

    The error names the largest consumer of the short resource, both numbers, and the count that would fit.

    Args:
        available: Amounts by Ray's resource names (logical units).
    """
    for resource in dict.fromkeys(name for d in wanted for name in d.resources):
        have = available.get(resource, 0.0)
        need = sum(d.count * d.resources.get(resource, 0.0) for d in wanted)
        if need <= have + SLACK:
            continue
        largest = max(wanted, key=lambda d: d.count * d.resources.get(resource, 0.0))
        each = largest.resources[resource]
        fits = max(0, int((have - (need - largest.count * each)) / each + SLACK))
        reduce = f"lower it to {fits} or less" if fits else "lower it and the run's other requests"
        more = f"raise cluster.num_cpus to {need:g} (a local Ray) or add nodes" if resource == "CPU" else "add nodes"
        raise CapacityError(
            largest.key,
            largest.count,
            f"{largest.count} x {each:g} {resource} of the {need:g} that the run requests, but the cluster has {have:g}"
            f"; {reduce}, or {more}",
        )


def check_placement(config: Config, nodes: Sequence[Node]) -> list[PlacementRow]:
    """Return the plan of a run. Raises CapacityError with the key, its value and the remedy.

    It checks first for units that no node can hold, then for resources that all nodes together lack, then for units
    that do not fit with the others.
    """
    return check_demands(demands(config), nodes, _units(config))


def check_demands(
    wanted: Sequence[ResourceRequest], nodes: Sequence[Node], units: Sequence[ResourceRequest] | None = None
) -> list[PlacementRow]:
    """Return the plan of demands, as `check_placement`. `units`: the same demands, joined where they belong together,
    as those of trainers and rollout workers."""
    for demand in wanted:
        _check_one_fits(demand, nodes)
    total: dict[str, float] = {}
    for node in nodes:
        for name, amount in node.resources.items():
            total[name] = total.get(name, 0.0) + amount
    check_capacity(wanted, total)
    rows = place(wanted if units is None else units, nodes)
    for row in rows:
        if not row.missing:
            continue
        if row.demand.parts:
            raise CapacityError("rollout.transfer", "shared_memory", _apart(row.demand, nodes))
        raise CapacityError(row.demand.key, row.demand.count, _left_over(row, rows, nodes))
    return rows


def plan(config: Config, nodes: Sequence[Node]) -> list[PlacementRow]:
    """Place all units of a run, as far as resources suffice."""
    return place(_units(config), nodes)


def _units(config: Config) -> list[ResourceRequest]:
    return [*learners(config), *demands(config)[2:]]


def _apart(demand: ResourceRequest, nodes: Sequence[Node]) -> str:
    free = ", ".join(f"{node.name}: {_amount_text(node.resources, demand.resources)}" for node in nodes)
    return (
        f"trainers and engines pass the weights through one node's memory, so {demand.each()} have to be free on one; "
        f"there is {free}; set rollout.transfer=nccl on GPUs, lower what they take, or add a larger node"
    )


def _check_one_fits(demand: ResourceRequest, nodes: Sequence[Node]) -> None:
    allowed = [node for node in nodes if matches(node.labels, demand.labels)]
    if not allowed:
        there = sorted({f"{k}={v}" for n in nodes for k, v in n.labels.items() if k in demand.labels})
        remedy = f"no node has these labels; the nodes' values of these keys: {', '.join(there) if there else 'none'}"
        raise CapacityError(f"{demand.section}.node_labels", dict(demand.labels), f"{remedy}; correct them")
    if any(_fits(demand, node.resources) for node in allowed):
        return
    for resource, amount in demand.resources.items():
        most = max(node.resources.get(resource, 0.0) for node in allowed)
        if amount > most + SLACK:
            where = "no node with its labels" if demand.labels else "no node"
            remedy = (
                f"lower it to {most:g} or less, or add a node that has {amount:g}" if most else "add a node that has"
            )
            raise CapacityError(
                demand.setting(resource),
                amount,
                f"{where} has that much {resource} free (at most {most:g}); {remedy}",
            )
    each = demand.each()
    raise CapacityError(demand.key, demand.count, f"each needs {each} on one node, and no node has all of it free")


def _left_over(row: PlacementRow, rows: Sequence[PlacementRow], nodes: Sequence[Node]) -> str:
    demand, found = row.demand, sum(row.placed.values())
    free = _free(rows, nodes)
    left = ", ".join(f"{node.name}: {_amount_text(free[node.name], demand.resources)}" for node in nodes)
    limits = []
    if demand.per_node:
        limits.append(f"at most {demand.per_node} on a node")
    if demand.strategy == "strict_pack":
        limits.append("all on one node")
    if demand.labels:
        limits.append("only on nodes with its labels")
    bound = f" ({', '.join(limits)})" if limits else ""
    return (
        f"only {found} of them fit with the rest{bound}; each needs {demand.each()} on one node, and "
        f"the free resources are {left}; lower it{f' to {found} or less' if found else ''}, or add nodes"
    )


def place(wanted: Sequence[ResourceRequest], nodes: Sequence[Node]) -> list[PlacementRow]:
    """Place every demand as far as resources suffice. Return rows in the order of `wanted`.

    Units with the fewest possible nodes are placed first: those with GPUs, the largest first, then those that need a
    special resource or label, then those that must be on one node. `pack` prefers the node with most units of the same
    kind, `spread` the one with fewest. Both then prefer the fullest node that still fits, to keep large gaps whole. A
    greedy plan may miss an existing solution, as may Ray.
    """
    free = {node.name: dict(node.resources) for node in nodes}
    labels = {node.name: node.labels for node in nodes}
    rows: dict[int, PlacementRow] = {}
    for index in sorted(range(len(wanted)), key=lambda i: _size(wanted[i]), reverse=True):
        demand = wanted[index]
        strict = demand.strategy == "strict_pack"
        allowed = [name for name in free if matches(labels[name], demand.labels)]
        choices = [[name] for name in sorted(allowed, key=lambda n: _rest(free[n]))] if strict else [allowed]
        tries = [_place_one(demand, choice, free) for choice in choices]
        placed = max(tries, key=lambda p: sum(p.values()), default={})
        if strict and sum(placed.values()) < demand.count:
            placed = {}
        for name, count in placed.items():
            _take(free[name], demand, count)
        rows[index] = PlacementRow(demand=demand, placed=placed)
    return [rows[i] for i in range(len(wanted))]


def _place_one(
    demand: ResourceRequest, names: Iterable[str], free: Mapping[str, Mapping[str, float]]
) -> dict[str, int]:
    room = {name: dict(free[name]) for name in names}
    placed: dict[str, int] = {}
    for _ in range(demand.count):
        open_to = [
            name
            for name in room
            if _fits(demand, room[name]) and (demand.per_node is None or placed.get(name, 0) < demand.per_node)
        ]
        if not open_to:
            break
        sign = 1 if demand.strategy == "spread" else -1
        best = min(open_to, key=lambda n: (sign * placed.get(n, 0), _rest(room[n]), n))
        placed[best] = placed.get(best, 0) + 1
        _take(room[best], demand, 1)
    return placed


def _size(demand: ResourceRequest) -> tuple[float, ...]:
    special = bool(demand.labels) or any(name not in KEYS for name in demand.resources)
    return demand.gpus, float(special), float(demand.strategy == "strict_pack"), demand.cpus


def _rest(room: Mapping[str, float]) -> tuple[float, ...]:
    """Return the sort key of a node's remaining resources, GPUs first, so that CPU units avoid GPU nodes."""
    return room.get("GPU", 0.0), room.get("CPU", 0.0)


def _fits(demand: ResourceRequest, room: Mapping[str, float]) -> bool:
    return all(room.get(name, 0.0) + SLACK >= amount for name, amount in demand.resources.items())


def _take(room: dict[str, float], demand: ResourceRequest, count: int) -> None:
    for name, amount in demand.resources.items():
        room[name] = room.get(name, 0.0) - count * amount


def _free(rows: Sequence[PlacementRow], nodes: Sequence[Node]) -> dict[str, dict[str, float]]:
    free = {node.name: dict(node.resources) for node in nodes}
    for row in rows:
        for name, count in row.placed.items():
            _take(free[name], row.demand, count)
    return free


def matches(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Return whether a node with `labels` matches `wanted`, by Ray's operators `a`, `!a`, `in(a,b)`, `!in(a,b)`.

    A label that the node does not have is unequal to everything.
    """
    for key, text in wanted.items():
        has = labels.get(key)
        negated, plain = text.startswith("!"), text.removeprefix("!")
        listed = re.fullmatch(r"in\((.*)\)", plain)
        values = [v.strip() for v in listed[1].split(",")] if listed else [plain]
        if (has in values) == negated:
            return False
    return True


def plan_lines(rows: Sequence[PlacementRow], nodes: Sequence[Node]) -> list[str]:
    """Format the plan as a table: key, count, resources, nodes."""
    cells = [
        (row.demand.section.removesuffix(".engine"), str(row.demand.count), row.demand.each(), _where(row))
        for row in rows
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(3)]
    room = _free(rows, nodes)
    free = "; ".join(f"{node.name}: {_amount_text(room[node.name], ('CPU', 'GPU'))}" for node in nodes)
    lines = [f"plan: {len(nodes)} node{'s' * (len(nodes) != 1)}; free after it: {free}"]
    for who, count, each, where in cells:
        lines.append(f"  {who:<{widths[0]}}  {count:>{widths[1]}} x {each:<{widths[2]}}  {where}")
    return lines


def _where(row: PlacementRow) -> str:
    text = ", ".join(f"{count} on {name}" for name, count in row.placed.items())
    return ", ".join(part for part in (text, f"{row.missing} not placed" if row.missing else "") if part)


def _amount_text(room: Mapping[str, float], names: Iterable[str]) -> str:
    # Round sums of tenths, to avoid 1.9000000000000004.
    known = [f"{round(room[name], 6):g} {name}" for name in names if name in room]
    return " + ".join(known) if known else "nothing"


def describe_placement(config: Config, nodes: Sequence[Node]) -> list[str]:
    """Format the plan of a run. Raises CapacityError if it does not fit, unless the cluster is elastic."""
    rows = plan(config, nodes) if config.cluster.elastic else check_placement(config, nodes)
    return plan_lines(rows, nodes)
