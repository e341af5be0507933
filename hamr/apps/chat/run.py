"""`hamr chat`: a conversation with a run's policy in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hamr.apps.shared.preparation import Codec, load_splits
from hamr.apps.shared.trained_policy import TrainedPolicy
from hamr.config.schema import Config
from hamr.data.actions import customer_text, parse_action
from hamr.data.samples import read_samples
from hamr.data.sft_items import read_items
from hamr.data.tools import tool_spec
from hamr.errors import BadInput, HamrError
from hamr.models.local_model import LocalModel
from hamr.types import MalformedResponse, ServiceSample, ToolCall, Turn

if TYPE_CHECKING:
    from hamr.apps.chat.command import ChatCommand

QUIT = "/quit"
WriteText = Callable[[Sequence[int]], str]
"""Writes the answer to a prompt and shows it."""


def chat(command: ChatCommand) -> int:
    """Read lines until the end of the input. Raises BadInput before the model is loaded."""
    policy = TrainedPolicy.of("RUN", command.run_folder, command.step)
    sample = replace(_choose_sample(command, policy.config), history=())
    config = policy.config
    tokens = command.max_new_tokens or config.rollout.max_new_tokens
    tools = ", ".join(str(tool_spec(tool)[0]) for tool in sample.tools) or "none"
    ticket = ", ".join(f"{key}={value}" for key, value in sample.ticket.items()) or "empty"
    _show(f"policy of step {policy.step}; sample {sample.id}; tools: {tools}; ticket: {ticket}; {QUIT} ends\n")
    try:
        model = LocalModel(policy.model, config.model.dtype)
        codec = Codec(tokenizer=model.tokenizer, config=config)

        def write(ids: Sequence[int]) -> str:
            room = config.model.max_context - len(ids)
            if room < 1:
                remedy = f"model.max_context={config.model.max_context} of the run; start a new conversation"
                raise HamrError(f"the conversation has {len(ids)} tokens, which fill {remedy}")
            return model.write(
                ids,
                _show,
                max_new_tokens=min(tokens, room),
                temperature=command.temperature,
                seed=command.seed + len(ids),
            )

        converse(sample, codec, write)
    except KeyboardInterrupt:
        _show("\n")
    return 0


def converse(sample: ServiceSample, codec: Codec, write: WriteText) -> None:
    """Alternate between lines of the user and turns of the policy."""
    form = codec.formats.of(sample)
    speaker = Turn(role="customer")
    while (line := _read_line(f"{speaker.name or speaker.role}> ")) is not None:
        sample = replace(sample, history=(*sample.history, replace(speaker, content=line)))
        _show("agent> ")
        text = write(codec.chat.prompt(sample, form))
        _show("\n")
        action = parse_action(text, form)
        speaker = Turn(role="customer")
        if isinstance(action, ToolCall):
            turn = Turn(role="agent", tool_call=action)
            speaker = Turn(role="tool", name=action.name)
        elif isinstance(action, MalformedResponse):
            _show(f"(malformed: {action.detail})\n")
            turn = Turn(role="agent", content=customer_text(text, form))
        else:
            turn = Turn(role="agent", content=action.content)
        sample = replace(sample, history=(*sample.history, turn))


def _choose_sample(command: ChatCommand, config: Config) -> ServiceSample:
    if command.samples is not None:
        samples: Sequence[ServiceSample] = read_samples(command.samples)
    elif paths := [entry.path for entry in config.sft.sets if entry.path is not None]:
        samples = [item.sample for item in read_items(paths[0])]
    else:
        splits = load_splits(config.data, config.experiment.seed)
        samples = splits.test or splits.train
    if command.id is None:
        return samples[0]
    found = next((sample for sample in samples if sample.id == command.id), None)
    if found is None:
        raise BadInput("id", command.id, f"none of the {len(samples)} samples has it; the first is {samples[0].id}")
    return found


def _read_line(prompt: str) -> str | None:
    """Return the next line that is not empty, None at the end of the input."""
    while True:
        try:
            line = input(prompt if sys.stdin.isatty() else "").strip()
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise BadInput("input", error.object[:40], "is not UTF-8; convert it") from None
        if line == QUIT:
            return None
        if line:
            return line.encode(errors="replace").decode()


def _show(text: str) -> None:
    print(text, end="", flush=True)
