"""`hamr plan`: estimates replicas, GPUs and step time before a cluster exists, and writes the files that start one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.apps.shared.outputs import no_file_above
from hamr.config.cluster_security import refuse_secrets
from hamr.config.load import load_config, load_dumped
from hamr.config.plan import PlanConfig
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.report.terminal import show
from hamr.report.values import PageBlock, Paragraph

if TYPE_CHECKING:
    from hamr.apps.plan.command import PlanCommand


def start(command: PlanCommand) -> int:
    """Print the plan, or write the launch files with `output`. Raises BadInput for invalid input."""
    config = configuration(command.overrides, command.past)
    if command.output is not None:
        return write_files(config, command.output)
    if config.launch.kind is not None:
        raise BadInput("launch", config.launch.kind, "name the folder for its files: output=DIR")
    show(*report(config, command.past))
    return 0


def configuration(overrides: Sequence[str], past: Path | None) -> Config:
    """Return a run's own configuration with changed values, or compose one without a run or with `experiment=`."""
    if past is None or any(o.startswith("experiment=") for o in overrides):
        return load_config(list(overrides))
    overrides = [f"launch.kind={o.removeprefix('launch=')}" if o.startswith("launch=") else o for o in overrides]
    if chosen := [o for o in overrides if "." not in o.partition("=")[0] or o.startswith("-")]:
        remedy = (
            "does not change the configuration of a run; set single values, or compose another with experiment=NAME"
        )
        raise BadInput("from", chosen, remedy)
    config = load_dumped(past / "config.yaml", overrides)
    # A dumped configuration sets every value; only values named here override the measured ones.
    named = [key.partition(".")[2] for key in (o.partition("=")[0] for o in overrides) if key.startswith("plan.")]
    return config.model_copy(update={"plan": PlanConfig(**{name: getattr(config.plan, name) for name in named})})


def report(config: Config, past_folder: Path | None) -> list[PageBlock]:
    """Return the printed elements, in order."""
    from hamr.apps.plan.build import build_cluster, build_workload
    from hamr.apps.plan.run import read_past
    from hamr.apps.plan.sizing import MOST_REPLICAS, SLACK, Study
    from hamr.apps.plan.tables import comparison, critical, parts, sizes, stations, title

    past = read_past(past_folder) if past_folder else None
    started = time.perf_counter()
    workload = build_workload(config, past)
    study = Study(workload, build_cluster(config, workload, past), draws=config.plan.draws)
    ideal = study.ideal()
    goal_s = max(config.plan.step_s or 0.0, ideal.step_s * (1 + SLACK))
    needed = study.size_pools(goal_s, most=MOST_REPLICAS)
    printed = [
        title(config, workload, past),
        *sizes(config, study, needed),
        parts(config, study, ideal, needed),
        stations(study, needed),
        critical(config, study, ideal, needed),
    ]
    if past is not None:
        printed += comparison(past)
    printed.append(Paragraph(f"simulated in {time.perf_counter() - started:.1f} s"))
    return printed


def write_files(config: Config, folder: Path) -> int:
    """Write the files of `launch.kind` into a folder that has none of them yet."""
    from hamr.apps.submit.launch_files import KINDS, render

    if config.launch.kind is None:
        raise BadInput("output", str(folder), f"nothing to write; choose launch={'|'.join(KINDS)}")
    no_file_above(folder)
    refuse_secrets(config)
    files = render(config, config.launch.kind)
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise BadInput(
            "output", str(folder), f"already contains {', '.join(there)}; give another folder or remove them"
        )
    for name, text in files.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                (folder / name).chmod(0o755)
        except OSError as error:
            raise BadInput("output", str(folder / name), f"cannot be written ({error.strerror})") from None
        print(f"wrote {folder / name}")
    return 0
