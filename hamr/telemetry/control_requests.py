"""Requests to a running job, and their answers, as files in the run folder.

A run protects its Ray with a token that only its own processes know, and a cluster may accept connections from one
Python version only. A file needs neither: any user with write access to the run folder can send a request, the run
itself executes it, and no secret is written.

    requests/<id>.ask.json      waits to be taken; the sender can still withdraw it
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
from hamr.files import write_atomic

POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class ControlRequest:
    """One taken request."""

    id: str
    body: Mapping[str, Any]


class ControlRequests:
    """Both ends of the exchange: `ask` from any process, `take` and `answer` in the run."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / "requests"

    def open(self) -> None:
        """Make the folder of the requests as the run's user. One that another user makes, the run could not read."""
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def ask(
        self, body: Mapping[str, Any], *, timeout_s: float, alive: Callable[[], bool] = lambda: True
    ) -> dict[str, Any]:
        """Send a request and return the run's answer.

        A request that was not taken in time is withdrawn; one that was taken may still be carried out.

        Raises:
            HamrError: There is no answer within `timeout_s`, or the run is no longer `alive`.
        """
        self.open()
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
                    what = "nothing was changed" if withdrawn else "it had begun to act; see `hamr status`"
                    raise HamrError(f"the run {why}; {what}")
                time.sleep(POLL_S)
            return json.loads(answer.read_text(encoding="utf-8"))
        finally:
            _unlink(asked)
            _unlink(answer)

    def take(self, key: str | None = None) -> ControlRequest | None:
        """Take and return the oldest waiting request, or None. Drops requests that cannot be read.

        Args:
            key: Leave requests without this key.
        """
        for path in sorted(self.folder.glob("*.ask.json")):
            name = path.name.removesuffix(".ask.json")
            taken = self.folder / f"{name}.taken.json"
            try:
                body = json.loads(path.read_text(encoding="utf-8"))
                body = body if isinstance(body, dict) else {}
                if key is not None and key not in body:
                    continue
                path.rename(taken)
            except (FileNotFoundError, ValueError):  # withdrawn just now, or not JSON
                _unlink(path)
                continue
            return ControlRequest(id=name, body=body)
        return None

    def answer(self, request: ControlRequest, body: Mapping[str, Any]) -> None:
        write_atomic(self.folder / f"{request.id}.answer.json", json.dumps(body))
        _unlink(self.folder / f"{request.id}.taken.json")

    def clear(self) -> None:
        """Remove the requests of an earlier process of the run."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _unlink(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True
