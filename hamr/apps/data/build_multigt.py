"""`hamr data multigt`: samples with more references, and the paper's Table 3 of their sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hamr.apps.data.build_sampled import ledger_path
from hamr.apps.data.recipe_job import Team, make_items, show, sibling_path, teachers_of
from hamr.apps.data.recipes.multigt import (
    Expanding,
    MultiGt,
    multigt_items,
    table_3,
    with_references,
)
from hamr.apps.shared.outputs import output_file
from hamr.apps.shared.pools_up import known_pool, writing_pool
from hamr.config.schema import Config
from hamr.data.samples import read_samples, write_rows, write_samples
from hamr.data.words import plain
from hamr.errors import BadInput, DataError
from hamr.report import terminal
from hamr.report.values import Table, number_columns
from hamr.telemetry.ledger import Ledger
from hamr.types import Reply

if TYPE_CHECKING:
    from hamr.apps.data.recipe_command import MultiGtCommand


def build_multigt(command: MultiGtCommand) -> int:
    """Write every sample with its own and the added references; `<output>.table3.jsonl` has the row of the table."""
    output = output_file(command.output, overwrite=command.overwrite, source=command.input)
    recipe = command.recipe
    samples = read_samples(command.input)
    old = next((s for s in samples if recipe.summary not in s.privileged and "summary" in s.privileged), None)
    if recipe.summary and old is not None:
        place = f"{command.input}: sample {old.id}: privileged.summary"
        remedy = f"the summary is privileged.{recipe.summary}; rename it, or give summary=summary"
        raise DataError(place, old.privileged["summary"], remedy)
    online: dict[str, tuple[str, ...]] = {}
    if command.ledger is not None:
        online = likely_replies(ledger_path(command.ledger), {sample.id for sample in samples}, command.online)
    if not recipe.candidates and not any(online.values()):
        raise BadInput("candidates", 0, "leaves no candidates; give 1 or more, or the ledger of a run on these samples")
    config, team = command.config_and_team()
    found = [Expanding(sample=sample, online=online.get(sample.id, ())) for sample in samples]
    items = multigt_items(found, recipe, team.by(config))
    done = make_items(config, team, items, MultiGt(recipe), output, run="multigt", at_once=command.at_once)
    after = [with_references(sample, done[sample.id]) for sample in samples]
    row = table_3(command.input.stem, samples, after)
    write_samples(output, after)
    write_rows(sibling_path(output, "table3"), [row])
    show("samples", done)
    terminal.show(Table("references by source", number_columns("{}", *row), (tuple(row.values()),)))
    print(f"written: {output}")
    return 0


def multigt_team(config: Config, command: MultiGtCommand) -> Team:
    """Return the light models, the consistency judge and the utility judge.

    The consistency judge is a pool with role judge, which gives labels. The utility judge generates text. Both are the
    same pool unless another is named. `utility=none`: consistency alone decides. Raises BadInput.
    """
    judge = command.judge
    if (role := known_pool(config, "judge", judge).role) != "judge":
        raise BadInput("judge", judge, f"has role={role}; consistency needs a pool with role=judge")
    named = command.utility or judge
    utility = "" if named == "none" else writing_pool(config, "utility", named)
    if not command.candidates:  # only an RL run's responses: no pool has to generate text
        return Team(teachers=(), judge=judge, second=utility)
    return Team(teachers=teachers_of(config, command), judge=judge, second=utility)


# --- online candidates -------------------------------------------------------------------------


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
                reply = (record.mean_logprob, record.action.content)
                words = plain(record.action.content)
                replies[words] = max(reply, replies.get(words, reply))
    if not seen:
        raise DataError("ledger", str(path), "has no replies to these samples; give the ledger of a run on them")
    if not best:
        remedy = "has no log-probabilities (an older run), so likely responses are unknown; omit the ledger"
        raise DataError("ledger", str(path), remedy)
    return {
        prompt: tuple(text for _, text in sorted(replies.values(), reverse=True)[:most])
        for prompt, replies in best.items()
    }
