#!/usr/bin/env bash
# Makes .venv from the CPU lock file. A second call installs nothing; an interrupted one is taken up again.
# Environment: PYTHON (default: python3.11, else a python3 of that version), VENV (.venv), TORCH_INDEX (where to look
# for the CPU build of torch if pip's own index has none).
set -euo pipefail
cd "$(dirname "$0")/.."

WANT=3.11
VENV=${VENV:-.venv}
TORCH_INDEX=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
TORCH=$(cat locks/cpu-torch.txt)

say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }
# DS_BUILD_OPS=0: DeepSpeed compiles a kernel when it is first used, not now.
pip_install() {
  DS_BUILD_OPS=0 "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-input --no-deps "$@" </dev/null
}
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

stamp=$VENV/.hamr-installed
# The folder is part of the key: a moved checkout has broken paths in its .venv.
key=$({ cat locks/cpu.txt locks/cpu-torch.txt pyproject.toml setup.py; pwd; } | sha256sum | cut -d' ' -f1)
if [[ -f $stamp && $(cat "$stamp") == "$key" && -x $VENV/bin/hamr ]]; then exit 0; fi

if command -v flock >/dev/null; then
  exec 9<scripts/setup.sh  # any file serves as the lock; .venv itself may be made anew
  flock -n 9 || { say "another setup is at work here; waiting for it"; flock 9; }
  if [[ -f $stamp && $(cat "$stamp") == "$key" && -x $VENV/bin/hamr ]]; then exit 0; fi
fi

python=${PYTHON:-}
if [[ -z $python ]]; then
  for candidate in "python$WANT" python3 python; do
    if [[ $(version_of "$candidate") == "$WANT" ]]; then python=$candidate; break; fi
  done
fi
[[ -n $python ]] || die "needs Python $WANT, found $(python3 --version 2>/dev/null || echo none); install it, or name it: make setup PYTHON=/path/to/python$WANT"
found=$(version_of "$python")
[[ $found == "$WANT" ]] || die "PYTHON=$python is Python ${found:-unusable}, the lock files are for $WANT; name another: make setup PYTHON=/path/to/python$WANT"
command -v g++ >/dev/null || say "no g++ found: DeepSpeed cannot compile its CPU kernels here (install the package g++)"

rm -f "$stamp"
if [[ $(version_of "$VENV/bin/python") != "$WANT" ]] || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
  say "making $VENV with $("$python" --version)"
  "$python" -m venv --clear "$VENV" >/dev/null || die "$python cannot make a virtual environment; install its venv module (Debian: python$WANT-venv)"
fi

say "installing $TORCH"
if ! error=$(pip_install "$TORCH" 2>&1); then
  say "pip's own index has no such build; trying $TORCH_INDEX"
  pip_install --index-url "$TORCH_INDEX" "$TORCH" || die "no CPU build of torch could be had; pip's own index said: $error"
fi
say "installing $(grep -vc '^#' locks/cpu.txt) locked packages (a few minutes, about 4 GB)"
pip_install -r locks/cpu.txt
say "installing hamr itself, editable"
pip_install --no-build-isolation -e .
"$VENV/bin/hamr" --version >/dev/null
echo "$key" > "$stamp"
say "done: $VENV/bin/hamr"
