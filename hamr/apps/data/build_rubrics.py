"""`hamr data rubrics`: a rubric for every sample, by teacher pools and a judge pool; resumable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hamr.apps.data.recipe_job import OPTIONS as COMMON
from hamr.apps.data.recipe_job import make_items, show, team_of
from hamr.apps.data.recipes.rubrics import RubricRecipe, Rubrics, rubric_items, with_made
from hamr.apps.shared.job_options import one_of, output_file, require_files
from hamr.config.load import load_config
from hamr.data.samples import read_samples, write_samples
from hamr.errors import BadInput

OPTIONS = (*(name for name in COMMON if name != "max_new_tokens"), "candidates", "worse", "min_separation", "seed")


def recipe_of(own: Mapping[str, str]) -> RubricRecipe:
    """Parse the recipe from the command line's options. Raises BadInput."""
    made: dict[str, Any] = {}
    for name, kind in (("candidates", int), ("worse", int), ("min_separation", float), ("seed", int)):
        if name not in own:
            continue
        try:
            made[name] = kind(own[name])
        except ValueError:
            raise BadInput(name, own[name], "must be a number") from None
    for name in ("candidates", "worse"):
        if made.get(name, 1) < 1:
            raise BadInput(name, made[name], "must be 1 or more")
    if not -1.0 <= made.get("min_separation", 0.0) <= 1.0:
        raise BadInput("min_separation", made["min_separation"], "must be between -1 and 1")
    return RubricRecipe(**made, language=one_of(own, "language", ("en", "zh"), "en"))


def build(own: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Write every sample with its rubric, or unchanged where none was kept, and record the reasons."""
    require_files(own, {"input": "jsonl", "output": "jsonl"})
    output = output_file(own)
    recipe = recipe_of(own)
    samples = read_samples(Path(own["input"]).expanduser())
    config = load_config(list(overrides))
    team = team_of(config, own)
    items = rubric_items(samples, recipe, team.by(config))
    done = make_items(config, team, items, Rubrics(recipe), own, output, run="rubrics")
    write_samples(output, [with_made(sample, done[sample.id]) for sample in samples])
    kept = [made.kept for made in done.values() if made.kept is not None]
    more = [
        ("items, mean", f"{fmean(len(rubric['items']) for rubric in kept):.1f}"),
        ("separation, mean", f"{fmean(rubric['separation'] for rubric in kept):.2f}"),
    ] if kept else []  # fmt: skip
    show("samples", done, more)
    print(f"written: {output}")
    return 0
