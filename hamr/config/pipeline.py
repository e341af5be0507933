"""A pipeline as data: named stages, each a command of hamr, and the outputs of earlier stages that they use.

    name: two_steps
    inputs:
      experts: dialogues of good agents, a JSONL of samples
    stages:
      - name: cold_start
        job: sft
        args: [experiment=sft_small, "sft.sets=[{path: @inputs.experts}]"]
      - name: rl
        job: train
        args: [experiment=quickstart, model.path=@cold_start.policy]

`@stage.output` refers to a file or folder of an earlier stage, `@inputs.name` to one given by the user. Otherwise
`args` are the arguments of `hamr <job>`, without the output location of the stage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field, StringConstraints

from hamr.config.explain import Contradiction
from hamr.config.overrides import no_such_choice
from hamr.config.resources import resource
from hamr.config.safe_yaml import line_of
from hamr.config.section import Section
from hamr.config.yaml_files import read_checked
from hamr.errors import ConfigError

INPUTS = "inputs"
_NAME = r"[a-z][a-z0-9_]*"
REFERENCE = re.compile(rf"(?<!\w)@({_NAME})\.({_NAME})")
Name = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$")]
Keep = Literal["policy", "all"]
JobName = Literal[
    "train", "sft", "calibrate", "evaluate", "generate", "data sage", "data patm", "data dra", "data multigt",
    "data thought", "data sampled", "data rubrics", "data hallucination", "data olabench",
]  # fmt: skip


class StageConfig(Section):
    """One command. Any name except `inputs` is valid."""

    name: Name
    job: JobName
    args: tuple[str, ...] = ()


class PipelineConfig(Section):
    name: str
    inputs: dict[Name, str] = Field(default_factory=dict)
    """Required inputs of the user by name, with a description. Each is a file or a folder."""
    stages: Annotated[tuple[StageConfig, ...], Field(min_length=1)]
    keep: Keep = "policy"
    """Checkpoints that are kept after a stage has finished: its newest policy, or everything. The state for resuming a
    run is six times the size of the policy, and a finished stage does not need it."""


@dataclass(frozen=True, kw_only=True)
class PipelineSource:
    """A pipeline with its YAML, which has the line numbers of its parts."""

    file: str
    pipeline: PipelineConfig
    tree: yaml.Node

    def where(self, stage: int | None = None, arg: int | None = None) -> str:
        """Return `file:line: stages.<name>` for a stage or one of its args, or the file without a stage."""
        if stage is None:
            return self.file
        path = ("stages", stage) if arg is None else ("stages", stage, "args", arg)
        return f"{self.file}:{line_of(self.tree, path)}: stages.{self.pipeline.stages[stage].name}"


def find_pipeline(given: str, config_dir: Path | None = None) -> Path:
    """Return the YAML path of `pipeline=<name or file>`. Raise ConfigError."""
    if given.endswith((".yaml", ".yml")) or "/" in given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise ConfigError("pipeline", given, "no such file; give a pipeline's YAML or the name of a shipped one")
        return path
    folders = [*([config_dir / "pipeline"] if config_dir else []), resource("conf", "pipeline")]
    known = {file.stem: file for folder in reversed(folders) for file in sorted(folder.glob("*.yaml"))}
    if given not in known:
        raise ConfigError("pipeline", given, no_such_choice(given, list(known), "pipeline"))
    return known[given]


def read_pipeline(path: Path) -> PipelineSource:
    """Load a pipeline and check its references. ConfigError contains the `file:line` of the error."""
    pipeline, tree = read_checked(path, PipelineConfig, "pipeline")
    source = PipelineSource(file=str(path), pipeline=pipeline, tree=tree)
    _check_names(source)
    return source


def references(args: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield (number of the arg, stage, output) of every reference."""
    for number, arg in enumerate(args):
        for found in REFERENCE.finditer(arg):
            yield number, found[1], found[2]


def substitute_paths(arg: str, path_of: Callable[[str, str], str]) -> str:
    """Return `arg` with the path of each reference."""
    return REFERENCE.sub(lambda found: path_of(found[1], found[2]), arg)


def check_references(source: PipelineSource, outputs: Mapping[str, Sequence[str]]) -> None:
    """Check that every reference is to an input, or to an output of an earlier stage's job (`outputs`, by job).

    Raises Contradiction at the reference: for an unknown stage or output, for a later stage, and for a cycle, which no
    order of the stages can resolve.
    """
    stages = source.pipeline.stages
    order = {stage.name: number for number, stage in enumerate(stages)}
    for number, stage in enumerate(stages):
        for arg, name, output in references(stage.args):
            where = source.where(number, arg)
            if name == INPUTS:
                _check_name(where, f"@{INPUTS}.", output, list(source.pipeline.inputs), "input")
                continue
            _check_name(where, "@", name, [s.name for s in stages if s.name != stage.name], "stage")
            _check_name(where, f"@{name}.", output, outputs[stages[order[name]].job], "output")
            if order[name] > number:
                raise Contradiction(where, None, _too_late(stages, stage.name, name))


def _check_name(where: str, prefix: str, name: str, names: Sequence[str], what: str) -> None:
    if name not in names:
        raise Contradiction(where, None, f"{prefix}{name}: {no_such_choice(name, names, what)}")


def _too_late(stages: Sequence[StageConfig], taker: str, giver: str) -> str:
    import networkx

    takes = networkx.DiGraph({s.name: [name for _, name, _ in references(s.args)] for s in stages})
    if networkx.has_path(takes, giver, taker):
        path = networkx.shortest_path(takes, giver, taker)
        return f"a cycle: {' takes from '.join([taker, *path])}; no order of the stages can resolve it"
    return f"takes from {giver}, which comes later; put {giver} before it"


def _check_names(source: PipelineSource) -> None:
    seen: set[str] = {INPUTS}
    for number, stage in enumerate(source.pipeline.stages):
        if stage.name in seen:
            why = "is reserved for the inputs" if stage.name == INPUTS else "is the name of an earlier stage"
            raise Contradiction(source.where(number), None, f"{stage.name!r} {why}; give the stage another name")
        seen.add(stage.name)
