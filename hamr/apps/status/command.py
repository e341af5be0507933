"""Arguments of `hamr status`, `hamr scale` and `hamr stop`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from hamr.apps.shared.commands import Command, Flag, Prefix, Word
from hamr.errors import BadInput


class StatusCommand(Command):
    """Show the state of a run: its pools, their load, step, reward, pace and estimated end.

    All information comes from the run folder: a running job writes its status and that of its pools there every second.
    No address or token is needed, and a finished run can be inspected, too.

    Per pool: running replicas (and their target number), pending requests, latency of the last requests (median and
    99th percentile, in queue and in service), requests answered so far, and the state of the circuit breaker.
    """

    examples = ("hamr status runs/quickstart --watch",)

    run_folder: Annotated[str, Word(), Field(title="RUN")]
    """Run folder, or its name under runs/."""
    watch: Annotated[bool, Flag()] = False
    """Refresh the output until the run is over or Ctrl-C."""

    def run(self) -> int:
        from hamr.apps.status.overview import show_status

        return show_status(self.run_folder, watch=self.watch)


class ScaleCommand(Command):
    """Resize the pools of a running job without stopping it.

    A fixed pool gets the number of replicas; an autoscaled pool gets it as its minimum (within the bounds of
    `pools.<pool>.autoscaling`; load may add more). New replicas start next to the others; a replica that is removed
    finishes its requests first. Other pools and the remaining replicas are not affected. The change is applied as a
    whole or not at all: an invalid number is reported in one line and the run is unchanged.
    """

    examples = ("hamr scale runs/quickstart judge=4 reranker=8",)

    run_folder: Annotated[str, Word(), Field(title="RUN")]
    """Run folder, or its name under runs/."""
    replicas: Annotated[dict[str, int], Prefix(), Field(title="POOL=N", default_factory=dict)]
    """Pool and its number of replicas; several are possible."""

    @model_validator(mode="after")
    def _names_a_pool(self) -> ScaleCommand:
        if not self.replicas:
            remedy = f"name a pool and its number of replicas: hamr scale {self.run_folder} judge=4"
            raise BadInput("scale", None, remedy)
        return self

    def run(self) -> int:
        from hamr.apps.status.scale import scale

        return scale(self.run_folder, self.replicas)


class StopCommand(Command):
    """Stop a running job or pipeline as SIGTERM does: it keeps its finished steps and can be resumed.

    A run on this machine gets the signal. One on another machine, such as a submitted run, reads the request in its run
    folder, which both machines must see. The command waits until the run has ended and prints how to continue it. A
    second `hamr stop` ends the run immediately, as a second signal does.
    """

    examples = ("hamr stop runs/quickstart",)

    run_folder: Annotated[str, Word(), Field(title="RUN")]
    """Folder of a run or a pipeline, or its name under runs/."""

    def run(self) -> int:
        from hamr.apps.status.stop import stop

        return stop(self.run_folder)
