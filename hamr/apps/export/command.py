"""Arguments of `hamr export`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from hamr.apps.shared.commands import Command, Folder, NonNegativeCount, Word


class ExportCommand(Command):
    """Write a run's policy as a folder that servers of Hugging Face models load: weights (a LoRA adapter is merged into
    them, and alone in adapter/), tokenizer with chat template, generation settings, and a model card that shows how
    requests have to look so that the policy sees the prompts of its training.
    """

    examples = ("hamr export runs/own output=models/desk",)
    outputs: ClassVar = {"policy": "."}
    work = "hamr.apps.export.run:export"

    run_folder: Annotated[Folder, Word(), Field(title="RUN")]
    """Folder of a run of `hamr train` or `hamr sft`."""
    output: Folder
    """New folder of the model."""
    step: NonNegativeCount | None = None
    """Step of the checkpoint. By default, the newest one."""
