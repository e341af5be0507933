#!/usr/bin/env bash
# All three tiers: scripts/test.sh PYTHON [pytest's arguments]. The unit tests compute, so they get a process per core. The
# others mostly wait for engines to start: three processes, each with a Ray of its own, keep two cores busy. A file's tests
# share what they start, so they stay in one process (loadfile).
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
tier jobs tests/e2e tests/integration -n 3 --dist loadfile --no-loadscope-reorder "$@"
exit $failed
