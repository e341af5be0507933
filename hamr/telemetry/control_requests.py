"""Requests to a running job, and its answers, as files in the run folder.

A run guards its Ray with a token that only its own processes know, and a cluster may take connections from one Python
version alone. A file needs neither: whoever may write into the run folder may ask, the run itself acts, and nothing
secret is ever written down.

requests/<id>.ask.json      waits to be taken; whoever asked may still withdraw it
requests/<id>.taken.json    is being worked on
requests/<id>.answer.json   the answer
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.errors import HamrError
from hamr.telemetry.run_folder import write_atomic

POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class ControlRequest:
    """One taken request."""

    id: str
    body: Mapping[str, Any]


class Mailbox:
    """Both ends of it: `ask` from any process, `take` and `answer` in the run."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / "requests"

    def ask(
        self, body: Mapping[str, Any], *, timeout_s: float, alive: Callable[[], bool] = lambda: True
    ) -> dict[str, Any]:
        """The run's answer. Raises HamrError when there is none in `timeout_s`, or the run is no longer `alive`.

        A request that nobody has taken by then is withdrawn; one that was taken may still be carried out.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        asked, answer = self.folder / f"{name}.ask.json", self.folder / f"{name}.answer.json"
        write_atomic(asked, json.dumps(body))
        deadline = time.monotonic() + timeout_s
        try:
            while not answer.exists():
                late = time.monotonic() > deadline
                if late or not alive():
                    withdrawn = _unlink(asked)
                    why = f"did not answer within {timeout_s:g} s" if late else "has ended"
                    what = (
                        "nothing was changed" if withdrawn else "it had begun to act; `hamr status` shows how it stands"
                    )
                    raise HamrError(f"the run {why}; {what}")
                time.sleep(POLL_S)
            return json.loads(answer.read_text(encoding="utf-8"))
        finally:
            _unlink(asked)
            _unlink(answer)

    def take(self) -> ControlRequest | None:
        """The oldest request that waits, now taken; None if none does. One that cannot be read is dropped."""
        for path in sorted(self.folder.glob("*.ask.json")):
            name = path.name.removesuffix(".ask.json")
            taken = self.folder / f"{name}.taken.json"
            try:
                path.rename(taken)
                body = json.loads(taken.read_text(encoding="utf-8"))
            except (FileNotFoundError, ValueError):  # withdrawn just now, or no JSON
                _unlink(taken)
                continue
            return ControlRequest(id=name, body=body if isinstance(body, dict) else {})
        return None

    def answer(self, request: ControlRequest, body: Mapping[str, Any]) -> None:
        write_atomic(self.folder / f"{request.id}.answer.json", json.dumps(body))
        _unlink(self.folder / f"{request.id}.taken.json")

    def clear(self) -> None:
        """Drops what a former life of the run left: nobody waits for it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
