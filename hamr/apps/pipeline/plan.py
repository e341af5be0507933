"""A pipeline's stages as commands, all checked before the first one starts."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.apps.pipeline.jobs import (
    POLICY,
    in_override,
    kind_of,
    policy_of,
    stand_in,
    takes_override,
    target_arg,
)
from hamr.apps.pipeline.log import PLAN
from hamr.apps.shared.commands import Command, ConfiguredCommand, parse_command
from hamr.apps.shared.pool_room import local_node
from hamr.cluster.placement import check_placement
from hamr.config.cluster_security import refuse_secret_texts
from hamr.config.explain import Contradiction
from hamr.config.overrides import CONFIG_DIR_FLAG, nearest_first, split_flags
from hamr.config.pipeline import (
    INPUTS,
    JobName,
    Keep,
    PipelineSource,
    check_references,
    find_pipeline,
    read_pipeline,
    references,
    substitute_paths,
)
from hamr.config.schema import Config
from hamr.errors import BadInput, HamrError, RunFolderError
from hamr.files import write_atomic

if TYPE_CHECKING:
    from hamr.apps.pipeline.command import RunPipeline

PathOf = Callable[[str, str], Path]


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """One command whose references are not resolved yet."""

    number: int
    name: str
    job: JobName
    args: tuple[str, ...]
    folder: Path

    @property
    def takes(self) -> list[tuple[str, str]]:
        """Return (stage, output) of its inputs, each once."""
        return list(dict.fromkeys((name, output) for _, name, output in references(self.args)))

    @property
    def kind(self) -> type[Command]:
        """Return the model of its command."""
        return kind_of(self.job, self.args)

    def command(self, path_of: PathOf, folder: Path | None = None) -> Command:
        """Return the command with references resolved by `path_of`, which writes into `folder`. Raises BadInput."""
        args = (*(_fill_reference(arg, path_of) for arg in self.args), target_arg(self.kind, folder or self.folder))
        return parse_command([*self.job.split(), *args])


def _fill_reference(arg: str, path_of: PathOf) -> str:
    """Resolve a reference. Values of overrides follow a grammar, so paths with special characters are quoted."""
    key, _, value = arg.partition("=")
    whole = bool(re.fullmatch(r"@\w+\.\w+", value))

    def format_path(stage: str, output: str) -> str:
        path = str(path_of(stage, output))
        read_by_hydra = not whole or (takes_override(key) and not key.startswith("-"))
        return in_override(path) if read_by_hydra else path

    return substitute_paths(arg, format_path)


@dataclass(frozen=True, kw_only=True)
class PipelinePlan:
    """A pipeline with its folder.

    `configs`: the configurations that its stages compose; empty for a resumed pipeline. `independent`: no stage needs
    another, so a failed stage does not stop the others.
    """

    name: str
    folder: Path
    keep: Keep
    inputs: Mapping[str, str]
    stages: tuple[PipelineStage, ...]
    configs: Mapping[str, Config] = field(default_factory=dict)
    independent: bool = False

    def paths(self, *, planned: bool = False) -> PathOf:
        """Return the function that locates outputs. A run's newest policy is known after the run; a plan shows
        `<last>`."""

        def place(stage: PipelineStage, output: str) -> Path:
            if output != "policy":
                return stage.folder / stage.kind.outputs[output]
            found = stage.folder / POLICY / "step_<last>" / "policy" if planned else policy_of(stage.folder)
            if found is None:
                raise HamrError(f"stage {stage.name} left no policy in {stage.folder / POLICY}; was it removed?")
            return found

        return self._locate(place)

    def _locate(self, place: Callable[[PipelineStage, str], Path]) -> PathOf:
        """Return the function that locates inputs and, with `place`, the outputs of stages."""
        by_name = {stage.name: stage for stage in self.stages}
        return lambda name, output: Path(self.inputs[output]) if name == INPUTS else place(by_name[name], output)

    def with_stand_ins(self) -> Iterator[tuple[PipelineStage, Callable[[], Command], str]]:
        """Yield each stage, the function that makes its command with empty files in place of future outputs, and the
        folder of these."""
        with tempfile.TemporaryDirectory(prefix="hamr-plan-") as name:
            folder = Path(name)

            def place(stage: PipelineStage, output: str) -> Path:
                path = folder / stage.folder.name / stage.kind.outputs[output]
                return path / "step_0" / "policy" if output == "policy" else path

            for stage in self.stages:
                yield stage, partial(stage.command, self._locate(place), folder / "none" / stage.name), name
                stand_in(stage.kind, folder / stage.folder.name)

    def configs_of_stages(self) -> tuple[Config, ...]:
        """Return the configurations that the stages of a loaded plan compose. Raises BadInput."""
        commands = (make() for _, make, _ in self.with_stand_ins())
        return tuple(command.config() for command in commands if isinstance(command, ConfiguredCommand))

    def check_places(self) -> None:
        """Check that this machine has room for the pipeline. Raises BadInput."""
        for name, config in self.configs.items():
            job = next(stage.job for stage in self.stages if stage.name == name)
            if config.cluster.address is None and job == "train":
                try:
                    check_placement(config, [local_node(config)])
                except BadInput as error:
                    raise Contradiction(f"stages.{name}", None, str(error)) from None

    def create(self) -> None:
        """Create the folder and write the plan.

        Raises RunFolderError if the folder is not empty, and BadInput for the value of a secret environment variable:
        the plan must contain the actual arguments.
        """
        texts = [(f"stages.{stage.name}", arg) for stage in self.stages for arg in stage.args]
        inputs = [(f"inputs.{name}", path) for name, path in self.inputs.items()]
        refuse_secret_texts([("experiment.name", self.name), *inputs, *texts], "be kept in the folder")
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            remedy = f"exists and is not empty; give another folder, or continue with resume={self.folder}"
            raise RunFolderError("experiment.run_dir", str(self.folder), remedy)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stages = [{**asdict(stage), "folder": stage.folder.name} for stage in self.stages]
            kept = {
                "name": self.name,
                "keep": self.keep,
                "inputs": dict(self.inputs),
                "independent": self.independent,
                "stages": stages,
            }
            write_atomic(self.folder / PLAN, json.dumps(kept, indent=1) + "\n")
        except OSError as error:
            raise RunFolderError(
                "experiment.run_dir", str(self.folder), f"cannot be created ({error.strerror})"
            ) from None

    @classmethod
    def load(cls, folder: Path) -> PipelinePlan:
        """Load the plan of a folder. Raises RunFolderError."""
        folder = folder.absolute()
        try:
            kept = json.loads((folder / PLAN).read_text(encoding="utf-8"))
            for row in kept["stages"]:
                if Path(row["folder"]).name != row["folder"] or row["folder"] in ("", ".."):  # it may be emptied
                    raise ValueError(f"stage {row['number']} has the folder {row['folder']!r}")
            stages = [
                PipelineStage(**{**row, "args": tuple(row["args"]), "folder": folder / row["folder"]})
                for row in kept["stages"]
            ]
            return cls(
                name=kept["name"],
                folder=folder,
                keep=kept["keep"],
                inputs=kept["inputs"],
                stages=tuple(stages),
                independent=kept.get("independent", False),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError("resume", str(folder), f"its {PLAN} cannot be read ({error})") from None


def plan_pipeline(command: RunPipeline) -> PipelinePlan:
    """Compose and validate the configuration of each stage. Raises BadInput, at `file:line` where possible."""
    values, own = split_flags(command.overrides)
    unknown = next((word for word in values if not takes_override(word.partition("=")[0])), None)
    if unknown is not None:
        remedy = (
            "unknown; a pipeline takes inputs.<name>=<file>, stages.<stage>.<override>, "
            "experiment.run_dir=<folder>, dry_run=true, and overrides for all stages"
        )
        raise BadInput("pipeline", unknown, remedy)
    source = read_pipeline(find_pipeline(command.pipeline, own))
    pipeline = source.pipeline
    for_one = _arguments_of_stages(command.stages, [stage.name for stage in pipeline.stages])
    kinds = [_kind_of(source, number) for number in range(len(pipeline.stages))]
    check_references(
        source, {stage.job: tuple(kind.outputs) for stage, kind in zip(pipeline.stages, kinds, strict=True)}
    )
    folder = (command.folder or Path("runs") / f"{pipeline.name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    for_all = (*([f"{CONFIG_DIR_FLAG}={own}"] if own else []), *values)
    stages = tuple(
        PipelineStage(
            number=number,
            name=stage.name,
            job=stage.job,
            args=(*stage.args, *(for_all if kind.takes_common else ()), *for_one.get(stage.name, ())),
            folder=folder / f"{number}-{stage.name}",
        )
        for number, (stage, kind) in enumerate(zip(pipeline.stages, kinds, strict=True), start=1)
    )
    inputs = _check_inputs(command.inputs, pipeline.inputs)
    plan = PipelinePlan(name=pipeline.name, folder=folder, keep=pipeline.keep, inputs=inputs, stages=stages)
    return dataclasses.replace(plan, configs=_check(source, plan))


def _kind_of(source: PipelineSource, number: int) -> type[Command]:
    stage = source.pipeline.stages[number]
    try:
        return kind_of(stage.job, stage.args)
    except BadInput as error:
        raise Contradiction(source.where(number), None, str(error)) from None


def _arguments_of_stages(words: Sequence[str], stages: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return stage -> its arguments. `words` are `<stage>.<argument>`."""
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, dot, argument = word.partition(".")
        if not dot:
            raise BadInput(f"stages.{word}", None, "write stages.<stage>.<what its command takes>")
        if name not in stages:
            there = ", ".join(nearest_first(name, stages))
            raise BadInput(f"stages.{name}", argument, f"no such stage; there are (nearest first): {there}")
        found[name] = (*found.get(name, ()), argument)
    return found


def _check_inputs(given: Mapping[str, Path], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the absolute path of every input. `wanted`: name -> description."""
    unknown = next((name for name in given if name not in wanted), None)
    if unknown is not None:
        there = ", ".join(nearest_first(unknown, list(wanted))) or "none"
        raise BadInput(f"{INPUTS}.{unknown}", str(given[unknown]), f"no such input; there are: {there}")
    for name, what in wanted.items():
        if name not in given:
            raise BadInput(f"{INPUTS}.{name}", None, f"missing; give {INPUTS}.{name}=<{what}>")
        if not given[name].expanduser().exists():
            raise BadInput(f"{INPUTS}.{name}", str(given[name]), f"no such file or folder; it is {what}")
    return {name: str(path.expanduser().absolute()) for name, path in given.items()}


def _check(source: PipelineSource, plan: PipelinePlan) -> dict[str, Config]:
    """Check every stage as its job will, with empty files in place of future outputs; return the configurations."""
    configs = {}
    for number, (stage, make, folder) in enumerate(plan.with_stand_ins()):
        _refuse_own(source, number, stage)
        try:
            config = make().check()
        except BadInput as error:
            message = str(error).replace(folder, str(plan.folder))
            raise Contradiction(_where(source, number, stage, error), None, message) from None
        if config is not None:
            configs[stage.name] = config
    return configs


def _refuse_own(source: PipelineSource, number: int, stage: PipelineStage) -> None:
    """Refuse options that the pipeline sets: the output path of a stage, and whether it is resumed."""
    if sum(arg.startswith(CONFIG_DIR_FLAG) for arg in stage.args) > 1:
        remedy = f"has {CONFIG_DIR_FLAG} twice, but only the last one counts; put their groups into one folder"
        raise Contradiction(source.where(number), None, remedy)
    for index, arg in enumerate(stage.args):
        key = arg.partition("=")[0].lstrip("+")
        if key in (stage.kind.target, "overwrite", "resume"):
            raise Contradiction(source.where(number, index), None, f"{key} is set by the pipeline; remove it")


def _where(source: PipelineSource, number: int, stage: PipelineStage, error: BadInput) -> str:
    """Return the line of the argument that caused the error if known, else the stage's line."""
    about = error.where.split(": ")[-1]
    for index, arg in enumerate(stage.args):
        key = arg.partition("=")[0].lstrip("+~")
        if key == about or error.value == arg or about.startswith(f"{key}.") or key.startswith(f"{about}."):
            return source.where(number, index)
    return source.where(number)
