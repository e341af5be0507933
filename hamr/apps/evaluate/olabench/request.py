"""Command line of `hamr evaluate benchmark=olabench`: parsing and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hamr.config.olabench import OlabenchConfig
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.procedures.rules import nearest

OWN = ("data", "policy", "labels", "judge", "output")


@dataclass(frozen=True, kw_only=True)
class OlaBenchRequest:
    """A parsed command.

    `policies` are pools, run folders and files of responses; `judge` is "" where the sections of `rewards` name the
    pools; `overrides` are for the configuration.
    """

    data: Path | None
    policies: tuple[str, ...]
    labels: tuple[Path, ...]
    judge: str
    output: Path
    options: OlabenchConfig
    overrides: tuple[str, ...]


def read_request(args: Sequence[str]) -> OlaBenchRequest:
    """Parse the command. Raises BadInput for unknown, missing or contradictory options."""
    own, options, overrides = _split(args)
    if not own.get("output"):
        raise BadInput("output", None, "missing; give output=<folder>")
    output = Path(own["output"]).expanduser()
    if output.is_file():
        raise BadInput("output", str(output), "is a file; give a folder")
    policies, labels = _names(own, "policy"), _names(own, "labels")
    if not policies and not labels:
        remedy = (
            "give policy=<pool, run folder or responses.jsonl> with data=..., or labels=<jsonl> to grade the judges"
        )
        raise BadInput("policy", None, remedy)
    if bool(policies) != bool(own.get("data")):
        missing, other = ("data", "policy") if policies else ("policy", "data")
        raise BadInput(missing, None, f"missing; required with {other}")
    return OlaBenchRequest(
        data=Path(own["data"]).expanduser() if own.get("data") else None,
        policies=policies,
        labels=tuple(Path(name).expanduser() for name in labels),
        judge=own.get("judge", ""),
        output=output,
        options=_options(options),
        overrides=tuple(overrides),
    )


def overrides_of(args: Sequence[str]) -> list[str]:
    """Return the arguments of the configuration, without reading any file. Raises BadInput for an unknown word."""
    return _split(args)[2]


def _split(args: Sequence[str]) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """Return (the job's own options, those of OlabenchConfig, overrides of the configuration)."""
    own: dict[str, str] = {}
    options: dict[str, Any] = {}
    overrides: list[str] = []
    known = (*OWN, *OlabenchConfig.model_fields)
    for arg in args:
        key, equals, value = arg.partition("=")
        if equals and key in OWN:
            own[key] = value
        elif equals and key in OlabenchConfig.model_fields:
            options[key] = None if value in ("null", "none") and key in ("limit", "at_once") else value
        elif (
            "." in key
            or key.startswith("--")
            or key.lstrip("+~") in (*Config.model_fields, "experiment")
            or overrides[-1:] == ["--config-dir"]
        ):
            overrides.append(arg)
        else:
            raise BadInput("hamr evaluate", arg, f"unknown option; {nearest(key, known)}there are: {', '.join(known)}")
    return own, options, overrides


def _options(given: Mapping[str, Any]) -> OlabenchConfig:
    try:
        return OlabenchConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadInput(str(first["loc"][0]), first["input"], first["msg"].lower()) from error


def _names(own: Mapping[str, str], key: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in own.get(key, "").split(",") if name.strip())
    if len(set(names)) < len(names):
        raise BadInput(key, own[key], "names one twice")
    return names
