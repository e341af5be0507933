"""`hamr export`: the policy of a run as a servable Hugging Face folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr import __version__
from hamr.apps.shared.templates import render_file
from hamr.apps.shared.trained_policy import TrainedPolicy
from hamr.config.pools import BUNDLED
from hamr.data.policy_chat import PolicyChat
from hamr.errors import BadInput
from hamr.models.bundled import describe, folder_written_aside
from hamr.models.tokenizer import Tokenizer, load_tokenizer
from hamr.telemetry.summary import STAGES, read_summary
from hamr.trainer.adapters import FOLDER, SETTINGS

if TYPE_CHECKING:
    from hamr.apps.export.command import ExportCommand

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `--max-lora-rank`."""


def export(command: ExportCommand) -> int:
    """Write the folder. Raises BadInput for a run without a policy and an output that is not empty."""
    policy = TrainedPolicy.of("RUN", command.run_folder, command.step)
    out = command.output.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput("output", str(command.output), "exists and is not empty; give another folder")
    tokenizer = load_tokenizer(policy.model)
    chat = PolicyChat.of(tokenizer, policy.config.model.tools_prompt)
    try:
        with folder_written_aside(out) as aside:
            shutil.copytree(policy.model, aside, dirs_exist_ok=True)
            _write_generation_config(aside / "generation_config.json", policy, tokenizer)
            rank = _name_base(aside / FOLDER / SETTINGS, policy)
            (aside / "README.md").write_text(model_card(policy, chat, out.name, rank), encoding="utf-8")
    except OSError as error:
        raise BadInput("output", str(command.output), f"cannot be written ({error.strerror or error})") from error
    print(f"model of step {policy.step}: {out}")
    if rank is not None:
        print(f"its LoRA adapter alone: {out / FOLDER}")
    print(f"to serve it: python -m vllm.entrypoints.openai.api_server --model {out}{_tool_flags(chat)}")
    print(f"requests that match the training: {out / 'README.md'}")
    return 0


def _tool_flags(chat: PolicyChat) -> str:
    return " --enable-auto-tool-choice --tool-call-parser hermes" if chat.native else ""


def _write_generation_config(path: Path, policy: TrainedPolicy, tokenizer: Tokenizer) -> None:
    """Let a server stop where the policy learnt to stop, and sample as in training unless a request says otherwise."""
    settings: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    given = settings.get("eos_token_id")
    ends = [given] if isinstance(given, int) else given or []
    settings["eos_token_id"] = list(dict.fromkeys([tokenizer.eos_id, *ends]))
    rollout = policy.config.rollout
    settings |= {"do_sample": True, "temperature": rollout.temperature, "top_p": rollout.top_p}
    path.write_text(json.dumps(settings, indent=2) + "\n")


def _public_base(policy: TrainedPolicy) -> str:
    """Return the name of the model that the run started from, empty for a local path, as what is exported is shared."""
    path = policy.config.model.path
    return path if path in BUNDLED or (path.count("/") == 1 and not Path(path).exists()) else ""


def _name_base(settings: Path, policy: TrainedPolicy) -> int | None:
    """Name the base model in the settings of an adapter. Return the adapter's rank, or None without an adapter."""
    if not settings.is_file():
        return None
    adapter = json.loads(settings.read_text())
    adapter["base_model_name_or_path"] = adapter["base_model_name_or_path"] or _public_base(policy) or None
    settings.write_text(json.dumps(adapter, indent=2) + "\n")
    return adapter["r"]


def model_card(policy: TrainedPolicy, chat: PolicyChat, name: str, rank: int | None = None) -> str:
    """Return README.md: what was trained, how well it did on held-out samples, and how requests have to look.

    Args:
        rank: Rank of the adapter in the folder, None without one.
    """
    model, base = policy.config.model, _public_base(policy)
    stages = read_summary(policy.folder).get("stages", {})
    return render_file(
        "hamr.apps.export",
        "README.md",
        name=name,
        run=policy.config.experiment.name,
        step=policy.step,
        base=base,
        on_hub=base and base not in BUNDLED,
        facts=describe(policy.model),
        native=chat.native,
        flags=_tool_flags(chat),
        response_format=model.response_format,
        lora=policy.config.trainer.lora,
        rank=rank,
        most_rank=next((most for most in LORA_RANKS if most >= (rank or 0)), rank),
        rollout=policy.config.rollout,
        stages={name: stages[name] for name in STAGES if name in stages},
        max_context=model.max_context,
        version=__version__,
    )
