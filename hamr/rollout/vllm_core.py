"""Core process of a vLLM engine, in which the model runs on GPUs."""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import wait
from typing import Any

FLAG_POLL_S = 0.05


def pause_core(engine: Any) -> None:
    """Let the core process finish its step and run no other until `resume_core`. Requests are kept."""
    engine.engine_core.call_utility("pause_scheduler", "keep", False)


def resume_core(engine: Any) -> None:
    engine.engine_core.call_utility("resume_scheduler")


def is_core_dead(engine: Any) -> bool:
    return bool(engine.engine_core.resources.engine_dead)


def fail_when_core_dies(engine: Any) -> None:
    """Start a thread that ends what waits for the core process once that has died.

    vLLM refuses later calls of a process that was killed, but leaves those that wait for its answer waiting.
    """
    from vllm.v1.engine.exceptions import EngineDeadError

    core = engine.engine_core
    processes = [process.sentinel for process in core.resources.engine_manager.processes]

    def watch() -> None:
        wait(processes)
        while not core.resources.engine_dead:  # set by vLLM's own monitor; no call starts afterwards
            time.sleep(FLAG_POLL_S)
        for future in list(core.utility_results.values()):
            if not future.done():
                future.set_exception(EngineDeadError())
        core.outputs_queue.put_nowait(EngineDeadError())

    threading.Thread(target=watch, name="vllm-core-watch", daemon=True).start()
