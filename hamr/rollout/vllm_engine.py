"""One vLLM engine inside this process, stepped by one thread, with an asyncio interface.

On a CPU the model runs in this thread, because vLLM's core process costs about 1 GB and 15 s more per engine. On GPUs
it runs in that process (VLLM_ENABLE_V1_MULTIPROCESSING), which schedules the next step while this thread handles the
output of the last one. Weights are replaced between two steps either way: the core process is paused meanwhile. The
thread that steps the engine also builds it, because OpenMP keeps a thread pool per thread that opens a parallel region.

The environment that `vllm_settings.engine_env` returns must be set before the process imports vLLM.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.config.pools import DType, EngineConfig
from hamr.errors import BadInput, EngineDied
from hamr.garbage import no_collection
from hamr.models.cpu_env import hand_back_freed_memory
from hamr.models.tokenizer import load_tokenizer
from hamr.protocols import GenerationRequest, SamplingConfig
from hamr.rollout.vllm_adapter import adapter_request, load_adapter
from hamr.rollout.vllm_core import fail_when_core_dies, is_core_dead, pause_core, resume_core
from hamr.rollout.vllm_requests import (
    Classified,
    Completion,
    Letter,
    Ticket,
    finish_reason,
    logprobs_of,
    settle,
    threadsafe,
)
from hamr.rollout.vllm_settings import engine_args, sampling_params
from hamr.types import Rollout, SampleKey, VersionSpan

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

CLOSE_TIMEOUT_S = 30.0


class VllmEngine:
    """vLLM engine for generation and classification. Every method may be called from any asyncio loop of this process.

    The constructor blocks until the engine is ready (seconds). If the stepping thread dies, pending and later calls
    raise EngineDied.

    Args:
        seed: Seed of requests that have none.
        transfer: Path of new weights, as in `rollout.transfer`.
        sleeps: Enables releasing the GPU's memory temporarily.
        adapter_rank: Largest rank of the adapter that every request uses, or 0 to serve the weights alone.
    """

    def __init__(
        self,
        model_path: str | Path,
        engine: EngineConfig,
        dtype: DType,
        max_context: int,
        seed: int = 0,
        *,
        transfer: str = "shared_memory",
        sleeps: bool = False,
        adapter_rank: int = 0,
    ) -> None:
        self.tokenizer = load_tokenizer(str(model_path))
        self.max_context = max_context
        self.version = 0
        self._args = engine_args(
            str(model_path),
            engine,
            dtype,
            max_context,
            seed,
            transfer=transfer,
            sleeps=sleeps,
            adapter_rank=adapter_rank,
        )
        self._adapter: Any = None
        self._on_gpu = engine.num_gpus > 0
        self._own_core = False
        self._ids = itertools.count()
        self._inbox: queue.SimpleQueue[Letter] = queue.SimpleQueue()
        self._tickets: dict[str, Ticket] = {}
        self._closing = self._reloading = False
        self._error: BaseException | None = None
        self._guard = threading.Lock()
        started = threading.Event()
        self._thread = threading.Thread(target=self._live, args=(started,), name="vllm-engine", daemon=True)
        self._thread.start()
        started.wait()
        if self._error is not None:
            raise EngineDied(f"vLLM could not start on {model_path}: {self._error}") from self._error

    # --- calls ---

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        """Yield each response as soon as it ends.

        The samples of one request share their prompt's prefill through the prefix cache, and each has its own seed.
        Closing the iterator early aborts unfinished responses.

        Raises BadInput for a prompt that leaves no room in the context, EngineDied if the engine dies.
        """
        for request in requests:
            self._check_room(request.prompt_ids)
        finished: asyncio.Queue[Rollout | BaseException] = asyncio.Queue()
        put = threadsafe(finished.put_nowait)
        tickets = [
            self._rollout_ticket(request, key, seed, put)
            for request in requests
            for key, seed in zip(request.keys, request.seeds, strict=True)
        ]
        ids = await self._submit(tickets)
        try:
            for _ in tickets:
                item = await finished.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._abandon(ids)

    async def complete(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingConfig,
        *,
        stop: Sequence[str] = (),
        seed: int | None = None,
        schema: Mapping[str, Any] | None = None,
        logprobs: bool = False,
    ) -> Completion:
        """Return one continuation of a prompt.

        `stop` strings are added to those of `sampling`. With a JSON `schema` the output is always an object of that
        schema.
        """
        params = sampling_params(sampling, seed, stop=(*sampling.stop, *stop), logprobs=logprobs, schema=schema)
        output = await self._one(prompt_ids, params)
        answer = output.outputs[0]
        text = answer.text if params.detokenize else self.tokenizer.decode(answer.token_ids)
        return Completion(
            text,
            tuple(answer.token_ids),
            finish_reason(answer.finish_reason),
            output.num_cached_tokens or 0,
            logprobs_of(answer) if logprobs else (),
        )

    async def classify(self, prompt_ids: Sequence[int], label_ids: Sequence[int]) -> Classified:
        """Return log p(label | prompt) of each label at the next position, over the whole vocabulary (nats).

        The values are not renormalised over the labels, so that the caller can compute the labels' total probability.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        labels = list(dict.fromkeys(label_ids))
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            logprob_token_ids=labels,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        output = await self._one(prompt_ids, params)
        position = output.outputs[0].logprobs[0]
        logprobs = {label: float(position[label].logprob) for label in labels}
        return Classified(logprobs, output.num_cached_tokens or 0)

    async def load_weights(self, path: str | Path, version: int) -> float:
        """Replace the weights by those of a safetensors file, between two steps. Return the seconds taken.

        Unfinished responses continue under the new weights. Their KV cache is recomputed, and their version spans
        record the switch.
        """

        def load(engine: Any) -> None:
            engine.collective_rpc("load_weight_file", args=(str(path),))

        return await self._call(lambda engine: self._swap(engine, load, version))

    async def load_adapter(self, files: Mapping[str, bytes], version: int) -> None:
        """Replace the adapter by that of a PEFT folder with these files, as `load_weights` does the weights."""
        await self._call(lambda engine: self._swap(engine, lambda own: load_adapter(own, files), version))

    async def worker_call(self, method: str, *args: Any) -> None:
        """Call `method` on every vLLM worker of this engine, between two steps.

        No step runs between `start_weight_update` and `commit_version`: first the layers have no weights, then the KV
        cache is that of the old ones.
        """

        def call(engine: Any) -> None:
            if method == "start_weight_update":
                self._pause(engine)
            engine.collective_rpc(method, args=args)

        await self._call(call)

    async def sleep(self, level: int) -> None:
        """Drop the KV cache and move the weights to the host (level 1) or drop them too (2), until `wake_up`.

        vLLM requires an idle engine, so this waits for unfinished requests, such as those whose abortion is on its way.
        After level 2 the engine needs new weights.
        """
        while await self.count_unfinished():
            await asyncio.sleep(0.01)
        await self._call(lambda engine: engine.sleep(level=level))

    async def wake_up(self) -> None:
        await self._call(lambda engine: engine.wake_up())

    async def count_unfinished(self) -> int:
        """Return the number of unfinished requests."""
        return await self._call(lambda engine: engine.get_num_unfinished_requests())

    async def commit_version(self, version: int) -> None:
        """Set the version of weights that were not loaded by `load_weights`, and drop the KV cache of the old ones."""
        await self._call(lambda engine: self._commit(engine, version))

    def close(self) -> None:
        """Stop the thread and free the engine. Pending calls raise EngineDied."""
        self._closing = True
        self._inbox.put(Letter(action=lambda: None))
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_TIMEOUT_S)

    @property
    def alive(self) -> bool:
        if self._own_core and is_core_dead(self._engine):
            return False
        return self._error is None and self._thread.is_alive()

    # --- between the loops and the thread ---

    async def _one(self, prompt_ids: Sequence[int], params: SamplingParams) -> RequestOutput:
        self._check_room(prompt_ids)
        future: asyncio.Future[RequestOutput] = asyncio.get_running_loop().create_future()
        ticket = Ticket(
            prompt_ids=tuple(prompt_ids),
            params=params,
            deliver=threadsafe(lambda output: settle(future, output)),
            fail=threadsafe(lambda error: settle(future, error)),
        )
        ids = await self._submit([ticket])
        try:
            return await future
        finally:
            self._abandon(ids)

    async def _submit(self, tickets: Sequence[Ticket]) -> list[str]:
        ids = [str(next(self._ids)) for _ in tickets]
        self._post(lambda engine: self._add(engine, ids, tickets), [ticket.fail for ticket in tickets])
        return ids

    def _add(self, engine: Any, ids: Sequence[str], tickets: Sequence[Ticket]) -> None:
        from vllm.exceptions import VLLMClientError

        for request_id, ticket in zip(ids, tickets, strict=True):
            try:
                prompt = {"prompt_token_ids": list(ticket.prompt_ids)}
                engine.add_request(request_id, prompt, ticket.params, lora_request=self._adapter)
            except (ValueError, VLLMClientError) as error:  # vLLM rejects this request; the engine is fine
                ticket.fail(BadInput("request", f"{len(ticket.prompt_ids)} prompt tokens", str(error)))
            else:
                self._tickets[request_id] = ticket

    def _abandon(self, ids: Sequence[str]) -> None:
        """Abort those of `ids` that are still in flight."""

        def abort(engine: Any) -> None:
            unfinished = [i for i in ids if self._tickets.pop(i, None) is not None]
            if unfinished:
                engine.abort_request(unfinished)

        if self.alive:
            self._inbox.put(Letter(action=lambda: abort(self._engine)))

    async def _call(self, action: Callable[[Any], Any]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        deliver = threadsafe(lambda outcome: settle(future, outcome))

        def run(engine: Any) -> None:
            from vllm.v1.engine.exceptions import EngineDeadError

            try:
                deliver(action(engine))
            except EngineDeadError:
                raise
            except Exception as error:
                deliver(error)

        self._post(run, [deliver])
        return await future

    def _post(self, action: Callable[[Any], None], fails: Sequence[Callable[[BaseException], None]]) -> None:
        """Put `action` into the thread's inbox. If the thread dies before it runs, `fails` get EngineDied."""
        with self._guard:
            if self._error is not None or self._closing:
                raise EngineDied(f"the engine has stopped: {self._error or 'closed'}")
            self._inbox.put(Letter(action=lambda: action(self._engine), fails=fails))

    # --- the thread ---

    def _live(self, started: threading.Event) -> None:
        try:
            with no_collection():
                from hamr.rollout.vllm_kernels import follow_cpu_capability

                follow_cpu_capability()
                from vllm import EngineArgs, envs
                from vllm.v1.engine.llm_engine import LLMEngine

            self._engine = LLMEngine.from_engine_args(EngineArgs(**self._args))
            self._own_core = envs.VLLM_ENABLE_V1_MULTIPROCESSING
            if self._own_core:
                fail_when_core_dies(self._engine)
            self._engine.set_weight_version("0")
            if "enable_lora" in self._args:
                self._engine.collective_rpc("add_empty_adapter")
                self._adapter = adapter_request()
            if not self._on_gpu:
                self._engine.collective_rpc("speed_up_cpu")
                hand_back_freed_memory()  # memory used by loading
            started.set()
            self._loop(self._engine)
            self._die(EngineDied("the engine was closed"))
        except BaseException as error:  # whatever ended the thread, waiters must get an error
            self._die(error)
        finally:
            started.set()

    def _loop(self, engine: Any) -> None:
        while not self._closing:
            self._read_inbox(block=not self._tickets or self._reloading)
            if not self._tickets or self._closing or self._reloading:
                continue
            for output in engine.step():
                ticket = self._tickets.get(output.request_id)
                if ticket is None:
                    continue
                if ticket.watch is not None:
                    ticket.watch(output)
                if output.finished:
                    del self._tickets[output.request_id]
                    ticket.deliver(output)

    def _read_inbox(self, block: bool) -> None:
        try:
            while True:
                self._inbox.get(block=block)()
                block = False
        except queue.Empty:
            return

    def _die(self, error: BaseException) -> None:
        with self._guard:
            self._error = error
            letters = []
            while not self._inbox.empty():
                letters.append(self._inbox.get())
        died = error if isinstance(error, EngineDied) else EngineDied(f"{type(error).__name__}: {error}")
        for fail in (*(t.fail for t in self._tickets.values()), *(f for letter in letters for f in letter.fails)):
            fail(died)
        self._tickets.clear()

    def _swap(self, engine: Any, load: Callable[[Any], None], version: int) -> float:
        """Replace the weights. After an error no step runs again, since the weights are then unknown."""
        start = time.perf_counter()
        self._pause(engine)
        load(engine)
        self._commit(engine, version)
        return time.perf_counter() - start

    def _commit(self, engine: Any, version: int) -> None:
        # Without this, tokens would attend to keys and values of the old weights.
        engine.reset_prefix_cache(reset_running_requests=True)
        engine.set_weight_version(str(version))
        self.version = version
        self._resume(engine)

    def _pause(self, engine: Any) -> None:
        """Run no step until `_resume`, in this thread or in the core process, where a call waits for the step's end."""
        self._reloading = True
        if self._own_core:
            pause_core(engine)

    def _resume(self, engine: Any) -> None:
        if self._own_core and self._reloading:
            resume_core(engine)
        self._reloading = False

    # --- requests ---

    def _check_room(self, prompt_ids: Sequence[int]) -> None:
        if not 0 < len(prompt_ids) < self.max_context:
            remedy = f"must have 1 to {self.max_context - 1} tokens; shorten the prompt or raise max_context"
            raise BadInput("prompt", f"{len(prompt_ids)} tokens", remedy)

    def _rollout_ticket(
        self, request: GenerationRequest, key: SampleKey, seed: int, put: Callable[[Any], None]
    ) -> Ticket:
        sampling = request.sampling
        params = sampling_params(sampling, seed, stop=sampling.stop, logprobs=True, mark=sampling.mark, keep_stop=True)
        start = time.perf_counter()
        marked: list[tuple[int, float]] = []

        def watch(output: RequestOutput) -> None:
            answer = output.outputs[0]
            if not marked and sampling.mark in answer.text:
                marked.append((len(answer.token_ids), time.perf_counter() - start))

        def deliver(output: RequestOutput) -> None:
            rollout = self._rollout(key, seed, output, time.perf_counter() - start)
            for tokens, seconds in marked:
                rollout = replace(rollout, answer_tokens=tokens, answer_s=seconds)
            put(rollout)

        watching = watch if sampling.mark else None
        return Ticket(prompt_ids=request.prompt_ids, params=params, deliver=deliver, fail=put, watch=watching)

    def _rollout(self, key: SampleKey, seed: int, output: RequestOutput, seconds: float) -> Rollout:
        answer = output.outputs[0]
        spans = answer.weight_versions or ()
        return Rollout(
            key=key,
            prompt_ids=tuple(output.prompt_token_ids or ()),
            token_ids=tuple(answer.token_ids),
            logprobs=logprobs_of(answer),
            text=answer.text or self.tokenizer.decode(answer.token_ids),
            finish_reason=finish_reason(answer.finish_reason),
            versions=tuple(VersionSpan(version=int(s.version), start=s.start, end=s.end) for s in spans),
            seed=seed,
            seconds=seconds,
        )
