"""Status of a run from its first second until its live control takes over."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from hamr import signals
from hamr.errors import Preempted
from hamr.security.processes import has_ended
from hamr.telemetry.control_requests import ControlRequests
from hamr.telemetry.live import LiveStatus, RunState
from hamr.telemetry.run_folder import owner_of

PERIOD_S = 1.0


class StartStatus:
    """Thread that writes `status.json` with the phase of a start, and heeds `hamr stop`.

    Preparing models and data, training scorers and starting Ray block the main thread for minutes. A new run has no
    folder in that time; one is made for the status, and is removed if the run fails before it has begun. A folder that
    another process holds is left alone.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        phase: Callable[[], str],
        *,
        stop: Callable[[], object] = lambda: os.kill(os.getpid(), signal.SIGTERM),
        period_s: float = PERIOD_S,
    ) -> None:
        self.folder, self.run = folder.absolute(), run
        self._phase, self._stop, self._period_s = phase, stop, period_s
        self._requests = ControlRequests(self.folder)
        self._started = time.time()
        self._made: list[Path] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="start status", daemon=True)
        self._active = False

    def __enter__(self) -> StartStatus:
        try:
            owner = owner_of(self.folder)
            if owner is not None and not has_ended(owner):
                return self
            self._made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._requests.clear()
            self._write("starting")
        except OSError:  # the run reports it with its remedy
            return self
        self._active = True
        self._thread.start()
        return self

    def hand_over(self) -> None:
        """End the thread, since the run writes its status itself now."""
        self._over.set()
        if self._active:
            self._active = False
            self._thread.join()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        active = self._active
        self.hand_over()
        if not active or error is None:
            return
        with contextlib.suppress(OSError):
            if (self.folder / "config.yaml").exists():
                stopped = isinstance(error, Preempted) or signals.signal_of(error) is not None
                self._write("preempted" if stopped else "failed", "" if stopped else str(error))
            else:
                self._requests.clear()
                (self.folder / "status.json").unlink(missing_ok=True)
                for path in self._made:
                    path.rmdir()

    def _beat(self) -> None:
        while not self._over.wait(self._period_s):
            with contextlib.suppress(OSError):  # a full disk, which the run reports
                self._write("starting")
                if request := self._requests.take("stop"):
                    self._requests.answer(request, {"stopping": True})
                    self._stop()

    def _write(self, state: RunState, detail: str = "") -> None:
        now = time.time()
        status = LiveStatus(
            run=self.run, state=state, phase=self._phase(), started=self._started, time=now, detail=detail
        )
        status.write(self.folder)
