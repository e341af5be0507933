"""`hamr data sage scenario=...`: generated dialogues over any scenario."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

from rich.console import Console
from rich.table import Table

from hamr.config.schema import SageDataConfig
from hamr.data.sage_samples import Form, generate
from hamr.data.sage_words import SPLITS, Split
from hamr.data.splits import Splits
from hamr.errors import BadInput
from hamr.evaluation.sage import Scenario, load_scenario, scenario_names
from hamr.evaluation.sage.schema import LANGUAGES

TEACHING = ("judge", "at_once", "max_new_tokens", "temperature")


def build(own: Mapping[str, str], overrides: Sequence[str], config: SageDataConfig, folder: Path) -> Splits:
    """The splits for one scenario, by name or path, or for `all` that ship, with what they cover on the screen; the
    customers in a teacher's words, if one is named. Raises BadInput."""
    scenario, language, form = own["scenario"], own.get("language", "en"), own.get("form", "actions")
    if language not in LANGUAGES:
        raise BadInput("language", language, f"known: {', '.join(LANGUAGES)}")
    if form not in get_args(Form):
        raise BadInput("form", form, f"known: {', '.join(get_args(Form))}")
    rewording = None
    for name in TEACHING:
        if name in own and not (own.get("teacher") or own.get("teachers")):
            raise BadInput(name, own[name], "goes with a teacher; give teacher=<pool> too")
    if own.get("teacher") or own.get("teachers"):
        from hamr.jobs.reword_sage import Rewording

        rewording = Rewording(own, overrides, language)
    scenarios = [load_scenario(name) for name in (scenario_names() if scenario == "all" else [scenario])]
    sizes: dict[Split, int] = {"train": config.train, "validation": config.validation, "test": config.test}
    started = time.perf_counter()
    splits = generate(scenarios, sizes, seed=config.seed, language=language, form=cast(Form, form))
    rate = sum(sizes.values()) / max(time.perf_counter() - started, 1e-9) * 60
    Console().print(_coverage(scenarios, splits))
    print(f"{sum(sizes.values())} different samples, at {rate:,.0f} a minute", flush=True)
    if rewording is not None:
        return rewording.made(splits, {each.name: each for each in scenarios}, folder)
    return splits


def _coverage(scenarios: list[Scenario], splits: Splits) -> Table:
    """How many of a scenario's paths end a dialogue of each split."""
    table = Table("scenario", "paths", *SPLITS, title="paths whose last action is asked for")
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
