"""`hamr data rubrics`: a rubric for every sample, by teacher pools and a judge pool; resumable."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from hamr.apps.data.recipe_job import make_items, show
from hamr.apps.data.recipes.rubrics import Rubrics, rubric_items, with_made
from hamr.apps.shared.outputs import output_file
from hamr.data.samples import read_samples, write_samples

if TYPE_CHECKING:
    from hamr.apps.data.recipe_command import RubricsCommand


def build_rubrics(command: RubricsCommand) -> int:
    """Write every sample with its rubric, or unchanged where none was kept, and record the reasons."""
    output = output_file(command.output, overwrite=command.overwrite, source=command.input)
    recipe = command.recipe
    samples = read_samples(command.input)
    config, team = command.config_and_team()
    items = rubric_items(samples, recipe, team.by(config))
    done = make_items(config, team, items, Rubrics(recipe), output, run="rubrics", at_once=command.at_once)
    write_samples(output, [with_made(sample, done[sample.id]) for sample in samples])
    kept = [made.kept for made in done.values() if made.kept is not None]
    more = [
        ("items, mean", f"{fmean(len(rubric['items']) for rubric in kept):.1f}"),
        ("separation, mean", f"{fmean(rubric['separation'] for rubric in kept):.2f}"),
    ] if kept else []  # fmt: skip
    show("samples", done, more)
    print(f"written: {output}")
    return 0
