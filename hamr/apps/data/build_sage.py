"""`hamr data sage`: generated dialogues over a scenario."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

from rich.console import Console
from rich.table import Table

from hamr.config.schema import SageDataConfig
from hamr.data.sage_samples import Form, generate_samples, scenario_choices
from hamr.data.splits import Splits
from hamr.errors import BadInput
from hamr.procedures import Scenario, load_scenario
from hamr.procedures.words import SPLITS

TEACHING = ("judge", "at_once", "max_new_tokens", "temperature")


def build(own: Mapping[str, str], overrides: Sequence[str], config: SageDataConfig, folder: Path) -> Splits:
    """Return the splits and print their coverage. If a teacher is named, it rewords the customers.

    Raises BadInput.
    """
    form = own.get("form", "actions")
    if form not in get_args(Form):
        raise BadInput("form", form, f"known: {', '.join(get_args(Form))}")
    if form != "actions" and config.noise:
        raise BadInput("data.sage.noise", config.noise, "requires form=actions; remove one")
    if form != "actions" and not config.procedure:
        raise BadInput("data.sage.procedure", config.procedure, "form=sage answers by the procedure; remove one")
    rewording = None
    for name in TEACHING:
        if name in own and not (own.get("teacher") or own.get("teachers")):
            raise BadInput(name, own[name], "requires a teacher; give teacher=<pool>")
    if own.get("teacher") or own.get("teachers"):
        from hamr.apps.data.reword_sage import Rewording

        rewording = Rewording(own, overrides, config.language)
    started = time.perf_counter()
    splits = generate_samples(config, form=cast(Form, form))
    total = config.train + config.validation + config.test
    rate = total / max(time.perf_counter() - started, 1e-9) * 60
    scenarios = [load_scenario(name) for name in scenario_choices(config.scenario)]
    Console().print(_coverage(scenarios, splits))
    print(f"{total} different samples, at {rate:,.0f} a minute", flush=True)
    if rewording is not None:
        return rewording.apply(splits, {each.name: each for each in scenarios}, folder)
    return splits


def _coverage(scenarios: list[Scenario], splits: Splits) -> Table:
    """Return the number of a scenario's paths that end a dialogue of each split."""
    table = Table("scenario", "paths", *SPLITS, title="paths with their last action as target")
    for scenario in scenarios:
        found = {
            split: {
                (tuple(sample.privileged["path"]), sample.privileged["action"])
                for sample in getattr(splits, split)
                if sample.meta["scenario"] == scenario.name and sample.privileged["action"] is not None
            }
            for split in SPLITS
        }
        table.add_row(scenario.name, str(len(scenario.paths())), *(str(len(found[split])) for split in SPLITS))
    return table
