"""Keeps secrets out of everything that is written: files of the run folder, W&B, messages. Standard library only.

Two nets. By name: a key such as `api_key` or `HF_TOKEN` loses its value. By value: whatever a secret-looking
environment variable holds is blotted out wherever it turns up, whatever the key is called.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

REDACTED = "[redacted]"

_MIN_SECRET = 6
"""Shorter values of environment variables (`1`, `true`) are no secrets, and blotting them out would wreck text."""

_FOLDERS = ("PWD", "OLDPWD")
"""Every shell's own: the folder one is in, and no password."""

_ALWAYS = {"secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials"}
_ALWAYS |= {"authorization", "apikey", "cookie", "bearer"}
_BEFORE_KEY = {"api", "access", "private", "secret", "auth", "encryption", "signing", "account", "ssh", "license"}
_TEXT_TOKENS = {"eos", "bos", "pad", "unk", "sep", "cls", "mask", "stop", "special", "first", "next", "last"}
_URL_LOGIN = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)


@cache
def looks_secret(key: str) -> bool:
    """Whether a key names a secret.

    `api_key`, `HF_TOKEN`, `db.password` do; `api_key_env` (the name of a variable), `max_new_tokens`,
    `eos_token` and `affinity_key` do not.
    """
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", key)
    words = [w.lower() for w in words]
    if not words or words[-1] in ("env", "name", "file"):
        return False
    if _ALWAYS & set(words):
        return True
    before = words[-2] if len(words) > 1 else ""
    return (words[-1] == "key" and before in _BEFORE_KEY) or (words[-1] == "token" and before not in _TEXT_TOKENS)


def secret_values(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Values of the environment's secret-looking variables, longest first (one may contain another)."""
    env = os.environ if environ is None else environ
    found = {v for k, v in env.items() if len(v) >= _MIN_SECRET and looks_secret(k) and k not in _FOLDERS}
    return tuple(sorted(found, key=len, reverse=True))


@cache
def spellings(secret: str) -> tuple[str, ...]:
    """A secret as it stands in a text, in a page of HTML, in a string of JSON, and in JSON that is a string of JSON;
    longest first. One without quotes, backslashes and the like is spelled one way only.

    >>> spellings("sk-0123"), spellings("a&b")
    (('sk-0123',), ('a&amp;b', 'a&b'))
    """
    forms = {secret}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=a)[1:-1] for form in forms for a in (True, False)}
    # As templates write it: & < > by name, quotes by number.
    forms.add(html.escape(secret).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"))
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def redact_text(text: str, environ: Mapping[str, str] | None = None) -> str:
    """`text` without the values of secret environment variables and without logins inside URLs."""
    for value in secret_values(environ):
        for spelling in spellings(value):
            text = text.replace(spelling, REDACTED)
    return _URL_LOGIN.sub(rf"\g<scheme>{REDACTED}@", text)


def blot(text: str, environ: Mapping[str, str] | None = None) -> str:
    """`text`, which is JSON, without the values of secret environment variables in its strings: its keys and numbers
    stay, and it stays JSON. Logins in URLs stay, too, for a customer's words and a policy's are recorded as said."""
    forms = [form for secret in secret_values(environ) for form in spellings(secret)]
    if not any(form in text for form in forms):
        return text
    return json.dumps(_redact_value(json.loads(text), forms), ensure_ascii=text.isascii())


def _redact_value(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {k: _redact_value(v, secrets) for k, v in value.items()}
    if isinstance(value, list):
        return [_redact_value(v, secrets) for v in value]
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, REDACTED)
    return value


def redact(value: Any, environ: Mapping[str, str] | None = None) -> Any:
    """A copy of a JSON-like value without secrets; numbers, booleans and None under `*token` keys stay.

    >>> redact({"api_key": "sk-1", "steps": 3, "api_key_env": "OPENAI_API_KEY"}, environ={})
    {'api_key': '[redacted]', 'steps': 3, 'api_key_env': 'OPENAI_API_KEY'}
    """
    if isinstance(value, Mapping):
        return {k: _redact_entry(str(k), v, environ) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [redact(v, environ) for v in value]
    if isinstance(value, str):
        return redact_text(value, environ)
    return value


def _redact_entry(key: str, value: Any, environ: Mapping[str, str] | None) -> Any:
    empty = value is None or isinstance(value, bool) or value == ""
    counted = isinstance(value, int | float) and key.lower().endswith("token")
    if looks_secret(key) and not empty and not counted:
        return REDACTED
    return redact(value, environ)
