"""`hamr report <run folder>`: HTML with plots from what a run has recorded, running or finished."""

from __future__ import annotations

from pathlib import Path

from hamr.errors import BadInput

HELP = """hamr report <run folder>

Draws plots/*.png and writes report.html into a run folder, from its metrics, ledger, samples and summary.
The run may still be going on. Of a pipeline's folder: the report over its stages. Prints where the report stands."""


def main(args: list[str]) -> int:
    """Writes the report; raises BadInput if the argument is no run folder."""
    if len(args) != 1:
        raise BadInput("hamr report", " ".join(args), "takes one run folder, such as runs/quickstart")
    # Drawing needs matplotlib, which the help and the check above do not.
    from hamr.apps.pipeline.log import is_pipeline
    from hamr.apps.pipeline.report import write_pipeline_report
    from hamr.apps.report.run_report import write_report

    print(f"drawing the report of {args[0]} ...", flush=True)
    folder = Path(args[0])
    print(write_pipeline_report(folder) if is_pipeline(folder) else write_report(folder))
    return 0
