"""Recognition of files that hold keys, by name and by content. The rules follow those of gitleaks."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from pathlib import PurePath

_DATA = "{yaml,yml,json,toml,ini,cfg,conf,env,txt,xml,csv,properties}"
_SERVICES = "{openai,anthropic,deepseek,gemini,mistral,openrouter,wandb,hf,huggingface,github,gitlab,aws,azure,gcp}"
_ACCOUNTS = "{admin,db,database,kubeadmin,mysql,postgres,redis,root,smtp}"
_PATTERNS = (
    # environments
    ".env", ".env[-_.]*", "*.env", ".envrc",
    # keys and key stores
    "*.pem", "*.key", "*.p8", "*.p12", "*.pfx", "*.pkcs12", "*.jks", "*.jceks", "*.keystore", "*.bks", "*.ppk",
    "*.kdb", "*.kdbx", "*.gpg", "*.pgp", "*.ovpn", "*.keytab",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    # logins of tools
    ".netrc", "_netrc", ".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf", ".pypirc", ".npmrc", ".yarnrc.yml",
    ".gem_credentials", ".git-credentials", ".dockercfg", ".dockerconfigjson", ".htpasswd", ".boto", ".s3cfg",
    ".passwd-s3fs", "rclone.conf", ".vault-token", ".vault_pass*", "vault_pass*", ".terraformrc", "terraform.rc",
    ".pg_service.conf", ".remote-sync.json", ".databrickscfg", ".ansible_vault*", ".kaggle.json", "kaggle.json",
    "kubeconfig", f"kubeconfig*.{_DATA}", "*.kubeconfig",
    # secrets of applications
    "credentials", f"*credentials.{_DATA}", f"credentials*.{_DATA}", "credential", f"credential.{_DATA}",
    "secrets", f"*secrets.{_DATA}", f"secrets*.{_DATA}", f"secret.{_DATA}", f"*[-_.]secret.{_DATA}", "*.secret",
    "*.secrets", ".secrets*", "secrets.sh", f"passwords.{_DATA}", f"password.{_DATA}", "master.key",
    f"{_ACCOUNTS}[-_]password.{_DATA}", f"{_ACCOUNTS}[-_]password", f"*api[-_]keys.{_DATA}", "*token_cache.json",
    "client_secret*.json", "*service[-_]account*.json", "*service[-_]account*.key", "*[-_]sa.json",
    "*serviceaccount*.json", "*firebase-adminsdk*.json", "sftp-config.json", "*api[-_]key.txt", "*apikey.txt",
    "auth_token", ".auth_token", "token", "*.token", "tokens.json", "token.json", "auth.json", "*hf_token",
    "*token.txt", f"{_SERVICES}[-_]key.txt", "wp-config.php",
    # what was typed
    ".*_history",
    "*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json",
)  # fmt: skip
_WITHOUT_SUFFIX = ("kubeconfig[-_]*", "*[-_]key", "*apikey")
"""Names such as `ssh_host_rsa_key`. With a suffix they may name code or data."""


def _start(prefix: bytes) -> bytes:
    """Return the pattern of a prefix that starts a word, also after an escaped line break or tab, as JSON has them."""
    return rb"%b(?:(?<!\w%b)|(?<=\\[nrt]%b))" % (prefix, prefix, prefix)


_CONTENT = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "private key": rb"-----BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)?-----",
        "key of AWS": _start(rb"A[KS]IA") + rb"[A-Z2-7]{16}\b",
        # A key with hyphens, unlike a name with hyphens, is long and has digits and capitals inside words.
        "key of a model service": _start(b"sk-") + rb"(?:(?:[a-z0-9]{1,8}-){0,3}\w{20}"
        rb"|(?=[\w-]{0,99}\d)(?=[\w-]{0,99}[a-z\d][A-Z])[\w-]{40})",
        "key of Groq": _start(b"gsk_") + rb"[A-Za-z0-9]{48}",
        "key of xAI": _start(b"xai-") + rb"[A-Za-z0-9]{70}",
        "key of Stripe": rb"[rs]k_live_\w{20,}",
        "token of GitHub": rb"gh[oprsu]_[A-Za-z0-9]{36}|github_pat_\w{40}",
        "token of GitLab": rb"glpat-[\w-]{20}",
        "token of Hugging Face": _start(b"hf_") + rb"[A-Za-z]{34}\b",
        "token of Slack": rb"xox[abeoprs]-[A-Za-z0-9-]{10,}",
        "key of Google": rb"AIza[\w-]{35}",
        "token of npm": _start(b"npm_") + rb"[A-Za-z0-9]{36}\b",
        "token of PyPI": rb"pypi-AgEI[\w-]{50,}",
        "key of age": rb"AGE-SECRET-KEY-1[A-Z0-9]{58}",
        "webhook of Slack": rb"hooks\.slack\.com/services/T\w+/B\w+/\w{20}",
        "key of PuTTY": rb"PuTTY-User-Key-File-\d: (?:ssh|ecdsa)-",
        "secret key of AWS": rb"(?:AWS_SECRET_ACCESS_KEY|aws_secret_access_key)\W{1,10}[A-Za-z0-9/+]{40}(?![\w/+=])",
    }.items()
}


def _expand(pattern: str) -> list[str]:
    before, _, rest = pattern.partition("{")
    choices, _, after = rest.partition("}")
    return [p for choice in choices.split(",") for p in _expand(f"{before}{choice}{after}")] if rest else [pattern]


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(p) for each in patterns for p in _expand(each)), re.IGNORECASE)


_NAME, _NAME_WITHOUT_SUFFIX = _any_of(_PATTERNS), _any_of(_PATTERNS + _WITHOUT_SUFFIX)


def is_key_file(path: PurePath) -> bool:
    """Return whether files of this name usually hold keys.

    >>> is_key_file(PurePath("conf/prod.env")), is_key_file(PurePath("src/secrets.py"))
    (True, False)
    """
    return (_NAME if path.suffix else _NAME_WITHOUT_SUFFIX).match(path.name) is not None


def find_key(content: bytes) -> str | None:
    """Return the kind of the first key in the content, or None.

    >>> find_key(b"key: hf_" + 34 * b"a"), find_key(b"key: $HF_TOKEN")
    ('token of Hugging Face', None)
    """
    return next((kind for kind, pattern in _CONTENT.items() if pattern.search(content)), None)
