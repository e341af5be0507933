"""Order of the customers of `env=sage` by the policy's failures."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from hamr.data.stream import PromptStream
from hamr.types import ServiceSample, derive_seed

FLOOR = 0.1
"""Least weight of a path, so that one without failures is not forgotten."""
MEMORY = 0.8
"""Share of the old mean in the running mean of a path's scores."""
LEVEL = "adversity"
"""Key of a customer's adversarial level in `meta`, set by `env.levels`."""


class Curriculum(PromptStream):
    """Stream that draws the path of each customer, and takes the customers of a path in the order of a PromptStream.

    The weight of a path is 1 minus the running mean of the policy's scores on it, at least FLOOR. A path without a
    score has weight 1.
    """

    def __init__(self, samples: Sequence[ServiceSample], seed: int, state: Mapping[str, Any] | None = None) -> None:
        super().__init__(samples, seed)
        state = state or {"drawn": 0, "scores": {}, "paths": {}}
        by_path: dict[str, list[ServiceSample]] = {}
        for sample in samples:
            by_path.setdefault(customer_path(sample), []).append(sample)
        self._streams = {
            path: PromptStream(own, derive_seed(seed, path), state["paths"].get(path)) for path, own in by_path.items()
        }
        self._drawn, self._scores = int(state["drawn"]), dict(state["scores"])

    @property
    def weights(self) -> dict[str, float]:
        return {path: max(FLOOR, 1.0 - self._scores.get(path, 0.0)) for path in self._streams}

    def take(self, n: int) -> list[ServiceSample]:
        weights, taken = self.weights, []
        for _ in range(n):
            rng = random.Random(f"{self._seed}/path/{self._drawn}")
            [path] = rng.choices(list(weights), list(weights.values()))
            taken += self._streams[path].take(1)
            self._drawn += 1
        return taken

    def learn(self, sample: ServiceSample, score: float) -> None:
        path = customer_path(sample)
        before = self._scores.get(path)
        self._scores[path] = score if before is None else MEMORY * before + (1 - MEMORY) * score

    def state(self) -> dict[str, Any]:
        paths = {path: stream.state() for path, stream in self._streams.items()}
        return {"drawn": self._drawn, "scores": dict(self._scores), "paths": paths}


def customer_path(sample: ServiceSample) -> str:
    """Return the procedure, the stages and the last action of the customer's case, and its adversarial level if any."""
    case, level = sample.privileged["case"], sample.meta.get(LEVEL)
    path = f"{sample.meta['scenario']}/{'-'.join((*case['path'], case['action']))}"
    return f"{path}/{level}" if level else path
