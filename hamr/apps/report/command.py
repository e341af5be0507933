"""`hamr report <run folder>`: an HTML page with plots from the records of a running or finished run."""

from __future__ import annotations

from pathlib import Path

from hamr.errors import BadInput

HELP = """hamr report <run folder>

Draws plots/*.png and writes report.html into a run folder, from its metrics, ledger, samples and summary.
The run may still be running. For a pipeline's folder: the report on all stages. Prints the path of the report."""


def main(args: list[str]) -> int:
    """Write the report. Raises BadInput if the argument is not a run folder."""
    if len(args) != 1:
        raise BadInput("hamr report", " ".join(args), "takes one run folder, such as runs/quickstart")
    # Import matplotlib lazily: the help and the check above do not need it.
    from hamr.apps.pipeline.log import is_pipeline
    from hamr.apps.pipeline.report import write_pipeline_report
    from hamr.apps.report.run_report import write_report

    print(f"drawing the report of {args[0]} ...", flush=True)
    folder = Path(args[0])
    print(write_pipeline_report(folder) if is_pipeline(folder) else write_report(folder))
    return 0
