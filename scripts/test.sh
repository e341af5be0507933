#!/usr/bin/env bash
# All three tiers: scripts/test.sh PYTHON [pytest's arguments], with a process per core. Those of the second call have a Ray
# of their own each, and with a third of them on two cores a Ray did not start within its 30 seconds. A file's tests share
# what they start, so they stay in one process (loadfile).
# JUnit files and the slowest tests of each tier go to $TEST_REPORTS (.test-reports).
set -u
python=$1
shift
cache=$(mktemp -d)
export HAMR_CACHE=${HAMR_CACHE:-$cache}
reports=${TEST_REPORTS:-.test-reports}
mkdir -p "$reports"
trap 'rm -rf "$cache"' EXIT
failed=0
# Hundreds of processes import hamr, which is compiled once only if Python may keep the result.
unset PYTHONDONTWRITEBYTECODE

tier() {
  local name=$1
  shift
  SECONDS=0
  "$python" -m pytest --durations=25 --durations-min=1 --junitxml="$reports/$name.xml" "$@" 2>&1 | tee "$reports/$name.log"
  local status=${PIPESTATUS[0]}
  echo "$name: exit code $status after $SECONDS s" | tee -a "$reports/times.txt"
  [[ $status -eq 0 || $status -eq 5 ]] || failed=1 # 5: the arguments chose no test
}

: >"$reports/times.txt"
tier unit tests/unit -n 2 "$@"
tier jobs tests/e2e tests/integration -n 2 --dist loadfile --no-loadscope-reorder "$@"
exit $failed
