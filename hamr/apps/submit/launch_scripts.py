"""Launch scripts for Slurm and for machines without a batch system."""

from __future__ import annotations

import math

from hamr.apps.submit.launch_job import CONFIG_FILE, GivenCommand, command, experiment_file, name_of, nodes
from hamr.config.schema import Config

WORK = "work"
"""Folder next to a Slurm job's script with the copy of the working folder."""


def slurm(config: Config, resume: str | None = None, given: GivenCommand | None = None) -> dict[str, str]:
    """Return `job.sbatch`: Ray on every node of the allocation with a token of its own, then the run on the first
    node."""
    launch, wanted = config.launch, given.nodes if given is not None else nodes(config)
    options = {
        "job-name": name_of(config),
        "nodes": wanted.least,
        "ntasks-per-node": 1,
        "cpus-per-task": launch.cpus_per_node,
        "mem": f"{launch.memory_gib_per_node}G",
        "time": _slurm_time(launch.time_limit_h),
        "output": "%x-%j.log",
        # Signal the script before the time limit. The script forwards the signal to the run, not to Ray's processes.
        "signal": "B:TERM@120",
    }
    if wanted.gpus:
        options["gpus-per-node"] = wanted.gpus
    options |= {key: value for key in ("partition", "account") if (value := getattr(launch, key))}
    header = "".join(f"#SBATCH --{key}={value}\n" for key, value in options.items())
    resources = f"--num-cpus={launch.cpus_per_node} --num-gpus={wanted.gpus}"
    run_line = command(config, '"$SLURM_SUBMIT_DIR/conf"', resume, program="python3 -m hamr", given=given)
    script = f"""\
#!/usr/bin/env bash
{header}
# Submit from the folder of this file: sbatch job.sbatch. The nodes have to see that folder, and the python3 on
# their PATH needs hamr installed. If there is a folder {WORK}/ next to this file, it is the job's working folder.
set -euo pipefail
umask 077
# The token is passed in the environment: on a command line every user of a node could read it.
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$(python3 -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN
unset RAY_ADDRESS
# Slurm's steps do not inherit this from the job.
export SRUN_CPUS_PER_TASK=${{SLURM_CPUS_PER_TASK:-{launch.cpus_per_node}}}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${{nodes[0]}}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{{print $1}}')
port=$((20000 + SLURM_JOB_ID % 20000))
[[ ! -d {WORK} ]] || cd {WORK}

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \\
  ray start --head --node-ip-address="$address" --port="$port" --include-dashboard=false {resources} --block &
for _ in {{1..300}}; do
  (exec 3<>"/dev/tcp/$address/$port") 2>/dev/null && break
  sleep 1
done
if (( ${{#nodes[@]}} > 1 )); then
  srun --nodes=$((${{#nodes[@]}} - 1)) --ntasks=$((${{#nodes[@]}} - 1)) --exclude="$head" --overlap \\
    ray start --address="$address:$port" {resources} --block &
fi
# Wait for all nodes: hamr refuses a cluster that is too small for the run.
python3 - "$address:$port" "${{#nodes[@]}}" <<'END'
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False)
end = time.monotonic() + 600
while (there := sum(node["Alive"] for node in ray.nodes())) < int(sys.argv[2]):
    if time.monotonic() > end:
        sys.exit(f"{{there}} of {{sys.argv[2]}} nodes have joined in ten minutes")
    time.sleep(1)
END
# Not in the configuration: a resumed run in another job has another address.
export RAY_ADDRESS="$address:$port"
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \\
  {run_line} &
run=$!
trap 'kill -TERM "$run"' TERM
code=0
wait "$run" || code=$?
# A signal ends the first wait before the run has ended.
if kill -0 "$run" 2>/dev/null; then
  code=0
  wait "$run" || code=$?
fi
exit "$code"
"""
    return {"job.sbatch": script, CONFIG_FILE: experiment_file(config, f"runs/{name_of(config)}")}


def _slurm_time(hours: float) -> str:
    minutes = math.ceil(hours * 60)
    return f"{minutes // 60}:{minutes % 60:02d}:00"


def plain(config: Config, resume: str | None = None, given: GivenCommand | None = None) -> dict[str, str]:
    """Return `head.sh`, `worker.sh` (for each other machine, with the head's address) and `train.sh` (for the head)."""
    launch, wanted = config.launch, given.nodes if given is not None else nodes(config)
    resources = f"--num-cpus={launch.cpus_per_node} --num-gpus={wanted.gpus}"
    token = """\
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
if [[ -z ${RAY_AUTH_TOKEN:-} && ! -s ${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token} ]]; then
  echo "no token: run 'ray get-auth-token --generate' once and copy ~/.ray/auth_token to every machine" >&2
  exit 2
fi
"""
    return {
        "head.sh": f"""\
#!/usr/bin/env bash
# Starts the head. usage: ./head.sh IP_OF_THIS_MACHINE    ({wanted.least} machines in all, this one included)
set -euo pipefail
ip=${{1:?usage: head.sh IP_OF_THIS_MACHINE}}
{token}exec ray start --head --node-ip-address="$ip" --port=6379 --dashboard-host=127.0.0.1 {resources} --block
""",
        "worker.sh": f"""\
#!/usr/bin/env bash
# Joins the cluster. usage: ./worker.sh IP_OF_THE_HEAD
set -euo pipefail
ip=${{1:?usage: worker.sh IP_OF_THE_HEAD}}
{token}exec ray start --address="$ip:6379" {resources} --block
""",
        "train.sh": f"""\
#!/usr/bin/env bash
# Runs the job from the head, in the folder of this file. usage: ./train.sh [overrides]
set -euo pipefail
cd "$(dirname "$0")"
{token}exec {command(config, "conf", resume, given=given)} "$@"
""",
        CONFIG_FILE: experiment_file(config, f"runs/{name_of(config)}"),
    }
