"""Properties of the jobs that pipeline stages run: output paths, results for later stages, how to resume, and how to
check arguments before anything starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hamr.apps.shared.job_options import number, one_of, options, require_files
from hamr.apps.shared.sinks import check_sinks
from hamr.config.load import load_config
from hamr.config.overrides import CONFIG_DIR_FLAG, quote
from hamr.config.pipeline import Job
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.rewards.judged import check_prompts

FILE = "output.jsonl"
"""Output file of a recipe in its stage's folder."""

_PLAIN = re.compile(r"[\w./~+<>-]+")

Check = Callable[[list[str]], Config | None]
"""Raises BadInput for arguments that the job would refuse; returns the composed configuration, if any."""


@dataclass(frozen=True, kw_only=True)
class JobKind:
    """Properties of one kind of job.

    `target` is the option for the output path, `own` the options that the pipeline sets itself. `outputs`: name -> path
    in the stage's folder; a policy output is the newest checkpoint's. `run`: the stage's folder is a run folder.
    """

    target: str
    writes: str = "."
    outputs: Mapping[str, str]
    check: Check
    run: bool = False
    composes: bool = True
    """True if the job takes overrides of the configuration."""

    @property
    def own(self) -> tuple[str, ...]:
        return ("experiment.run_dir", "resume") if self.run else ("output", "overwrite")

    def target_arg(self, folder: Path) -> str:
        path = str(folder if self.writes == "." else folder / self.writes)
        return f"{self.target}={in_override(path) if self.run else path}"


def in_override(path: str) -> str:
    """Return a path as the value of an override, quoted if it has special characters."""
    return path if _PLAIN.fullmatch(path) else quote(path)


POLICY = "checkpoints"
"""Folder of a run's policies; the newest one is known when the run has ended."""


def policy_of(folder: Path) -> Path | None:
    """Return the policy of a run's newest checkpoint."""
    found = {
        int(m[1]): p
        for p in (folder / POLICY).glob("step_*/policy")
        if (m := re.fullmatch(r"step_(\d+)", p.parent.name))
    }
    return found[max(found)] if found else None


def _train(args: list[str]) -> Config:
    config = load_config(args)
    check_sinks(config.logging)
    check_prompts(config.rewards)
    return config


def _sft(args: list[str]) -> Config:
    config = load_config(args)
    check_sinks(config.logging)
    if not config.sft.sets:
        raise BadInput("sft.sets", [], "is empty; name the sets to train on: sft.sets=[{path: items.jsonl}]")
    return config


def _evaluate(args: list[str]) -> Config | None:
    from hamr.apps.evaluate.command import BENCHMARKS
    from hamr.apps.evaluate.ecs import request as ecs_request
    from hamr.apps.evaluate.olabench import request as olabench_request
    from hamr.apps.evaluate.sage import request as sage_request
    from hamr.apps.shared.pools_up import writing_pool

    named = [arg.partition("=")[2] for arg in args if arg.startswith("benchmark=")]
    if not named or named[-1] not in BENCHMARKS:
        known = ", ".join(sorted(BENCHMARKS))
        raise BadInput("benchmark", named[-1] if named else None, f"give one of: {known}")
    rest = [arg for arg in args if not arg.startswith("benchmark=")]
    if named[-1] == "ecs":
        return load_config(ecs_request.read_request(rest).overrides)
    if named[-1] == "sage":
        return load_config(sage_request.read_request(rest).overrides)
    request = olabench_request.read_request(rest)
    config = load_config(request.overrides)
    if request.judge:
        writing_pool(config, "judge", request.judge)
    return config


def _calibrate(args: list[str]) -> Config | None:
    from hamr.apps.calibrate.command import read_command
    from hamr.apps.calibrate.pools import wanted_pools

    command = read_command(args)
    if "scores" in command.own:
        return None
    config = load_config(command.overrides)
    wanted_pools(config, command.teachers)
    return config


def _split(args: Sequence[str], known: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    own = {key: value for key, equals, value in (arg.partition("=") for arg in args) if equals and key in known}
    return own, [arg for arg in args if arg.partition("=")[0] not in own]


def _sage(args: list[str]) -> Config:
    from hamr.apps.data.command import SAGE_OPTIONS
    from hamr.apps.data.recipes.thought import ORDERS

    own, overrides = options(args, SAGE_OPTIONS, others=("data.", "--"))
    one_of(own, "thoughts", ("none", *ORDERS), "none")
    return load_config(["data=sage", *overrides])


def _check_sampled(args: list[str]) -> None:
    from hamr.apps.data.build_sampled import OPTIONS, read_options

    own, _ = options(args, OPTIONS)
    require_files(own, {"input": "samples", "ledger": "run folder or ledger.sqlite", "min_total": "number"})
    read_options(own)


def _thought_config(args: list[str]) -> Config:
    from hamr.apps.data.build_thought import THOUGHT_OPTIONS, recipe_of, thought_team

    own, overrides = _split(args, THOUGHT_OPTIONS)
    require_files(own, {"step": "extract or migrate", "input": "samples"})
    recipe_of(own, one_of(own, "step", ("extract", "migrate"), ""))
    config = load_config(overrides)
    thought_team(config, own)
    return config


def _multigt(args: list[str]) -> Config:
    from hamr.apps.data.build_multigt import MULTIGT_OPTIONS, multigt_team, recipe_of

    own, overrides = _split(args, MULTIGT_OPTIONS)
    require_files(own, {"input": "samples"})
    recipe = recipe_of(own)
    config = load_config(overrides)
    multigt_team(config, own, recipe)
    return config


def _rubrics(args: list[str]) -> Config:
    from hamr.apps.data.build_rubrics import OPTIONS, recipe_of

    own, overrides = _split(args, OPTIONS)
    recipe_of(own)
    return _team_config(own, overrides)


def _dra(args: list[str]) -> Config:
    from hamr.apps.data.build_plans import PATM_OPTIONS

    own, overrides = _split(args, PATM_OPTIONS)
    return _team_config(own, overrides)


def _team_config(own: Mapping[str, str], overrides: Sequence[str]) -> Config:
    from hamr.apps.data.recipe_job import team_of

    require_files(own, {"input": "jsonl"})
    number(own, "max_new_tokens", int, 1)
    config = load_config(list(overrides))
    team_of(config, own)
    return config


_RUN = {"run": ".", "policy": POLICY}
_SPLITS = {name: f"{name}.jsonl" for name in ("train", "validation", "test")}


def _recipe(check: Check, *, composes: bool = True) -> JobKind:
    return JobKind(target="output", writes=FILE, outputs={"file": FILE}, check=check, composes=composes)


JOBS: Mapping[Job, JobKind] = {
    "train": JobKind(target="experiment.run_dir", outputs={**_RUN, "ledger": "ledger.sqlite"}, check=_train, run=True),
    "sft": JobKind(target="experiment.run_dir", outputs=_RUN, check=_sft, run=True),
    "calibrate": JobKind(
        target="output", outputs={"config_dir": ".", "rewards": "rewards/calibrated.yaml"}, check=_calibrate
    ),
    "evaluate": JobKind(target="output", outputs={"folder": "."}, check=_evaluate),
    "data sage": JobKind(
        target="output",
        outputs={"folder": ".", **_SPLITS, "items": "items.jsonl", "held_out_items": "held_out_items.jsonl"},
        check=_sage,
        composes=False,
    ),
    "data patm": _recipe(_dra),
    "data dra": _recipe(_dra),
    "data multigt": _recipe(_multigt),
    "data thought": _recipe(_thought_config),
    "data sampled": _recipe(_check_sampled, composes=False),
    "data rubrics": _recipe(_rubrics),
}


def stand_in(job: Job, folder: Path) -> None:
    """Create empty placeholders for the job's outputs, so that the arguments of later stages can be checked."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in JOBS[job].outputs.items():
        if name == "policy":
            (folder / POLICY / "step_0" / "policy").mkdir(parents=True)
        elif path.endswith(".yaml"):
            (folder / path).parent.mkdir()
            (folder / path).write_text("consistency: {mode: hybrid}\n")
        elif path != ".":
            (folder / path).touch()


def takes_override(key: str) -> bool:
    """Return whether an argument is a configuration override rather than one of a job's own options."""
    return key.lstrip("+~").split(".")[0] in Config.model_fields or key.startswith(CONFIG_DIR_FLAG)
