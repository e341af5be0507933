"""Arguments of `hamr chat`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hamr.apps.shared.commands import Command, Count, File, Folder, NonNegativeCount, Word


class ChatCommand(Command):
    """Talk to a run's policy in the terminal, as its customer. The policy gets the prompts of its training, with the
    business policy, tools and ticket of a sample. Where it calls a tool, enter the tool's result. /quit, Ctrl-D or
    Ctrl-C ends the conversation. Lines may also come from a pipe.
    """

    examples = ("hamr chat runs/own",)
    work = "hamr.apps.chat.run:chat"

    run_folder: Annotated[Folder, Word(), Field(title="RUN")]
    """Folder of a run of `hamr train` or `hamr sft`."""
    samples: Annotated[File | None, Field(title="SAMPLES.jsonl")] = None
    """Samples with the policy, the tools and the ticket of the conversation. By default, those of the run."""
    id: str | None = None
    """Id of the sample. By default, the first one."""
    step: NonNegativeCount | None = None
    """Step of the checkpoint. By default, the newest one."""
    max_new_tokens: Count | None = None
    """Maximum length of an answer in tokens. By default, that of the run's rollouts."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    """Sampling temperature. 0: always the likeliest token."""
    seed: int = 0
    """Determines the sampling."""
