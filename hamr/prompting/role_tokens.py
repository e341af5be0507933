"""Special tokens of chat models in untrusted text. Imports the standard library only, for clients of `hamr serve`."""

from __future__ import annotations

import re

ROLE_TOKEN = re.compile(
    r"[\[［](?=/?(?:INST|SYSTEM_PROMPT|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|AVAILABLE_TOOLS|ARGS|CALL_ID|THINK"
    r"|IMG|IMG_BREAK|IMG_END|PREFIX|MIDDLE|SUFFIX|[gs]?MASK|CLS|SEP|PAD|UNK|BOS|EOS)[\]］])",
    re.IGNORECASE,
)
"""Start of chat markup of models that do not use "<"."""
