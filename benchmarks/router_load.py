"""Throughput of one router, and the time that it adds to the scorers'.

    python benchmarks/router_load.py                    # in process, and through an actor on a local Ray
    python benchmarks/router_load.py --only core --profile

Scorers answer immediately, so that all that is measured is the router's own: parsing, matching, rules, the cascade,
records. Then responses arrive at random times at given rates, scorers take as long as keeps `--at-once` responses in
flight at that rate, and what the router adds to the scorers' time is measured. benchmarks/README.md says how to read
it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import hashlib
import json
import os
import pstats
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from calibration import machine  # noqa: E402
from results_json import write_results  # noqa: E402

from hamr.cascade.router import RewardRouter  # noqa: E402
from hamr.config.pools import RouterConfig  # noqa: E402
from hamr.config.rewards import RewardsConfig  # noqa: E402
from hamr.garbage import collect_rarely  # noqa: E402
from hamr.pools.router_actor import CONCURRENT_CALLS, YOUNG_OBJECTS, RouterActor, RouterClient  # noqa: E402
from hamr.pools.router_calls import ScoringStream  # noqa: E402
from hamr.protocols import Ask  # noqa: E402
from hamr.types import (  # noqa: E402
    Answer,
    Question,
    Reference,
    ReferenceScore,
    Reply,
    RewardRecord,
    Rollout,
    SampleKey,
    ScorerCall,
    ServiceSample,
    Turn,
    VersionSpan,
)

GOAL = 2000.0
TOKENS = 64
SAID = "I can move you to the smaller package from the first of next month, shall I do that for you now?"
Score = Callable[[ServiceSample, Rollout], Awaitable[RewardRecord]]
Figures = dict[str, float]


async def instant(question: Question) -> Answer:
    """A score that the number in the response decides: two in three replies also go to the judge."""
    number = int(question.variables["statement_b"].rsplit(" ", 1)[1])
    call = ScorerCall(
        pool="p",
        model="instant",
        prompt_version="1",
        replica="r",
        queue_s=0.0,
        service_s=0.0,
        prompt_tokens=300,
        output_tokens=1,
    )
    return Answer(score=number % 100 / 100, verdict="part", label_mass=1.0, call=call)


def scorer_s(scale: float, role: str, reference: str, response: str) -> float:
    """Return the seconds that a slow scorer takes for a question: 0.06 to 0.18 by its texts, times `scale`."""
    digest = hashlib.sha256(f"{role} {reference} {response}".encode()).digest()
    return scale * (0.06 + 0.12 * int.from_bytes(digest[:4]) / 2**32)


async def slow(scale: float, role: str, question: Question) -> Answer:
    """Answer as `instant` does, after `scorer_s`."""
    await asyncio.sleep(scorer_s(scale, role, question.variables["statement_a"], question.variables["statement_b"]))
    return await instant(question)


def work(groups: int, responses: int) -> list[tuple[ServiceSample, Rollout]]:
    """Replies, all different, to dialogues of six turns and two references."""
    turns = [Turn(role="customer" if i % 2 == 0 else "agent", content=f"{SAID} {i}") for i in range(5)]
    found = []
    for g in range(groups):
        sample = ServiceSample(
            id=f"p{g}",
            ticket={"Penalty": 40, "PackageStatus": "active"},
            policy="Name the fee before you change an order. " * 20,
            tools=({"name": "change_order", "parameters": {"type": "object"}},),
            history=(*turns, Turn(role="customer", content=f"Move me to the 50GB plan, number {g}.")),
            references=tuple(Reference(action=Reply(content=f"{SAID} {i}")) for i in range(2)),
        )
        for i in range(responses):
            number = g * responses + i
            found.append((sample, _rollout(g, i, number, responses)))
    return found


def _rollout(group: int, response: int, number: int, responses: int) -> Rollout:
    return Rollout(
        key=SampleKey(run="load", step=1, prompt=f"p{group}", sample=response),
        prompt_ids=tuple(range(400)),
        token_ids=tuple(range(TOKENS)),
        logprobs=(-0.5,) * TOKENS,
        text=f"{SAID} {number}",
        finish_reason="stop",
        versions=(VersionSpan(version=3, start=0, end=TOKENS),),
        siblings=responses,
    )


def rewards() -> RewardsConfig:
    side = {name: {"weight": 0.1} for name in ("format", "length", "rules")}
    return RewardsConfig.model_validate(side)


def core(scale: float = 0.0) -> RewardRouter:
    pools: dict[str, Ask] = {role: partial(slow, scale, role) if scale else instant for role in ("reranker", "judge")}
    return RewardRouter(rewards(), pools, count_tokens=lambda text: len(text.split()), deadline_s=60.0)


class InstantRouter(RouterActor):
    """The actor without Serve behind it: its scorers are in its own process."""

    def __init__(self, scale: float = 0.0) -> None:
        self.functions, self.pools, self.router = {}, {}, core(scale)
        self.streams = defaultdict(lambda: ScoringStream(self._score))
        collect_rarely(young=YOUNG_OBJECTS)

    async def cpu_s(self) -> float:
        return time.process_time()


async def load(score: Score, asked: Sequence[tuple[ServiceSample, Rollout]], at_once: int) -> dict[str, float]:
    """Responses per second with `at_once` on their way, and seconds each, one after the other (`latency`)."""
    free = asyncio.Semaphore(at_once)

    async def one(pair: tuple[ServiceSample, Rollout]) -> RewardRecord:
        async with free:
            return await score(*pair)

    started, cpu = time.perf_counter(), time.process_time()
    records = await asyncio.gather(*map(one, asked))
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert all(record.total.ok for record in records), "an instant scorer never fails"
    return {"responses": len(records), "per_s": len(records) / wall, "per_cpu_s": len(records) / cpu}


async def latency(score: Score, asked: Sequence[tuple[ServiceSample, Rollout]]) -> dict[str, float]:
    """Milliseconds that one response takes with no other in flight."""
    took = []
    for pair in asked:
        started = time.perf_counter()
        await score(*pair)
        took.append(1000.0 * (time.perf_counter() - started))
    took.sort()
    return {"p50_ms": took[len(took) // 2], "p99_ms": took[int(len(took) * 0.99)]}


async def added(score: Score, asked: Sequence[tuple[ServiceSample, Rollout]], rate: float, scale: float) -> Figures:
    """Milliseconds of each response beyond its scorers' time, with `rate` arrivals per second at random times.

    The first tenth of the responses, while the number in flight rises, does not count.
    """
    rng = random.Random(0)
    extra, inside, flying = [], [], 0

    async def one(sample: ServiceSample, rollout: Rollout, due: float) -> None:
        nonlocal flying
        flying += 1
        inside.append(flying)
        record = await score(sample, rollout)
        flying -= 1
        waited = max(_waited(scale, sample, rollout, s) for s in record.reference_scores)
        extra.append(1000.0 * (time.perf_counter() - due - waited))

    async with asyncio.TaskGroup() as tasks:
        started = due = time.perf_counter()
        for pair in asked:
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            # A response that starts late because the process is busy has waited since it was due.
            tasks.create_task(one(*pair, due))
    reached = len(asked) / (time.perf_counter() - started)
    counted = sorted(extra[len(extra) // 10 :])
    steady = inside[len(inside) // 10 :]
    return {
        "per_s": rate,
        "reached_per_s": reached,
        "in_flight": sum(steady) / len(steady),
        "added_p50_ms": counted[len(counted) // 2],
        "added_p99_ms": counted[int(len(counted) * 0.99)],
    }


def scale_for(args: argparse.Namespace, rate: float) -> float:
    """Return the factor of the scorers' times with which `rate` responses per second keep `--at-once` in flight."""
    asked = work(8, args.responses)
    rewards = asyncio.run(_records(asked))
    seconds = [
        max(_waited(1.0, *pair, s) for s in record.reference_scores)
        for pair, record in zip(asked, rewards, strict=True)
    ]
    return args.at_once / rate / (sum(seconds) / len(seconds))


async def _records(asked: Sequence[tuple[ServiceSample, Rollout]]) -> list[RewardRecord]:
    router = core()
    return await asyncio.gather(*(router.score(*pair) for pair in asked))


def _waited(scale: float, sample: ServiceSample, rollout: Rollout, score: ReferenceScore) -> float:
    """Return the seconds of the scorers of one reference: the reranker, and then the judge if it was asked."""
    reference = sample.references[score.reference].action
    assert isinstance(reference, Reply)
    roles = ["reranker"] if score.s_j is None else ["reranker", "judge"]
    return sum(scorer_s(scale, role, reference.content, rollout.text) for role in roles)


async def in_process(args: argparse.Namespace, scales: Mapping[float, float]) -> dict[str, Any]:
    collect_rarely(young=YOUNG_OBJECTS)  # as the actor
    asked = work(args.groups, args.responses)
    await load(core().score, asked[:64], 64)
    quick: dict[str, Any] = await load(core().score, asked, args.at_once)
    quick |= await latency(core().score, asked[: args.alone])
    busy = work(4 * args.groups, args.responses)
    return quick | {"busy": [await added(core(scale).score, busy, rate, scale) for rate, scale in scales.items()]}


async def through_actor(args: argparse.Namespace, scales: Mapping[float, float]) -> dict[str, Any]:
    """The same through Ray, asked by the driver's own client."""
    import ray

    collect_rarely()  # as `hamr` does

    remote = ray.remote(InstantRouter).options(num_cpus=0.1, max_concurrency=CONCURRENT_CALLS)
    actor = remote.remote()
    await actor.ready.remote()
    client = RouterClient(actor, RouterConfig(deadline_s=60.0))
    asked = work(args.groups, args.responses)
    await load(client.score, asked[:64], 64)
    # Other words: the actor remembers its scorers' answers.
    fresh = work(2 * args.groups, args.responses)[len(asked) :]
    before = await actor.cpu_s.remote()
    quick: dict[str, Any] = await load(client.score, fresh, args.at_once)
    quick["actor_per_cpu_s"] = len(fresh) / (await actor.cpu_s.remote() - before)
    alone = work(3 * args.groups, args.responses)[2 * len(asked) :][: args.alone]
    quick |= await latency(client.score, alone)
    quick["busy"] = []
    for rate, scale in scales.items():
        waiting = remote.remote(scale)
        await waiting.ready.remote()
        busy = RouterClient(waiting, RouterConfig(deadline_s=60.0))
        quick["busy"].append(await added(busy.score, work(4 * args.groups, args.responses), rate, scale))
        ray.kill(waiting)
    return quick


def on_ray(args: argparse.Namespace, scales: Mapping[float, float]) -> dict[str, Any]:
    import ray

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # As a run of hamr has it; Ray's own default lowers the priority.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with tempfile.TemporaryDirectory(prefix="hr", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=2, include_dashboard=False, _temp_dir=folder, object_store_memory=100 << 20, log_to_driver=False
        )
        try:
            return asyncio.run(through_actor(args, scales))
        finally:
            ray.shutdown()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("core", "actor"), help="one part; the other's figures in the file stay")
    parser.add_argument("--groups", type=int, default=128)
    parser.add_argument("--responses", type=int, default=16)
    parser.add_argument("--at-once", type=int, default=512)
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[250.0, 500.0, 1000.0, 1500.0], help="arrivals per second"
    )
    parser.add_argument("--alone", type=int, default=300, help="responses for the latency")
    parser.add_argument("--profile", action="store_true", help="what the time in process goes to; no figures kept")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "router_load.json")
    args = parser.parse_args(argv)
    scales = {rate: scale_for(args, rate) for rate in args.rates}
    if args.profile:
        with cProfile.Profile() as profile:
            asyncio.run(in_process(args, scales))
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        return
    out = json.loads(args.out.read_text()) if args.only and args.out.is_file() else {}
    out |= {"when": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "goal_per_s": GOAL}
    if args.only != "actor":
        out["core"] = asyncio.run(in_process(args, scales))
    if args.only != "core":
        out["actor"] = on_ray(args, scales)
    for part in ("core", "actor"):
        if part in out:
            rows = [out[part] | {"busy": None}, *out[part]["busy"]]
            for row in rows:
                figures = "  ".join(f"{name} {value:.4g}" for name, value in row.items() if value is not None)
                print(f"{part}: {figures}", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(args.out, out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
