"""The section of `hamr plan`: what it assumes where no run was measured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from hamr.config.section import Fraction, NonNegative, Section

GpuName = Literal["l40s", "a100_40", "a100_80", "h100", "h200", "b200"]


class PlanConfig(Section):
    """Assumptions about a step. What a run measured (`from=<run folder>`) replaces them, unless set by name."""

    gpu: GpuName = "h100"
    step_s: PositiveFloat | None = None
    """Step time to hold; null: the reward is only kept off the critical path of the step as it is."""
    prompt_tokens: PositiveInt = 2000
    """Of the policy's prompt, and of a scorer's question without the response."""
    response_tokens: PositiveInt | None = None
    """Mean length; null: half of `rollout.max_new_tokens`."""
    references: PositiveInt = 3
    """Per sample, each of which is a question to the reranker."""
    cascaded_frac: Fraction = 1.0
    """Share of the responses that are replies for the cascade. All: nobody is asked about a tool call, so that a
    mixture needs less."""
    escalated_frac: Fraction = 0.4
    dropped_frac: Fraction = 0.0
    """Share of the groups without signal, which dynamic sampling replaces by a further round."""
    prefix_hit_frac: Fraction = 0.5
    """Share of a scorer's prompt tokens that its replica has in its prefix cache."""
    thinking_frac: Fraction = 0.5
    """Share of a pool's `thinking_tokens` and `answer_tokens` that it uses on average."""
    slack: Annotated[float, Field(gt=0.0)] = 0.02
    """A step within this share of the step with scorers without number counts as one whose reward is off the path."""
    spread: NonNegative = 0.5
    """Coefficient of variation of response lengths and of the times of answers."""
    draws: PositiveInt = 3
    """Simulated steps, with different responses, that a figure is the mean of."""
    most_replicas: PositiveInt = 4096
    """Where the search for a pool's size gives up."""
