"""Reason of an actor's death, in one line."""

from __future__ import annotations

import re

LONGEST = 300
"""Characters of a reason."""


def death_reason(error: BaseException) -> str:
    """Return the reason of an actor's death, from Ray's error or hamr's own.

    Ray's text has a table of the actor's ids, possible causes, and for an error of the constructor the remote
    traceback, whose last line is the error.

    >>> death_reason(RuntimeError("The actor died.\\nWorker exit detail: Killed. End of file."))
    'Killed. End of file.'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = " ".join(lines)
    if "node running low on memory" in text:
        reason = "killed because its node runs low on memory"
    elif detail := re.search(r"Worker exit detail: (.*)", text):
        reason, shortened = re.subn(r" *(There are some potential root|Some common) causes.*", "", detail[1].strip())
        if shortened:
            reason += " (killed, or out of memory)"
    else:
        reason = lines[-1]
    return reason if len(reason) <= LONGEST else reason[: LONGEST - 3] + "..."
