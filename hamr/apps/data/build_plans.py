"""`hamr data patm` and `hamr data dra`: planning trajectories and decision reasoning, as SFT items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from hamr.apps.data.recipe_job import OPTIONS, make_items, show, team_of
from hamr.apps.data.recipes.dra import Decided, Dra, DraRecipe, decided_item, dra_items, logged_decision, with_rationale
from hamr.apps.data.recipes.patm import Patm, PatmRecipe, kept_plans, patm_items
from hamr.apps.shared.job_options import number, one_of, output_file, require_files
from hamr.config.load import load_config
from hamr.data.language import Language
from hamr.data.samples import from_json, read_rows
from hamr.data.sft_items import item_from_json, write_items
from hamr.data.trajectories import Window, read_trajectories, windows
from hamr.errors import BadInput, DataError

PATM_OPTIONS = (*OPTIONS, "split")
_SPLITS = ("train", "validation", "test", "all")


def build_patm(own: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Rewrite windows of one split's tickets; write the kept ones as `kind: patm` items."""
    output, recipe_options = _begin(own, "trajectories.jsonl")
    split = one_of(own, "split", _SPLITS, "train")
    trajectories = read_trajectories(_path(own))
    wanted = [t for t in trajectories if split == "all" or t.meta.get("split", "train") == split]
    found = [window for trajectory in wanted for window in windows(trajectory)]
    whole = [window for window in found if isinstance(window, Window)]
    incomplete = Counter(window for window in found if isinstance(window, str))
    cut = "".join(f", {count} incomplete: {why}" for why, count in incomplete.most_common())
    print(
        f"{len(wanted)} of {len(trajectories)} tickets (split={split}): {len(whole)} complete windows{cut}", flush=True
    )
    if not whole:
        raise DataError("input", own["input"], f"no complete window in split={split}; give other tickets or split=all")
    config = load_config(list(overrides))
    team = team_of(config, own)
    recipe = PatmRecipe(**recipe_options)
    items = patm_items(whole, recipe, team.by(config))
    done = make_items(config, team, items, Patm(recipe), own, output, run="patm")
    write_items(output, kept_plans(items, done, recipe.language))
    show("planning windows", done, [(f"no window: {why}", str(count)) for why, count in incomplete.most_common()])
    print(f"written: {output}")
    return 0


def build_dra(own: Mapping[str, str], overrides: Sequence[str]) -> int:
    """Generate rationales for the samples or SFT items of a file; write the kept `decision_dra` and `patm_dra`
    items."""
    output, recipe_options = _begin(own, "samples, or decision and patm items")
    found = read_decided(_path(own))
    config = load_config(list(overrides))
    team = team_of(config, own)
    recipe = DraRecipe(**recipe_options)
    items = dra_items(found, recipe, team.by(config))
    done = make_items(config, team, items, Dra(recipe), own, output, run="dra")
    kept = [(item, made.kept) for item in items if (made := done[item.id]).kept is not None]
    write_items(output, (with_rationale(item.content, kept["rationale"]) for item, kept in kept))
    show("rationales", done)
    print(f"written: {output}")
    return 0


def read_decided(path: Path) -> list[Decided]:
    """Read a file of samples or of SFT items; the first line decides which. Raises DataError."""
    rows = [(f"{path}:{number}", row) for number, row in read_rows(path)]
    if isinstance(rows[0][1], dict) and "kind" in rows[0][1]:
        return [decided_item(item_from_json(row, where=where), where) for where, row in rows]
    return [logged_decision(from_json(row, where=where)) for where, row in rows]


def _begin(own: Mapping[str, str], holds: str) -> tuple[Path, dict]:
    require_files(own, {"input": holds, "output": "jsonl"})
    output = output_file(own)
    tokens = number(own, "max_new_tokens", int, 0)
    if tokens < 0 or ("max_new_tokens" in own and not tokens):
        raise BadInput("max_new_tokens", tokens, "must be 1 or more")
    language = cast(Language, one_of(own, "language", ("en", "zh"), "en"))
    return output, {"language": language, "max_new_tokens": tokens or None}


def _path(own: Mapping[str, str]) -> Path:
    return Path(own["input"]).expanduser()
