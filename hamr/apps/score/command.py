"""Arguments of `hamr score`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hamr.apps.shared.commands import ConfiguredCommand, File
from hamr.errors import BadInput


class ScoreCommand(ConfiguredCommand):
    """Score a file of finished responses, or replay the ledger of a run: recompute every recorded reward from its
    recorded scores.

    A line of the file is a sample with one more field, `response` (a text) or `responses` (several). The responses of
    one line are a group; comparing judges see them together. The output has one record per response, in the order of
    the input, group by group; `key.step` is the line. A PNG with the histograms is written next to it. A share of
    responses without a score above `score.max_failed_frac` makes the exit code 1.
    `score.groups_in_flight` bounds the number of groups that are scored concurrently.
    """

    examples = (
        "hamr score input=responses.jsonl output=records.jsonl experiment=quickstart",
        "hamr score input=runs/quickstart",
    )

    input: Annotated[File, Field(title="RESPONSES.jsonl|RUN")]
    """Samples with responses, or a run folder to replay."""
    output: Annotated[File | None, Field(title="RECORDS.jsonl")] = None
    """File of the records. Required, unless a run is replayed."""
    resume: bool = False
    """Continue an interrupted output after its last complete group. Other settings or another input are refused."""
    retry: Literal["failed"] | None = None
    """Score the groups that have a response without a score again. The others keep their records. The old file stays
    until the new one is complete; the same command continues an interrupted retry."""
    on_bad_row: Literal["stop", "skip"] = "stop"
    """End the command at an invalid line of the input, or name the line and skip it."""

    def run(self) -> int:
        from hamr.apps.score.run import replay_run, score

        if self.input.is_dir():
            if more := sorted(self.model_fields_set - {"input", "overrides"}):
                raise BadInput(more[0], getattr(self, more[0]), "has no effect on the replay of a run; remove it")
            if self.overrides:
                print("replaying with the settings of the run: overrides have no effect", flush=True)
            return replay_run(self.input)
        if self.output is None:
            raise BadInput("output", None, "name the JSONL to write the records to")
        return score(
            self.config(),
            self.input,
            self.output,
            resume=self.resume,
            retry=self.retry == "failed",
            skip=self.on_bad_row == "skip",
        )
