"""Command line of `hamr evaluate benchmark=sage`: parsing and checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hamr.bench.sage.judging import AGAIN
from hamr.bench.sage.store import read_settings
from hamr.config.sage import SageConfig
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.procedures import load_scenario, scenario_names
from hamr.procedures.rules import nearest

OWN = ("scenario", "agent", "simulator", "judges", "output", "rejudge")

Names = tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SageRequest:
    """A parsed command. `overrides` are for the configuration of the pools."""

    output: Path
    rejudge: bool
    scenarios: Mapping[str, str]
    """Name -> the given value: the name itself, or a file."""
    agents: Names
    simulator: str
    judges: Names
    sage: SageConfig
    overrides: tuple[str, ...]


def read_request(args: Sequence[str]) -> SageRequest:
    """Parse the command. Raises BadInput. With `rejudge=true`, options default to those stored in the folder."""
    own, sage, overrides = _split(args)
    if not own.get("output"):
        raise BadInput("output", None, "missing; give output=<folder>")
    output = Path(own["output"]).expanduser()
    if own.get("rejudge", "false") not in ("true", "false"):
        raise BadInput("rejudge", own["rejudge"], "must be true or false")
    rejudge = own.get("rejudge") == "true"
    if rejudge:
        before = read_settings(output)
        if before is None:
            raise BadInput("output", str(output), "contains no evaluation to judge again; give the folder of one")
        own = {
            "scenario": ",".join(entry["given"] for entry in before["scenarios"].values()),
            "agent": ",".join(before["agents"]),
            "simulator": before["simulator"]["name"],
            "judges": ",".join(before["judging"]["judges"]),
            **own,
        }
        sage = {**before["sage"], **sage}
    for key in ("scenario", "agent", "simulator", "judges"):
        if not own.get(key):
            raise BadInput(key, None, f"missing; give {key}=..., see `hamr evaluate --help`")
    return SageRequest(
        output=output,
        rejudge=rejudge,
        scenarios=_scenarios(own["scenario"]),
        agents=_names(own, "agent"),
        simulator=own["simulator"],
        judges=_number_judges(own["judges"]),
        sage=_sage(sage),
        overrides=tuple(overrides),
    )


def overrides_of(args: Sequence[str]) -> list[str]:
    """Return the arguments of the configuration, without reading any file. Raises BadInput for an unknown word."""
    return _split(args)[2]


def _split(args: Sequence[str]) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """Return (the job's own options, those of SageConfig, overrides of the configuration)."""
    own: dict[str, str] = {}
    sage: dict[str, Any] = {}
    overrides: list[str] = []
    known = (*OWN, *SageConfig.model_fields)
    for arg in args:
        key, equals, value = arg.partition("=")
        if equals and key in OWN:
            own[key] = value
        elif equals and key in SageConfig.model_fields:
            sage[key] = None if value in ("null", "none") and key in ("limit", "at_once") else value
        elif (
            "." in key
            or key.lstrip("+~") in Config.model_fields
            or overrides[-1:] == ["--config-dir"]
            or key.startswith("--")
        ):
            overrides.append(arg)
        else:
            raise BadInput("hamr evaluate", arg, f"unknown option; {nearest(key, known)}there are: {', '.join(known)}")
    return own, sage, overrides


def _sage(given: Mapping[str, Any]) -> SageConfig:
    try:
        return SageConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, value = str(first["loc"][0]), first["input"]
        allowed = str(first.get("ctx", {}).get("expected", ""))
        choices = allowed.replace("'", "").replace(" or ", ", ").split(", ") if allowed else []
        raise BadInput(key, value, nearest(str(value), choices) + first["msg"].lower()) from error


def _scenarios(given: str) -> dict[str, str]:
    names = scenario_names() if given == "all" else [name for name in given.split(",") if name]
    found: dict[str, str] = {}
    for name in names:
        scenario = load_scenario(name).name
        if scenario in found:
            raise BadInput("scenario", given, f"{found[scenario]} and {name} are both called {scenario}; rename one")
        found[scenario] = name
    return found


def _names(own: Mapping[str, str], key: str) -> Names:
    names = tuple(name.strip() for name in own[key].split(",") if name.strip())
    if len(set(names)) < len(names):
        raise BadInput(key, own[key], "names one twice")
    return names


def _number_judges(given: str) -> Names:
    """Number repeated judges. A pool may be named several times; its second and third copies are sampled."""
    names: list[str] = []
    for name in (name.strip() for name in given.split(",")):
        if name:
            again = sum(other.partition(AGAIN)[0] == name.partition(AGAIN)[0] for other in names)
            names.append(name if AGAIN in name or not again else f"{name}{AGAIN}{again + 1}")
    return tuple(names)
