"""Policies that an evaluation may test: a pool, the newest checkpoint of a run folder, or a file of finished
responses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hamr.apps.shared.pools_up import writing_pool
from hamr.apps.shared.trained_policy import TrainedPolicy
from hamr.config.pools import PoolConfig
from hamr.config.schema import Config
from hamr.data.samples import read_rows
from hamr.errors import BadInput, DataError, did_you_mean

LEARNED = {
    "plain": ("none",),
    "think_answer": ("pre",),
    "answer_think": ("post",),
    "hybrid": ("pre", "post"),
}
"""Response orders that a policy trained in a format supports."""


def with_policies(config: Config, key: str, names: Sequence[str], cot: str) -> tuple[Config, dict[str, str]]:
    """Return (the configuration with a pool for every policy to be queried, name -> pool).

    A name is a pool, or the path of a run folder; the pool of a run folder is created with the engine of the run's
    rollouts. Files of responses (`*.jsonl`) need no pool and are skipped. Raises BadInput for any other name, and for a
    run that was not trained to answer in the order `cot`.
    """
    pools: dict[str, PoolConfig] = dict(config.pools)
    asked: dict[str, str] = {}
    for given in names:
        if is_file(given):
            continue
        if given in config.pools:
            asked[given] = writing_pool(config, key, given)
            continue
        path = Path(given).expanduser()
        if not path.is_dir():
            known = sorted(config.pools)
            remedy = (
                f"no such pool, run folder or file of responses; {did_you_mean(given, known)}pools: {', '.join(known)}"
            )
            raise BadInput(key, given, remedy)
        name = f"run-{path.resolve().name}"
        if name in pools:
            raise BadInput(key, given, f"has the same name {name} as another; rename one of the folders")
        pools[name] = _pool_of_run(key, path, cot)
        asked[name] = name
    return config.model_copy(update={"pools": pools}), asked


def is_file(given: str) -> bool:
    return given.endswith(".jsonl")


def name_of(given: str) -> str:
    """Return the name of a file of responses in tables."""
    return Path(given).stem


def read_responses(path: Path, ids: Sequence[str]) -> dict[str, str]:
    """Return the response by item.

    A line is {"id", "response"}; more fields are allowed. Raises DataError (file and line), and BadInput for an item
    without a response.
    """
    found: dict[str, str] = {}
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        name, text = (row.get("id"), row.get("response")) if isinstance(row, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise DataError(where, row, "give an object with the item's id and its response, both texts")
        if name in found:
            raise DataError(f"{where}: id", name, "already used on an earlier line; give one response per item")
        found[name] = text
    missing = next((name for name in ids if name not in found), None)
    if missing is not None:
        remedy = f"has no response to this item; it has {len(found)} responses for {len(ids)} items; answer all items"
        raise BadInput(str(path), missing, remedy)
    return found


def _pool_of_run(key: str, path: Path, cot: str) -> PoolConfig:
    trained = TrainedPolicy.of(key, path)
    run = trained.config
    orders = LEARNED[run.model.response_format]
    if cot not in orders:
        remedy = f"{path} learned model.response_format={run.model.response_format}; set cot={' or '.join(orders)}"
        raise BadInput("cot", cot, remedy)
    return PoolConfig(
        role="grader",
        model=str(trained.model),
        dtype=run.model.dtype,
        max_context=run.model.max_context,
        engine=run.rollout.engine,
        replicas=run.rollout.workers,
    )
