"""Compose the groups in `conf/` with Hydra into one frozen, validated object.

>>> config = load_config(["experiment=smoke", "experiment.seed=7"])
>>> config.experiment.seed, config.model.path
(7, 'tiny')
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from hamr.config.custom import names_function
from hamr.config.explain import Contradiction, Origin, explain, yaml_error
from hamr.config.overrides import config_folder, group_options, no_such_choice, quote, split_flags, to_hydra
from hamr.config.resources import resource
from hamr.config.safe_yaml import load_yaml
from hamr.config.schema import GROUPS, Config
from hamr.config.yaml_files import read_config
from hamr.errors import BadInput, ConfigError
from hamr.security.redaction import name_secret_variables, redact

log = logging.getLogger(__name__)

UNUSED = tuple(
    f"~hydra/{group}" for group in ("launcher", "sweeper", "help", "hydra_help", "hydra_logging", "job_logging")
)
"""Removes Hydra's own settings, which are not used here and take half of the time."""
IMPORTED = "imported.jsonl"
"""File of a run folder with the samples of `data.importer`."""
ALLOWED_FUNCTIONS = "HAMR_ALLOWED_FUNCTIONS"
"""Environment variable with the paths of functions that may be executed, separated by commas. Unset: all that the
command line or a config folder names. A resumed pipeline sets it, because the commands of its stages come from its
folder."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CREDENTIALS = re.compile(r"//[^/@]+@|[?&][^=&]*(key|token|secret|password)[^=&]*=", re.IGNORECASE)


def load_config(overrides: Sequence[str] = (), config_dir: Path | None = None) -> Config:
    """Return the configuration of a job from `key=value` overrides.

    `config_dir` (or `--config-dir DIR` among the overrides) is a user's folder of groups. Its files override hamr's.
    Every mistake is a one-line ConfigError. Nothing is started and no model library is imported.
    """
    return load_with_origin(overrides, config_dir)[0]


def load_with_origin(overrides: Sequence[str] = (), config_dir: Path | None = None) -> tuple[Config, Origin]:
    """Return the configuration as `load_config` does, and where its values come from."""
    values, flagged = split_flags(overrides)
    own = config_folder(config_dir) if config_dir is not None else flagged
    roots = [root for root in (own, resource("conf")) if root is not None]
    if own is not None:
        _check_files(own)
    composed = to_hydra(values, group_options(roots, GROUPS))
    raw, choices = _compose(composed, roots)
    origin = Origin(roots, choices, typed=[text.lstrip("+").split("=")[0] for text in composed if text[0] == "+"])
    if place := origin(["hydra"]):
        raise Contradiction("hydra", None, f"Hydra's own settings are not used; remove them ({place})")
    _refuse_magic(raw, origin)
    return _restrict_functions(_validate(raw, origin)), origin


def _check_files(folder: Path) -> None:
    """Raise ConfigError for a file of a user's config folder with an unreadable value or too many aliases."""
    for file in (*folder.glob("*.yaml"), *folder.glob("*/*.yaml")):
        try:
            load_yaml(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise yaml_error(error, str(file)) from None


def sweep_values(arg: str, most: int) -> list[str]:
    """Return one override for every value of an override such as `key=1,2` or `key=range(1,4)`; any other as it is.

    Raises BadInput if there are more than `most`, before they are listed.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import RangeSweep
    from hydra.errors import HydraException

    key, equals, value = arg.partition("=")
    if not equals or arg.startswith("-"):
        return [arg]
    try:
        (parsed,) = OverridesParser.create().parse_overrides([arg])
    except HydraException:
        return [arg]  # not valid in Hydra's grammar; the check of the run reports it
    if not parsed.is_sweep_override():
        return [arg]
    if not parsed.is_discrete_sweep():
        raise BadInput(key, value, "has infinitely many values; write a list or range(...)")
    swept = parsed.value()
    try:
        if isinstance(swept, RangeSweep) and sum(1 for _ in itertools.islice(swept.range(), most + 1)) > most:
            raise BadInput(key, value, f"more than {most} runs; give fewer values")
        values = list(parsed.sweep_string_iterator())
    except (HydraException, ValueError, ArithmeticError):  # e.g. a step of 0
        values = []
    if not values:
        raise BadInput(key, value, "cannot be expanded; write a list or range(start,stop,step)")
    return [f"{key}={value}" for value in values]


def dump_config(config: Config) -> str:
    """Return the whole configuration as YAML, including every default.

    It contains no secret: a key is only named by its environment variable, and a URL with credentials is rejected when
    the configuration is loaded.
    """
    _refuse_secrets(config)
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def load_dumped(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load the output of `dump_config` without Hydra, to resume a run.

    `overrides` change values in it, as `section.key=value` with the value in YAML. Choices of groups are not supported.
    Keys of another version of hamr, which this one does not have, are ignored and logged.

    A run folder may come from elsewhere, so the paths of functions in it are not executed
    (`CodeConfig.as_recorded`) unless an override repeats them. The samples of its importer are read from its file.
    """
    raw = read_config(path)
    named = {text.lstrip("+").partition("=")[0].strip() for text in overrides}
    _remove_unknown_keys(raw, path)
    for text in overrides:
        _set(raw, text)
    config, imported = _validate(raw, Origin()), path.parent / IMPORTED
    if config.data.importer is not None and imported.is_file():
        config = config.with_functions({"data.importer": config.data.importer.as_called(imported)})
    return _restrict_functions(config, named)


def _remove_unknown_keys(raw: dict[str, Any], path: Path) -> None:
    """Remove the keys that the schema does not have, so that a run of another version of hamr can be read."""
    try:
        Config.model_validate(raw)
        return
    except ValidationError as error:
        unknown = [found["loc"] for found in error.errors(include_url=False) if found["type"] == "extra_forbidden"]
    removed = {}
    for *sections, leaf in unknown:
        section: Any = raw
        for name in sections:
            section = section.get(name) if isinstance(section, dict) else None
        if isinstance(section, dict) and leaf in section:
            removed[".".join(map(str, (*sections, leaf)))] = section.pop(leaf)
    if removed:
        listed = ", ".join(f"{key}={value}" for key, value in redact(removed).items())
        log.warning("%s: ignored keys of another version of hamr: %s", path, listed)


def _restrict_functions(config: Config, named: Collection[str] | None = None) -> Config:
    """Mark the functions that must not be executed: those whose key is not in `named`, and those that are not in
    HAMR_ALLOWED_FUNCTIONS, where that is set."""
    listed = os.environ.get(ALLOWED_FUNCTIONS)
    allowed = None if listed is None else listed.split(",")
    return config.with_functions(
        {
            key: section.as_recorded()
            for key, section in config.functions.items()
            if (named is not None and f"{key}.path" not in named)
            or (allowed is not None and section.path not in allowed)
        }
    )


def change_dumped(path: Path, overrides: Sequence[str]) -> str:
    """Return the text of a dumped configuration with changed values. Everything else stays as it is written."""
    raw = read_config(path)
    for text in overrides:
        _set(raw, text)
    return yaml.safe_dump(raw, sort_keys=False, allow_unicode=True, width=120)


def _set(raw: dict[str, Any], text: str) -> None:
    key, equals, value = text.lstrip("+").partition("=")
    *sections, leaf = key.strip().split(".")
    if not equals or not sections:
        raise ConfigError("override", text, "only values can be changed here; write section.key=value")
    for section in sections:
        raw = raw.setdefault(section, {})
        if not isinstance(raw, dict):
            raise ConfigError(key, value, f"{section} is a value, not a section")
    try:
        raw[leaf] = value if names_function(text) else load_yaml(value)
    except yaml.YAMLError:
        raise ConfigError(key, value, "cannot be read as a value; put it in quotes") from None


def _validate(raw: Mapping[str, Any], origin: Origin) -> Config:
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise explain(error, raw, Config, origin) from None
    _refuse_secrets(config)
    name_secret_variables(pool.api_key_env for pool in config.pools.values() if pool.api_key_env)
    return config


def _compose(overrides: list[str], roots: Sequence[Path]) -> tuple[dict[str, Any], dict[str, str | None]]:
    """Return (composed values, chosen option of each group). A file is taken from the first of `roots` that has it."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # The primary configuration has a folder of its own, because Hydra searches that one before the others.
    primary = str(resource("conf", "base"))
    search = f"hydra.searchpath=[{','.join(quote(str(root)) for root in roots)}]"
    try:
        with _no_global_hydra(), initialize_config_dir(config_dir=primary, version_base="1.3"):
            composed = compose("config", overrides=[search, *UNUSED, *overrides], return_hydra_config=True)
        raw = OmegaConf.to_container(composed, resolve=False)
    except OverrideParseException as error:
        key, _, value = error.override.lstrip("+").partition("=")
        quoted = f"it in quotes: {key}=\"'...'\""
        if value.lstrip()[:1] in ("{", "["):
            quoted = 'the texts in it in quotes, such as {city: "Zürich"}'
        raise ConfigError(key, value, f"cannot be read as a value; put {quoted}") from None
    except MissingConfigException as error:
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        if not group or not error.options:
            raise Contradiction("config", None, " ".join(str(error).split())) from None
        raise ConfigError(group, option, no_such_choice(option, error.options)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise yaml_error(error) from None
    except RecursionError:
        raise Contradiction("config", None, "a file or a value is nested too deeply") from None
    except ConfigCompositionException as error:
        group = re.search(r"Could not override '(\w+)'", str(error))
        if group is None:
            raise Contradiction("config", None, _first_lines(error)) from None
        chosen = next(text.partition("=")[2] for text in overrides if text.startswith(f"{group[1]}="))
        raise ConfigError(group[1], chosen, "the experiment has no such group; remove it") from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        # Hydra wraps errors of OmegaConf in one without a text.
        raise Contradiction("config", None, _first_lines(error if str(error) else error.__cause__ or error)) from None
    assert isinstance(raw, dict)
    return raw, raw.pop("hydra")["runtime"]["choices"]


@contextlib.contextmanager
def _no_global_hydra() -> Iterator[None]:
    """Set aside the global instance that an embedding program may hold; Hydra composes with one instance at a time."""
    from hydra.core.global_hydra import GlobalHydra

    held = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().clear()
        if held is not None:
            GlobalHydra.instance().initialize(held)


def _first_lines(error: BaseException) -> str:
    """Return Hydra's message in one line, without the references to its own documentation."""
    ambiguous = re.match(r"Ambiguous value for argument '\+*(.*)'", str(error))
    if ambiguous:
        return f"{ambiguous[1]}: only one value is accepted; write [a,b] for a list, or quote it for a text with commas"
    lines = [line.strip() for line in str(error).splitlines() if "hydra.cc" not in line]
    return " ".join(line for line in lines if line)


def _refuse_magic(raw: Any, origin: Origin, path: tuple[str, ...] = ()) -> None:
    """Reject class paths and interpolations: values are literal, and YAML never selects code."""
    where = ".".join(path)
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            here = (*path, str(key))
            if str(key) in ("_target_", "_partial_", "_recursive_", "_convert_"):
                raise ConfigError(
                    ".".join(here), value, "class paths are not accepted; choose a variant by its `type` or name"
                )
            _refuse_magic(value, origin, here)
    elif isinstance(raw, list | tuple):
        for index, value in enumerate(raw):
            _refuse_magic(value, origin, (*path, str(index)))
    elif isinstance(raw, str) and raw == "???":
        raise Contradiction(where, None, f"required, but not set; set {where}=...")
    elif isinstance(raw, str) and "${" in raw:
        place = origin(path)
        raise ConfigError(
            where, raw, "interpolations are not accepted; write the value out" + (f" ({place})" if place else "")
        )


def _refuse_secrets(config: Config) -> None:
    """Reject keys in the configuration. They come from the environment only, so none reaches a file, a log or W&B. The
    messages contain no value."""
    for name, pool in config.pools.items():
        if pool.endpoint and _CREDENTIALS.search(pool.endpoint):
            raise Contradiction(
                f"pools.{name}.endpoint",
                None,
                f"the URL contains credentials; put the key into a variable named by pools.{name}.api_key_env",
            )
        if pool.api_key_env and not _ENV_NAME.fullmatch(pool.api_key_env):
            raise Contradiction(
                f"pools.{name}.api_key_env", None, "must be the name of an environment variable, not the key itself"
            )
