"""A user's own objective (`algorithm.loss`), whose returned values are checked."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hamr.algorithms.terms import Objective, TokenTerms
from hamr.security.functions import LoadedFunction, describe_error, describe_value


def checked_objective(function: LoadedFunction) -> Objective:
    """Return the user's function as an objective whose returned values are checked.

    Raises:
        ConfigError: On four tokens of two responses, or if one of them does not count, the function fails or does not
            return their losses.
    """

    def objective(tokens: TokenTerms) -> Tensor:
        try:
            losses = function(tokens)
        except Exception as error:
            raise function.source.error(f"raised {describe_error(error, function.source)}") from error
        if not isinstance(losses, Tensor) or losses.shape != tokens.logprobs.shape:
            shown = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else describe_value(losses)
            raise function.source.error(
                f"returned {shown}; return a tensor of the shape of tokens.logprobs, one loss each"
            )
        return losses

    logprobs = torch.tensor([-0.5, -1.0, -2.0, -0.1], requires_grad=True)
    tokens = TokenTerms(
        logprobs=logprobs,
        old_logprobs=logprobs.detach().clone(),
        behaviour_logprobs=logprobs.detach().clone(),
        advantages=torch.tensor([1.0, 1.0, -1.0, -1.0]),
        importance_weights=torch.ones(4),
        mask=torch.ones(4, dtype=torch.bool),
        sequences=torch.tensor([0, 0, 1, 1]),
    )
    for last_counts, case in ((True, ""), (False, " if tokens.mask leaves out a token")):
        losses = objective(replace(tokens, mask=torch.tensor([True, True, True, last_counts])))
        if not losses.requires_grad or not bool(losses.isfinite().all()):
            problem = f"returned losses that are not finite{case}, or do not depend on tokens.logprobs"
            raise function.source.error(problem)
    return objective
