"""Arguments of `hamr plan`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hamr.apps.shared.commands import ConfiguredCommand, Folder


class PlanCommand(ConfiguredCommand):
    """Compute, from assumed or measured model sizes and latencies, the replicas that keep the reward off a step's
    critical path, simulate a step, and write the files that start the cluster. Nothing is started: no Ray, no engine,
    no network.

    Assumptions are in the section plan (plan.gpu, plan.step_s, ...). With `from` they are measured in a run; its
    configuration is used, with changed values, or another one (experiment=NAME), whose parts in common with the run are
    as fast as measured. Predicted and measured step times are printed, too.
    """

    examples = (
        "hamr plan experiment=paper_hrm plan.step_s=120",
        "hamr plan from=runs/quickstart experiment=paper_hrm",
        "hamr plan experiment=paper_hrm launch=slurm output=cluster",
    )
    work = "hamr.apps.plan.output:start"

    past: Annotated[Folder | None, Field(alias="from", title="RUN")] = None
    """Run folder that times and shares are taken from."""
    output: Folder | None = None
    """Folder for the manifests or scripts that start a cluster for this job (launch=kuberay|slurm|ray)."""
