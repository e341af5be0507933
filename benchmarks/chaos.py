"""Kill random processes of a training run at random times, and compare what becomes of it with a calm run.

    python benchmarks/chaos.py --runs 4
    python benchmarks/chaos.py --runs 4 --add        # continue the same file
    python benchmarks/chaos.py --stops 20            # SIGTERM instead of kills

Each run is `hamr train experiment=smoke` with the real Ray, vLLM and DeepSpeed on random models. benchmarks/README.md
says what is killed and what is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from calibration import machine  # noqa: E402
from results_json import write_results  # noqa: E402

from hamr.files import read_jsonl  # noqa: E402
from hamr.telemetry.ledger import Ledger  # noqa: E402
from hamr.telemetry.live import LiveStatus  # noqa: E402
from hamr.telemetry.metrics import read_metrics  # noqa: E402
from hamr.types import Failure, RewardRecord  # noqa: E402

ACTORS = {
    "reranker": r"ray::ServeReplica:.*--reranker:",
    "judge": r"ray::ServeReplica:.*--judge:",
    "router": r"ray::RouterActor",
    "rollout worker": r"ray::RolloutWorker",
    "trainer rank": r"ray::TrainerRank",
}
"""Kind of process -> the title that Ray gives it."""
KINDS = (*ACTORS, "driver", "node")
"""`driver` is the run's main process. `node` is every process of the run, Ray and the supervisor of restarts too."""
PROMPTS, SAMPLES = 2, 2
COMPARED = ("reward/total/mean", "policy/loss", "policy/grad_norm", "policy/entropy", "rollout/tokens")
TOLERANCE = 1e-6
LIMIT_S = 600.0
"""Longest wait for the next step, for a process to be back, and for the end of a run. After it, the run hangs."""
MOST_ENDS = 20
"""Number of resumptions after which a run counts as one that hangs."""


class Hung(Exception):
    """A wait took longer than `LIMIT_S`, or the run ended more than `MOST_ENDS` times without a kill."""


class Watched:
    """A run and what is seen of it from outside."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.run, self.steps = folder, folder / "run", steps
        self.process: subprocess.Popen[bytes] | None = None
        self.read = 0
        """Lines of the error output that belong to earlier processes."""

    def start(self) -> None:
        """Start the run, or resume it where it has begun."""
        settings = {
            "experiment": "smoke", "experiment.run_dir": self.run, "experiment.steps": self.steps,
            "experiment.sft.steps": 4, "experiment.prompts_per_step": PROMPTS, "experiment.checkpoint.every": 1,
            "experiment.max_restarts": 100, "rollout.samples_per_prompt": SAMPLES, "logging.console": "false",
            "algorithm.dynamic_sampling.enabled": "false",
        }  # fmt: skip
        begun = (self.run / "config.yaml").is_file()
        words = [f"resume={self.run}"] if begun else [f"{key}={value}" for key, value in settings.items()]
        with (self.folder / "output").open("ab") as output, (self.folder / "errors").open("ab") as errors:
            command = [sys.executable, "-m", "hamr", "train", *words]
            self.process = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)

    def rows(self) -> list[dict[str, Any]]:
        file = self.run / "metrics.jsonl"
        return [row for row in read_metrics(file) if row["stage"] == "rl"] if file.is_file() else []

    def family(self) -> list[psutil.Process]:
        try:
            supervisor = psutil.Process(self.process.pid if self.process else 0)
            return [supervisor, *supervisor.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def find(self, kind: str) -> list[psutil.Process]:
        """Return the processes of a kind that run now."""
        family = self.family()
        if kind == "node":
            return family
        if kind == "driver":
            return [p for p in family[1:] if p.ppid() == family[0].pid and "hamr" in _title(p)]
        return [p for p in family if re.match(ACTORS[kind], _title(p))]

    def until(self, seen: Callable[[], bool]) -> None:
        """Wait for `seen` or the end of the process. Raises Hung after `LIMIT_S`."""
        started = time.monotonic()
        while not seen() and self.process is not None and self.process.poll() is None:
            if time.monotonic() - started > LIMIT_S:
                raise Hung
            time.sleep(0.05)

    def repeats(self) -> int:
        """Return the number of steps that were written again, by a resumed or restarted run."""
        file = self.run / "metrics.jsonl"
        rows = [row["step"] for row in read_jsonl(file) if row["stage"] == "rl" and COMPARED[0] in row]
        return len(rows) - len(set(rows))

    def errors(self) -> list[str]:
        file = self.folder / "errors"
        return file.read_text(errors="replace").splitlines() if file.is_file() else []

    def records(self) -> Iterator[RewardRecord]:
        with Ledger(self.run / "ledger.sqlite", readonly=True) as ledger:
            yield from (record for record in ledger.rows() if "/eval" not in record.key.run)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def disturb(seen: Watched, rng: random.Random, counts: Counter[str], pause_s: float) -> dict[str, Any]:
    """Run to the end under random kills. Return the kills, the ends of its processes and whether it hung."""
    kills: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    seen.start()
    try:
        while seen.process is not None:
            seen.until(_after(rng.uniform(0.0, pause_s)))
            kind = min(KINDS, key=lambda k: (counts[k], rng.random()))
            # A kind that is not there yet is waited for, so that kills also meet processes that start.
            seen.until(lambda kind=kind: bool(seen.find(kind)))
            killed = [] if seen.process.poll() is not None else seen.find(kind)
            if killed:
                kills.append(_kill_and_watch(seen, kind, killed, ends, calm=rng.random() < 2 / 3))
                counts[kind] += 1
            if len(seen.rows()) >= seen.steps or not killed:
                seen.until(lambda: False)
            if seen.process.poll() is None:
                continue
            if seen.process.returncode == 0:
                return {"kills": kills, "ends": [*ends, _end(seen)], "hung": False}
            ends.append(_resume(seen))
            if not killed and len(ends) > MOST_ENDS:
                raise Hung
    except Hung:
        for process in seen.family():
            _kill(process)
    return {"kills": kills, "ends": ends, "hung": True}


def _kill_and_watch(
    seen: Watched, kind: str, killed: Sequence[psutil.Process], ends: list[dict[str, Any]], *, calm: bool
) -> dict[str, Any]:
    """Kill the processes. If `calm`, wait until the run has finished a step and the kind of process is there again."""
    done, status, pids = len(seen.rows()), LiveStatus.read(seen.run), {process.pid for process in killed}
    for process in killed:
        _kill(process)
    kill: dict[str, Any] = {"kind": kind, "phase": status.phase if status else "", "steps": done}
    since = time.monotonic()
    if kind == "node" and seen.process is not None:
        seen.process.wait()
    # Every third kill is followed by the next one without a wait for the run's recovery.
    if not calm:
        return kill
    back: list[float] = []

    def recovered() -> bool:
        if not back and any(process.pid not in pids for process in seen.find(kind)):
            back.append(round(time.monotonic() - since, 1))
        return len(seen.rows()) > done

    seen.until(recovered)
    if seen.process is not None and seen.process.poll() is not None and len(seen.rows()) < seen.steps:
        ends.append(_resume(seen))
        seen.until(recovered)
    if len(seen.rows()) > done:
        kill["next_step_s"] = round(time.monotonic() - since, 1)
    seen.until(lambda: recovered() and bool(back))
    return kill | {"back_s": back[0]} if back else kill


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)


def _resume(seen: Watched) -> dict[str, Any]:
    """Start the run again after its end. Return how it ended."""
    end = _end(seen)
    seen.start()
    return end


def _end(seen: Watched) -> dict[str, Any]:
    """Return the exit code of the process and its number of lines since it was started or has restarted the run."""
    if seen.process is None:
        raise Hung
    try:
        code = seen.process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Hung from None
    lines = seen.errors()
    starts = [number + 1 for number, line in enumerate(lines) if "; restart " in line]
    end = {"code": code, "lines": len(lines) - max([seen.read, *starts])}
    seen.read = len(lines)
    return end


def stop_often(seen: Watched, rng: random.Random, stops: int, pause_s: float) -> list[dict[str, Any]]:
    """Run to the end, with SIGTERM to the whole process group at `stops` random times. Return how each stop went."""
    found: list[dict[str, Any]] = []
    while len(found) < stops and len(seen.rows()) < seen.steps:
        seen.start()
        seen.until((seen.run / "config.yaml").is_file)
        seen.until(_after(rng.uniform(0.0, pause_s)))
        family, status = seen.family(), LiveStatus.read(seen.run)
        if seen.process is None or seen.process.poll() is not None:
            break
        os.killpg(seen.process.pid, signal.SIGTERM)
        since = time.monotonic()
        end = _end(seen) | {"phase": status.phase if status else ""}
        _, left = psutil.wait_procs(family, timeout=LIMIT_S)
        end["seconds"] = round(time.monotonic() - since, 1)
        resume = f"continue with: hamr train resume={seen.run}" in "".join(seen.errors()[-1:])
        found.append(end | {"resume line": resume, "processes left": len(left)})
    seen.start()
    if code := _end(seen)["code"]:
        sys.exit(f"the stopped run ended with exit code {code}: {seen.errors()[-1:]}")
    return found


def summarise_stops(stops: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    seconds = [stop["seconds"] for stop in stops]
    return {
        "stops": len(stops),
        "exit code 0, one line with the resume command": sum(
            (stop["code"], stop["lines"], stop["resume line"]) == (0, 1, True) for stop in stops
        ),
        "processes left": sum(stop["processes left"] for stop in stops),
        "seconds": {"median": round(median(seconds), 1), "longest": max(seconds)},
        "over 10 s": sum(value > 10.0 for value in seconds),
    }


def compare(seen: Watched, calm: Watched) -> dict[str, Any]:
    """Compare the responses and steps in the files of the disturbed run with those of the calm one."""
    due = {(s.key.step, s.key.prompt, s.key.sample): s for s in calm.records()}
    found = [(r.key.step, r.key.prompt, r.key.sample, r) for r in seen.records()]
    keys = Counter((step, prompt, sample) for step, prompt, sample, _ in found)
    alike = sum(
        (r.response, r.total) == (due[k].response, due[k].total) for *key, r in found if (k := tuple(key)) in due
    )
    rows, calm_rows = seen.rows(), {row["step"]: row for row in calm.rows()}
    numbers = {row["step"] for row in rows}
    failed = {step: r.total for step, _, _, r in found if isinstance(r.total, Failure)}
    # A response without a reward leaves another policy. Steps after it cannot be those of the calm run.
    before = [row for row in rows if row["step"] in calm_rows and row["step"] < min(failed, default=math.inf)]
    gaps = [max(_gap(row.get(key), calm_rows[row["step"]].get(key)) for key in COMPARED) for row in before]
    return {
        "responses": {
            "due": len(due),
            "lost": len(due.keys() - keys.keys()),
            "twice": sum(count - 1 for count in keys.values()),
            "not due": len(keys.keys() - due.keys()),
            "without a reward": sum(isinstance(r.total, Failure) for *_, r in found),
            "as in the calm run": alike,
        },
        "failures": {str(step): f"{total.kind}: {total.detail}"[:200] for step, total in sorted(failed.items())},
        "steps": {
            "due": calm.steps,
            "lost": calm.steps - len(numbers),
            "repeated": seen.repeats(),
            "compared": len(gaps),
            "as in the calm run": sum(gap <= TOLERANCE for gap in gaps),
            "largest difference": max(gaps, default=math.inf),
        },
    }


def _gap(a: float | None, b: float | None) -> float:
    if a is None or b is None:
        return 0.0 if a is b else math.inf
    return abs(a - b) / max(1.0, abs(b))


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over all runs, and the times from a kill to the next step and until the process is back."""
    kills = [kill for run in runs for kill in run["kills"]]
    stops = [end["lines"] for run in runs for end in run["ends"] if end["code"] > 0]
    totals = {
        part: dict(sum((Counter({k: v for k, v in run[part].items() if type(v) is int}) for run in runs), Counter()))
        for part in ("responses", "steps")
    }
    zeros = {"responses": ("lost", "twice", "not due", "without a reward"), "steps": ("lost", "repeated")}
    return {
        "runs": len(runs),
        "finished": sum(not run["hung"] for run in runs),
        "kills": {"all": len(kills), **{kind: sum(k["kind"] == kind for k in kills) for kind in KINDS}},
        "lines that are not hamr's": sum(len(run["other_lines"]) for run in runs),
        **{part: dict.fromkeys(zeros[part], 0) | total for part, total in totals.items()},
        "stops": {"all": len(stops), "with one line": sum(lines == 1 for lines in stops)},
        "seconds to the next step": _times(kills, "next_step_s"),
        "seconds until the process is back": _times(kills, "back_s"),
    }


def _times(kills: Sequence[Mapping[str, Any]], key: str) -> dict[str, dict[str, float]]:
    times = {kind: [kill[key] for kill in kills if kill["kind"] == kind and key in kill] for kind in KINDS}
    return {kind: {"times": len(t), "median": round(median(t), 1), "longest": max(t)} for kind, t in times.items() if t}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--pause", type=float, default=6.0, help="longest pause between two kills, in seconds")
    parser.add_argument("--work", type=Path, help="folder that keeps the calm run; a temporary one if not given")
    parser.add_argument("--stops", type=int, default=0, help="SIGTERM so often to one run, and no kills")
    parser.add_argument("--add", action="store_true", help="add the runs to those of the results file")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "chaos.json")
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    former = json.loads(args.out.read_text()) if args.add and args.out.is_file() else {"runs": []}
    if former["runs"] and former["steps"] != args.steps:
        sys.exit(f"{args.out} has runs of {former['steps']} steps; give --steps {former['steps']} or another --out")
    with tempfile.TemporaryDirectory(prefix="hamr-chaos-") as aside:
        work = args.work or Path(aside)
        calm = Watched(work / f"calm-{args.steps}", args.steps)
        calm.folder.mkdir(parents=True, exist_ok=True)
        if len(calm.rows()) < args.steps:
            calm.start()
            if calm.process is None or calm.process.wait():
                sys.exit(f"the calm run failed: {calm.errors()[-3:]}")
        if (found := len({r.key for r in calm.records()})) != (due := args.steps * PROMPTS * SAMPLES):
            sys.exit(f"the calm run has {found} responses, not {due}")
        if args.stops:
            with tempfile.TemporaryDirectory(prefix="stops-", dir=work) as folder:
                seen = Watched(Path(folder), args.steps)
                try:
                    stops = stop_often(seen, random.Random(0), args.stops, 10 * args.pause)
                finally:
                    for process in seen.family():
                        _kill(process)
                found = {"sigterm": {"summary": summarise_stops(stops), "stops": stops, **compare(seen, calm)}}
            former = json.loads(args.out.read_text()) if args.out.is_file() else {}
            write_results(args.out, former | found)
            print(json.dumps(found, indent=1))
            return
        runs: list[dict[str, Any]] = former["runs"]
        for number in range(len(runs), len(runs) + args.runs):
            with tempfile.TemporaryDirectory(prefix=f"run-{number}-", dir=work) as folder:
                seen = Watched(Path(folder), args.steps)
                counts = Counter(kill["kind"] for run in runs for kill in run["kills"])
                try:
                    found = disturb(seen, random.Random(number), counts, args.pause)
                finally:
                    for process in seen.family():
                        _kill(process)
                other = [line[:300] for line in seen.errors() if line.strip() and not line.startswith("hamr: ")]
                runs.append({"seed": number, **found, **compare(seen, calm), "other_lines": other[:20]})
            known = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "steps": args.steps}
            args.out.parent.mkdir(exist_ok=True)
            found = known | {"summary": summarise(runs), "sigterm": former.get("sigterm"), "runs": runs}
            write_results(args.out, found)
            print(json.dumps(runs[-1], indent=1), flush=True)
    print(json.dumps(summarise(runs), indent=1))


if __name__ == "__main__":
    main()
