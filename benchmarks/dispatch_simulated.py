"""Generation time of a step: requests dealt to the workers at its start, or dispatched when a slot gets free.

    python benchmarks/dispatch_simulated.py

hamr.rollout.dispatch runs as in training, in front of engines on a simulated clock (simulated_time.py). A step of an
engine with n responses takes 20 + 0.2 n ms and gives each a token; an uncached prompt token takes 0.2 ms. Dealing is a
dispatcher without limit of the slots: all requests are placed at the start, by the tokens that they may reach.

1. 64 prompts x 16 responses of 500 tokens (lognormal, at most 2,048) on engines with 32 slots.
2. With known remaining lengths of responses, where nothing waits: 12 x 16 responses per two workers with 256 slots.
3. Dialogues: 16 customers x 8 dialogues of 6 turns on 4 engines with 16 or 32 slots and 60,000 cached
   tokens. Turns are dispatched with and without regard to the worker that has the dialogue's earlier turns.

Writes benchmarks/results/dispatch_simulated.json and prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import simulated_time  # noqa: E402
from results_json import write_results  # noqa: E402

from hamr.apps.shared.machine import versions  # noqa: E402
from hamr.protocols import GenerationRequest, SamplingConfig  # noqa: E402
from hamr.rollout.dispatch import Dispatcher  # noqa: E402
from hamr.types import SampleKey  # noqa: E402

FIXED_S, EACH_S, PREFILL_S, CACHE_TOKENS = 0.02, 0.0002, 0.0002, 60_000
TOKENS, LONGEST = 500.0, 2048


@dataclass(eq=False)
class Engine:
    """Gives one token to each of at most `slots` responses per engine step. `slow` multiplies all times."""

    slots: int
    slow: float = 1.0
    running: list[list[Any]] = field(default_factory=list)
    waiting: list[tuple[float, int, object, asyncio.Future[None]]] = field(default_factory=list)
    cached: dict[object, int] = field(default_factory=dict)
    prefill_s: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def respond(self, tokens: float, prompt: int = 0, dialogue: object = None) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((tokens, prompt, dialogue, done))
        self.changed.set()
        await done

    @property
    def left(self) -> float:
        return sum(r[0] for r in self.running) + sum(w[0] for w in self.waiting)

    def _admit(self) -> float:
        """Start what has a slot. Return the seconds of its prefill."""
        seconds = 0.0
        while self.waiting and len(self.running) < self.slots:
            tokens, prompt, dialogue, done = self.waiting.pop(0)
            seconds += (prompt - self.cached.pop(dialogue, 0)) * PREFILL_S * self.slow
            self.cached[dialogue] = prompt
            while sum(self.cached.values()) > CACHE_TOKENS:
                self.cached.pop(next(iter(self.cached)))
            self.running.append([tokens, done])
        self.prefill_s += seconds
        return seconds

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while seconds := self._admit():
                await asyncio.sleep(seconds)
            self.changed.clear()
            step_s = (FIXED_S + EACH_S * len(self.running)) * self.slow
            began, least = loop.time(), min((r[0] for r in self.running), default=math.inf)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), None if math.isinf(least) else least * step_s)
            for response in self.running:
                response[0] -= (loop.time() - began) / step_s
            for _, done in (r for r in self.running if r[0] < 1e-6):
                done.set_result(None)
            self.running = [r for r in self.running if r[0] >= 1e-6]


class Homeless(Dispatcher):
    """Sends every turn to the worker with the fewest tokens under way."""

    def _choose(self, key: SampleKey, free: Sequence[int]) -> int:
        return super()._choose(SampleKey(run="", step=0, prompt="", sample=0), free)


class Clairvoyant(Dispatcher):
    """Knows how many tokens every response still gets."""

    engines: Sequence[Engine] = ()

    def _choose(self, key: SampleKey, free: Sequence[int]) -> int:
        return min(free, key=lambda i: self.engines[i].left)


def length(rng: random.Random, tokens: float, sigma: float, most: int) -> int:
    return min(most, max(1, round(rng.lognormvariate(math.log(tokens) - sigma**2 / 2, sigma))))


def asked(prompt: str, samples: Sequence[int], tokens: int, longest: int, turn: int = 0) -> GenerationRequest:
    keys = tuple(SampleKey(run="r", step=1, prompt=prompt, sample=i, turn=turn) for i in samples)
    sampling = SamplingConfig(max_new_tokens=longest)
    return GenerationRequest(prompt_ids=(1,) * tokens, keys=keys, seeds=(0,) * len(keys), sampling=sampling)


async def until_done(engines: Sequence[Engine], parts: Sequence[Any]) -> float:
    serving = [asyncio.ensure_future(engine.serve()) for engine in engines]
    await asyncio.gather(*parts)
    for task in serving:
        task.cancel()
    return asyncio.get_running_loop().time()


async def groups(
    seed: int,
    *,
    workers: int,
    slow: float = 1.0,
    sigma: float = 0.9,
    slots: int = 32,
    prompts: int = 64,
    samples: int = 16,
    in_flight: int | None = None,
    dealt: bool = False,
    dispatcher: type[Dispatcher] = Dispatcher,
) -> float:
    """Return the seconds until the last response. `in_flight`: groups of which one follows another."""
    engines = [Engine(slots, slow if i == 0 else 1.0) for i in range(workers)]
    desk = dispatcher(workers, 10**9 if dealt else slots)
    if isinstance(desk, Clairvoyant):
        desk.engines = engines
    room, rng = asyncio.Semaphore(in_flight or prompts), random.Random(seed)
    lengths = [[length(rng, TOKENS, sigma, LONGEST) for _ in range(samples)] for _ in range(prompts)]

    async def group(i: int) -> None:
        async with room:
            placement = await desk.place(asked(str(i), range(samples), 200, LONGEST))

            async def response(tokens: int) -> None:
                await engines[placement.worker].respond(tokens)
                desk.free(placement)

            await asyncio.gather(*map(response, lengths[i]))

    return await until_done(engines, [group(i) for i in range(prompts)])


async def dialogues(seed: int, *, slots: int, dispatcher: type[Dispatcher]) -> tuple[float, float]:
    """Return the seconds until the last turn, and the seconds of prefill in all engines."""
    engines = [Engine(slots) for _ in range(4)]
    desk = dispatcher(len(engines), slots)

    async def dialogue(customer: int, sample: int) -> None:
        rng = random.Random(f"{seed}/{customer}/{sample}")
        prompt = 800
        for turn in range(length(rng, 6, 0.6, 20)):
            tokens = length(rng, 80, 0.8, 256)
            placement = await desk.place(asked(str(customer), [sample], prompt, 256, turn))
            await engines[placement.worker].respond(tokens, prompt, (customer, sample))
            desk.free(placement)
            prompt += tokens + 60
            await asyncio.sleep(0.5 + rng.random())  # the customer

    spent = await until_done(engines, [dialogue(c, i) for c in range(16) for i in range(8)])
    return spent, sum(engine.prefill_s for engine in engines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()

    def seconds(**how: Any) -> float:
        return mean(simulated_time.run(groups(seed, **how)) for seed in args.seeds)

    rounds = {
        f"{workers} workers, {name}, sigma {sigma}": {
            "dealt_s": seconds(workers=workers, slow=slow, sigma=sigma, dealt=True),
            "dispatched_s": seconds(workers=workers, slow=slow, sigma=sigma),
        }
        for name, slow in (("equal", 1.0), ("one half as fast", 2.0))
        for sigma in (0.9, 1.3)
        for workers in (2, 4, 8)
    }
    free = {"slots": 256, "prompts": 200}
    known = {
        f"{workers} workers": {
            name: seconds(workers=workers, in_flight=6 * workers, dispatcher=kind, **free)
            for name, kind in (("longest_s", Dispatcher), ("left_s", Clairvoyant))
        }
        for workers in (2, 4, 8)
    }
    talks: dict[str, dict[str, float]] = {}
    kinds: tuple[tuple[str, Callable[..., Dispatcher]], ...] = (("any", Homeless), ("own", Dispatcher))
    for slots in (16, 32):
        talks[f"{slots} slots"] = own = {}
        for name, kind in kinds:
            runs = [simulated_time.run(dialogues(seed, slots=slots, dispatcher=kind)) for seed in args.seeds]
            own[f"{name}_s"], own[f"{name}_prefill_s"] = (mean(run[i] for run in runs) for i in (0, 1))
    found = {"seeds": args.seeds, "versions": versions(), "rounds": rounds, "known": known, "dialogues": talks}
    write_results(HERE / "results" / "dispatch_simulated.json", found)
    for title, rows in (("round", rounds), ("nothing waits", known), ("dialogues", talks)):
        names = list(next(iter(rows.values())))
        print(f"\n| {title} | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
        for name, row in rows.items():
            print(f"| {name} | " + " | ".join(f"{value:.0f} s" for value in row.values()) + " |")


if __name__ == "__main__":
    main()
