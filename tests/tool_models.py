"""The bundled model `tiny` with a chat template that supports tools in the Hermes form, as those of Qwen do; its
runs, and a sample with a tool."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from hamr.apps.shared.own_functions import check_own_functions
from hamr.apps.shared.training_job import Job
from hamr.config.load import load_config
from hamr.models.bundled import resolve_model
from hamr.trainer.checkpoints import Checkpoints
from hamr.types import Reference, Reply, ServiceSample, ToolCall, Turn

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

NESTED = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string", "description": "As printed on the invoice."},
        "items": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "reason": {"enum": [f"reason_{i}" for i in range(20)]},
    },
    "required": ["order_id"],
}
REFUND = {"name": "issue_refund", "description": "Pays money back.", "parameters": NESTED}
CALL = ToolCall(name="issue_refund", parameters={"order_id": "A-7", "items": [{"sku": "x"}]})
HISTORY = (
    Turn(role="customer", content="Refund, <b>please</b> (Ärger)."),
    Turn(role="agent", content="One moment."),
    Turn(role="agent", tool_call=CALL),
    Turn(role="tool", name="issue_refund", content="paid"),
    Turn(role="customer", content="Thanks"),
)


def tool_sample(*history: Turn, **changes: Any) -> ServiceSample:
    given: dict[str, Any] = {
        "id": "s",
        "ticket": {"Plan": "Surf"},
        "policy": "Be brief.",
        "tools": (REFUND,),
        "history": history or HISTORY,
        "references": (Reference(action=CALL), Reference(action=Reply(content="Done."))),
    }
    return ServiceSample(**{**given, **changes})


def tiny_with_tools(out: Path) -> Path:
    """Write the model to `out` and return it."""
    shutil.copytree(resolve_model("tiny"), out)
    (out / "chat_template.jinja").write_text(TEMPLATE)
    return out


def run_of(model: Path, out: Path, *overrides: str, steps: tuple[int, ...] = (1,)) -> Path:
    """Write a run folder whose checkpoints hold `model`, and return it."""
    config = check_own_functions(load_config(["experiment=smoke", f"model.path={model}", *overrides]))
    with Job(config=config, path=out, resume=False).open() as folder:
        for step in steps:
            asyncio.run(Checkpoints(folder.checkpoints).save(step, lambda path: _write_policy(model, path), {}))
    return out


async def _write_policy(model: Path, checkpoint: Path) -> None:
    shutil.copytree(model, checkpoint / "policy")
