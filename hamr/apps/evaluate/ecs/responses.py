"""Responses that `hamr evaluate benchmark=ecs` scores, from a file or a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hamr.apps.shared.preparation import load_splits
from hamr.bench.ecs.figures import check_same_samples
from hamr.config.load import load_dumped
from hamr.config.schema import Config
from hamr.data.formats import Formats
from hamr.data.responses import ResponseGroup, stream_groups
from hamr.errors import BadInput, DataError
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.run_folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class PolicyResponses:
    """Responses of one policy, one group per sample."""

    name: str
    groups: tuple[ResponseGroup, ...]
    formats: Formats


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
