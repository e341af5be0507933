"""What the command line of `hamr evaluate benchmark=ecs` asks for, checked, and whose responses it names."""

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
    """What the command asks for. `source` and `compare` are files of responses or run folders; `judges` is empty where
    none is named; `overrides` go to the configuration of the pools."""

    source: Path
    compare: Path | None
    labels: Path | None
    judges: tuple[str, ...]
    output: Path
    ecs: EcsConfig
    overrides: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PolicyResponses:
    """Somebody's responses, one group a sample."""

    name: str
    groups: tuple[ResponseGroup, ...]
    formats: Formats


def read_request(args: Sequence[str]) -> EcsRequest:
    """Raises BadInput for what is unknown, missing or contradictory."""
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
        raise BadInput("judges", own["judges"], "names one twice; the same judge again adds nothing")
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
    """What of `args` makes the configuration; no file is looked at. Raises BadInput for an unknown word."""
    own, _, overrides = _split(args)
    return overrides if own.get("judges", "").strip(" ,") else _with_judges(overrides)


def _with_judges(overrides: Sequence[str]) -> list[str]:
    """The paper's ensemble is four judges: the ones of `pools=ecs` where nobody chose any pools."""
    chosen = any(arg.startswith(("pools=", "experiment=", "--")) for arg in overrides)
    return [*([] if chosen else ["pools=ecs"]), *overrides]


def _split(args: Sequence[str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """(the job's own options, those of EcsConfig, overrides of the configuration)."""
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
    """The responses of a file, or those of a run folder's evaluation. Raises DataError (file and line) or BadInput."""
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
    """The last evaluation of `stage`: its records say what was said, the run's configuration to what."""
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
        raise BadInput("run", str(path), f"sample {lost!r} is not in its data any more; restore data.* of the run")
    groups = [
        ResponseGroup(sample=samples[prompt], responses=tuple(text for _, text in sorted(texts.items())), number=number)
        for number, (prompt, texts) in enumerate(said.items(), start=1)
    ]
    return PolicyResponses(
        name=f"{path.resolve().name}-{stage}", groups=tuple(groups), formats=Formats.of_model(config.model)
    )


def check_comparable(ours: PolicyResponses, theirs: PolicyResponses) -> None:
    """Raises DataError where two policies did not answer the same questions: the id of the first that differs."""
    a, b = ({group.sample.id: group.sample for group in policy.groups} for policy in (ours, theirs))
    check_same_samples(a, b)
    for name, sample in a.items():
        for field in ("history", "references"):
            if getattr(sample, field) != getattr(b[name], field):
                raise DataError("compare", name, f"its {field} differ from the input's; compare responses to the same")
