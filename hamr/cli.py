"""Command line `hamr <job> [options] [overrides]`. The table of commands is in `apps/jobs.py`."""

from __future__ import annotations

import difflib
import errno
import os
import select
import signal
import sys
import traceback

from hamr import __version__, signals
from hamr.apps.jobs import JOBS, lookup, names
from hamr.errors import BadInput, HamrError
from hamr.garbage import collect_rarely
from hamr.security.redaction import redact_text

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
        try:
            code = main(sys.argv[1:])
            sys.stdout.flush()
        except BrokenPipeError:
            code = _leave_closed_pipe()
        if signals.pending_signal() is not None:
            signals.leave(code)
    sys.exit(code)


def _leave_closed_pipe() -> int:
    """Return the exit code of a process whose reader has gone, as the shell gives it: `hamr --help | head -1`."""
    # What is still buffered would raise again when the interpreter ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


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
    return _run(args)


def _run(args: list[str]) -> int:
    words = [word for word in args if word not in ("-h", "--help")]
    if words[0] not in names():
        return _fail(_unknown_job(words[0]), 2)
    try:
        # The models load pydantic, which the list of jobs does without.
        from hamr.apps.shared.commands import help_text, parse_command

        if len(words) < len(args):
            print(help_text(lookup(words)))
            return 0
        return parse_command(_without_hydra_flags(words)).run()
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except SystemExit as error:
        if signals.signal_of(error) is None:
            raise
        return _fail("stopped by SIGTERM", int(error.code or 0))
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_stdout_closed():
            raise
        # Ray raises a remote error as a subclass whose text is the remote traceback; the original error is its cause.
        cause = getattr(error, "cause", None)
        known = cause if isinstance(cause, HamrError | OSError) else error
        if isinstance(known, HamrError):
            return _fail(str(known), known.exit_code)
        if isinstance(known, ModuleNotFoundError) and (known.name or "").partition(".")[0] in HEAVY:
            return _fail(f"{known.name} is not installed; run `hamr doctor` to see how to install it", 1)
        if isinstance(known, OSError) and known.errno == errno.ENAMETOOLONG:
            shown = repr(str(known.filename))
            return _fail(f"path: {shown[:157]}...: a part is longer than the file system allows; shorten it", 2)
        if isinstance(known, PermissionError) and known.filename is not None:
            why = os.strerror(known.errno or errno.EACCES).lower()
            return _fail(f"{known.filename}: {why}; give this user access to it and to its folder, or name another", 2)
        if isinstance(known, OSError) and known.errno in (errno.ENOSPC, errno.EDQUOT):
            where = known.filename or "the run folder"
            return _fail(f"{where}: no space left on the disk; free some, or set experiment.run_dir to another disk", 1)
        if isinstance(known, OSError) and known.errno in (errno.EROFS, errno.EIO, errno.ESTALE):
            where, why = known.filename or "the run folder", os.strerror(known.errno).lower()
            return _fail(f"{where}: {why}; repair the disk and resume the run, or set experiment.run_dir to another", 1)
        print(redact_text(traceback.format_exc()), file=sys.stderr, end="")
        return 1


def _without_hydra_flags(words: list[str]) -> list[str]:
    """Translate Hydra's flags: `train ... --cfg job` and `train ... --info` show the configuration."""
    if words[0] not in ("train", "score", "serve", "plan") or not {"--cfg", "--info"} & set(words):
        return words
    if "--info" in words:
        return ["config", "show", *words[1:]]
    at = words.index("--cfg")
    if words[at + 1 : at + 2] != ["job"]:
        raise BadInput("--cfg", " ".join(words[at + 1 : at + 2]) or None, "only `--cfg job` is known")
    return ["config", "show", *words[1:at], *words[at + 2 :]]


def _fail(message: str, code: int) -> int:
    print(f"hamr: {' '.join(redact_text(message).split())}", file=sys.stderr)
    return code


def _is_stdout_closed() -> bool:
    """Return whether the reader of the output has gone, rather than that of another pipe or socket."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _unknown_job(job: str) -> str:
    if "=" in job:
        return f"{job!r} is an override, not a job; write `hamr train {job}`"
    close = difflib.get_close_matches(job, names(), n=1, cutoff=0.5)
    near = f"did you mean `hamr {close[0]}`? " if close else ""
    return f"{job!r}: no such job; {near}available jobs: {', '.join(names())}"


def _help() -> str:
    width = max(map(len, names()))
    lines = [
        f"hamr {__version__}: reinforcement learning for service agents with a hybrid, calibrated reward.",
        "",
        USAGE,
        "",
        "jobs:",
        *(f"  {name:<{width}}  {JOBS[name][1]}" for name in names()),
        "",
        "  hamr <job> --help      options of the job",
        "  hamr --version",
        "",
        "overrides:",
        "  experiment=quickstart  select an option of a group in conf/",
        "  trainer.zero_stage=3   set a value of the schema",
        "  data=FOLDER            use samples written by `hamr data`",
        "  --config-dir DIR       add your own folder of groups; its files override hamr's",
        "  --cfg job, --info      print the configuration, or its choices and overrides, and end",
    ]
    return "\n".join(lines)
