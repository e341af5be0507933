"""Redaction of secrets in all output: files of the run folder, W&B, messages. Standard library only.

Secrets are found in two ways. By name: the value of a key such as `api_key` or `HF_TOKEN` is redacted. By value: the
values of secret-looking environment variables are redacted wherever they occur, whatever the key.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from hamr.security.key_files import find_key

REDACTED = "[redacted]"

_MIN_SECRET = 6
"""Minimum length of a secret. Shorter values of environment variables (`1`, `true`) are not secrets, and redacting them
would damage text."""

_FOLDERS = ("PWD", "OLDPWD")
"""Variables of every shell whose name looks secret but which hold the working directory."""

_ALWAYS = {"secret", "secrets", "pwd", "credential", "credentials", "authorization", "cookie", "bearer", "jwt", "dsn"}
_ALWAYS |= {"webhook", "webhooks", "creds"}
_ENDINGS = (
    "password", "passwords", "passwd", "passphrase", "apikey", "authtoken", "authkey", "secret", "secretkey",
    "accesskey", "privatekey", "accesstoken", "apitoken", "dbpass", "sshpass", "connectionstring",
)  # fmt: skip
"""Words end with these also without a separator (`PGPASSWORD`)."""
_BEFORE_KEY = {"api", "access", "private", "secret", "auth", "encryption", "signing", "account", "ssh", "license"}
_TEXT_TOKENS = {"eos", "bos", "pad", "unk", "sep", "cls", "mask", "stop", "special", "first", "next", "last"}
_NO_VALUE = {"env", "name", "file", "path", "dir", "folder"}
"""Last words of a setting that says where a secret is."""
_VARIANTS = {
    "prod", "production", "staging", "dev", "development", "test", "live", "backup", "old", "new", "primary",
    "secondary", "read", "write", "readonly", "pem", "json", "base", "b", "v",
}  # fmt: skip
"""Last words, with numbers, of one variable among several: `OPENAI_API_KEY_BACKUP`, `PRIVATE_KEY_B64`, `API_KEY_V2`."""
_DATABASES = {
    "database", "db", "sql", "sqlalchemy", "jdbc", "postgres", "postgresql", "pg", "mysql", "mariadb", "mongo",
    "mongodb", "redis", "amqp", "cloudamqp", "rabbitmq", "broker", "elasticsearch",
}  # fmt: skip
_URL_LOGIN = re.compile(
    r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)"
    r"(?:[^/?#\s:@]*:(?!\d+(?:[/?#,]|@sha256:))[^/\s@]+(?:@[^/\s@\"'<>,;()]+)*|[^/?#\s:@]{20,})@",
    re.IGNORECASE,
)
"""Login of a URL: `user:password@`, or a token alone, up to the last @ before the path. A port with a query, a list of
hosts or the digest of an image after it is none."""
_URL_KEYS = re.compile(r"[?&;]([^=&;\s]+)=")
_CONNECTION_SECRET = re.compile(
    r"(?:^(?=.*;)|;)\s*(?:password|pwd|accountkey|accesskey|sharedaccesskey|sharedaccesssignature)\s*=\s*[^;\s]",
    re.IGNORECASE,
)
"""Secret of a connection string, `Server=db;Password=...`. It has several parts."""
_named: set[str] = set()


def _words(key: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", key)]


def _words_of_variable(name: str) -> list[str]:
    words = _words(name)
    while words and (words[-1].isdigit() or words[-1] in _VARIANTS):
        words.pop()
    return words


def _names_database(words: Sequence[str]) -> bool:
    return bool(words) and words[-1] in ("url", "uri") and not _DATABASES.isdisjoint(words)


@cache
def looks_secret(key: str) -> bool:
    """Return whether a key names a secret.

    `api_key`, `HF_TOKEN`, `db.password` do; `api_key_env` (the name of a variable), `max_new_tokens`, `eos_token` and
    `affinity_key` do not.
    """
    words = _words(key)
    if not words or words[-1] in _NO_VALUE:
        return False
    if _ALWAYS & set(words) or any(word.endswith(_ENDINGS) for word in words):
        return True
    before = words[-2] if len(words) > 1 else ""
    return (
        (words[-1] in ("key", "keys") and before in _BEFORE_KEY)
        or (words[-1] == "token" and before not in _TEXT_TOKENS)
        or (words[-1] == "tokens" and before in _BEFORE_KEY)
        or words[-2:] in (["connection", "string"], ["conn", "str"])
        or _names_database(words)
    )


@cache
def looks_secret_variable(name: str) -> bool:
    """Return whether an environment variable usually holds a secret.

    Besides the names of `looks_secret`, names like `AZURE_OPENAI_KEY`, `GH_PAT`, `SMTP_PASS`, `STRIPE_SK`,
    `AWS_ACCESS_KEY_ID` do, also with an ending such as `_2` or `_PROD`.
    """
    words = _words_of_variable(name)
    last = words[-1] if words else ""
    return (
        looks_secret("_".join(words))
        or last in ("key", "keys", "pat", "pass", "pw", "auth", "sas")
        or (last == "sk" and len(words) > 1)
        or words[-3:] == ["access", "key", "id"]
        or words[-2:] in (["auth", "config"], ["sas", "url"])
    )


def name_secret_variables(names: Iterable[str]) -> None:
    """Treat the values of these environment variables as secrets in this process, whatever the variables are called."""
    _named.update(names)


def secret_values(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the values of environment variables with a secret name and of those named by the configuration.

    Longest first (one may contain another). A URL with a login, a URL or connection string with a secret among its
    parameters, and a value with a key of a known form are secrets whatever the variable's name; the address of a
    database without these is not.
    """
    env = os.environ if environ is None else environ
    found = {v for k, v in env.items() if len(v) >= _MIN_SECRET and k not in _FOLDERS and _holds_secret(k, v)}
    return tuple(sorted(found, key=len, reverse=True))


def _holds_secret(name: str, value: str) -> bool:
    if name in _named or _has_key(value):
        return True
    if "://" in value:
        if any(looks_secret_variable(key) for key in _URL_KEYS.findall(value)):
            return True
        if _URL_LOGIN.search(value) or _names_database(_words_of_variable(name)):
            return "@" in value
    return looks_secret_variable(name)


@cache
def _has_key(value: str) -> bool:
    return _CONNECTION_SECRET.search(value) is not None or find_key(os.fsencode(value)) is not None


@cache
def spellings(secret: str) -> tuple[str, ...]:
    """Return the spellings of a secret in plain text, HTML, JSON, and JSON inside a JSON string; longest first.

    A secret without quotes, backslashes and the like has only one spelling.

    >>> spellings("sk-0123"), spellings("a&b")
    (('sk-0123',), ('a&amp;b', 'a&b'))
    """
    forms = {secret}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=a)[1:-1] for form in forms for a in (True, False)}
    # As templates write it: & < > by name, quotes by number.
    forms.add(html.escape(secret).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"))
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


@cache
def _json_spellings(secret: str) -> tuple[str, ...]:
    """Return the spellings of a secret as they are in a JSON text whose strings have those of `spellings`."""
    forms = spellings(secret)
    return tuple({*forms, *(json.dumps(form, ensure_ascii=a)[1:-1] for form in forms for a in (True, False))})


def redact_text(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Redact the values of secret environment variables and the logins inside URLs."""
    for value in secret_values(environ):
        for spelling in spellings(value):
            text = text.replace(spelling, REDACTED)
    return _URL_LOGIN.sub(rf"\g<scheme>{REDACTED}@", text)


def blot(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Redact the values of secret environment variables in the strings of a JSON text.

    Keys and numbers are not changed, and the text stays valid JSON. Logins in URLs stay too, because the words of
    customers and policies are recorded verbatim.
    """
    secrets = secret_values(environ)
    if not any(form in text for secret in secrets for form in _json_spellings(secret)):
        return text
    forms = [form for secret in secrets for form in spellings(secret)]
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


def redact(value: Any, environ: Mapping[str, str] | None = None, *, names: bool = True) -> Any:
    """Return a copy of a JSON-like value without secrets: texts with a secret inside, and those under a secret name.

    A section under a secret name stays, since a reward or an act may be called `reset_password`; so do numbers, except
    whole ones that are long enough for a secret. With `names=False` only secrets inside of texts count, for results
    whose keys are the user's.

    >>> redact({"api_key": "sk-1", "steps": 3, "api_key_env": "OPENAI_API_KEY"}, environ={})
    {'api_key': '[redacted]', 'steps': 3, 'api_key_env': 'OPENAI_API_KEY'}
    >>> redact({"change_password": {"weight": 1}, "password": 12345678}, environ={})
    {'change_password': {'weight': 1}, 'password': '[redacted]'}
    """
    if isinstance(value, Mapping):
        return {
            k: REDACTED if names and _is_secret_entry(str(k), v) else redact(v, environ, names=names)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(v, environ, names=names) for v in value]
    if isinstance(value, str):
        return redact_text(value, environ)
    return value


def _is_secret_entry(key: str, value: Any) -> bool:
    if not looks_secret(key) or isinstance(value, bool | float | Mapping | None) or value in ("", [], ()):
        return False
    if isinstance(value, int):
        return len(str(value)) >= _MIN_SECRET and not key.lower().endswith("token")
    return True
