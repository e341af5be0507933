"""Command line of `hamr evaluate benchmark=ecs`: parsing, checks, and loading of the responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hamr.apps.shared.preparation import load_splits
from hamr.bench.ecs.figures import check_same_samples
from hamr.config.ecs import EcsConfig
from hamr.config.load import load_dumped
from hamr.config.schema import Config
from hamr.data.formats import Formats
from hamr.data.responses import ResponseGroup, stream_groups
from hamr.errors import BadInput, DataError
from hamr.procedures.rules import nearest
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.run_folder import RunFolder

OWN = ("input", "run", "compare", "labels", "judges", "output")


@dataclass(frozen=True, kw_only=True)
class EcsRequest:
    """A parsed command.

    `source` and `compare` are files of responses or run folders; `judges` is empty where none is named; `overrides` are
    for the configuration of the pools.
    """

    source: Path
    compare: Path | None
    labels: Path | None
    judges: tuple[str, ...]
    output: Path
    ecs: EcsConfig
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PolicyResponses:
    """Responses of one policy, one group per sample."""

    name: str
    groups: tuple[ResponseGroup, ...]
    formats: Formats


def read_request(args: Sequence[str]) -> EcsRequest:
    """Parse the command. Raises BadInput for unknown, missing or contradictory options."""
    own, options, overrides = _split(args)
    if bool(own.get("input")) == bool(own.get("run")):
        given = own.get("run") and f"input={own['input']} run={own['run']}"
        raise BadInput("input", given or None, "give either input=<jsonl of responses> or run=<run folder>")
    if not own.get("output"):
        raise BadInput("output", None, "missing; give output=<folder>")
    output = Path(own["output"]).expanduser()
    if output.is_file():
        raise BadInput("output", str(output), "is a file; give a folder")
    judges = tuple(name.strip() for name in own.get("judges", "").split(",") if name.strip())
    if len(set(judges)) < len(judges):
        raise BadInput("judges", own["judges"], "names one twice; name each judge once")
    return EcsRequest(
        source=Path(own.get("input") or own["run"]).expanduser(),
        compare=Path(own["compare"]).expanduser() if own.get("compare") else None,
        labels=Path(own["labels"]).expanduser() if own.get("labels") else None,
        judges=judges,
        output=output,
        ecs=_ecs(options),
        overrides=tuple(overrides if judges else _with_judges(overrides)),
    )


def overrides_of(args: Sequence[str]) -> list[str]:
    """Return the arguments of the configuration, without reading any file. Raises BadInput for an unknown word."""
    own, _, overrides = _split(args)
    return overrides if own.get("judges", "").strip(" ,") else _with_judges(overrides)


def _with_judges(overrides: Sequence[str]) -> list[str]:
    """Add `pools=ecs`, the paper's ensemble of four judges, unless the user chose pools."""
    chosen = any(arg.startswith(("pools=", "experiment=", "--")) for arg in overrides)
    return [*([] if chosen else ["pools=ecs"]), *overrides]


def _split(args: Sequence[str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return (the job's own options, those of EcsConfig, overrides of the configuration)."""
    own: dict[str, str] = {}
    options: dict[str, str] = {}
    overrides: list[str] = []
    known = (*OWN, *EcsConfig.model_fields)
    for arg in args:
        key, equals, value = arg.partition("=")
        if equals and key in OWN:
            own[key] = value
        elif equals and key in EcsConfig.model_fields:
            options[key] = value
        elif _is_override(key, overrides):
            overrides.append(arg)
        else:
            raise BadInput("hamr evaluate", arg, f"unknown option; {nearest(key, known)}there are: {', '.join(known)}")
    return own, options, overrides


def _is_override(key: str, before: Sequence[str]) -> bool:
    return (
        "." in key
        or key.startswith("--")
        or key.lstrip("+~") in (*Config.model_fields, "experiment")
        or before[-1:] == ["--config-dir"]
    )


def _ecs(given: Mapping[str, Any]) -> EcsConfig:
    try:
        return EcsConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadInput(str(first["loc"][0]), first["input"], first["msg"].lower()) from error


# --- whose responses ---------------------------------------------------------------------------


def read_policy(path: Path, config: Config, stage: str) -> PolicyResponses:
    """Read the responses of a file, or those of a run folder's evaluation. Raises DataError (file and line) or
    BadInput."""
    if path.is_dir():
        return _of_run(path, stage)
    groups = []
    seen: dict[str, int] = {}
    for group, _ in stream_groups(path):
        if group.sample.id in seen:
            remedy = f"already used on line {seen[group.sample.id]}; put all of a sample's responses on one line"
            raise DataError(f"{path}:{group.number}: id", group.sample.id, remedy)
        seen[group.sample.id] = group.number
        groups.append(group)
    return PolicyResponses(name=path.stem, groups=tuple(groups), formats=Formats.of_model(config.model))


def _of_run(path: Path, stage: str) -> PolicyResponses:
    """Read the last evaluation of `stage`: the responses from its records, the samples from the run's configuration."""
    folder = RunFolder.open(path)
    config = load_dumped(folder.config)
    if not folder.ledger.is_file():
        raise BadInput("run", str(path), "has no ledger; give a run that was evaluated")
    said: dict[str, dict[int, str]] = {}
    with Ledger(folder.ledger, readonly=True) as ledger:
        found = ledger.query("SELECT DISTINCT run, step FROM records WHERE run LIKE '%/eval-%' ORDER BY step")
        last = {run.rpartition("/eval-")[2]: (run, step) for run, step in found}
        if stage not in last:
            raise BadInput("stage", stage, f"was not evaluated in {path}; there are: {', '.join(last) or 'none'}")
        run, step = last[stage]
        for record in ledger.rows(run=run, step=step):
            said.setdefault(record.key.prompt, {})[record.key.sample] = record.response
    splits = load_splits(config.data, config.experiment.seed)
    samples = {sample.id: sample for split in (splits.test, splits.validation) for sample in split}
    lost = next((prompt for prompt in said if prompt not in samples), None)
    if lost is not None:
        raise BadInput("run", str(path), f"sample {lost!r} is missing from its data; restore data.* of the run")
    groups = [
        ResponseGroup(sample=samples[prompt], responses=tuple(text for _, text in sorted(texts.items())), number=number)
        for number, (prompt, texts) in enumerate(said.items(), start=1)
    ]
    return PolicyResponses(
        name=f"{path.resolve().name}-{stage}", groups=tuple(groups), formats=Formats.of_model(config.model)
    )


def check_comparable(ours: PolicyResponses, theirs: PolicyResponses) -> None:
    """Raise DataError, with the id of the first difference, where two policies did not answer the same questions."""
    a, b = ({group.sample.id: group.sample for group in policy.groups} for policy in (ours, theirs))
    check_same_samples(a, b)
    for name, sample in a.items():
        for field in ("history", "references"):
            if getattr(sample, field) != getattr(b[name], field):
                raise DataError("compare", name, f"its {field} differ from the input's; compare responses to the same")
