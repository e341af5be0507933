"""Load of the pools of a recipe: a scripted teacher of 200 ms, 64 concurrent questions, against the ideal time.

    python benchmarks/recipe_speed.py                     # 10,000 items, 31 s of ideal time, at most 1.15 of it
    python benchmarks/recipe_speed.py --items 2000        # a busy machine
    python benchmarks/recipe_speed.py --teachers 2        # shared among two teachers of 32 each
    python benchmarks/recipe_speed.py --steps 2           # a teacher, then a judge of the same size and speed

Ideal: every pool has its full number of questions under way from the first moment to the last of the longest one.
What is measured is the runner's own part: handing out items, keeping texts, writing each finished item to the progress
file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import tempfile
import time
from pathlib import Path

from hamr.apps.data.recipes.runner import Desk, Pools, run_recipe
from hamr.apps.data.recipes.teachers import Teacher, Teachers
from hamr.data.progress import ItemResult, WorkItem, WorkProgress, item_key
from hamr.types import Answer, Question

TEXT = "I look the order up with the tool, since its state decides what can still be changed. " * 12


async def measure(items: int, latency_s: float, at_once: int, teachers: int, steps: int, folder: Path) -> float:
    """Seconds for all items. With two steps twice as many items may be under way: one pool's worth in each."""

    async def ask(question: Question) -> Answer:
        await asyncio.sleep(latency_s)
        return Answer(text=TEXT)

    async def make(item: WorkItem, desk: Desk) -> ItemResult:
        text = await desk.teacher("write", Question(prompt="x.en", affinity=item.id))
        for _ in range(steps - 1):
            await desk.verdict("judge", Question(prompt="x.en", affinity=item.id))
        return ItemResult(kept={"text": text})

    todo = [WorkItem(id=f"i{n}", key=item_key(n), content=n) for n in range(items)]
    share = {f"t{n}": Teacher(ask=ask, capacity=at_once // teachers) for n in range(teachers)}
    progress = WorkProgress.of(folder / "progress.jsonl", todo)
    pools = Pools(teachers=Teachers(share), judge=ask)
    started = time.monotonic()
    await run_recipe(todo, make, pools, progress, at_once=at_once * steps)
    took = time.monotonic() - started
    assert len(WorkProgress.of(folder / "progress.jsonl", todo).done) == items, "every item has its row"
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds an answer takes")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--teachers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1, choices=(1, 2))
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        took = asyncio.run(
            measure(given.items, given.latency, given.at_once, given.teachers, given.steps, Path(folder))
        )
    ideal = (math.ceil(given.items / given.at_once) + given.steps - 1) * given.latency
    settings = {name: getattr(given, name) for name in ("items", "latency", "at_once", "teachers", "steps")}
    result = {**settings, "ideal_s": round(ideal, 2), "took_s": round(took, 2), "ratio": round(took / ideal, 3)}
    print(json.dumps(result))
    if given.output:
        given.output.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
