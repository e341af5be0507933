#!/usr/bin/env bash
# Runs tests/trainers against the releases in locks/trainers.txt: in an environment of its own (.trainers), whose other
# packages are those of hamr's. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv} own=${TRAINERS:-.trainers}
if ! cmp -s locks/trainers.txt "$own/installed.txt"; then
  "$venv/bin/python" -m venv --clear "$own"
  "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' \
    > "$("$own/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/hamr.pth"
  "$own/bin/python" -m pip install -q --disable-pip-version-check --no-deps -r locks/trainers.txt
  # OpenRLHF and verl install their own tests as `tests`, which would hide those of this repository.
  rm -rf "$("$own/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/tests"
  cp locks/trainers.txt "$own/installed.txt"
fi
# The tests skip a package that is missing elsewhere.
for package in openrlhf trl verifiers verl; do "$own/bin/python" -c "import $package"; done
exec "$own/bin/python" -m pytest tests/trainers -q "$@"
