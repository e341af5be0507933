"""`hamr data words`: a skeleton of a scenario's wordings, which teachers fill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hamr.apps.data.recipe_job import make_items, optional_team, show
from hamr.apps.data.recipes.wordings import (
    WordingRecipe,
    WriteWordings,
    deal,
    key_name,
    missing_keys,
    render_words,
    wording_items,
)
from hamr.apps.shared.outputs import output_file
from hamr.errors import HamrError
from hamr.files import write_atomic
from hamr.procedures import load_scenario
from hamr.procedures.words import SPLITS, load_words, read_words, words_file

if TYPE_CHECKING:
    from hamr.apps.data.command import WordsCommand


def build_words(command: WordsCommand) -> int:
    """Write the missing wordings. Raises HamrError where a teacher left some empty; the file has the others then."""
    scenario = load_scenario(command.scenario)
    path = command.output or words_file(scenario, command.language)
    known = read_words(path) if path.is_file() else None
    missing = missing_keys(scenario, known)
    config = command.config()
    writers = optional_team(config, command)
    if writers is None:
        path = output_file(path, overwrite=command.overwrite)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, render_words(scenario, command.language, known, {}))
        print(f"written: {path} ({len(missing)} wordings to fill in each of {', '.join(SPLITS)})")
        return 0
    recipe = WordingRecipe(
        texts=command.texts,
        temperature=command.temperature,
        max_new_tokens=command.max_new_tokens,
        judged=bool(writers.judge),
        language=command.language,
    )
    items = wording_items(scenario, missing, recipe, writers.by(config))
    path.parent.mkdir(parents=True, exist_ok=True)
    done = make_items(config, writers, items, WriteWordings(recipe), path, run="words", at_once=command.at_once)
    kept = {key: made.kept["texts"] for key in missing if (made := done[key_name(key)]).kept is not None}
    write_atomic(path, render_words(scenario, command.language, known, deal(kept, known, recipe.texts)))
    show("wordings", done)
    left = missing_keys(scenario, read_words(path))
    if left:
        names = ", ".join(map(key_name, left[:5]))
        raise HamrError(
            f"{len(left)} wordings of {path} are still empty ({names}); run the command again or write them"
        )
    if path == words_file(scenario, command.language):
        load_words(scenario, command.language)
    print(f"written: {path}")
    return 0
