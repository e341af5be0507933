"""Command line `hamr <job> [hydra overrides]`, with one entry point per folder in apps/.

Help does not import a job: its HELP string is read from the source, so that no model library is loaded.
"""

from __future__ import annotations

import ast
import difflib
import errno
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path

from hamr import __version__, signals
from hamr.errors import HamrError
from hamr.garbage import collect_rarely
from hamr.security.redaction import redact_text

JOBS: dict[str, tuple[str, str]] = {
    "train": ("hamr.apps.train.command:main", "run RL training: rollout, reward cascade, update, sync"),
    "sft": ("hamr.apps.sft.command:main", "run supervised fine-tuning on a prepared mix"),
    "data": ("hamr.apps.data.command:main", "build data: generated dialogues, augmented samples, imported corpora"),
    "score": ("hamr.apps.score.command:main", "score a JSONL of finished responses with the whole reward system"),
    "serve": ("hamr.apps.serve.command:main", "serve the whole reward system over HTTP, for other trainers"),
    "calibrate": ("hamr.apps.calibrate.command:main", "fit the cascade to scores with teacher labels"),
    "evaluate": ("hamr.apps.evaluate.command:main", "score a policy, a set of responses or an endpoint"),
    "scorer": ("hamr.apps.scorer.command:main", "fine-tune a scorer"),
    "submit": ("hamr.apps.submit.command:main", "submit a command to a Ray cluster, to Kubernetes or to Slurm"),
    "status": ("hamr.apps.status.command:main", "show the pools of a running job"),
    "scale": ("hamr.apps.status.scale:main", "resize the pools of a running job"),
    "report": ("hamr.apps.report.command:main", "write an HTML report with plots from a run folder"),
    "plan": (
        "hamr.apps.plan.command:main",
        "estimate replicas, GPUs and step time; write the files that start a cluster",
    ),
    "doctor": (
        "hamr.apps.doctor.command:main",
        "show what this machine can run and what is missing",
    ),
}
"""Entry point and one line of help of every job. A job whose module is absent is not listed."""

USAGE = "usage: hamr <job> [--config-dir DIR] [group=choice] [section.key=value] ..."
HEAVY = ("torch", "vllm", "ray", "deepspeed", "transformers", "wandb", "gguf", "peft", "hydra", "omegaconf")
"""Libraries whose absence is reported as a missing installation, not as a defect."""


def entry() -> None:
    """Run the console script."""
    # Progress bars of libraries break hamr's own display. Waiting threads sleep, since many engines share few cores.
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    collect_rarely()
    with signals.handle_signals():
        code = main(sys.argv[1:])
        if signals.pending_signal() is not None:
            signals.leave(code)
    sys.exit(code)


def main(args: list[str]) -> int:
    """Run one command and return its exit code.

    Returns:
        0 on success, 1 on failure at run time, 2 on bad input, 130 after Ctrl-C, 143 after SIGTERM.
    """
    if not args or args[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if args else 2
    if args[0] in ("-V", "--version"):
        print(f"hamr {__version__}")
        return 0
    job, rest = args[0], args[1:]
    jobs = available_jobs()
    if job not in jobs:
        return _fail(_unknown_job(job, list(jobs)), 2)
    if any(a in ("-h", "--help") for a in rest):
        print(_job_help(job, jobs[job]))
        return 0
    return _run(jobs[job], rest)


def available_jobs() -> dict[str, str]:
    """Return {job name: entry point} of the jobs whose module exists."""
    return {name: target for name, (target, _) in JOBS.items() if _source(target) is not None}


def _source(target: str) -> Path | None:
    spec = importlib.util.find_spec(target.partition(":")[0])
    return Path(spec.origin) if spec and spec.origin else None


def _run(target: str, args: list[str]) -> int:
    module, _, function = target.partition(":")
    try:
        return int(getattr(importlib.import_module(module), function)(args))
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except SystemExit as error:
        if signals.signal_of(error) is None:
            raise
        return _fail("stopped by SIGTERM", int(error.code or 0))
    except Exception as error:
        # Ray raises a remote error as a subclass whose text is the remote traceback; the original error is its cause.
        cause = getattr(error, "cause", None)
        known = cause if isinstance(cause, HamrError) else error
        if isinstance(known, HamrError):
            return _fail(str(known), known.exit_code)
        if isinstance(known, ModuleNotFoundError) and (known.name or "").partition(".")[0] in HEAVY:
            return _fail(f"{known.name} is not installed; run `hamr doctor` to see how to install it", 1)
        if isinstance(known, OSError) and known.errno in (errno.ENOSPC, errno.EDQUOT):
            where = known.filename or "the run folder"
            return _fail(f"{where}: no space left on the disk; free some, or set experiment.run_dir to another disk", 1)
        print(redact_text(traceback.format_exc()), file=sys.stderr, end="")
        return 1


def _fail(message: str, code: int) -> int:
    print(f"hamr: {' '.join(redact_text(message).split())}", file=sys.stderr)
    return code


def _unknown_job(job: str, jobs: list[str]) -> str:
    if "=" in job:
        return f"{job!r} is an override, not a job; write `hamr train {job}`"
    close = difflib.get_close_matches(job, jobs, n=1, cutoff=0.5)
    near = f"did you mean `hamr {close[0]}`? " if close else ""
    return f"{job!r}: no such job; {near}available jobs: {', '.join(jobs)}"


def _help() -> str:
    jobs = available_jobs()
    width = max(map(len, JOBS))
    lines = [
        f"hamr {__version__}: reinforcement learning for service agents with a hybrid, calibrated reward.",
        "",
        USAGE,
        "",
        "jobs:",
        *(f"  {name:<{width}}  {JOBS[name][1]}" for name in jobs),
        "",
        "  hamr <job> --help      options of the job",
        "  hamr --version",
        "",
        "overrides:",
        "  experiment=quickstart  select an option of a group in conf/",
        "  trainer.zero_stage=3   set a value of the schema",
        "  data=FOLDER            use samples written by `hamr data`",
        "  --config-dir DIR       add your own folder of groups; its files override hamr's",
    ]
    return "\n".join(lines)


def _job_help(job: str, target: str) -> str:
    """Return the job's HELP, read from its source. A one-line HELP is extended with usage and `main`'s docstring."""
    source = _source(target)
    assert source is not None
    tree = ast.parse(source.read_text(encoding="utf-8"))
    text = _constant(tree, "HELP") or JOBS[job][1]
    if "\n" in text:
        return text
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    main_docstring = ast.get_docstring(functions["main"]) if "main" in functions else None
    parts = [f"hamr {job}: {text}", USAGE.replace("<job>", job), main_docstring, "`hamr --help` explains overrides."]
    return "\n\n".join(part for part in parts if part)


def _constant(tree: ast.Module, name: str) -> str | None:
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Constant):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets) and isinstance(node.value.value, str):
            return node.value.value.strip()
    return None
