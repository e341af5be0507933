"""Live control of a run: publishes its status, and resizes its pools or stops it on request.

It runs in the run's own process and event loop, so it needs no address and no token. Clients send requests
through the run folder (`hamr.telemetry.control_requests`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hamr.errors import BadInput, HamrError
from hamr.telemetry.control_requests import ControlRequest, ControlRequests
from hamr.telemetry.live import LiveStatus, RunState

log = logging.getLogger(__name__)

PERIOD_S = 1.0


class PoolScaler(Protocol):
    """The interface to a run's pools that live control uses."""

    async def status(self) -> Mapping[str, Mapping[str, Any]]:
        """Return per pool `replicas` (target), `running`, `pids`, `leaving`, and the metrics of its client."""
        ...

    async def resize(self, wanted: Mapping[str, int]) -> Mapping[str, tuple[int, int]]:
        """Resize pools. Returns pool -> replicas before and after.

        Raises BadInput for an invalid request, HamrError for a resize that failed.
        """
        ...


NoteFigures = Callable[[Mapping[str, float]], None]
"""Callback that adds figures to the metrics of every later step."""


class LiveControl:
    """Writes `status.json` about once a second and executes control requests in sequence.

    A request to stop waits neither for the pools nor for a resize. It is delivered to the run as SIGTERM.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        *,
        note: NoteFigures,
        phase: Callable[[], str],
        stop: Callable[[], object] = lambda: signal.raise_signal(signal.SIGTERM),
        period_s: float = PERIOD_S,
    ) -> None:
        self.folder, self.run = folder, run
        self.scaler: PoolScaler | None = None
        """None until the pools are running; requests wait until then."""
        self._note, self._phase, self._stop, self._period_s = note, phase, stop, period_s
        self._requests = ControlRequests(folder)
        with contextlib.suppress(OSError):  # the run reports a full disk by itself
            self._requests.open()
        self._started = time.time()
        self._pools: Mapping[str, Mapping[str, Any]] = {}
        self._scaled: Counter[str] = Counter()
        self._unwritten = False

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve requests while the body runs. The last status says that the run was running; `publish` writes its final
        state."""
        tasks = [asyncio.create_task(self._repeat(act)) for act in (self._look, self._serve, self._heed_stop)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def publish(self, state: RunState, detail: str = "") -> None:
        """Write the status immediately. A full disk is reported once and neither ends the run nor hides its error."""
        status = LiveStatus(
            run=self.run,
            state=state,
            phase=self._phase(),
            started=self._started,
            time=time.time(),
            pools=self._pools,
            detail=detail,
        )
        try:
            status.write(self.folder)
        except OSError as error:
            if not self._unwritten:
                log.warning("the status of run %s cannot be written: %s", self.run, error)
            self._unwritten = True
        else:
            self._unwritten = False

    async def _repeat(self, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await act()
            except Exception:  # an error here must not end the run
                log.exception("live control of run %s failed; it retries", self.run)
            await asyncio.sleep(self._period_s)

    async def _look(self) -> None:
        # Also when the pools are slow to answer: the run is alive.
        self.publish("running" if self.scaler else "starting")
        if self.scaler is None:
            return
        self._pools = await self.scaler.status()
        self.publish("running")
        for name, pool in self._pools.items():
            figures = {"replicas": pool["replicas"], "running": pool["running"], "scaled": self._scaled[name]}
            figures |= {what: pool[what] for what in ("waiting", "p50_s", "p99_s") if pool.get(what) is not None}
            self._note({f"pool/{name}/{what}": float(value) for what, value in figures.items()})

    async def _heed_stop(self) -> None:
        if request := self._requests.take("stop"):
            self._stop_for(request)

    def _stop_for(self, request: ControlRequest) -> None:
        self._requests.answer(request, {"stopping": True})
        self._stop()

    async def _serve(self) -> None:
        while self.scaler is not None and (request := self._requests.take()):
            if "stop" in request.body:
                self._stop_for(request)
            else:
                self._requests.answer(request, await self._act(self.scaler, request.body))

    async def _act(self, scaler: PoolScaler, body: Mapping[str, Any]) -> dict[str, Any]:
        wanted = body.get("scale")
        if not wanted or not isinstance(wanted, dict) or not all(isinstance(n, int) for n in wanted.values()):
            return {"bad_input": ["request", str(body), "unknown request; the run may use another version of hamr"]}
        try:
            done = await scaler.resize(wanted)
        except BadInput as e:
            return {"bad_input": [e.where, e.value, e.remedy]}
        except HamrError as e:
            return {"failed": str(e)}
        except Exception as e:  # the sender waits for an answer
            log.exception("a resize of run %s failed", self.run)
            return {"failed": f"{type(e).__name__}: {e}"}
        self._scaled.update(done.keys())
        return {"scaled": {name: list(change) for name, change in done.items()}}
