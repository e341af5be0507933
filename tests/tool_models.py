"""The bundled model `tiny` with a chat template that supports tools in the Hermes form, as those of Qwen do."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from hamr.config.load import dump_config, load_config
from hamr.models.bundled import resolve_model
from hamr.telemetry.run_folder import RunFolder
from hamr.trainer.checkpoints import Checkpoints

TEMPLATE = """\
{%- for message in messages %}
{%- if loop.first and tools %}
<|im_start|>system
{% if message.role == 'system' %}{{ message.content }}{{ '\\n' }}{% endif %}
Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}
Call a tool with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- if message.role == 'tool' %}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif not (loop.first and tools and message.role == 'system') %}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tiny_with_tools(out: Path) -> Path:
    """Write the model to `out` and return it."""
    shutil.copytree(resolve_model("tiny"), out)
    (out / "chat_template.jinja").write_text(TEMPLATE)
    return out


def run_of(model: Path, out: Path, *overrides: str, steps: tuple[int, ...] = (1,)) -> Path:
    """Write a run folder whose checkpoints hold `model`, and return it."""
    config = load_config(["experiment=smoke", f"model.path={model}", *overrides])
    with RunFolder.create(out, dump_config(config)) as folder:
        for step in steps:
            asyncio.run(Checkpoints(folder.checkpoints).save(step, lambda path: _write_policy(model, path), {}))
    return out


async def _write_policy(model: Path, checkpoint: Path) -> None:
    shutil.copytree(model, checkpoint / "policy")
