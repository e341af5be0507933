"""Convert command line overrides for Hydra. Standard library only.

A user writes `experiment=quickstart` (a choice of a group) and `trainer.learning_rate=1e-5` (a value). The files in
`conf/` contain choices only, so most values are in no file, and Hydra would refuse to set them. Every value is
therefore converted to Hydra's force-add form, and the schema then checks that the key exists.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from hamr.errors import ConfigError

CONFIG_DIR_FLAG = "--config-dir"
DATA_FILES = ("train", "validation", "test", "sft")

MULTIRUN = "--multirun"
OPTIONS = (
    f"The options are {CONFIG_DIR_FLAG} DIR, for train, score, serve and plan --cfg job and --info, "
    f"for train and sft {MULTIRUN}"
)
COMMAND = "env.command.path"
"""A command line, whose value is taken as it is, without quotes of its own."""


def group_options(roots: Sequence[Path], groups: Sequence[str]) -> dict[str, list[str]]:
    """Return group -> sorted names of its options, over every config folder in `roots`. Other folders there are not
    groups."""
    return {g: sorted({file.stem for root in roots for file in (root / g).glob("*.yaml")}) for g in groups}


def nearest_first(name: str, names: Sequence[str]) -> list[str]:
    """Return `names` sorted by similarity to `name`, most similar first."""
    return sorted(names, key=lambda n: (-difflib.SequenceMatcher(a=name, b=n).ratio(), n))


def config_folder(path: str | Path) -> Path:
    """Return a user's config folder after validation."""
    folder = Path(path).expanduser().resolve()
    if not str(path) or not folder.is_dir():
        raise ConfigError(
            CONFIG_DIR_FLAG, str(path), "no such folder; give one that holds groups, e.g. DIR/experiment/"
        )
    return folder


def split_flags(args: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return the overrides without `--config-dir DIR` / `--config-dir=DIR`, and DIR."""
    overrides: list[str] = []
    folder: Path | None = None
    rest = iter(args)
    for arg in rest:
        if arg == CONFIG_DIR_FLAG:
            folder = config_folder(next(rest, ""))
        elif arg.startswith(CONFIG_DIR_FLAG + "="):
            folder = config_folder(arg.split("=", 1)[1])
        elif arg.startswith("-"):
            raise ConfigError(arg, arg, f"unknown option; write overrides as key=value. {OPTIONS}")
        else:
            overrides.append(arg)
    return overrides, folder


def to_hydra(overrides: Sequence[str], options: Mapping[str, Sequence[str]]) -> list[str]:
    """Convert each override for Hydra: choices unchanged, values force-added, `data=<path>` resolved.

    Raises:
        ConfigError: An override is not `key=value`.
    """
    result: list[str] = []
    for text in map(expand_env, overrides):
        if text.startswith("~"):
            result.append(text)
            continue
        key, equals, value = text.partition("=")
        key = key.strip().lstrip("+")
        if not equals or not key:
            raise ConfigError("override", text, _no_override(text, options))
        if key.split(".")[0] == "hydra":
            raise ConfigError(
                key, value, "Hydra's own settings are not used; set experiment.run_dir for the run folder"
            )
        if key == "data" and _is_path(value, options.get("data", ())):
            # First, so that an explicit data.validation=... overrides it.
            result[:0] = _data_files(_unquote(value))
        elif key in options and not value.lstrip().startswith("{"):
            result += _choice(key, _unquote(value), options[key])
        else:
            result.append(f"++{key}={quote(value) if key == COMMAND else value}")
    return result


def expand_env(override: str) -> str:
    """Return `env=FILE.py:NAME` or `env.command=...` as the setting that it is short for, any other override as it is.

    >>> expand_env("env=my_environment.py:Parcels"), expand_env("env=sage")
    ('rollout.episode.path=my_environment.py:Parcels', 'env=sage')
    >>> expand_env("env.command=python my_agent.py")
    'env.command.path=python my_agent.py'
    """
    key, _, value = override.lstrip("+").partition("=")
    if key == COMMAND.removesuffix(".path") and not value.lstrip().startswith("{"):
        return f"{COMMAND}={value}"
    source, _, name = value.strip("'\"").rpartition(":")
    return f"rollout.episode.path={source}:{name}" if key == "env" and source and name.isidentifier() else override


def _no_override(text: str, options: Mapping[str, Sequence[str]]) -> str:
    for group in ("experiment", *options):
        if text in options.get(group, ()):
            return f"not a key=value; did you mean {group}={text}?"
    return "not a key=value; write e.g. experiment=quickstart or trainer.learning_rate=1e-5"


def _choice(group: str, name: str, names: Sequence[str]) -> list[str]:
    """Return the override of a choice. `null` removes the group, which leaves the defaults of the schema; no experiment
    is chosen by default."""
    if name == "null":
        return [] if group == "experiment" else [f"~{group}"]
    if name not in names:
        if group == "env" and ".py" in name:
            file = name.partition(":")[0]
            raise ConfigError(group, name, f"names no class; write env={file}:CLASS, or {file}:FUNCTION")
        place = "no such file or folder, and " if group == "data" else ""
        raise ConfigError(group, name, place + no_such_choice(name, names))
    return [f"{group}={name}"]


def no_such_choice(name: str, names: Sequence[str], what: str = "choice") -> str:
    """Return the remedy for an unknown option of a group, or another unknown name."""
    return f"no such {what}; there are (nearest first): {', '.join(nearest_first(name, names)) or 'none'}"


def _unquote(value: str) -> str:
    value = value.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _is_path(value: str, choices: Sequence[str]) -> bool:
    text = _unquote(value)
    if not text or text in choices or text.startswith("{"):
        return False
    return "/" in text or text.endswith(".jsonl") or Path(text).expanduser().exists()


def _data_files(value: str) -> list[str]:
    """Return the overrides that `data=<folder or file>` expands to."""
    path = Path(value).expanduser().resolve()
    if path.is_dir():
        found = {name: path / f"{name}.jsonl" for name in DATA_FILES if (path / f"{name}.jsonl").is_file()}
        if "train" not in found:
            raise ConfigError(
                "data", value, "the folder has no train.jsonl; write one with `hamr data`, or name a JSONL"
            )
    elif path.is_file():
        found = {"train": path}
    else:
        raise ConfigError("data", value, "no such file or folder; give a JSONL or a folder that has train.jsonl")
    return ["++data.type=jsonl", *(f"++data.{name}={quote(str(file))}" for name, file in found.items())]


def quote(text: str) -> str:
    """Return `text` as a quoted string of Hydra's override grammar."""
    return "'" + text.replace("\\'", "\\\\'").replace("'", "\\'") + "'"
