"""Policy gradient objectives: one file each, chosen by `algorithm.objective`.

An objective is a function of TokenTerms that returns the loss of each token in the shape of its tensors, `(tokens,)` or
`(batch, tokens)`, as a user's own `algorithm.loss` does. Its keyword arguments are keys of `algorithm`. A
sequence-level objective (gspo, gmpo) reads the whole response from the micro-batch, which never splits one
(`hamr.algorithms.packing`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from hamr.algorithms.objectives.cispo import cispo
from hamr.algorithms.objectives.clip import clip
from hamr.algorithms.objectives.dppo import dppo
from hamr.algorithms.objectives.gmpo import gmpo
from hamr.algorithms.objectives.gspo import gspo
from hamr.algorithms.objectives.sapo import sapo
from hamr.algorithms.terms import Objective

if TYPE_CHECKING:
    from hamr.config.algorithm import AlgorithmConfig

OBJECTIVES: dict[str, Callable[..., Tensor]] = {f.__name__: f for f in (clip, gspo, cispo, gmpo, sapo, dppo)}


def configured_objective(algorithm: AlgorithmConfig) -> Objective:
    """Return the chosen objective with the settings that it takes."""
    function = OBJECTIVES[algorithm.objective]
    _, *names = inspect.signature(function).parameters
    return partial(function, **{name: getattr(algorithm, name) for name in names})
