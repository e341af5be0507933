"""Does a slow judge slow down training? Step time against the judge's latency, synchronous and asynchronous.

    python benchmarks/asynchronous.py                                    # latencies 0 to 40 s; ages 0 and 2
    python benchmarks/asynchronous.py --latencies 0 5 --ages 0 1 2 4 --prompts 8

The judge is a local server with an OpenAI-compatible API that sleeps before each answer: lognormal with the given mean
and sigma 0.5, and a reward that depends on the question alone, so that groups have signal. Every response is judged
(`rewards.consistency.mode=soft_judge`). The policy is SmolLM2-135M after a few steps of SFT, which are run once. Each
setting is a whole `hamr train`; its first steps (`max_policy_age` + 1) fill the pipeline, its last `max_policy_age`
ones start no groups, and both are left out. What a latency costs depends on the time of a step: a group has
`max_policy_age` steps for its slowest response. Writes benchmarks/results/asynchronous_<prompts>.json and prints a
table in Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import math
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from results_json import write_results

from hamr.apps.shared.machine import machine, versions
from hamr.telemetry.metrics import read_metrics

HERE = Path(__file__).resolve().parent
SIGMA = 0.5
PHASES = ("total", "rollout_score", "train", "sync")


class SlowJudge:
    """OpenAI-compatible server on a thread of its own. Answers after a lognormal sleep with mean `latency_s`."""

    def __init__(self) -> None:
        self.latency_s = 0.0
        self.asked = 0
        self._loop = asyncio.new_event_loop()

    @contextlib.contextmanager
    def serve(self) -> Iterator[str]:
        """Serve while the body runs. Yields the URL."""
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        listening = asyncio.start_server(self._answer, "127.0.0.1", 0, backlog=4096)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length:")[2].split("\r\n")[0])
                body = await reader.readexactly(length)
                self.asked += 1
                if self.latency_s:
                    await asyncio.sleep(random.lognormvariate(math.log(self.latency_s) - SIGMA**2 / 2, SIGMA))
                answer = json.dumps(verdict(body)).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                    + f"Content-Length: {len(answer)}\r\n\r\n".encode()
                    + answer
                )
                await writer.drain()
        writer.close()


def verdict(question: bytes) -> dict[str, Any]:
    """Return a chat completion whose P(Yes) is a hash of the question."""
    yes = 0.05 + 0.9 * hashlib.sha256(question).digest()[0] / 255
    likely = [
        {"token": token, "logprob": math.log(p), "bytes": None}
        for token, p in ((" Yes", yes), (" Part", (1 - yes) / 2), (" No", (1 - yes) / 2))
    ]
    said = [(token, likely if token == " Yes" else []) for token in ("Verdict", ":", " Yes")]
    content = [{"token": token, "logprob": -0.1, "bytes": None, "top_logprobs": top} for token, top in said]
    message = {"role": "assistant", "content": "Verdict: Yes"}
    choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": content}}
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


def settings(url: str, folder: Path, steps: int, args: argparse.Namespace) -> list[str]:
    """Return the overrides of every run."""
    given = {
        "experiment": "smollm2",
        "experiment.run_dir": folder,
        "experiment.steps": steps,
        "experiment.prompts_per_step": args.prompts,
        "experiment.eval_every": 0,
        "experiment.checkpoint.every": 1000,
        "algorithm.dynamic_sampling.enabled": "false",
        "algorithm.all_wrong.reference": "false",
        "scorers.check_every": 0,
        "scorers.accept_chance": "true",
        "scorers.on_alarm": "warn",
        "pools": "tiny",
        "pools.judge.type": "openai",
        "pools.judge.endpoint": url,
        "pools.judge.model": "scripted",
        "pools.judge.max_ongoing_requests": 4096,
        "pools.judge.deadline_s": 300,
        "router.deadline_s": 600,
        "rewards": "hybrid",
        "rewards.consistency.mode": "soft_judge",
        "data.max_eval": 2,
    }
    return [f"{key}={value}" for key, value in given.items()] + args.overrides


def train(overrides: list[str], log: Path) -> None:
    """Run `hamr train`. Its output goes to `log`."""
    with log.open("w") as output:
        done = subprocess.run([sys.executable, "-m", "hamr", "train", *overrides], stdout=output, stderr=output)
    if done.returncode:
        raise SystemExit(f"hamr train failed, see {log}")


def measure(folder: Path, age: int) -> dict[str, float]:
    """Return a run's mean seconds of each phase, its largest policy age, and how many groups were stale."""
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["stage"] == "rl"]
    rows = rows[age + 1 : len(rows) - age]
    found = {phase: fmean(row[f"timing/step/{phase}"] for row in rows) for phase in PHASES}
    stale = [row.get("rollout/stale_groups", 0.0) for row in rows]
    oldest = max(row["rollout/policy_age/max"] for row in rows)
    responses = sum(row["rollout/responses"] for row in rows)
    return {**found, "policy_age_max": oldest, "stale_groups": sum(stale), "responses": responses, "steps": len(rows)}


def markdown(found: dict[str, dict[str, float]]) -> str:
    lines = ["| latency | max_policy_age | step | waits | trains | against latency 0 |", "|---|---|---|---|---|---|"]
    for name, own in found.items():
        latency, _, age = name.partition("/")
        base = found.get(f"0/{age}")
        ratio = f"{own['total'] / base['total']:.2f}" if base else ""
        lines.append(
            f"| {latency} s | {age} | {own['total']:.1f} s | {own['rollout_score']:.1f} s | {own['train']:.1f} s | "
            f"{ratio} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latencies", type=int, nargs="+", default=[0, 1, 5, 20, 40], help="means in seconds")
    parser.add_argument("--ages", type=int, nargs="+", default=[0, 2], help="values of max_policy_age")
    parser.add_argument("--steps", type=int, default=4, help="measured steps of each run")
    parser.add_argument("--prompts", type=int, default=64, help="prompts per step, with 8 responses each")
    parser.add_argument("--out", type=Path, default=Path("runs/asynchronous"), help="folder of the runs")
    parser.add_argument("overrides", nargs="*", help="further key=value for every run")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    judge, found = SlowJudge(), {}
    with judge.serve() as url:
        start = args.out / "sft"
        if not (start / "summary.json").is_file():
            train([*settings(url, start, 0, args), "experiment.sft.steps=30"], args.out / "sft.log")
        policy = f"model.path={start.absolute() / 'checkpoints' / 'step_0' / 'policy'}"
        for latency in args.latencies:
            for age in args.ages:
                judge.latency_s = latency
                folder = args.out / f"{latency}_{age}"
                own = [policy, "experiment.sft.steps=0", f"experiment.asynchrony.max_policy_age={age}"]
                if not (folder / "summary.json").is_file():
                    given = settings(url, folder, args.steps + 2 * age + 1, args)
                    train([*given, *own], args.out / f"{latency}_{age}.log")
                found[f"{latency}/{age}"] = measure(folder, age)
                head = {"sigma": SIGMA, "prompts": args.prompts, "overrides": args.overrides}
                head |= {"machine": machine(), "versions": versions()}
                results = HERE / "results" / f"asynchronous_{args.prompts}.json"
                write_results(results, {**head, "runs": found})
    print(markdown(found))


if __name__ == "__main__":
    main()
