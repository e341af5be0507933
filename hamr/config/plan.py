"""Section of `hamr plan`: assumptions in place of measurements from a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hamr.config.section import Fraction, NonNegative, PositiveFloat, PositiveInt, Section, SmallInt

GpuName = Literal["rtx4090", "l40s", "a100_40", "a100_80", "h100", "h200", "b200"]


class PlanConfig(Section):
    """Assumptions about a step. Measurements of a run (`from=<run folder>`) replace them, unless set by name."""

    gpu: GpuName = "h100"
    """GPU model whose speed and memory are assumed."""
    step_s: PositiveFloat | None = None
    """Target step time. null: only keep the reward off the critical path of the present step."""
    prompt_tokens: PositiveInt = 2000
    """Prompt length of the policy, and of a scorer's question without the response."""
    response_tokens: PositiveInt | None = None
    """Mean length. null: half of `rollout.max_new_tokens`."""
    turns: Annotated[float, Field(ge=1.0, le=1e6)] | None = None
    """Mean number of responses of the policy in a dialogue. null: half of `rollout.max_turns`."""
    references: PositiveInt = 3
    """References per sample. Each is a question to the reranker."""
    cascaded_frac: Fraction = 1.0
    """Share of the responses that are replies for the cascade. Tool calls need no scorer, so a mixture needs less than
    the default, which assumes replies only."""
    escalated_frac: Fraction = 0.4
    """Share of the cascade's replies, in [0, 1], that the judge also scores."""
    dropped_frac: Fraction = 0.0
    """Share of the groups without signal, which dynamic sampling replaces in another round."""
    prefix_hit_frac: Fraction = 0.5
    """Share of a scorer's prompt tokens that are in the prefix cache of its replica."""
    spread: NonNegative = 0.5
    """Coefficient of variation of response lengths and answer times."""
    draws: SmallInt = 3
    """Number of simulated steps, with different responses, in each mean."""
