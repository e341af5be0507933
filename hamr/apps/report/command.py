"""Arguments of `hamr report`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hamr.apps.shared.commands import Command, Folder, Word


class ReportCommand(Command):
    """Draw plots/*.png and write report.html into a run folder, from its metrics, ledger, samples and summary. The
    run may still be running. For a pipeline's folder: the report on all stages. Prints the path of the report.
    """

    examples = ("hamr report runs/quickstart",)

    folder: Annotated[Folder, Word(), Field(title="RUN")]
    """Folder of a run or of a pipeline."""

    def run(self) -> int:
        from hamr.apps.pipeline.log import is_pipeline
        from hamr.apps.pipeline.report import write_pipeline_report
        from hamr.apps.report.report import write_report

        if self.folder.is_dir():
            print(f"drawing the report of {self.folder} ...", flush=True)
        print(write_pipeline_report(self.folder) if is_pipeline(self.folder) else write_report(self.folder))
        return 0
