"""`hamr data thought`: thoughts extracted from experts and migrated to other cases, as SFT items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from hamr.apps.data.recipe_job import OPTIONS, Team, make_items, show, team_of
from hamr.apps.data.recipes.migration import Migration, MigrationRecipe
from hamr.apps.data.recipes.runner import Make
from hamr.apps.data.recipes.thought import ORDERS, Extraction, Rendering, ThoughtRecipe, renderings, thought_items
from hamr.apps.shared.job_options import number, one_of, output_file, require_files
from hamr.apps.shared.pools_up import writing_pool
from hamr.config.load import load_config
from hamr.config.schema import Config
from hamr.data.language import Language
from hamr.data.samples import read_samples
from hamr.data.sft_items import write_items
from hamr.errors import BadInput

_MIGRATION = ("zero_think", "candidates", "temperature", "min_quality", "refine", "seed")
THOUGHT_OPTIONS = (*OPTIONS, "step", "render", "min_cot", *_MIGRATION)
_STEPS = ("extract", "migrate")
_MODES = {"extract": "pre", "migrate": "hybrid"}
"""Default rendering of each step's items: the second paper's Table 7."""


def build_thought(own: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Run one step and write its kept items: `decision_dra`, `decision_post` or both."""
    require_files(own, {"step": "extract or migrate", "input": "samples", "output": "jsonl"})
    output = output_file(own)
    step = one_of(own, "step", _STEPS, "")
    render = cast(Rendering, one_of(own, "render", tuple(ORDERS), _MODES[step]))
    recipe = recipe_of(own, step)
    samples = read_samples(Path(own["input"]).expanduser())
    config = load_config(list(overrides))
    team = thought_team(config, own)
    items = thought_items(samples, recipe, team.by(config))
    make: Make = Migration(recipe) if isinstance(recipe, MigrationRecipe) else Extraction(recipe)
    done = make_items(config, team, items, make, own, output, run="thought")
    kept = [(item.content, made.kept) for item in items if (made := done[item.id]).kept is not None]
    found = [one for sample, made in kept for one in renderings(sample, made, render)]
    write_items(output, found)
    figures = [("chain's quality, mean", "cot_quality"), ("dialogue quality, mean", "quality")]
    more = [
        (what, f"{fmean(made[key] for _, made in kept):.2f}") for what, key in figures if kept and key in kept[0][1]
    ]
    show(f"thoughts: {step}", done, [*more, (f"SFT items, {render}-CoT", str(len(found)))])
    print(f"written: {output}")
    return 0


def recipe_of(own: Mapping[str, str], step: str) -> ThoughtRecipe:
    """Parse the recipe from the command line's options. Raises BadInput."""
    tokens = number(own, "max_new_tokens", int, 0)
    if tokens < 0 or ("max_new_tokens" in own and not tokens):
        raise BadInput("max_new_tokens", tokens, "must be 1 or more")
    common: dict[str, Any] = {
        "language": cast(Language, one_of(own, "language", ("en", "zh"), "en")),
        "max_new_tokens": tokens or None,
        "min_cot": _grade(own, "min_cot"),
    }
    if step == "extract":
        foreign = next((name for name in _MIGRATION if name in own), None)
        if foreign is not None:
            raise BadInput(foreign, own[foreign], "requires step=migrate; remove it")
        return ThoughtRecipe(**common)
    default = MigrationRecipe()
    made = MigrationRecipe(
        **common,
        candidates=number(own, "candidates", int, default.candidates),
        temperature=number(own, "temperature", float, default.temperature),
        min_quality=_grade(own, "min_quality"),
        refine=number(own, "refine", int, default.refine),
        zero_think="zero_think" in own,
        seed=number(own, "seed", int, default.seed),
    )
    if made.candidates < 1:
        raise BadInput("candidates", made.candidates, "must be 1 or more")
    if made.refine < 0:
        raise BadInput("refine", made.refine, "must be 0 or more")
    if not 0.0 <= made.temperature <= 2.0:
        raise BadInput("temperature", made.temperature, "must be between 0 and 2")
    if made.candidates > 1 and not made.temperature:
        raise BadInput("temperature", made.temperature, "makes all candidates equal; raise it or give candidates=1")
    return made


def _grade(own: Mapping[str, str], name: str) -> int:
    value = number(own, name, int, getattr(MigrationRecipe(), name))
    if not 1 <= value <= 5:
        raise BadInput(name, value, "must be a grade from 1 to 5")
    return value


def thought_team(config: Config, own: Mapping[str, str]) -> Team:
    """Return the teachers, the judge, and the Zero-Think pool if there is one. Raises BadInput."""
    team = team_of(config, own)
    if "zero_think" not in own:
        return team
    second = writing_pool(config, "zero_think", own["zero_think"])
    return Team(teachers=team.teachers, judge=team.judge, second=second)
