"""Check which of hamr's GPU parts work on this node:  python launch/gpu_check.py  (or --one-gpu)

    bfloat16             arithmetic on every GPU, against the CPU's
    nccl                 a broadcast between two GPUs
    flash-attention      hamr's use of torch's flash-attention against dense attention, forward and backward
    tensor parallel      a rollout worker over two GPUs in the place that a run reserves for it, against one over one
    sleep mode           an engine that frees its memory, at both levels, and continues
    colocated            `hamr train experiment=smoke` with trainer and engine on one GPU: warm-up, reference policy,
                         checkpoints; they must agree about every token after each sync
    colocated over ipc   the same with weights over CUDA IPC
    colocated with adapter
                         the same with LoRA: only the adapter is sent
    two ranks            colocated, with two ranks under ZeRO-3 and an engine on the GPU of each
    two ranks over ipc   the same with weights over CUDA IPC
    nccl weight transfer a run with trainer and engine on a GPU each
    in flight            the same while responses are being generated (asynchronous training)
    replaced engine      an engine is killed: its replacement joins the transfer and agrees with the trainer

Each check runs in a process of its own, so that one that dies or hangs costs the others nothing, and has what is left
of `--minutes`. Exit code 0 if everything that is needed works, else 1. `--one-gpu` leaves out what needs two. `--out`
also writes a JSON line per check, with its seconds. The model is hamr's bundled `tiny`: no network.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LIMIT_S = 600.0
AGREE_NATS = 0.05
"""Largest mean |log p(trainer) - log p(engine)| of the same tokens; stale or wrong weights are off by whole nats."""
PROMPT = (5, 17, 42, 99, 3, 7, 250, 11)


class NotHere(Exception):
    """What the check needs is not on this node: no failure."""


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    run: Callable[[], str]
    gpus: int = 1
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """`works`: True, False, or None where it could not be tried."""

    name: str
    works: bool | None
    detail: str
    seconds: float
    optional: bool = False


def gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


# --- the checks: each returns what it saw, or raises -------------------------------------------


def bfloat16() -> str:
    import torch

    left, right = torch.randn(256, 256), torch.randn(256, 256)
    wanted = left @ right
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        found = (left.to(device, torch.bfloat16) @ right.to(device, torch.bfloat16)).float().cpu()
        close(float((found - wanted).abs().max()), 1.0, f"largest difference on GPU {index}")
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"


def nccl() -> str:
    import torch

    context = torch.multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=_nccl_rank, args=(rank, f"file://{folder}/meet")) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    codes = [process.exitcode for process in ranks]
    if codes != [0, 0]:
        raise RuntimeError(f"ranks ended with {codes}; NCCL_DEBUG=INFO says why")
    return "64 MiB broadcast"


def _nccl_rank(rank: int, meet: str) -> None:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=meet, rank=rank, world_size=2)
    values = torch.full((16 << 20,), float(rank), device="cuda")
    dist.broadcast(values, src=1)
    ok = bool((values == 1.0).all())
    dist.destroy_process_group()
    sys.exit(0 if ok else 1)


def flash_attention() -> str:
    return close(flash_gap("cuda"), 0.05, "largest difference to dense attention, gradients included")


def flash_gap(device: str) -> float:
    """Return the largest difference of hamr's flash kernel and dense float32 attention: output, and gradients relative
    to their largest value. A prompt of 96 tokens is shared by two completions."""
    import torch

    from hamr.trainer.policy_blocks import block
    from hamr.trainer.policy_flash import FlashAttention, parts_of
    from hamr.trainer.policy_flex import mask_tensors

    blocks, tokens, heads, width = (block((), 0, (96,)), block([(0, 96)], 96, (40, 24))), 160, 4, 64
    exact = [torch.randn(tokens, n, width).bfloat16().float().requires_grad_() for n in (heads, 2, 2)]
    given = [x.detach().to(device, torch.bfloat16).requires_grad_() for x in exact]
    found = FlashAttention.apply(*given, parts_of(blocks, device), width**-0.5)
    stretch, begins, ends = mask_tensors(blocks, tokens)
    at = torch.arange(tokens)
    seen = (stretch[:, None] == stretch) & (at <= at[:, None])
    for begin, end in zip(begins, ends, strict=True):
        seen |= (begin[:, None] <= at) & (at < end[:, None])
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(0, 1)[None] for x in exact), attn_mask=seen, enable_gqa=True
    )[0].transpose(0, 1)
    slope = torch.randn(tokens, heads, width).bfloat16()
    wanted.backward(slope.float())
    found.backward(slope.to(device))
    pairs = [(found.detach(), wanted.detach(), 1.0)]
    pairs += [(a.grad, b.grad, float(b.grad.abs().max())) for a, b in zip(given, exact, strict=True)]
    return max(float((a.float().cpu() - b).abs().max()) / scale for a, b, scale in pairs)


def tensor_parallel() -> str:
    with tempfile.TemporaryDirectory() as folder:
        one, two = (_in_process(_rollout_to, gpus, f"{folder}/{gpus}.json") for gpus in (1, 2))
    same = [(a, b) for (token, a), (other, b) in zip(one, two, strict=True) if token == other]
    if 2 * len(same) < len(one):  # a draw at the edge of two tokens may fall either way
        raise RuntimeError(f"{len(same)} of {len(one)} first tokens are the same on one and on two GPUs")
    gap = max(abs(a - b) for a, b in same)
    return close(gap, AGREE_NATS, "largest difference of a token's log-probability on one and on two GPUs")


def _in_process(target: Callable[..., None], gpus: int, file: str) -> list[tuple[int, float]]:
    """A process has one Ray."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=(gpus, file))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the rollout worker over {gpus} GPUs ended with {process.exitcode}")
    return json.loads(Path(file).read_text())


def _rollout_to(gpus: int, file: str) -> None:
    from hamr.cluster.session import ray_session
    from hamr.config.load import load_config

    config = load_config(rollout_overrides(gpus))
    with ray_session(config.cluster):
        Path(file).write_text(json.dumps(asyncio.run(_first_tokens(config))))


def rollout_overrides(gpus: int) -> list[str]:
    engine = {"num_gpus": gpus, "tensor_parallel_size": max(1, gpus), "gpu_memory_utilization": 0.3, "block_size": 32}
    settings = [f"rollout.engine.{key}={value}" for key, value in engine.items()]
    return ["experiment=smoke", "model.dtype=bfloat16", "rollout.workers=1", *settings]


async def _first_tokens(config: Any) -> list[tuple[int, float]]:
    """One token each and its log-probability, by samples of one prompt, from a worker that stands as in a run."""
    from hamr.cluster.nodes import reserve_learners
    from hamr.models.bundled import resolve_model
    from hamr.rollout.workers import RolloutWorkers

    _, place = await reserve_learners(config, config.cluster.start_timeout_s)
    model = resolve_model(config.model.path)
    workers = await RolloutWorkers.start(config.rollout, config.model, model, 0, place=place)
    rollouts = sorted([r async for r in workers.generate([_request()])], key=lambda r: r.key.sample)
    workers.shutdown()
    return [(r.token_ids[0], r.logprobs[0]) for r in rollouts]


def _request() -> Any:
    from hamr.protocols import GenerationRequest, SamplingConfig
    from hamr.types import SampleKey

    return GenerationRequest(
        prompt_ids=PROMPT,
        keys=tuple(SampleKey(run="check", step=0, prompt="", sample=i) for i in range(8)),
        seeds=tuple(range(8)),
        sampling=SamplingConfig(max_new_tokens=1),
    )


def sleep_mode() -> str:
    import torch

    engine = _engine(enable_sleep_mode=True)
    before, awake = _logprobs(engine), torch.cuda.mem_get_info()[0]
    freed = []
    for level in (1, 2):
        engine.sleep(level=level)
        freed.append((torch.cuda.mem_get_info()[0] - awake) / (1 << 30))
        engine.wake_up()
        if level == 2:  # its weights are gone until the next sync
            engine.collective_rpc("reload_weights")
        gap = max(abs(a - b) for a, b in zip(before, _logprobs(engine), strict=True))
        close(gap, 1e-3, f"largest difference of a token's log-probability after level {level}")
    if min(freed) < 1.0:
        raise RuntimeError(f"asleep it freed only {min(freed):.1f} GiB")
    return f"freed {freed[0]:.1f} and {freed[1]:.1f} GiB and answers as before"


def _engine(**settings: Any) -> Any:
    from vllm import LLM

    from hamr.models.bundled import resolve_model

    return LLM(
        str(resolve_model("tiny")), dtype="bfloat16", max_model_len=256, gpu_memory_utilization=0.3, enforce_eager=True,
        **settings,
    )  # fmt: skip


def _logprobs(engine: Any) -> list[float]:
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": list(PROMPT)}
    (answer,) = engine.generate([prompt], SamplingParams(max_tokens=1, prompt_logprobs=0))
    return [entry[token].logprob for token, entry in zip(PROMPT[1:], answer.prompt_logprobs[1:], strict=True)]


def colocated() -> str:
    return smoke_run(colocated_overrides("shared_memory"))


def colocated_over_ipc() -> str:
    return smoke_run(colocated_overrides("ipc"))


def colocated_with_adapter() -> str:
    return smoke_run(["trainer=lora", *colocated_overrides("adapter")])


def two_ranks() -> str:
    return smoke_run(two_ranks_overrides("shared_memory"))


def two_ranks_over_ipc() -> str:
    return smoke_run(two_ranks_overrides("ipc"))


def weight_transfer() -> str:
    return smoke_run(apart_overrides())


def in_flight() -> str:
    return smoke_run([*apart_overrides(), "experiment.asynchrony.max_policy_age=1", "experiment.steps=4"])


def smoke_run(overrides: list[str]) -> str:
    """Run a small training and return how far trainer and engine agree."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        job = [sys.executable, "-m", "hamr", "train", *overrides, f"experiment.run_dir={run}"]
        done = subprocess.run(job, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])
        return agreement((run / "metrics.jsonl").read_text())


def gpu_overrides(*, trainer: float, engine: float, share: float) -> list[str]:
    """Return the settings of a small run without scorers: vLLM's build for GPUs would need GPUs for them too."""
    settings = {"num_gpus": engine, "gpu_memory_utilization": share, "block_size": 16}
    return [
        "experiment=smoke",
        "rewards.consistency.mode=exact",
        "model.dtype=bfloat16",
        "trainer.dtype=bfloat16",
        "trainer.backend=nccl",
        f"trainer.num_gpus={trainer}",
        *(f"rollout.engine.{key}={value}" for key, value in settings.items()),
    ]


def colocated_overrides(transfer: str) -> list[str]:
    more = ["experiment.sft.steps=2", "experiment.checkpoint.every=1", "algorithm.kl.measure=true"]
    shares = gpu_overrides(trainer=0.5, engine=0.5, share=0.4)
    return [*shares, "rollout.colocated=true", f"rollout.transfer={transfer}", *more]


def two_ranks_overrides(transfer: str) -> list[str]:
    return [*colocated_overrides(transfer), "trainer.ranks=2", "rollout.workers=2", "trainer.zero_stage=3"]


def apart_overrides() -> list[str]:
    return [*gpu_overrides(trainer=1, engine=1, share=0.4), "rollout.transfer=nccl"]


def replaced_engine() -> str:
    from hamr.cluster.session import ray_session
    from hamr.config.load import load_config

    config = load_config(apart_overrides())
    with ray_session(config.cluster):
        return asyncio.run(_kill_and_sync(config))


async def _kill_and_sync(config: Any) -> str:
    from hamr.cluster.nodes import reserve_learners
    from hamr.models.bundled import resolve_model
    from hamr.rollout.workers import RolloutWorkers
    from hamr.trainer.actors import TrainerGroup
    from hamr.trainer.weight_sync import DeviceSync

    first, second = await reserve_learners(config, config.cluster.start_timeout_s)
    model = resolve_model(config.model.path)
    trainers = await TrainerGroup.start(
        config.trainer, config.algorithm, config.model, model, total_steps=1, seed=0, temperature=1.0, place=first
    )
    workers = await RolloutWorkers.start(config.rollout, config.model, model, 0, place=second)
    sync = DeviceSync(trainers, workers)
    await sync.sync(1)
    os.kill((await workers.pids())[0], signal.SIGKILL)
    metrics: dict[str, float] = {}
    async for _ in workers.generate([_request()]):  # from the replacement, which has joined by then
        pass
    metrics.update(await sync.sync(2))
    workers.shutdown()
    await trainers.shutdown()
    if workers.replaced != 1:
        raise RuntimeError(f"{workers.replaced} engines were replaced instead of 1")
    return agreement(json.dumps(metrics))


def agreement(metrics: str) -> str:
    """From metrics.jsonl. Raises RuntimeError where trainer and engine disagree, or where no sync was checked."""
    key = "rollout/logprob_diff/mean"
    gaps = [row[key] for row in map(json.loads, metrics.splitlines()) if row.get(key) is not None]
    if not gaps:
        raise RuntimeError("the run checked no sync")
    return close(max(gaps), AGREE_NATS, f"mean difference of trainer and engine after {len(gaps)} syncs, in nats")


def close(gap: float, limit: float, what: str) -> str:
    if not gap <= limit:  # NaN is not close
        raise RuntimeError(f"{what}: {gap:.3g}, above {limit:g}")
    return f"{what}: {gap:.2g}"


CHECKS = (
    Check(name="bfloat16", run=bfloat16),
    Check(name="nccl", run=nccl, gpus=2),
    Check(name="flash-attention", run=flash_attention),
    Check(name="tensor parallel", run=tensor_parallel, gpus=2),
    Check(name="sleep mode", run=sleep_mode, optional=True),
    Check(name="colocated", run=colocated),
    Check(name="colocated over ipc", run=colocated_over_ipc, optional=True),
    Check(name="colocated with adapter", run=colocated_with_adapter, optional=True),
    Check(name="two ranks", run=two_ranks, gpus=2),
    Check(name="two ranks over ipc", run=two_ranks_over_ipc, gpus=2, optional=True),
    Check(name="nccl weight transfer", run=weight_transfer, gpus=2),
    Check(name="in flight", run=in_flight, gpus=2, optional=True),
    Check(name="replaced engine", run=replaced_engine, gpus=2, optional=True),
)


# --- running them ------------------------------------------------------------------------------


def run(check: Check, have: int, limit_s: float = LIMIT_S) -> Result:
    """One check in a process of its own."""
    if have < check.gpus:
        detail = f"needs {check.gpus} GPUs, there are {have}"
        return Result(name=check.name, works=None, detail=detail, seconds=0.0, optional=check.optional)
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    started = time.monotonic()
    process = context.Process(target=_report, args=(check.run, theirs))
    process.start()
    theirs.close()
    works, detail = False, f"no answer within {limit_s:g} s"
    if mine.poll(limit_s):
        try:
            works, detail = mine.recv()
        except EOFError:
            process.join()
            works, detail = False, f"its process died (exit code {process.exitcode})"
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # with all that it started
    process.join()
    seconds = time.monotonic() - started
    return Result(name=check.name, works=works, detail=detail, seconds=seconds, optional=check.optional)


def _report(check: Callable[[], str], out: Connection) -> None:
    os.setsid()
    try:
        out.send((True, check()))
    except NotHere as error:
        out.send((None, str(error)))
    except BaseException as error:
        traceback.print_exc()
        out.send((False, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-gpu", action="store_true", help="leave out the checks that need two GPUs")
    parser.add_argument("--minutes", type=float, default=30.0, help="time for all checks together")
    parser.add_argument("--out", type=Path, help="file for a JSON line per check")
    args = parser.parse_args(arguments)
    try:
        have = gpu_count()
    except ImportError:
        have = 0
    if not have:
        print("gpu_check: torch sees no GPU here; run it on a GPU node, in the environment of locks/cuda.txt")
        return 1
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    results, until = [], time.monotonic() + 60 * args.minutes
    for check in CHECKS:
        if args.one_gpu and check.gpus > 1:
            continue
        left = until - time.monotonic()
        results.append(run(check, have, min(LIMIT_S, left)) if left > 0 else out_of_time(check, args.minutes))
        print(line(results[-1]), flush=True)
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(asdict(results[-1])) + "\n")
    failed = [r.name for r in results if needed(r)]
    print(f"does not work here: {', '.join(failed)}" if failed else "all that hamr needs works here")
    return 1 if failed else 0


def out_of_time(check: Check, minutes: float) -> Result:
    detail = f"the {minutes:g} minutes are over"
    return Result(name=check.name, works=None, detail=detail, seconds=0.0, optional=check.optional)


def line(result: Result) -> str:
    mark = {True: "works", False: "FAILS", None: "not tried"}[result.works]
    return f"  {mark:<10} {result.name:<22} {result.detail} ({result.seconds:.0f} s)"


def needed(result: Result) -> bool:
    """Return whether a result is a reason not to train here."""
    return result.works is False or (result.works is None and not result.optional)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
