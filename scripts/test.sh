#!/usr/bin/env bash
# All three tiers: scripts/test.sh PYTHON [pytest's arguments]. The integration tests mostly wait for engines to start, so
# the others run beside them, the unit tests first, and are shown behind them. Those that compute go with these.
set -u
python=$1
shift
log=$(mktemp)
cache=$(mktemp -d) # what one builds of the bundled models, the others need not
export HAMR_CACHE=${HAMR_CACHE:-$cache}
trainer=tests/integration/test_trainer.py
tools=(tests/integration/test_ablations.py tests/integration/test_benchmark_tools.py)

passed() { [[ $1 -eq 0 || $1 -eq 5 ]]; } # 5: the arguments chose none of them

beside() {
  local unit jobs
  nice "$python" -m pytest tests/unit "${tools[@]}" "$@"
  unit=$?
  "$python" -m pytest tests/e2e $trainer "$@"
  jobs=$?
  passed $unit && passed $jobs
}

set -m # a process group of its own, so that all of it ends with this script
beside "$@" >"$log" 2>&1 </dev/null &
group=$!
set +m
trap 'kill -- -$group 2>/dev/null; rm -rf "$log" "$cache"' EXIT
trap 'exit 130' INT TERM

"$python" -m pytest tests/integration --ignore=$trainer "${tools[@]/#/--ignore=}" "$@"
integration=$?
wait $group
others=$?
cat "$log"
passed $integration && [[ $others -eq 0 ]]
