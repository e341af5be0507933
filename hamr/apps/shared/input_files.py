"""The user's own files that a configuration names, and whether they have changed since a run began."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from hamr.config.schema import Config
from hamr.errors import RunFolderError
from hamr.files import read_object
from hamr.prompting.templates import PromptTemplate, is_path
from hamr.rewards.written import WrittenPrompt

FILE = "inputs.json"
"""File of a run folder: setting -> {file, sha256} of the user's files."""


def own_files(config: Config) -> dict[str, str]:
    """Return digests of the user's own prompts, rules and procedures. Raises ConfigError for an unreadable file.

    Their content affects a score like the settings do, and may change under the same name. Shipped files are identified
    by hamr's version.
    """
    rewards = config.rewards
    found = {p.prompt: PromptTemplate.read(p.prompt).digest for p in config.pools.values() if is_path(p.prompt)}
    for section in rewards.judges.values():
        own = filter(is_path, (section.prompt or "", getattr(section, "prompt_compared", None) or ""))
        found |= {prompt: WrittenPrompt.read(prompt).digest for prompt in own}
    others = [rewards.rules.file, *(rewards.sage_logic.scenarios if rewards.sage_logic.weight else ())]
    for file in filter(None, others):
        # The code that uses a missing file reports it.
        content = Path(file).read_bytes() if Path(file).is_file() else b""
        found[file] = hashlib.sha256(content).hexdigest()[:12]
    return found


def relative_files(config: Config) -> dict[str, str]:
    """Return setting -> path of the files and folders that are given relative to the working folder."""
    named = named_inputs(config) | {f"{key}.path": section.file for key, section in config.functions.items()}
    models = {f"pools.{name}.model": pool.model for name, pool in config.pools.items() if pool.type != "openai"}
    for key, model in {"model.path": config.model.path, **models}.items():
        if Path(model).is_dir():  # not the name of a bundled or published model
            named[key] = model
    return {key: file for key, file in named.items() if file is not None and not Path(file).is_absolute()}


def named_inputs(config: Config) -> dict[str, str | None]:
    """Return setting -> path of the user's data, rules and prompts, None where a setting names none."""
    named = {
        f"data.{key}": getattr(config.data, key) for key in ("train", "validation", "test", "sft", "labelled_pairs")
    }
    named |= {"rewards.rules.file": config.rewards.rules.file}
    prompts = {
        f"rewards.{config.rewards.key(name)}.{field}": getattr(judge, field, None)
        for name, judge in config.rewards.judges.items()
        for field in ("prompt", "prompt_compared")
    }
    named |= {key: file for key, file in prompts.items() if file and file.endswith((".yaml", ".yml"))}
    for name, pool in config.pools.items():
        if pool.finetune is not None:
            named |= {f"pools.{name}.finetune.{key}": getattr(pool.finetune, key) for key in ("labelled", "held_out")}
    return named


def input_digests(config: Config) -> dict[str, dict[str, str]]:
    """Return setting -> {file, sha256} of the files that a run reads. The code that uses a missing file reports it."""
    named = named_inputs(config)
    named |= {f"pools.{name}.prompt": pool.prompt for name, pool in config.pools.items() if is_path(pool.prompt)}
    named |= {f"sft.sets[{i}].path": each.path for i, each in enumerate(config.sft.sets)}
    if config.data.type == "sage" and is_path(config.data.sage.scenario):
        named["data.sage.scenario"] = config.data.sage.scenario
    return {
        key: {"file": file, "sha256": _digest(Path(file))}
        for key, file in named.items()
        if file is not None and Path(file).is_file()
    }


def write_digests(folder: Path, config: Config) -> None:
    (folder / FILE).write_text(json.dumps(input_digests(config), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def check_unchanged(folder: Path, config: Config) -> None:
    """Raise RunFolderError for a file that has changed since the run in `folder` began. Older runs have no record."""
    now = input_digests(config)
    for key, before in read_object(folder / FILE).items():
        recorded = before.get("sha256") if isinstance(before, Mapping) else None
        if key in now and now[key]["sha256"] != recorded:
            remedy = "has changed since the run began; restore it, or start a new run"
            raise RunFolderError(key, now[key]["file"], remedy)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
