"""Merging of finished evaluations: other agents, other scenarios or other seeds in one folder, with one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hamr.bench.sage.store import Store, check_settings, finished_settings, load_rows, merge_settings
from hamr.bench.sage.traces import Trace
from hamr.errors import BadInput


def merged_settings(folders: Sequence[Path]) -> dict[str, Any]:
    """Return the settings of the merged evaluation: all agents and scenarios, and under `merged` the seeds.

    Raises BadInput for a folder without an evaluation, and for folders whose settings differ in anything else.
    """
    first: dict[str, Any] | None = None
    seeds: list[int] = []
    for folder in folders:
        settings = finished_settings(folder, "merge")
        mine = settings.pop("merged", {"seeds": [settings["sage"]["seed"]]})["seeds"]
        seeds += [seed for seed in mine if seed not in seeds]
        settings["sage"]["seed"] = seeds[0]
        if first is not None:
            check_settings(folder, first, settings, rejudge=False)
        first = settings if first is None else merge_settings(first, settings)
    assert first is not None, "there is at least one folder"
    return {**first, "merged": {"seeds": seeds}}


def merge_into(store: Store, folders: Sequence[Path]) -> None:
    """Add the dialogues and judgements of the folders to the store.

    With several seeds the seed is put before the id of each dialogue. Raises BadInput where two folders have the same
    dialogue.
    """
    loaded = [load_rows(folder) for folder in folders]
    seeds = {trace.plan.seed for traces, *_ in loaded for trace in traces.values()}
    home: dict[tuple[str, str], Path] = {}
    for folder, (traces, judgements, readings, exams) in zip(folders, loaded, strict=True):
        for exam in exams.values():
            store.add_exam(exam, final=True)
        for (agent, name), trace in traces.items():
            renamed = _with_seed(trace, several=len(seeds) > 1)
            key = (agent, renamed.plan.id)
            if key in home:
                shared = f"{agent}, {trace.plan.id}, seed {trace.plan.seed}"
                raise BadInput("merge", shared, f"is in {home[key]} and in {folder}; merge other agents or other seeds")
            home[key] = folder
            if key not in store.traces:
                store.add_trace(renamed)
            for turn, judgement in judgements.get((agent, name), {}).items():
                if turn not in store.judgements.get(key, {}):
                    store.add_judgement(replace(judgement, dialogue=renamed.plan.id))
            if (agent, name) in readings and key not in store.readings:
                store.add_reading(replace(readings[agent, name], dialogue=renamed.plan.id))


def _with_seed(trace: Trace, *, several: bool) -> Trace:
    prefix = f"seed{trace.plan.seed}/"
    if not several or trace.plan.id.startswith(prefix):
        return trace
    return replace(trace, plan=replace(trace.plan, id=prefix + trace.plan.id))
