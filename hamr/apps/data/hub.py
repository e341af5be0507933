"""Data sets of the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from hamr.data.importers.messages import TABLES
from hamr.errors import BadInput

_ID = re.compile(r"[\w.-]+/[\w.-]+")


def data_set_folder(source: Path) -> Path:
    """Return `source`, or where it is the id of a data set (owner/name), the folder of its downloaded tables.

    They stay in the cache of the Hub's client (HF_HOME). Raises BadInput if the Hub does not have it either.
    """
    name = str(source)
    if source.exists() or source.suffix in TABLES or not _ID.fullmatch(name):
        return source
    from huggingface_hub import snapshot_download

    print(f"no file {name}: taking the data set {name} of the Hugging Face Hub", flush=True)
    try:
        return Path(snapshot_download(name, repo_type="dataset", allow_patterns=[f"*{ending}" for ending in TABLES]))
    except (OSError, ValueError) as error:  # a malformed name; connection and server errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        remedy = f"neither a file or folder here nor found on the Hub ({reason}); give a path, or the id owner/name"
        raise BadInput("input", name, remedy) from error
