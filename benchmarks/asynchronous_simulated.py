"""Step times of synchronous, asynchronous and oversampled training, by the real controller on a simulated clock.

    python benchmarks/asynchronous_simulated.py
    python benchmarks/asynchronous_simulated.py --surplus

hamr.controller and hamr.experience run as in training; engines, scorers and trainer are queues that sleep on a clock
which jumps to the next event (simulated_time.py). The setting has the first paper's proportions: 8 engines, responses
of 500 tokens (lognormal, sigma 0.9, at most 2048), 4 rerankers that answer n questions in 0.15 + 0.012 n s, 2 judges
that take 12 + 0.18 n s and see 35 % of the replies, 40 % of the groups without signal, 45 s of training and 4 s for
the weights. In the second table every reply goes to a judge behind an endpoint of any size, with a lognormal latency
(sigma 0.5). Writes
benchmarks/results/asynchronous_simulated.json and prints both tables in Markdown. With --surplus, it compares aborting
the surplus of an oversampled step with keeping it, in step time and in the length of the responses that are trained on,
and writes benchmarks/results/surplus_simulated.json.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import simulated_time  # noqa: E402
from results_json import write_results  # noqa: E402

from hamr.algorithms.batch import BatchBuilder  # noqa: E402
from hamr.apps.shared.machine import versions  # noqa: E402
from hamr.config.algorithm import AlgorithmConfig, DynamicSamplingConfig  # noqa: E402
from hamr.config.experiment import ExperimentConfig  # noqa: E402
from hamr.config.schema import RolloutConfig  # noqa: E402
from hamr.controller import Controller  # noqa: E402
from hamr.data.stream import PromptStream  # noqa: E402
from hamr.experience import Experience  # noqa: E402
from hamr.protocols import GenerationRequest  # noqa: E402
from hamr.rollout.dispatch import Dispatcher, Placement  # noqa: E402
from hamr.types import (  # noqa: E402
    Component,
    Reference,
    Reply,
    RewardRecord,
    Rollout,
    SampleKey,
    Scored,
    ServiceSample,
    TrainBatch,
    VersionSpan,
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Simulated settings: times in seconds, lengths in tokens."""

    prompts: int = 64
    samples: int = 16
    engines: int = 8
    slots: int = 64
    token_s: float = 0.02
    tokens: float = 500.0
    sigma: float = 0.9
    most_tokens: int = 2048
    rerankers: int = 4
    judges: int | None = 2
    """Judges that share their time among their questions; None: an endpoint of any size, with `latency_s`."""
    latency_s: float = 0.0
    judged_frac: float = 0.35
    dropped_frac: float = 0.4
    train_s: float = 45.0
    sync_s: float = 4.0


@dataclass
class Station:
    """Replicas that answer a batch of n questions in `fixed_s` + n x `each_s`; a new batch starts when one is done."""

    replicas: int
    fixed_s: float
    each_s: float
    largest: int
    waiting: asyncio.Queue[asyncio.Future[None]] = field(default_factory=asyncio.Queue)

    async def ask(self) -> None:
        answer = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait(answer)
        await answer

    async def serve(self) -> None:
        """Answer questions forever. Run one per replica."""
        while True:
            batch = [await self.waiting.get()]
            while not self.waiting.empty() and len(batch) < self.largest:
                batch.append(self.waiting.get_nowait())
            await asyncio.sleep(self.fixed_s + self.each_s * len(batch))
            for answer in batch:
                if not answer.done():
                    answer.set_result(None)


class World:
    """Engine, rewarder, trainer, weights and recorder of one simulated run."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self.seed, self.version = setting, seed, 0
        self.places = [asyncio.Semaphore(setting.slots) for _ in range(setting.engines)]
        self.dispatcher = Dispatcher(setting.engines, setting.slots)
        self.reranker = Station(setting.rerankers, 0.15, 0.012, 64)
        self.judge = Station(setting.judges or 0, 12.0, 0.18, 64)
        self.servers = [
            asyncio.ensure_future(station.serve())
            for station in (self.reranker, self.judge)
            for _ in range(station.replicas)
        ]
        self.trained: list[float] = []

    def draw(self, *key: object) -> random.Random:
        return random.Random(f"{self.seed}/{key}")

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        done: asyncio.Queue[Rollout] = asyncio.Queue()
        tasks = [asyncio.ensure_future(self._serve(request, done)) for request in requests]
        try:
            for _ in (key for request in requests for key in request.keys):
                yield await done.get()
        finally:
            for task in tasks:
                task.cancel()

    async def _serve(self, request: GenerationRequest, done: asyncio.Queue[Rollout]) -> None:
        placement = await self.dispatcher.place(request)
        try:
            async with asyncio.TaskGroup() as group:
                for key in request.keys:
                    group.create_task(self._respond(placement, key, done))
        finally:
            self.dispatcher.free(placement, placement.left)

    async def _respond(self, placement: Placement, key: SampleKey, done: asyncio.Queue[Rollout]) -> None:
        async with self.places[placement.worker]:
            version = self.version
            mu = math.log(self.setting.tokens) - self.setting.sigma**2 / 2
            drawn = self.draw("tokens", key).lognormvariate(mu, self.setting.sigma)
            tokens = min(max(1, round(drawn)), self.setting.most_tokens)
            await asyncio.sleep(tokens * self.setting.token_s)
        self.dispatcher.free(placement)
        span = VersionSpan(version=version, start=0, end=1)
        done.put_nowait(
            Rollout(
                key=key,
                prompt_ids=(1,),
                token_ids=(1,) * tokens,
                logprobs=(),
                text="",
                finish_reason="stop",
                versions=(span,),
            )
        )

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        key, setting = rollout.key, self.setting
        await self.reranker.ask()
        if self.draw("judged", key).random() < setting.judged_frac:
            if setting.judges:
                await self.judge.ask()
            elif setting.latency_s:
                await asyncio.sleep(self.draw("latency", key).lognormvariate(math.log(setting.latency_s) - 0.125, 0.5))
        equal = self.draw("signal", key.step, key.prompt, key.attempt).random() < setting.dropped_frac
        value = 1.0 if equal else self.draw("reward", key).random()
        parts = (Component(name="consistency", outcome=Scored(value=value), weight=1.0),)
        return RewardRecord(key=key, total=Scored(value=value), components=parts, action=None, band="none")

    async def train(self, batch: TrainBatch) -> dict[str, float]:
        self.trained += [len(s.token_ids) for group in batch.groups for s in group.sequences]
        await asyncio.sleep(self.setting.train_s)
        return {}

    async def sync(self, version: int) -> dict[str, float]:
        await asyncio.sleep(self.setting.sync_s)
        self.version = version
        return {}

    async def save(self, folder: Path) -> None: ...

    def metrics(self, step: int, values: object) -> None: ...

    def samples(self, step: int, rows: object) -> None: ...

    def records(self, step: int, records: object) -> None: ...


async def simulate(setting: Setting, seed: int, *, age: int = 0, oversample: float = 1.0, steps: int = 12) -> dict:
    """Return the mean step time after a third of the steps, the tokens of a trained response, and stale groups."""
    world, loop = World(setting, seed), asyncio.get_running_loop()
    samples = [
        ServiceSample(
            id=f"p{i}", ticket={}, policy="", tools=(), history=(), references=(Reference(action=Reply(content="a")),)
        )
        for i in range(4000)
    ]
    prompts: Any = PromptStream(samples, seed)
    controller = Controller(
        run="simulated",
        experiment=ExperimentConfig(prompts_per_step=setting.prompts, seed=seed, steps=steps + 1),
        rollout=RolloutConfig(samples_per_prompt=setting.samples),
        encode=lambda sample: (1,),
        engine=world,
        rewarder=world,
        trainer=world,  # type: ignore[arg-type]
        weights=world,
        recorder=world,  # type: ignore[arg-type]
        batches=BatchBuilder(algorithm=AlgorithmConfig(), max_new_tokens=RolloutConfig().max_new_tokens, seed=seed),
    )
    if age or oversample > 1:
        controller.experience = Experience(
            controller.produce,
            controller.may_train,
            prompts,
            batch=setting.prompts,
            max_policy_age=age,
            oversample=oversample,
        )
    skipped, began, stale = steps // 3, 0.0, 0.0
    for step in range(1, steps + 1):
        if step == skipped + 1:
            began, world.trained = loop.time(), []
        metrics = await controller.step(step, prompts)
        stale += metrics.get("rollout/stale_groups", 0.0) if step > skipped else 0.0
    if controller.experience:
        await controller.experience.close()
    for server in world.servers:
        server.cancel()
    return {
        "step_s": (loop.time() - began) / (steps - skipped),
        "trained_tokens": mean(world.trained),
        "stale_groups": stale / (steps - skipped),
    }


ARMS = {
    "synchronous": {},
    "oversample 1.7": {"oversample": 1.7},
    "age 1": {"age": 1},
    "age 2": {"age": 2},
    "age 4": {"age": 4},
}
SETTINGS = {
    "64 x 16": Setting(),
    "64 x 16, 8 judges": Setting(judges=8),
    "64 x 16, heavier tail": Setting(sigma=1.3),
    "8 x 16, training 8 s": Setting(prompts=8, train_s=8.0),
}
LATENCIES = (0.0, 1.0, 5.0, 20.0, 40.0)
KEPT_AGE, KEPT_OVERSAMPLE = DynamicSamplingConfig(oversample=1.7, surplus="keep").bounds(0)
SURPLUS_ARMS = {
    "synchronous": {},
    "abort": {"oversample": 1.7},
    "keep": {"age": KEPT_AGE, "oversample": KEPT_OVERSAMPLE},
    "age 1": {"age": 1},
}
SURPLUS_SETTINGS = {
    "2 judges": Setting(prompts=8, train_s=8.0),
    "8 judges": Setting(prompts=8, train_s=8.0, judges=8),
    "endpoint, 5 s": Setting(prompts=8, train_s=8.0, judges=None, judged_frac=1.0, latency_s=5.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--surplus", action="store_true", help="compare aborting the surplus with keeping it")
    args = parser.parse_args()

    def figures(setting: Setting, arm: dict[str, Any]) -> dict[str, float]:
        runs = [simulated_time.run(simulate(setting, seed, **arm)) for seed in args.seeds]
        return {name: mean(run[name] for run in runs) for name in runs[0]}

    if args.surplus:
        rows = {
            name: {arm: figures(own, how) for arm, how in SURPLUS_ARMS.items()}
            for name, own in SURPLUS_SETTINGS.items()
        }
        found = {"seeds": args.seeds, "versions": versions(), "settings": rows}
        write_results(HERE / "results" / "surplus_simulated.json", found)
        print("\n| setting | " + " | ".join(SURPLUS_ARMS) + " |\n|" + "---|" * (len(SURPLUS_ARMS) + 1))
        for name, own in rows.items():
            cells = (f"{own[arm]['step_s']:.0f} s, {own[arm]['trained_tokens']:.0f} tokens" for arm in SURPLUS_ARMS)
            print(f"| {name} | " + " | ".join(cells) + " |")
        return
    shapes = {name: {arm: figures(own, how) for arm, how in ARMS.items()} for name, own in SETTINGS.items()}
    endpoint = {
        f"{latency:g} s": {
            arm: figures(Setting(judges=None, judged_frac=1.0, latency_s=latency), how) for arm, how in ARMS.items()
        }
        for latency in LATENCIES
    }
    found = {"seeds": args.seeds, "versions": versions(), "settings": shapes, "endpoint": endpoint}
    write_results(HERE / "results" / "asynchronous_simulated.json", found)
    for title, rows in (("setting", shapes), ("latency of the endpoint", endpoint)):
        print(f"\n| {title} | " + " | ".join(ARMS) + " |\n|" + "---|" * (len(ARMS) + 1))
        for name, own in rows.items():
            print(f"| {name} | " + " | ".join(f"{own[arm]['step_s']:.0f} s" for arm in ARMS) + " |")
    plain = shapes["64 x 16"]
    print("\ntokens of a trained response:", {arm: round(own["trained_tokens"]) for arm, own in plain.items()})


if __name__ == "__main__":
    main()
