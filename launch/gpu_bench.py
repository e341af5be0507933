"""Speed, memory and exactness of hamr's training on one GPU, in at most nine minutes:  python launch/gpu_bench.py

    machine      GPU, versions, torch's attention priorities; which kernel runs for {causal, mask} x {GQA} x {cuDNN},
                 which may be another one than the first of the priorities
    exactness    log-probabilities and gradient of the shared-prompt path on the GPU against the padded batch on the CPU
                 in float32 (flash-attention has bfloat16 only); fails above EXACT
    attention    FlexAttention, flash-attention and torch's other kernels on one layer of a packed row: first and later
                 calls, a second shape, and how many graphs torch compiled for both (3 for FlexAttention)
    step         forward and backward of 135M- and 4B-shaped models with random weights: shared_prompt, packed, padded,
                 plain transformers; with Liger's kernels where they are installed; seconds, tokens/s of the padded
                 batch, share of the peak without (mfu) and with (hfu) recomputation, peak memory; `speedup` over plain
                 transformers, and whether the goals are met
    deepspeed    ZeRO 0 to 3 with one rank, and 2 with the optimiser on the host: the same gradient norms, also after
                 loading a checkpoint, for 2 also that of 3; memory at the peak and with states and reference on the
                 host; seconds to move these, to save and to load
    memory       two steps with the trainer of `experiment=gpu_24gb` and `gpu_80gb`, on no more memory than their GPUs
                 have; fails if more is used than `hamr plan` says
    trl          the log-probabilities of TRL's GRPOTrainer and their gradient on the same batch, where TRL is installed
    ipc          a tensor handed to another process through CUDA IPC: GB/s of reading it
    gap          bfloat16 on the GPU against float32 on the CPU: mean difference of log-probabilities in nats; fails
                 above GAP_NATS

torch and transformers suffice, with the wheels pydantic, pydantic-core, annotated-types and typing-inspection;
`deepspeed` and `memory` also need deepspeed (built with DS_BUILD_OPS=0), einops, hjson, msgpack, psutil, py-cpuinfo and
peft, `trl` needs trl, datasets and accelerate, and Liger's kernels liger-kernel. Neither vLLM nor Ray. Each part runs
in a process of its own with a limit, so that one that dies or is late costs the others nothing, and keeps the results
it had. Time that a part leaves goes to the next. Results are JSON lines on stdout and in `--out`.
`--small` takes tiny shapes, also on a CPU, to see that the parts run. Exit code 0 if no part failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

Row = dict[str, Any]
PEAK_TFLOPS = {
    "B200": 2250.0,
    "H100 PCIe": 756.0, "H100 NVL": 835.0, "H100": 989.0, "H200 NVL": 836.0, "H200": 989.0, "A100": 312.0,
    "L40S": 362.0, "L40": 181.0, "A10": 125.0, "4090": 165.0, "L4": 121.0,
}  # fmt: skip
"""Dense bfloat16 peaks by the makers' data sheets, by words of the GPU's name."""
SHAPES: dict[str, Row] = {
    "tiny": dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4),
    "31M": dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=12, num_attention_heads=6),
    "135M": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9),
    "1.7B": dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16),
    "4B": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32),
}
SHAPES["tiny"] |= dict(num_key_value_heads=2, head_dim=16, vocab_size=500)
SHAPES["31M"] |= dict(num_key_value_heads=2, head_dim=64, vocab_size=32000)
SHAPES["135M"] |= dict(num_key_value_heads=3, head_dim=64, vocab_size=49152)
SHAPES["1.7B"] |= dict(num_key_value_heads=8, head_dim=128, vocab_size=151936)
SHAPES["4B"] |= dict(num_key_value_heads=8, head_dim=128, vocab_size=151936)
WORK = {False: dict(samples=16, prompt=4096, completion=700), True: dict(samples=4, prompt=48, completion=12)}
"""One prompt and its completions, in tokens; True: `--small`."""
EXACT = {"float32": (1e-3, 1e-2), "bfloat16": (2e-2, 5e-2)}
"""Largest difference in nats and of the gradient. Measured on a CPU: 5e-7 and 3e-7 in float32, 2e-3 and 7e-3 in
bfloat16, 6e-2 and 0.2 where attention misses one token. TF32 would be near 2e-4."""
GAP_NATS = 2e-2
"""Measured on a CPU: 6e-3, and 0.4 where attention misses one token."""
GOALS = {"speedup": 2.5, "mfu": 0.4}
"""Of the 4B shape: tokens/s of `shared_prompt` over those of plain transformers, and share of the peak."""


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def model_folder(shape: str, folder: Path) -> Path:
    """Write a Qwen3 model of that shape with random weights."""
    import torch
    import transformers

    config = transformers.Qwen3Config(**SHAPES[shape], max_position_embeddings=8192, tie_word_embeddings=True)
    torch.manual_seed(0)
    with torch.device(device()):
        model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder / shape)
    return folder / shape


def groups_of(samples: int, prompt: int, completion: int, vocabulary: int, seed: int = 0) -> list[Any]:
    from hamr.types import TrainGroup, TrainSequence

    rng = random.Random(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(count))

    lengths = [max(2, round(completion * rng.uniform(0.6, 1.4))) for _ in range(samples)]
    sequences = tuple(
        TrainSequence(token_ids=ids(n), advantage=rng.gauss(0, 1), old_logprobs=(-8.0,) * n) for n in lengths
    )
    return [TrainGroup(prompt_ids=ids(prompt), sequences=sequences)]


def turns_of(turns: int, message: int, completion: int, vocabulary: int) -> list[Any]:
    """Return the turns of a dialogue, two samples each; a turn's prompt continues that of the turn before."""
    [whole] = groups_of(1, turns * message, 2, vocabulary)
    return [
        replace(group, prompt_ids=whole.prompt_ids[: turn * message])
        for turn in range(1, turns + 1)
        for group in groups_of(2, 1, completion, vocabulary, seed=turn)
    ]


SLOW_S = 2.0
"""A call that takes longer is repeated once only."""


def timed(call: Callable[[], Any], calls: int = 3) -> Row:
    """Return the seconds of the first call, the median of the later ones, and the peak memory in GiB."""
    import torch

    on_gpu = device() == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(calls + 1):
        begun = time.perf_counter()
        call()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
        if len(seconds) > 1 and seconds[-1] > SLOW_S:
            break
    later = sorted(seconds[1:])[(len(seconds) - 1) // 2]
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None
    return {"first_s": seconds[0], "later_s": later, "peak_gib": peak}


# --- the parts: each yields rows ---------------------------------------------------------------


def machine(small: bool) -> Iterator[Row]:
    import torch
    import transformers

    row: Row = {"torch": torch.__version__, "transformers": transformers.__version__, "device": device()}
    if device() == "cuda":
        found = torch.cuda.get_device_properties(0)
        row |= {"gpu": found.name, "memory_gib": found.total_memory / 2**30, "cuda": torch.version.cuda}
        row |= {"capability": f"{found.major}.{found.minor}"}
    backends = torch.backends.cuda
    row["enabled"] = {
        "flash": backends.flash_sdp_enabled(),
        "cudnn": backends.cudnn_sdp_enabled(),
        "memory_efficient": backends.mem_efficient_sdp_enabled(),
        "math": backends.math_sdp_enabled(),
    }
    row["sdpa_priority"] = sdpa_priority()
    yield row
    for cudnn in (True, False):
        backends.enable_cudnn_sdp(cudnn)
        for masked in (False, True):
            for grouped in (False, True):
                yield {"masked": masked, "gqa": grouped, "cudnn": cudnn, **sdpa_kernel(masked, grouped, small)}


def sdpa_priority() -> list[str]:
    """Return the order in which torch tries its attention kernels."""
    import torch
    from torch.nn.attention import SDPBackend

    return [SDPBackend(value).name for value in torch._C._get_sdp_priority_order()]


def sdpa_kernel(masked: bool, grouped: bool, small: bool) -> Row:
    """Return the kernels that torch's attention runs, forward and backward, in the service shape."""
    import torch
    import torch.nn.functional as F
    from torch.profiler import ProfilerActivity, profile

    length, keys = (12, 60) if small else (700, 4796)
    dtype = torch.bfloat16

    def tensor(heads: int, tokens: int) -> Any:
        return torch.randn(4, heads, tokens, 128, device=device(), dtype=dtype, requires_grad=True)

    q, k, v = tensor(32, length), tensor(8 if grouped else 32, keys), tensor(8 if grouped else 32, keys)
    mask = torch.ones(length, keys, dtype=torch.bool, device=device()).tril(keys - length) if masked else None

    def call() -> None:
        F.scaled_dot_product_attention(
            q, k if masked else k[:, :, :length], v if masked else v[:, :, :length], attn_mask=mask,
            is_causal=not masked, enable_gqa=grouped,
        ).sum().backward()  # fmt: skip

    row = timed(call)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        call()
    names = [event.key for event in seen.key_averages() if "attention" in event.key or "fmha" in event.key]
    return {**row, "kernels": sorted(name[:80] for name in names)[:8]}


def exactness(small: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = model_folder("tiny", Path(folder))
        vocabulary = SHAPES["tiny"]["vocab_size"]
        batches = {"prompt": groups_of(4, 37, 9, vocabulary), "turns": turns_of(5, 40, 9, vocabulary)}
        oracles = {name: evaluated(path, own, "padded", "auto", "cpu", "float32") for name, own in batches.items()}
        variants = [(shares, kernel, False) for shares in batches for kernel in ("sdpa", *kernels())]
        variants += [("prompt", "auto", True)] * liger_here()
        for shares, kernel, liger in variants:
            dtype = "bfloat16" if kernel == "flash" else "float32"
            wanted, slope = oracles[shares]
            found, gradient = evaluated(path, batches[shares], "shared_prompt", kernel, device(), dtype, liger)
            row: Row = {
                "shares": shares,
                "kernel": kernel,
                "liger": liger,
                "dtype": dtype,
                "max_difference_nats": float((found - wanted).abs().max()),
                "gradient_difference": float((gradient - slope).norm() / slope.norm()),
            }
            limits = dict(zip(("max_difference_nats", "gradient_difference"), EXACT[dtype], strict=True))
            yield row | above(row, limits)


def above(row: Row, limits: dict[str, float]) -> Row:
    """Return `failed` with the values that are above their limits or not a number."""
    wrong = [f"{key} {row[key]:.3g} is above {limit:g}" for key, limit in limits.items() if not row[key] <= limit]
    return {"failed": "; ".join(wrong)} if wrong else {}


def kernels() -> list[str]:
    """Return the GPU kernels that can run here."""
    return [] if device() == "cpu" else ["flex", "flash"]


def liger_here() -> bool:
    """Return whether Liger's kernels of norms, rotary embeddings and MLPs can run here."""
    return device() == "cuda" and importlib.util.find_spec("liger_kernel") is not None


def evaluated(
    path: Path, groups: list[Any], layout: str, kernel: str, on: str, dtype: str, liger: bool = False
) -> tuple[Any, Any]:
    """Return log-probabilities and the gradient of their mean by all weights, on the CPU in float32."""
    import torch

    from hamr.algorithms.packing import pack
    from hamr.trainer.policy_batch import build_batch
    from hamr.trainer.policy_model import load_policy

    torch.backends.cuda.enable_cudnn_sdp(False)  # as in the trainer
    model = load_policy(
        path, dtype=getattr(torch, dtype), layout=layout, kernel=kernel, liger=liger  # type: ignore[arg-type]
    ).to(on)  # fmt: skip
    [[microbatch]] = pack(groups, budget=10**9, layout=model.layout)
    found = model(build_batch(groups, microbatch, model.layout, on))[0].float()
    found.mean().backward()
    slope = torch.cat([p.grad.float().cpu().flatten() for p in model.parameters() if p.grad is not None])
    return found.detach().cpu(), slope


def attention(small: bool) -> Iterator[Row]:
    import torch
    from torch._dynamo.utils import counters

    torch.backends.cuda.enable_cudnn_sdp(False)  # as in the trainer
    work = WORK[small]
    other = work | dict(prompt=work["prompt"] // 2 + 5, samples=work["samples"] // 2)
    for kernel in (*kernels(), "sdpa"):
        row: Row = {"kernel": kernel}
        counters.clear()
        try:
            with torch.no_grad():
                attention_call(kernel, **work)()
            row |= timed(attention_call(kernel, **work))
            begun = time.perf_counter()
            attention_call(kernel, **other)()
            row["second_shape_s"] = time.perf_counter() - begun
        except torch.OutOfMemoryError as error:
            row["out_of_memory"] = str(error)[:120]
        yield row | {"graphs": counters["stats"]["unique_graphs"]}


def attention_call(kernel: str, samples: int, prompt: int, completion: int) -> Callable[[], None]:
    """Return the attention of one layer of a shared-prompt row, with its backward pass where gradients are on."""
    import torch

    from hamr.trainer.policy_attention import SharedRow, shared_prompt_attention
    from hamr.trainer.policy_batch import GPU_BLOCK
    from hamr.trainer.policy_blocks import block

    lengths = [completion] * samples
    blocks = (block((), 0, [prompt]), block([(0, prompt)], prompt, lengths, device()))
    tokens = -(-(prompt + sum(lengths)) // GPU_BLOCK) * GPU_BLOCK
    dtype = torch.bfloat16 if device() == "cuda" else torch.float32
    gradients = torch.is_grad_enabled()

    def tensor(heads: int) -> Any:
        return torch.randn(1, heads, tokens, 128, device=device(), dtype=dtype, requires_grad=gradients)

    q, k, v = tensor(32), tensor(8), tensor(8)
    row = SharedRow(blocks=blocks, kernel=kernel, tokens=tokens, device=q.device)  # type: ignore[arg-type]

    def call() -> None:
        out = shared_prompt_attention(torch.nn.Identity(), q, k, v, None, hamr_row=row)[0].sum()
        if gradients:
            out.backward()
        if device() == "cuda":
            torch.cuda.synchronize()

    return call


def step(small: bool) -> Iterator[Row]:
    import gc

    import torch

    shared = [Variant(layout="shared_prompt", kernel=kernel) for kernel in kernels()]
    if liger_here():
        fused = Variant(layout="shared_prompt", kernel="flex", liger=True)
        shared += [fused, replace(fused, recompute=False)]
    others = [Variant(layout="padded"), Variant(layout="packed"), Variant(layout="shared_prompt", kernel="sdpa")]
    for shape in ("tiny",) if small else ("135M", "4B"):
        plain: float | None = None
        with tempfile.TemporaryDirectory() as folder:
            groups = groups_of(**WORK[small], vocabulary=SHAPES[shape]["vocab_size"])
            try:
                path = model_folder(shape, Path(folder))
            except torch.OutOfMemoryError as error:
                yield {"shape": shape, "out_of_memory": str(error)[:120]}
                continue
            for variant in (Variant(layout="plain"), *shared, *(others if shape != "135M" else [])):
                row: Row = {"shape": shape, **asdict(variant)}
                try:
                    with without_traces():
                        row |= one_step(path, shape, groups, variant)
                    plain = row["tokens_per_s"] if variant.layout == "plain" else plain
                    yield row | goals(row, plain)
                except torch.OutOfMemoryError as error:
                    yield row | {"out_of_memory": str(error)[:120]}
                gc.collect()
                if device() == "cuda":
                    torch.cuda.empty_cache()


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Settings of a training step. `plain` is the model of transformers with its own loss."""

    layout: str
    kernel: str = "auto"
    liger: bool = False
    recompute: bool = True


@contextlib.contextmanager
def without_traces() -> Iterator[None]:
    """Undo what Liger changes in the module of the model: models loaded later would have it too."""
    from transformers.models.qwen3 import modeling_qwen3

    before = dict(vars(modeling_qwen3))
    try:
        yield
    finally:
        vars(modeling_qwen3).update(before)


def goals(row: Row, plain: float | None) -> Row:
    """Return the speed over that of plain transformers, and for `shared_prompt` of 4B whether the goals are met."""
    more: Row = {} if plain is None else {"speedup": row["tokens_per_s"] / plain}
    if (row["shape"], row["layout"]) == ("4B", "shared_prompt"):
        known = row | more
        more["met"] = {key: known[key] >= goal for key, goal in GOALS.items() if key in known}
    return more


def one_step(path: Path, shape: str, groups: list[Any], variant: Variant) -> Row:
    """Time forward and backward of the whole batch, in micro-batches of at most 20,000 tokens."""
    import torch

    from hamr.algorithms.losses import policy_loss
    from hamr.algorithms.packing import pack
    from hamr.trainer.policy_batch import build_batch
    from hamr.trainer.policy_model import load_policy

    sequences = groups[0].sequences
    trained = sum(len(groups[0].prompt_ids) + len(s.token_ids) for s in sequences)
    dtype = torch.bfloat16
    torch.backends.cuda.enable_cudnn_sdp(variant.layout == "plain")  # off in the trainer
    if variant.layout == "plain":
        from transformers import AutoModelForCausalLM

        plain = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, trust_remote_code=False).to(device()).train()
        plain.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        width = max(len(groups[0].prompt_ids) + len(s.token_ids) for s in sequences)
        rows = torch.zeros(len(sequences), width, dtype=torch.long)
        mask = torch.zeros_like(rows)
        for i, s in enumerate(sequences):
            ids = groups[0].prompt_ids + s.token_ids
            rows[i, : len(ids)], mask[i, : len(ids)] = torch.tensor(ids), 1
        rows, mask = rows.to(device()), mask.to(device())
        computed = read = rows.numel()
        each = max(1, 20_000 // width)

        def call() -> None:
            for at in range(0, len(rows), each):
                ids, seen = rows[at : at + each], mask[at : at + each]
                plain(input_ids=ids, attention_mask=seen, labels=ids.masked_fill(seen == 0, -100)).loss.backward()
            plain.zero_grad()
    else:
        model = load_policy(
            path, dtype=dtype, layout=variant.layout, kernel=variant.kernel, liger=variant.liger,  # type: ignore[arg-type]
            gradient_checkpointing=variant.recompute,
        )  # fmt: skip
        model = model.to(device()).train()
        [pieces] = pack(groups, budget=20_000, layout=model.layout)
        batches = [build_batch(groups, piece, model.layout, device()) for piece in pieces]
        computed = sum(batch.input_ids_BT.numel() for batch in batches)
        read = sum(len(batch.targets_N) for batch in batches)

        def call() -> None:
            for batch in batches:
                found, entropies = model(batch)
                policy_loss(
                    found, batch.behaviour_N, batch.advantages_N, batch.mask_N, entropies=entropies
                ).loss.backward()
            model.zero_grad()

    row = timed(call)
    row |= {"tokens": trained, "computed_tokens": computed, "tokens_per_s": trained / row["later_s"]}
    peak = peak_tflops(gpu_name()) if device() == "cuda" else None
    if peak is not None:
        pairs = attended(groups[0], variant.layout)
        for name, passes in (("mfu", 3), ("hfu", 4 if variant.recompute else 3)):
            row[name] = operations(shape, computed, read, pairs, passes) / row["later_s"] / peak / 1e12
    return row


def peak_tflops(gpu: str) -> float | None:
    return next((peak for name, peak in PEAK_TFLOPS.items() if re.search(rf"\b{name}\b", gpu)), None)


def attended(group: Any, layout: str) -> int:
    """Return the number of pairs of a token and one that it attends to, without padding."""
    prompt, lengths = len(group.prompt_ids), [len(s.token_ids) for s in group.sequences]
    if layout != "shared_prompt":
        return sum(causal(prompt + n) for n in lengths)
    return causal(prompt) + sum(n * prompt + causal(n) for n in lengths)


def causal(tokens: int) -> int:
    return tokens * (tokens + 1) // 2


def operations(shape: str, computed: int, read: int, pairs: int, passes: int) -> float:
    """Return the operations of a step, by the counting of PaLM (Chowdhery et al. 2022, appendix B).

    Args:
        computed: Tokens that pass through the layers: 2 operations per weight and pass.
        read: Rows of the head, which is not recomputed: 3 passes.
        pairs: Pairs of tokens in attention: 4 operations per pass, layer, head and element of the head.
        passes: Forward passes that the work amounts to; the backward pass counts as two.
    """
    s = SHAPES[shape]
    head = s["hidden_size"] * s["vocab_size"]
    attention = 4 * pairs * s["num_hidden_layers"] * s["num_attention_heads"] * s["head_dim"]
    return float(passes * (2 * (parameters(shape) - head) * computed + attention) + 6 * head * read)


def gpu_name() -> str:
    import torch

    return str(torch.cuda.get_device_name(0))


def parameters(shape: str) -> int:
    s = SHAPES[shape]
    heads = (s["num_attention_heads"] * 2 + s["num_key_value_heads"] * 2) * s["head_dim"]
    per_layer = s["hidden_size"] * (heads + 3 * s["intermediate_size"])
    return int(s["num_hidden_layers"] * per_layer + s["hidden_size"] * s["vocab_size"])


def deepspeed(small: bool) -> Iterator[Row]:
    """Run each ZeRO stage in a process of its own, two cores each: DeepSpeed keeps its state in the process."""

    def stage_row(stage: int) -> Row:
        try:
            [row] = child(["--part", f"zero {stage}", *(["--small"] if small else [])], STAGE_S)
            return row
        except subprocess.SubprocessError as error:
            return {"stage": stage, "failed": str(error)}

    rows: list[Row] = []
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as together:
        for row in together.map(stage_row, (*range(4), HOST)):
            rows.append(row)
            yield row
    yield verdict([row for row in rows if "failed" not in row])


def verdict(rows: list[Row]) -> Row:
    """Return whether all stages took the same steps, and the same after loading as before."""
    norms = [row["grad_norm"] for row in rows]
    spread = max(norms) / min(norms) - 1 if norms else math.nan
    resumed = [row["stage"] for row in rows if math.isclose(row["resumed_norm"], row["next_norm"], rel_tol=1e-3)]
    crossed = [row["crossed_norm"] / row["next_norm"] for row in rows if "crossed_norm" in row]
    row: Row = {"verdict": "works", "norm_spread": spread, "resumed": resumed, "crossed": crossed}
    if not spread <= 0.02 or len(resumed) < len(rows) or not all(abs(ratio - 1) <= 0.02 for ratio in crossed):
        row |= {"verdict": "FAILS", "failed": "gradient norms differ by stage, or after loading"}
    return row


HOST = 4
"""In place of a stage: stage 2 with the optimiser on the host."""
STAGE_S = 80.0
"""Limit of one stage. Most of the time that one takes starts the process."""


def zero(stage: int, small: bool) -> Iterator[Row]:
    import torch

    from hamr.config.algorithm import KlConfig
    from hamr.config.schema import AlgorithmConfig, TrainerConfig
    from hamr.trainer.deepspeed_trainer import DeepSpeedTrainer
    from hamr.types import TrainBatch

    shape, on_gpu = "tiny" if small else "31M", device() == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        path = model_folder(shape, Path(folder))
        values = dict(num_gpus=float(on_gpu), zero_stage=stage, backend="nccl" if on_gpu else "gloo")
        values["learning_rate"] = 1e-3  # so that every step changes the next one's norm
        if stage == HOST:
            values |= dict(zero_stage=2, offload_optimizer=True)
        config = TrainerConfig.model_validate(values | {"dtype": "bfloat16" if on_gpu else "float32"})
        meet = f"tcp://127.0.0.1:{29580 + stage}"
        algorithm = AlgorithmConfig(kl=KlConfig(measure=True))
        trainer = DeepSpeedTrainer(config, algorithm, path, total_steps=10, init_method=meet)
        groups = groups_of(4, 512 if not small else 16, 128 if not small else 8, SHAPES[shape]["vocab_size"])
        batch = TrainBatch(groups=tuple(groups), loss="policy")
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        metrics = trainer.train(batch)
        row: Row = {"stage": stage, "grad_norm": metrics["policy/grad_norm"]}
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None
        begun = time.perf_counter()
        trainer.offload_states()
        row["offload_s"] = time.perf_counter() - begun
        row["resting_gib"] = torch.cuda.memory_allocated() / 2**30 if on_gpu else None
        again = trainer.train(batch)
        row |= {"second_grad_norm": again["policy/grad_norm"], "kl": again["policy/kl_to_reference"]}
        for name, call, norm in (("save_s", trainer.save, "next_norm"), ("load_s", trainer.load, "resumed_norm")):
            begun = time.perf_counter()
            call(Path(folder) / "checkpoint")
            row[name] = time.perf_counter() - begun
            row[norm] = trainer.train(batch)["policy/grad_norm"]
            trainer.reset(path, config=config, total_steps=10)
        if stage == 3:
            trainer.reset(path, config=config.model_copy(update={"zero_stage": 2}), total_steps=10)
            trainer.load(Path(folder) / "checkpoint")
            row["crossed_norm"] = trainer.train(batch)["policy/grad_norm"]
        trainer.close()
        yield row


CONFIGURATIONS = {"gpu_24gb": "1.7B", "gpu_80gb": "4B"}
"""Configuration for one GPU -> shape of its policy."""


def memory(small: bool) -> Iterator[Row]:
    """Train with the trainer's settings of these configurations, each in a process of its own."""
    for name in CONFIGURATIONS:
        try:
            yield from child(["--part", f"configured {name}", *(["--small"] if small else [])], MEMORY_S)
        except subprocess.SubprocessError as error:
            yield {"configuration": name, "failed": str(error)}


MEMORY_S = 75.0
"""Limit of one configuration. Most of it is the optimiser of 4B parameters in host memory."""


def configured(name: str, small: bool) -> Iterator[Row]:
    """Train two steps of one full micro-batch on a GPU that has no more memory than the configuration's, and compare
    the memory in use with that of `hamr plan`."""
    import resource

    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"  # as in the trainer
    import torch
    import yaml

    from hamr.apps.plan.costs import GPUS, RESTING_GIB, host_memory, trained_share, trainer_memory
    from hamr.apps.plan.models import model_size
    from hamr.config.schema import AlgorithmConfig, TrainerConfig
    from hamr.trainer.deepspeed_trainer import DeepSpeedTrainer
    from hamr.types import TrainBatch

    conf, shape = Path(__file__).resolve().parent.parent / "conf", "tiny" if small else CONFIGURATIONS[name]
    settings = yaml.safe_load((conf / "experiment" / f"{name}.yaml").read_text())
    chosen = [entry["override /trainer"] for entry in settings["defaults"] if "override /trainer" in entry]
    values: Row = {}
    for group in chosen:
        values |= yaml.safe_load((conf / "trainer" / f"{group}.yaml").read_text())
    values |= settings["trainer"] | {"num_gpus": 1.0}
    if device() == "cpu":
        values |= {"num_gpus": 0.0, "backend": "gloo", "dtype": "float32", "tokens_per_microbatch": 128}
    config = TrainerConfig.model_validate(values)
    gpu = GPUS[settings.get("plan", {}).get("gpu", "h100")]
    model = model_size("model.path", f"qwen3-{CONFIGURATIONS[name]}")
    share = trained_share(config.lora)
    planned = trainer_memory(
        model, gpu, config.ranks, config.zero_stage, tokens=config.tokens_per_microbatch,
        recompute=config.gradient_checkpointing, trained=share, offload=config.offload_optimizer,
    )  # fmt: skip
    row: Row = {"configuration": name, "planned_gib": planned.total_gib, "limit_gib": gpu.memory_gib - RESTING_GIB}
    if config.offload_optimizer:
        row["planned_host_gib"] = host_memory(model, config.ranks, config.zero_stage, share)
    if device() == "cuda":
        whole = torch.cuda.get_device_properties(0).total_memory / 2**30
        torch.cuda.set_per_process_memory_fraction(row["limit_gib"] / whole)
    tokens, samples = config.tokens_per_microbatch, settings["rollout"]["samples_per_prompt"]
    groups = groups_of(samples, tokens // 2, round(0.45 * tokens / samples), SHAPES[shape]["vocab_size"])
    with tempfile.TemporaryDirectory() as folder:
        path = model_folder(shape, Path(folder))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        trainer = DeepSpeedTrainer(config, AlgorithmConfig(), path, total_steps=10)
        for key in ("first_s", "later_s"):
            begun = time.perf_counter()
            trainer.train(TrainBatch(groups=tuple(groups), loss="policy"))
            row[key] = time.perf_counter() - begun
    row["host_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20 - before
    if device() == "cuda":
        row["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        row["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
        row |= above(row, {"reserved_gib": row["planned_gib"]})
    trainer.close()
    yield row


def trl(small: bool) -> Iterator[Row]:
    from types import SimpleNamespace

    if importlib.util.find_spec("trl") is None:
        yield {"not_here": "trl is not installed"}
        return
    import torch
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    work, shape = WORK[small], "tiny" if small else "135M"
    with tempfile.TemporaryDirectory() as folder:
        path = model_folder(shape, Path(folder))
        group = groups_of(**work, vocabulary=SHAPES[shape]["vocab_size"])[0]
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, trust_remote_code=False).to(device())
        arguments = GRPOConfig(output_dir=folder, report_to=[], use_cpu=device() == "cpu", beta=0.0)
        trainer = GRPOTrainer.__new__(GRPOTrainer)
        width = max(len(s.token_ids) for s in group.sequences)
        completion = torch.zeros(len(group.sequences), width, dtype=torch.long, device=device())
        mask = torch.zeros_like(completion)
        for i, s in enumerate(group.sequences):
            completion[i, : len(s.token_ids)], mask[i, : len(s.token_ids)] = torch.tensor(s.token_ids), 1
        prompt = torch.tensor([group.prompt_ids] * len(group.sequences), device=device())
        ids, seen = torch.cat([prompt, completion], 1), torch.cat([torch.ones_like(prompt), mask], 1)
        # What the trainer's own constructor sets, which would also load data and a processor.
        add_fused_lm_head(model, temperature=1.0)
        trainer.temperature, trainer.args = 1.0, arguments
        trainer.accelerator = SimpleNamespace(autocast=contextlib.nullcontext, is_main_process=False)
        trainer.model_kwarg_keys = {"logits_to_keep"}

        def call() -> None:
            for at in range(0, len(ids), 4):
                found = trainer._get_per_token_logps_and_entropies(
                    model, ids[at : at + 4], seen[at : at + 4], width, batch_size=4
                )[0]
                (found * mask[at : at + 4]).sum().backward()
            model.zero_grad()

        trained = sum(len(group.prompt_ids) + len(s.token_ids) for s in group.sequences)
        row = timed(call)
        yield {"shape": shape, **row, "tokens_per_s": trained / row["later_s"]}


def ipc(small: bool) -> Iterator[Row]:
    if device() == "cpu":
        yield {"not_here": "no GPU"}
        return
    import torch
    import torch.multiprocessing as mp

    start = mp.get_context("spawn")
    ours, theirs = start.Pipe()
    sent = torch.ones((1 << 20 if small else 1 << 30), dtype=torch.bfloat16, device="cuda")
    reader = start.Process(target=read_shared, args=(theirs,))
    reader.start()
    ours.send(sent)
    seconds = ours.recv()
    reader.join(30)
    yield {"gb": sent.nbytes / 1e9, "seconds": seconds, "gb_per_s": sent.nbytes / 1e9 / min(seconds)}


def read_shared(pipe: Any) -> None:
    import torch

    shared, seconds = pipe.recv(), []
    for _ in range(4):
        begun = time.perf_counter()
        shared.clone()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    pipe.send(seconds)


def gap(small: bool) -> Iterator[Row]:
    shape = "tiny" if small else "135M"
    with tempfile.TemporaryDirectory() as folder:
        path = model_folder(shape, Path(folder))
        groups = groups_of(4, 64, 24, SHAPES[shape]["vocab_size"])
        wanted, _ = evaluated(path, groups, "padded", "auto", "cpu", "float32")
        found, _ = evaluated(path, groups, "shared_prompt", "auto", device(), "bfloat16", liger_here())
        difference = (found - wanted).abs()
        row: Row = {"mean_nats": float(difference.mean()), "max_nats": float(difference.max())}
        yield row | above(row, {"mean_nats": GAP_NATS})


PARTS: dict[str, tuple[Callable[[bool], Iterator[Row]], float]] = {
    "machine": (machine, 25),
    "exactness": (exactness, 52),
    "attention": (attention, 40),
    "step": (step, 165),
    "deepspeed": (deepspeed, 85),
    "memory": (memory, 90),
    "trl": (trl, 32),
    "ipc": (ipc, 15),
    "gap": (gap, 36),
}
"""Part -> what it does and the seconds that it has at least. Their sum is at most TOTAL_S."""
TOTAL_S = 540.0


def child(arguments: list[str], limit_s: float) -> Iterator[Row]:
    """Run this file again and yield its rows as they come. After the limit it ends, with all that it started.

    Raises subprocess.SubprocessError with the limit, or with the end of what it wrote to stderr.
    """
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | {"DS_BUILD_OPS": "0"},
            start_new_session="--part" not in sys.argv,  # a part's own children end with it
        )  # fmt: skip
        late = threading.Event()

        def end() -> None:
            late.set()
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if os.getpgid(process.pid) == process.pid else os.kill)(process.pid, signal.SIGKILL)

        timer = threading.Timer(limit_s, end)
        timer.start()
        for line in process.stdout or ():
            if line.startswith("{"):
                yield json.loads(line)
        process.wait()
        timer.cancel()
        errors.seek(0)
        if late.is_set():
            raise subprocess.SubprocessError(f"no end within {limit_s:.3g} s")
        if process.returncode:
            raise subprocess.SubprocessError(f"exit code {process.returncode}: {errors.read().strip()[-400:]}")


def limit_of(parts: list[str], left_s: float) -> float:
    """Return the seconds of the first of these parts: all that are left without those of the others."""
    return left_s - sum(PARTS[name][1] for name in parts[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all without one")
    parser.add_argument("--small", action="store_true", help="tiny shapes, to see that the parts run")
    parser.add_argument("--out", type=Path, help="file for the JSON lines")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        part, _, of = args.part.partition(" ")
        inner: dict[str, Callable[[], Iterator[Row]]] = {
            "zero": lambda: zero(int(of), args.small),
            "configured": lambda: configured(of, args.small),
        }
        for row in inner[part]() if part in inner else PARTS[part][0](args.small):
            print(json.dumps(row, default=str), flush=True)
        return 0
    failed, until, parts = 0, time.monotonic() + TOTAL_S, args.parts or list(PARTS)
    for i, name in enumerate(parts):
        begun = time.monotonic()
        for row in rows_of(name, limit_of(parts[i:], until - begun), args.small):
            failed += "failed" in row
            line = json.dumps({"part": name, **{k: rounded(v) for k, v in row.items()}})
            print(line, flush=True)
            if args.out:
                with args.out.open("a") as file:
                    file.write(line + "\n")
        print(json.dumps({"part": name, "seconds": round(time.monotonic() - begun, 1)}), flush=True)
    return 1 if failed else 0


def rows_of(part: str, limit_s: float, small: bool) -> Iterator[Row]:
    """Run a part and yield its rows, and one with `failed` where it fails."""
    try:
        if limit_s <= 0:
            raise subprocess.SubprocessError(f"the {TOTAL_S:.0f} s are over")
        yield from child(["--part", part, *(["--small"] if small else [])], limit_s)
    except (subprocess.SubprocessError, ValueError) as error:
        yield {"failed": str(error)[-400:]}


def rounded(value: Any) -> Any:
    """Return the value to four significant digits."""
    if isinstance(value, float) and math.isfinite(value) and value:
        return float(f"{value:.4g}")
    return value


if __name__ == "__main__":
    sys.exit(main())
