"""An endless, seeded, resumable order of the training samples. Resuming neither repeats nor skips a prompt."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from hamr.types import ServiceSample


class PromptStream:
    """Stream of samples over epochs, each in its own order drawn from (seed, epoch).

    >>> stream = PromptStream(samples, seed=0)              # doctest: +SKIP
    >>> first = stream.take(2); state = stream.state()      # doctest: +SKIP
    >>> PromptStream(samples, seed=0, state=state).take(1)  # the third sample  # doctest: +SKIP
    """

    def __init__(self, samples: Sequence[ServiceSample], seed: int, state: Mapping[str, Any] | None = None) -> None:
        if not samples:
            raise ValueError("a prompt stream needs at least one sample")
        self._samples, self._seed = list(samples), seed
        self._by_id = {sample.id: sample for sample in self._samples}
        self._epoch, self._index = (int(state["epoch"]), int(state["index"])) if state else (0, 0)
        self._order = self._permutation()

    def _permutation(self) -> list[int]:
        order = list(range(len(self._samples)))
        random.Random(f"{self._seed}/{self._epoch}").shuffle(order)
        return order

    def take(self, n: int) -> list[ServiceSample]:
        """Return the next n samples. Continues with the next epoch at the end of this one."""
        taken: list[ServiceSample] = []
        while len(taken) < n:
            if self._index == len(self._order):
                self._epoch, self._index = self._epoch + 1, 0
                self._order = self._permutation()
            taken.append(self._samples[self._order[self._index]])
            self._index += 1
        return taken

    def find(self, sample_id: str) -> ServiceSample:
        """Return a sample by its id. Raises KeyError if the stream does not have it."""
        return self._by_id[sample_id]

    def learn(self, sample: ServiceSample, score: float) -> None:
        """Take note of the policy's score on a sample, in [0, 1]. Does not change the order here."""

    def state(self) -> dict[str, Any]:
        """Return the position as JSON-like values. Pass it as `state` to continue here."""
        return {"epoch": self._epoch, "index": self._index}
