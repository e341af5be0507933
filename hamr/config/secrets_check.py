"""Secrets check of a configuration before it leaves this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.security.redaction import REDACTED, secret_values, spellings


def refuse_secrets(config: Config, arguments: tuple[str, ...] = ()) -> None:
    """Raise BadInput for a setting or an argument that contains the value of a secret environment variable.

    The files of a run redact such values. The description of a job, which anyone with access to the cluster can read,
    must contain the actual settings.
    """
    texts = [("argument", argument) for argument in arguments]
    secrets = [form for secret in secret_values() for form in spellings(secret)]
    for key, text in [*_texts(config.model_dump(mode="json")), *texts]:
        if any(secret in text for secret in secrets):
            raise BadInput(
                key,
                REDACTED,
                "contains the value of a secret environment variable and would be sent with the job; remove it, or "
                "name the variable in a setting that asks for one (api_key_env)",
            )


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)
