"""TRL's own environment: made once from a complete lock file, apart from hamr's."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCKS = {"transformers": "trl.lock.txt", "continuous": "trl.lock.txt", "vllm": "trl-vllm.lock.txt"}


def ensure_environment(mode: str) -> Path:
    """The Python of the environment for TRL `mode`; installs only what the lock file changed since the last time.

    torch is taken from wherever this machine's pip finds the CPU build, else from $TORCH_INDEX.
    """
    lock = HERE / LOCKS[mode]
    folder = HERE.parent / (".bench-trl-vllm" if mode == "vllm" else ".bench-trl")
    python, stamp = folder / "bin" / "python", folder / "installed"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"making {folder} from {lock.name} (about a minute) ...", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True)
    torch = next(line for line in lock.read_text().splitlines() if line.startswith("torch=="))
    if not _install(python, torch, must=False):
        index = os.environ.get("TORCH_INDEX")
        if not index:
            raise SystemExit(f"pip finds no {torch}; set TORCH_INDEX to the index that has torch's CPU builds")
        _install(python, "--index-url", index, torch)
    _install(python, "-r", str(lock))
    stamp.write_text(digest)
    return python


def _install(python: Path, *what: str, must: bool = True) -> bool:
    # --no-deps: the lock file is complete, and a resolver would bring a CUDA torch.
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *what]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=None if must else subprocess.DEVNULL)
    if must and done.returncode:
        raise SystemExit(f"pip could not install {' '.join(what)} into TRL's environment; see above")
    return done.returncode == 0
