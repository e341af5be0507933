"""A pipeline's stages as commands, all checked before the first one starts."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hamr.apps.pipeline.jobs import JOBS, POLICY, in_override, policy_of, stand_in, takes_override
from hamr.apps.pipeline.log import PLAN
from hamr.apps.shared.pool_room import local_node
from hamr.cluster.placement import check_placement
from hamr.config.explain import Contradiction
from hamr.config.overrides import CONFIG_DIR_FLAG, config_folder, nearest_first
from hamr.config.pipeline import (
    INPUTS,
    Job,
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
from hamr.telemetry.run_folder import write_atomic

PathOf = Callable[[str, str], Path]


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """One command whose references are not resolved yet."""

    number: int
    name: str
    job: Job
    args: tuple[str, ...]
    folder: Path

    @property
    def takes(self) -> list[tuple[str, str]]:
        """Return (stage, output) of its inputs, each once."""
        return list(dict.fromkeys((name, output) for _, name, output in references(self.args)))

    def command(self, path_of: PathOf) -> list[str]:
        """Return the arguments after `hamr`, with references resolved by `path_of`."""
        return [*self.job.split(), *self.own_args(path_of, self.folder)]

    def own_args(self, path_of: PathOf, folder: Path) -> list[str]:
        """Return the arguments after the job. Their order equals that of `args`, so that errors can be located."""
        return [*(_fill_reference(arg, path_of) for arg in self.args), JOBS[self.job].target_arg(folder)]


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
        by_name = {stage.name: stage for stage in self.stages}

        def path_of(name: str, output: str) -> Path:
            if name == INPUTS:
                return Path(self.inputs[output])
            stage = by_name[name]
            if output != "policy":
                return stage.folder / JOBS[stage.job].outputs[output]
            found = stage.folder / POLICY / "step_<last>" / "policy" if planned else policy_of(stage.folder)
            if found is None:
                raise HamrError(f"stage {name} left no policy in {stage.folder / POLICY}; was it removed?")
            return found

        return path_of

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
        """Create the folder and write the plan. Raises RunFolderError if the folder is not empty."""
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            remedy = f"exists and is not empty; give another folder, or continue with resume={self.folder}"
            raise RunFolderError("experiment.run_dir", str(self.folder), remedy)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
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


@dataclass(frozen=True, kw_only=True)
class PipelineCommand:
    """A parsed `hamr train pipeline=...`.

    `for_all` applies to every stage that composes a configuration, `for_one` to the stages that it names.
    """

    source: PipelineSource
    folder: Path | None
    inputs: Mapping[str, str]
    for_all: tuple[str, ...]
    for_one: Mapping[str, tuple[str, ...]]
    dry_run: bool

    def plan(self) -> PipelinePlan:
        """Compose and validate the configuration of each stage. Raises BadInput, at `file:line` where possible."""
        pipeline = self.source.pipeline
        check_references(self.source, {job: tuple(kind.outputs) for job, kind in JOBS.items()})
        folder = (self.folder or Path("runs") / f"{pipeline.name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
        stages = tuple(
            PipelineStage(
                number=number,
                name=stage.name,
                job=stage.job,
                args=(
                    *stage.args,
                    *(self.for_all if JOBS[stage.job].composes else ()),
                    *self.for_one.get(stage.name, ()),
                ),
                folder=folder / f"{number}-{stage.name}",
            )
            for number, stage in enumerate(pipeline.stages, start=1)
        )
        plan = PipelinePlan(
            name=pipeline.name, folder=folder, keep=pipeline.keep, inputs=self._arguments(), stages=stages
        )
        return PipelinePlan(**{**vars(plan), "configs": self._check(plan)})

    def _arguments(self) -> dict[str, str]:
        wanted = self.source.pipeline.inputs
        unknown = next((name for name in self.inputs if name not in wanted), None)
        if unknown is not None:
            there = ", ".join(nearest_first(unknown, list(wanted))) or "none"
            raise BadInput(f"{INPUTS}.{unknown}", self.inputs[unknown], f"no such input; there are: {there}")
        for name, what in wanted.items():
            if name not in self.inputs:
                raise BadInput(f"{INPUTS}.{name}", None, f"missing; give {INPUTS}.{name}=<{what}>")
            if not Path(self.inputs[name]).expanduser().exists():
                raise BadInput(f"{INPUTS}.{name}", self.inputs[name], f"no such file or folder; it is {what}")
        return {name: str(Path(path).expanduser().absolute()) for name, path in self.inputs.items()}

    def _check(self, plan: PipelinePlan) -> dict[str, Config]:
        """Check every stage's arguments as its job will read them, with empty files in place of future outputs."""
        configs = {}
        with tempfile.TemporaryDirectory(prefix="hamr-plan-") as folder:
            beside = {stage.name: Path(folder) / stage.folder.name for stage in plan.stages}
            outputs = {stage.name: JOBS[stage.job].outputs for stage in plan.stages}

            def path_of(name: str, output: str) -> Path:
                if name == INPUTS:
                    return Path(plan.inputs[output])
                path = beside[name] / outputs[name][output]
                return path / "step_0" / "policy" if output == "policy" else path

            for number, stage in enumerate(plan.stages):
                self._refuse_own(number, stage)
                try:
                    config = JOBS[stage.job].check(stage.own_args(path_of, Path(folder) / "none" / stage.name))
                except BadInput as error:
                    told = str(error).replace(folder, str(plan.folder))
                    raise Contradiction(self._where(number, stage, error), None, told) from None
                if config is not None:
                    configs[stage.name] = config
                stand_in(stage.job, beside[stage.name])
        return configs

    def _refuse_own(self, number: int, stage: PipelineStage) -> None:
        """Refuse options that the pipeline sets: the output path of a stage, and whether it is resumed."""
        flags = [arg for arg in stage.args if arg.startswith(CONFIG_DIR_FLAG)]
        if len(flags) > 1:
            remedy = f"has {CONFIG_DIR_FLAG} twice, but only the last one counts; put their groups into one folder"
            raise Contradiction(self.source.where(number), None, remedy)
        for index, arg in enumerate(stage.args):
            key = arg.partition("=")[0].lstrip("+")
            if key in JOBS[stage.job].own:
                raise Contradiction(self.source.where(number, index), None, f"{key} is set by the pipeline; remove it")

    def _where(self, number: int, stage: PipelineStage, error: BadInput) -> str:
        """Return the line of the argument that caused the error if known, else the stage's line."""
        about = error.where.split(": ")[-1]
        for index, arg in enumerate(stage.args):
            key = arg.partition("=")[0].lstrip("+~")
            if key == about or error.value == arg or about.startswith(f"{key}.") or key.startswith(f"{about}."):
                return self.source.where(number, index)
        return self.source.where(number)


def read_command(args: Sequence[str]) -> PipelineCommand:
    """Parse the command. Raises BadInput for arguments that no pipeline takes."""
    given: dict[str, str] = {}
    inputs: dict[str, str] = {}
    for_all: list[str] = []
    named: list[tuple[str, str]] = []
    rest = iter(args)
    for arg in rest:
        key, equals, value = arg.partition("=")
        if key == CONFIG_DIR_FLAG:
            for_all.append(f"{CONFIG_DIR_FLAG}={config_folder(value if equals else next(rest, ''))}")
        elif key in ("pipeline", "experiment.run_dir", "dry_run") and equals:
            given[key] = value
        elif key.startswith(f"{INPUTS}.") and equals:
            inputs[key.removeprefix(f"{INPUTS}.")] = value
        elif key.startswith("stages."):
            name, dot, override = arg.removeprefix("stages.").partition(".")
            if not dot:
                raise BadInput(arg, None, "write stages.<stage>.<what its command takes>")
            named.append((name, override))
        elif takes_override(key) or (equals and key == "experiment"):
            for_all.append(arg)
        else:
            raise BadInput(
                "pipeline",
                arg,
                "unknown; a pipeline takes inputs.<name>=<file>, stages.<stage>.<override>, "
                "experiment.run_dir=<folder>, dry_run=true, and overrides for all stages",
            )
    if given.get("dry_run", "false") not in ("true", "false"):
        raise BadInput("dry_run", given["dry_run"], "must be true or false")
    own = next((Path(arg.partition("=")[2]) for arg in for_all if arg.startswith(CONFIG_DIR_FLAG)), None)
    source = read_pipeline(find_pipeline(given["pipeline"], own))
    stages = [stage.name for stage in source.pipeline.stages]
    for_one: dict[str, tuple[str, ...]] = {}
    for name, override in named:
        if name not in stages:
            there = ", ".join(nearest_first(name, stages))
            raise BadInput(f"stages.{name}", override, f"no such stage; there are (nearest first): {there}")
        for_one[name] = (*for_one.get(name, ()), override)
    folder = Path(given["experiment.run_dir"]).expanduser() if given.get("experiment.run_dir") else None
    return PipelineCommand(
        source=source,
        folder=folder,
        inputs=inputs,
        for_all=tuple(for_all),
        for_one=for_one,
        dry_run=given.get("dry_run") == "true",
    )
