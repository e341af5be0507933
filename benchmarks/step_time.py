"""The same optimiser step through hamr and through TRL's GRPOTrainer: what takes how long.

    python benchmarks/step_time.py --shape short
    python benchmarks/step_time.py --shape service --pairs 7
    python benchmarks/step_time.py --shape short --aa hamr          # noise floor: hamr against itself
    python benchmarks/step_time.py --only hamr --model tiny --prompts 2 --samples 2 --prompt-tokens 40 --pairs 1

README.md in this folder says how to read what it prints.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from measure import ALLOCATOR, WAITING, Side, Spread, Step, order, phase_medians, quiet_pairs, ratios  # noqa: E402
from results_json import write_results  # noqa: E402
from trl_env import ensure_environment  # noqa: E402
from workload import SHAPES, Shape, Work, make_prompts, prepare_model  # noqa: E402

from hamr.apps.shared.machine import machine, versions  # noqa: E402

PHASES = ("generation", "scoring", "training", "sync")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="short")
    for size in ("prompts", "prompt-tokens", "samples", "new-tokens"):
        parser.add_argument(f"--{size}", type=int, help="overrides the shape's")
    parser.add_argument("--model", default="smollm2-135m", help="bundled name, folder or Hugging Face name")
    parser.add_argument("--pairs", type=int, default=5, help="measured steps of each side")
    parser.add_argument("--warmup", type=int, default=1, help="steps of each side that are not counted")
    parser.add_argument("--threads", type=int, default=2, help="OpenMP threads of each side")
    parser.add_argument("--seed", type=int, default=0)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--aa", choices=("hamr", "trl"), help="a side against a second instance of itself")
    one.add_argument("--only", choices=("hamr", "trl"), help="one side alone, no ratio")
    parser.add_argument("--most-others", type=float, default=0.1, help="cores; pairs with more are left out of `quiet`")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that a side may be silent")
    parser.add_argument("--out", type=Path, default=None, help="default: benchmarks/results/step_time_<shape>.json")
    parser.add_argument("--default-allocator", action="store_true", help="do not tune glibc's malloc (both sides)")
    trl = parser.add_argument_group("TRL")
    trl.add_argument("--trl-mode", choices=("transformers", "continuous", "vllm"), default="transformers")
    trl.add_argument("--trl-micro-batch", type=int, default=16)
    trl.add_argument("--trl-dtype", default="bfloat16", help="type of TRL's weights")
    trl.add_argument("--trl-autocast", action="store_true", help="TRL's bf16=True on top of it")
    hamr = parser.add_argument_group("hamr")
    hamr.add_argument("--hamr-zero-stage", type=int, default=2)
    hamr.add_argument("--hamr-tokens-per-microbatch", type=int, default=4096)
    hamr.add_argument("--hamr-attention", choices=("shared_prompt", "packed", "padded"), default="shared_prompt")
    hamr.add_argument("--hamr-block-size", type=int, default=32)
    hamr.add_argument("--hamr-kv-cache-mb", type=int, default=512)
    hamr.add_argument("--hamr-check-logprobs", action="store_true", help="with the check after each sync")
    return parser.parse_args(argv)


def shape_of(args: argparse.Namespace) -> Shape:
    sizes = {name: getattr(args, name) for name in ("prompts", "prompt_tokens", "samples", "new_tokens")}
    return replace(SHAPES[args.shape], **{name: size for name, size in sizes.items() if size is not None})


def prepare(args: argparse.Namespace, steps: int) -> Work:
    """The model folder, the prompts as a file and the settings: what both sides get."""
    from hamr.models.bundled import resolve_model

    source = resolve_model(args.model)
    scratch = HERE.parent / ".bench-work"
    model = prepare_model(source, scratch / source.name)
    shape = shape_of(args)
    prompts = scratch / f"prompts-{source.name}-{shape.prompts}x{shape.prompt_tokens}-{args.seed}.json"
    prompts.write_text(json.dumps(make_prompts(model, shape, steps, args.seed)))
    return Work(model=str(model), prompts_file=str(prompts), shape=shape, threads=args.threads, options={})


def start(side: str, label: str, work: Work, args: argparse.Namespace, steps: int) -> Side:
    prefix = f"{side}_"
    options = {k.removeprefix(prefix): v for k, v in vars(args).items() if k.startswith(prefix)} | {"steps": steps}
    python = str(ensure_environment(args.trl_mode)) if side == "trl" else sys.executable
    log = HERE.parent / ".bench-work" / f"{label}.log"
    command = [python, str(HERE / f"{side}_side.py")]
    # hamr's actors are processes of their own and import it from here; TRL's environment must not see it.
    variables = environment(args) | ({"PYTHONPATH": str(HERE.parent)} if side == "hamr" else {})
    return Side(label, command, replace(work, options=options), log, args.timeout, variables)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Starts the sides, warms them up, measures them in turns, and returns the report."""
    names = {"A": args.only or args.aa or "hamr", "B": None if args.only else args.aa or "trl"}
    steps = args.warmup + args.pairs
    work = prepare(args, steps)
    sides: dict[str, Side] = {}
    measured: dict[str, list[Step]] = {key: [] for key, name in names.items() if name}
    try:
        for key in measured:
            label = f"{names[key]}-{key}" if args.aa else str(names[key])
            sides[key] = start(str(names[key]), label, work, args, steps)
            sides[key].wait_ready()
            for _ in range(args.warmup):
                _progress(label, "warm-up", sides[key].step())
        for number, key in enumerate(k for k in order(args.pairs) if k in sides):
            measured[key].append(sides[key].step())
            _progress(sides[key].name, str(number), measured[key][-1])
    finally:
        for side in sides.values():
            side.close()
    return report(args, work.shape, {key: (sides[key], measured[key]) for key in measured})


def _progress(side: str, what: str, step: Step) -> None:
    phases = "  ".join(f"{name} {step.phases[name]:6.2f}" for name in PHASES)
    print(
        f"{side:8s} {what:>8s}  wall {step.seconds:7.2f} s  cpu {step.cpu_seconds:7.2f} s  {phases}"
        f"  others {step.others_cores:4.2f} cores",
        file=sys.stderr,
        flush=True,
    )


def report(args: argparse.Namespace, shape: Shape, results: dict[str, tuple[Side, list[Step]]]) -> dict[str, Any]:
    sides = {
        side.name: {
            "versions": side.versions,
            "options": side.work.options,
            "seconds": asdict(Spread.of([s.seconds for s in steps])),
            "cpu_seconds": asdict(Spread.of([s.cpu_seconds for s in steps])),
            "memory_gb": max(s.memory_gb for s in steps),
            "phases": phase_medians(steps),
            "steps": [asdict(s) for s in steps],
        }
        for side, steps in results.values()
    }
    out: dict[str, Any] = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": args.model,
        "shape": asdict(shape),
        "machine": machine(),
        "versions": versions(),
        "environment": environment(args),
        "sides": sides,
    }
    if len(results) == 2:
        (a_side, a), (b_side, b) = results.values()
        quiet = quiet_pairs(a, b, args.most_others)
        out["ratio"] = {"of": a_side.name, "to": b_side.name, "quiet_pairs": len(quiet), "pairs": len(a)}
        for what in ("seconds", "cpu_seconds"):
            every = ratios(a, b, what)
            out["ratio"][what] = asdict(Spread.of(every))
            if quiet:
                out["ratio"][f"{what}_quiet"] = asdict(Spread.of([every[i] for i in quiet]))
    return out


def environment(args: argparse.Namespace) -> dict[str, str]:
    allocator = {} if args.default_allocator else ALLOCATOR
    return {**allocator, **WAITING, "OMP_NUM_THREADS": str(args.threads)}


def render(out: dict[str, Any]) -> str:
    """The report as a person reads it."""
    size, box = out["shape"], out["machine"]
    lines = [
        f"{size['prompts']} prompts x {size['prompt_tokens']} tokens x {size['samples']} samples x "
        f"{size['new_tokens']} new tokens, {out['model']}; {box['cpu']}, {box['cores']} cores",
        f"{'seconds, median':18s}" + "".join(f"{p:>12s}" for p in PHASES) + f"{'step':>12s}{'cpu':>12s}{'GB':>8s}",
    ]
    for name, side in out["sides"].items():
        cells = "".join(f"{side['phases'][p]:12.2f}" for p in PHASES)
        totals = f"{side['seconds']['median']:12.2f}{side['cpu_seconds']['median']:12.2f}{side['memory_gb']:8.2f}"
        lines.append(f"{name:18s}{cells}{totals}")
    if "ratio" in out:
        ratio = out["ratio"]
        lines.append(f"ratio {ratio['of']} / {ratio['to']}, median [lowest .. highest] of {ratio['pairs']} pairs")
        for what in ("seconds", "seconds_quiet", "cpu_seconds", "cpu_seconds_quiet"):
            if what in ratio:
                count = f" ({ratio['quiet_pairs']} quiet pairs)" if what.endswith("quiet") else ""
                lines.append(f"  {what.replace('_', ' '):18s}{Spread(**ratio[what])}{count}")
    return "\n".join(lines)


def result_file(args: argparse.Namespace) -> Path:
    if args.out:
        return args.out
    suffix = f"_aa_{args.aa}" if args.aa else f"_{args.only}" if args.only else ""
    mode = "" if args.trl_mode == "transformers" or (args.aa or args.only) == "hamr" else f"_trl_{args.trl_mode}"
    return HERE / "results" / f"step_time_{args.shape}{suffix}{mode}.json"


def main(argv: Sequence[str] | None = None) -> None:
    args = arguments(argv)
    out = run(args)
    file = result_file(args)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_results(file, out)
    print(render(out))
    print(f"written to {file}")


if __name__ == "__main__":
    main()
