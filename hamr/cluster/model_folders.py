"""Whether the nodes of a cluster have a run's models where this process found them.

A name is looked up once, here, and every actor is given the folder that was found. An actor elsewhere that finds no
such folder would complain of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hamr.cluster.nodes import ask_nodes, node_ids
from hamr.cluster.placement import PlacementRow
from hamr.errors import BadInput

POLICY = "model.path"
LOOK_S = 60.0
"""Longest wait for the nodes to look."""


def pool_model(name: str) -> str:
    """The setting that says which model the pool has."""
    return f"pools.{name}.model"


def check_models(rows: Sequence[PlacementRow], models: Mapping[str, Path]) -> None:
    """Asks the nodes of a plan whether they have the models of what lies there; `models` are folders by setting.

    Raises BadInput where one has not. A node that gives no answer within `LOOK_S` is left to what starts on it.
    """
    import ray

    ids = node_ids()
    here = ray.get_runtime_context().get_node_id()
    wanted = {node: needs for node, needs in _by_node(rows, models).items() if ids.get(node, here) != here}
    if wanted:
        found = ask_nodes([ids[node] for node in wanted], LOOK_S, _absent, sorted(set(models.values())))
        refuse_absent(wanted, {node: found[ids[node]] for node in wanted})


def _by_node(rows: Sequence[PlacementRow], models: Mapping[str, Path]) -> dict[str, dict[str, Path]]:
    """By node the models that are loaded there. All but the pools have the policy, the router for its tokenizer."""
    wanted: dict[str, dict[str, Path]] = {}
    for row in rows:
        section = row.demand.section.removesuffix(".engine")
        setting = f"{section}.model" if section.startswith("pools.") else POLICY
        for node in row.placed if setting in models else ():
            wanted.setdefault(node, {})[setting] = models[setting]
    return wanted


def _absent(folders: Sequence[Path]) -> list[Path]:
    return [folder for folder in folders if not (folder / "config.json").is_file()]


def refuse_absent(wanted: Mapping[str, Mapping[str, Path]], absent: Mapping[str, Sequence[Path] | str]) -> None:
    """`wanted`: per node folders by setting; `absent`: per node those that it has not, or why it has not said so."""
    for node, folders in sorted(wanted.items()):
        missing = absent[node]
        for setting, folder in sorted(folders.items()):
            if not isinstance(missing, str) and folder in missing:
                raise BadInput(
                    setting,
                    str(folder),
                    f"node {node} has no such folder; set HF_HOME and HAMR_CACHE to folders that all nodes see, or "
                    "give a model's folder in one",
                )
