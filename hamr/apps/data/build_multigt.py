"""`hamr data multigt`: samples with more references, and the paper's Table 3 of their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.table import Table

from hamr.apps.data.build_sampled import ledger_path
from hamr.apps.data.recipe_job import OPTIONS, Team, make_items, show, sibling_path, team_of
from hamr.apps.data.recipes.multigt import (
    Expanding,
    MultiGt,
    MultiGtRecipe,
    multigt_items,
    table_3,
    with_references,
    wording,
)
from hamr.apps.shared.job_options import number, one_of, output_file, require_files
from hamr.apps.shared.pools_up import writing_pool
from hamr.config.load import load_config
from hamr.config.schema import Config
from hamr.data.language import Language
from hamr.data.samples import read_samples, write_rows, write_samples
from hamr.errors import BadInput, DataError
from hamr.telemetry.ledger import Ledger
from hamr.types import Reply, ServiceSample

MULTIGT_OPTIONS = (*OPTIONS, "utility", "ledger", "online", "candidates", "temperature", "summary", "seed")


def build_multigt(own: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Write every sample with its own and the added references; `<output>.table3.jsonl` has the row of the table."""
    require_files(own, {"input": "samples", "output": "jsonl"})
    output = output_file(own)
    recipe = recipe_of(own)
    samples = read_samples(Path(own["input"]).expanduser())
    online = _online(own, samples)
    if not recipe.candidates and not any(online.values()):
        raise BadInput("candidates", 0, "leaves no candidates; give 1 or more, or the ledger of a run on these samples")
    config = load_config(list(overrides))
    team = multigt_team(config, own, recipe)
    found = [Expanding(sample=sample, online=online.get(sample.id, ())) for sample in samples]
    items = multigt_items(found, recipe, team.by(config))
    done = make_items(config, team, items, MultiGt(recipe), own, output, run="multigt")
    after = [with_references(sample, done[sample.id]) for sample in samples]
    row = table_3(Path(own["input"]).stem, samples, after)
    write_samples(output, after)
    write_rows(sibling_path(output, "table3"), [row])
    show("samples", done)
    table = Table(*row, title="references by source")
    table.add_row(*map(str, row.values()))
    Console().print(table)
    print(f"written: {output}")
    return 0


def recipe_of(own: Mapping[str, str]) -> MultiGtRecipe:
    """Parse the recipe from the command line's options. Raises BadInput."""
    default = MultiGtRecipe()
    made = MultiGtRecipe(
        candidates=number(own, "candidates", int, default.candidates),
        temperature=number(own, "temperature", float, default.temperature),
        max_new_tokens=number(own, "max_new_tokens", int, 0) or None,
        # The utility judge needs a summary; without one it is not queried.
        summary="" if own.get("utility") == "none" else own.get("summary", default.summary),
        language=cast(Language, one_of(own, "language", ("en", "zh"), default.language)),
        seed=number(own, "seed", int, default.seed),
    )
    if made.candidates < 0:
        raise BadInput("candidates", made.candidates, "must be 0 or more")
    if not 0.0 < made.temperature <= 2.0:
        raise BadInput("temperature", made.temperature, "must be above 0, at most 2")
    if made.max_new_tokens is not None and made.max_new_tokens < 1:
        raise BadInput("max_new_tokens", made.max_new_tokens, "must be 1 or more")
    return made


def multigt_team(config: Config, own: Mapping[str, str], recipe: MultiGtRecipe) -> Team:
    """Return the light models, the consistency judge and the utility judge.

    The consistency judge is a pool with role judge, which gives labels. The utility judge generates text. Both are the
    same pool unless another is named. `utility=none`: consistency alone decides. Raises BadInput.
    """
    judge = own.get("judge", "judge")
    if judge not in config.pools:
        raise BadInput("judge", judge, f"no such pool; there are: {', '.join(sorted(config.pools))}")
    if config.pools[judge].role != "judge":
        raise BadInput("judge", judge, f"has role={config.pools[judge].role}; consistency needs a pool with role=judge")
    named = own.get("utility", judge)
    utility = "" if named == "none" else writing_pool(config, "utility", named)
    if not recipe.candidates:  # only an RL run's responses: no pool has to generate text
        return Team(teachers=(), judge=judge, second=utility)
    return Team(teachers=team_of(config, own).teachers, judge=judge, second=utility)


# --- online candidates -------------------------------------------------------------------------


def _online(own: Mapping[str, str], samples: Sequence[ServiceSample]) -> dict[str, tuple[str, ...]]:
    most = number(own, "online", int, 4)
    if most < 1:
        raise BadInput("online", most, "must be 1 or more")
    if not own.get("ledger"):
        return {}
    return likely_replies(ledger_path(own["ledger"]), {sample.id for sample in samples}, most)


def likely_replies(path: Path, wanted: set[str], most: int) -> dict[str, tuple[str, ...]]:
    """Return, per prompt, the `most` replies of a run with the highest log p(response) / tokens.

    Each wording occurs once; the likeliest comes first. Raises DataError for a ledger without replies to the `wanted`
    prompts, or without log-probabilities.
    """
    best: dict[str, dict[str, tuple[float, str]]] = {}
    seen = 0
    with Ledger(path, readonly=True) as ledger:
        for record in ledger.rows():
            if record.key.prompt not in wanted or not isinstance(record.action, Reply):
                continue
            seen += 1
            if record.mean_logprob is not None:
                replies = best.setdefault(record.key.prompt, {})
                told = (record.mean_logprob, record.action.content)
                said = wording(record.action.content)
                replies[said] = max(told, replies.get(said, told))
    if not seen:
        raise DataError("ledger", str(path), "has no replies to these samples; give the ledger of a run on them")
    if not best:
        remedy = "has no log-probabilities (an older run), so likely responses are unknown; omit the ledger"
        raise DataError("ledger", str(path), remedy)
    return {
        prompt: tuple(text for _, text in sorted(replies.values(), reverse=True)[:most])
        for prompt, replies in best.items()
    }
