"""Check model folders on the nodes of a cluster before placement.

A model name is resolved once, in this process, and every actor gets the resulting folder. Without this check, an actor
on a node without the folder would report a broken model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hamr.cluster.nodes import ask_nodes, node_ids
from hamr.cluster.placement import PlacementRow
from hamr.errors import BadInput

POLICY = "model.path"
LOOK_S = 60.0
"""Longest wait for the nodes' answers."""


def pool_model(name: str) -> str:
    """Return the setting that names the pool's model."""
    return f"pools.{name}.model"


def check_models(rows: Sequence[PlacementRow], models: Mapping[str, Path]) -> None:
    """Check that the nodes of a plan have the models of the units placed there. `models` maps settings to folders.

    Raises BadInput if a folder is missing. A node that does not answer within `LOOK_S` is not checked.
    """
    import ray

    ids = node_ids()
    here = ray.get_runtime_context().get_node_id()
    wanted = {node: needs for node, needs in _by_node(rows, models).items() if ids.get(node, here) != here}
    if wanted:
        found = ask_nodes([ids[node] for node in wanted], LOOK_S, _absent, sorted(set(models.values())))
        refuse_absent(wanted, {node: found[ids[node]] for node in wanted})


def _by_node(rows: Sequence[PlacementRow], models: Mapping[str, Path]) -> dict[str, dict[str, Path]]:
    """Return the models loaded on each node. Units other than pools load the policy (the router its tokenizer)."""
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
    """Raise BadInput for the first missing model folder.

    Args:
        wanted: Per node, folders by setting.
        absent: Per node, its missing folders, or the reason why it did not answer.
    """
    for node, folders in sorted(wanted.items()):
        missing = absent[node]
        for setting, folder in sorted(folders.items()):
            if not isinstance(missing, str) and folder in missing:
                raise BadInput(
                    setting,
                    str(folder),
                    f"node {node} lacks this folder; set HF_HOME and HAMR_CACHE to folders that all nodes see, or "
                    "give a model's folder in one",
                )
