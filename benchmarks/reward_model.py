"""Replies with three scores each: a stated model of reranker, judge and teacher, or a file of real triples.

The synthetic model. A reply has a quality q = 0.6 d + 0.8 e + shift, with d ~ N(0, 1) of its group and e ~ N(0, 1) its
own; `shift` is how far the policy has come since the scores that the cascade was calibrated on.

    teacher  Y    mean of four judges who each read q + N(0, 0.5) and say 0, 0.5 or 1 (thresholds -0.5 and 0.5)
    judge    S_J  P(Yes) + 0.5 P(Part) of q + N(0, 0.45), each a logistic of scale 0.25 at its threshold
    reranker S_R  a logistic of (q + N(0, noise)) of scale 0.5: it heaps up at both ends

so that the judge is one more judge of the teacher's kind. What decides whether a cascade can do without it is how good
the reranker is and how the errors of the two hang together, which is unknown beforehand; hence three of them:

    independent  noise 0.45, errors independent: an average of the two is better than either
    fooled       the same, but one reply in seven is scored by its wording alone: S_R near 1 whatever q is
    shared       both read q + N(0, 0.35), the same draw, with 0.3 (judge) and 0.35 (reranker) of their own
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hamr.data.triples import read_triples

MODELS = ("independent", "fooled", "shared")
THRESHOLDS = (-0.5, 0.5)


@dataclass(frozen=True, eq=False)
class Replies:
    """Scores of shape (groups, responses); `said[g, i]` is the first response of the group that says the same."""

    s_r: np.ndarray
    s_j: np.ndarray
    y: np.ndarray
    said: np.ndarray

    def __post_init__(self) -> None:
        assert self.s_r.shape == self.s_j.shape == self.y.shape == self.said.shape

    def flat(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.s_r.ravel(), self.s_j.ravel(), self.y.ravel()


def synthetic(
    model: str, rng: np.random.Generator, *, groups: int, responses: int, shift: float, repeats: float
) -> Replies:
    """`repeats`: share of the responses that say word for word what an earlier sibling says."""
    shape = (groups, responses)
    q = 0.6 * rng.normal(size=(groups, 1)) + 0.8 * rng.normal(size=shape) + shift
    heard = q[..., None] + rng.normal(0.0, 0.5, (*shape, 4))
    y = sum((heard > threshold).mean(axis=-1) / 2 for threshold in THRESHOLDS)
    common, own_j, own_r = (0.35, 0.3, 0.35) if model == "shared" else (0.0, 0.45, 0.45)
    read = q + rng.normal(0.0, common, shape)
    heard_j = read + rng.normal(0.0, own_j, shape)
    s_j = sum(_logistic((heard_j - threshold) / 0.25) / 2 for threshold in THRESHOLDS)
    s_r = _logistic((read + rng.normal(0.0, own_r, shape)) / 0.5)
    if model == "fooled":
        s_r = np.where(rng.random(shape) < 1 / 7, 1.0 - 0.05 * rng.random(shape), s_r)
    said = np.tile(np.arange(responses), (groups, 1))
    for g, i in zip(*np.nonzero(rng.random(shape) < repeats), strict=True):
        if i:
            said[g, i] = said[g, rng.integers(i)]
    rows = np.arange(groups)[:, None]
    return Replies(s_r[rows, said], s_j[rows, said], y[rows, said], said)


def from_file(path: Path, rng: np.random.Generator, responses: int) -> tuple[Replies, Replies]:
    """(one half to calibrate on, the other one), in groups by chance, which is how far triples go: they do not say who
    belongs together, nor who says the same."""
    triples = read_triples(path, {})
    columns = np.array([triples.s_r, triples.s_j, triples.y])[:, rng.permutation(len(triples.y))]
    middle = columns.shape[1] // 2

    def grouped(part: np.ndarray) -> Replies:
        whole = part[:, : part.shape[1] // responses * responses].reshape(3, -1, responses)
        return Replies(*whole, np.tile(np.arange(responses), (whole.shape[1], 1)))

    return grouped(columns[:, :middle]), grouped(columns[:, middle:])


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))
