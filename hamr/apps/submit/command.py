"""Arguments of `hamr submit`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hamr.apps.shared.commands import Command, Flag, Prefix


class SubmitCommand(Command):
    """Run a job on a cluster. First the configuration and the cluster are checked: the plan says which node holds
    what, and anything that does not fit is reported in one line. Secrets are never written to a file or a job
    description.

    `cluster=ray cluster.dashboard=URL`: an existing Ray cluster. The working folder (without files that .gitignore
    excludes and files that look like keys) and the resolved configuration are uploaded, and the job runs there as it
    would here. Variables such as WANDB_API_KEY have to be set on the nodes.

    `cluster=kuberay launch.claim=NAME [launch.image=... launch.secret=...]`: a RayJob, submitted with `kubectl apply`.
    The code comes from the image; run folders, data and models are on the claim, keys in the Secret.

    `cluster=slurm`: a batch job, submitted with `sbatch` from a folder that all nodes see. A copy of the working folder
    is kept next to the run folder, and Slurm passes the environment on.

    A pipeline or a --multirun is one job; a cluster that is started for it fits the largest of its stages.

    `cluster=local` runs the job here. `hamr submit train resume=<run folder> cluster=...` resumes a run on another
    cluster under the same W&B id; the folder has to be at the same path there.
    """

    examples = (
        "hamr submit train experiment=quickstart cluster=ray cluster.dashboard=http://head:8265 --follow",
        "hamr submit train experiment=paper_hrm cluster=slurm launch.partition=gpu --dry-run",
        "hamr submit train pipeline=olamind_small cluster=slurm --dry-run",
    )
    work = "hamr.apps.submit.run:start"

    follow: Annotated[bool, Flag()] = False
    """Show the job's output and return its exit code; Ctrl-C leaves the job running."""
    dry_run: Annotated[bool, Flag()] = False
    """Submit nothing: with cluster=kuberay|slurm, write the files and print the command that would submit them. A
    machine without kubectl or sbatch does the same, with exit code 2."""
    job: Annotated[
        tuple[str, ...], Prefix(), Field(title="JOB [the job's arguments] cluster=ray|kuberay|slurm|local")
    ] = ()
    """A command that needs no terminal, with its arguments and those of the sections cluster and launch."""
