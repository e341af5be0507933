"""Who stands beside a run: says how it is, and resizes its pools when asked to, while the run goes on.

The attendant lives in the run's own process and loop, so it needs neither an address nor a token; who asks does so
through the run folder (`hamr.telemetry.control_requests`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from hamr.errors import BadInput, HamrError
from hamr.telemetry.control_requests import Mailbox
from hamr.telemetry.live import LiveStatus, State

log = logging.getLogger(__name__)

PERIOD_S = 1.0


class PoolScaler(Protocol):
    """The pools of a run, as far as the attendant deals with them."""

    async def status(self) -> Mapping[str, Mapping[str, Any]]:
        """Per pool: `replicas` (wanted), `running`, `pids`, `leaving`, and what its client says of it."""
        ...

    async def resize(self, wanted: Mapping[str, int]) -> Mapping[str, tuple[int, int]]:
        """Pool -> replicas before and after. Raises BadInput for what cannot be, HamrError for what did not work."""
        ...


Note = Callable[[Mapping[str, float]], None]
"""Takes figures that stand beside those of every step from now on."""


class Attendant:
    """Writes `status.json` about once a second and carries out requests, one after the other."""

    def __init__(
        self, folder: Path, run: str, *, note: Note, phase: Callable[[], str], period_s: float = PERIOD_S
    ) -> None:
        self.folder, self.run = folder, run
        self.fleet: PoolScaler | None = None
        """None until the pools stand; requests wait until then."""
        self._note, self._phase, self._period_s = note, phase, period_s
        self._mailbox = Mailbox(folder)
        self._started = time.time()
        self._pools: Mapping[str, Mapping[str, Any]] = {}
        self._scaled: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def attending(self) -> AsyncIterator[None]:
        """While the body runs. The last status says that it ran, not how it ended: see `say`."""
        self._mailbox.clear()
        tasks = [asyncio.create_task(self._for_ever(act)) for act in (self._look, self._serve)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def say(self, state: State, detail: str = "") -> None:
        """Writes the status now."""
        LiveStatus(
            run=self.run,
            state=state,
            phase=self._phase(),
            started=self._started,
            time=time.time(),
            pools=self._pools,
            detail=detail,
        ).write(self.folder)

    async def _for_ever(self, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await act()
            except Exception:  # a run does not end because somebody looks at it
                log.exception("the attendant of run %s stumbled", self.run)
            await asyncio.sleep(self._period_s)

    async def _look(self) -> None:
        self.say("running" if self.fleet else "starting")  # also where the pools are slow to answer: the run lives
        if self.fleet is None:
            return
        self._pools = await self.fleet.status()
        self.say("running")
        for name, pool in self._pools.items():
            figures = {"replicas": pool["replicas"], "running": pool["running"], "scaled": self._scaled[name]}
            figures |= {what: pool[what] for what in ("waiting", "p50_s", "p99_s") if pool.get(what) is not None}
            self._note({f"pool/{name}/{what}": float(value) for what, value in figures.items()})

    async def _serve(self) -> None:
        while self.fleet is not None and (request := self._mailbox.take()):
            self._mailbox.answer(request, await self._act(self.fleet, request.body))

    async def _act(self, fleet: PoolScaler, body: Mapping[str, Any]) -> dict[str, Any]:
        wanted = body.get("scale")
        if not isinstance(wanted, dict) or not all(isinstance(n, int) for n in wanted.values()):
            return {"bad_input": ["request", str(body), "this run does not understand it; is hamr's version the same?"]}
        try:
            done = await fleet.resize(wanted)
        except BadInput as e:
            return {"bad_input": [e.where, e.value, e.remedy]}
        except HamrError as e:
            return {"failed": str(e)}
        self._scaled.update(done.keys())
        return {"scaled": {name: list(change) for name, change in done.items()}}
