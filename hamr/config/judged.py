"""Sections of the side rewards from judges (second paper). Weight 0 disables a reward and its judge calls."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hamr.config.cascade_controller import ItemCascadeConfig
from hamr.config.section import NonNegative, NonNegativeInt, RewardName, Section

Scale = Literal["span", "share"]


class JudgeSection(Section):
    """Common settings of all judged rewards."""

    weight: NonNegative = 0.0
    """Weight of the reward in the total, at least 0. 0 disables the reward and its judge calls."""
    pool: str = "judge"
    """Name of the pool, with role `judge` or `grader`. Several rewards may share one pool."""
    prompt: str | None = None
    """Template that replaces the shipped one: a name in `prompts/`, or a path."""
    max_reasks: NonNegativeInt = 1
    """Number of retries for an unparseable answer. After them, the outcome is a failure."""


class JudgedConfig(JudgeSection):
    """Settings of a judged reward with a shipped prompt."""

    language: Literal["en", "zh"] = "en"
    """Language of the shipped prompt."""


class OwnJudgedConfig(JudgeSection):
    """A judged dimension of your own: a judge's grade from 1 to 5, mapped to [0, 1], by your prompt."""

    weight: NonNegative = 1.0
    """Weight of the grade in the total, at least 0. 0 disables the reward and its judge calls."""
    prompt: str
    """Path of the template. It has to ask for an answer that ends with `{"reason": ..., "score": 1 to 5}`."""
    scale: Scale = "span"
    """`span`: (x - 1) / 4; `share`: x / 5."""


class GradedConfig(JudgedConfig):
    """A judge's grade from 1 to 5, mapped to [0, 1]."""

    scale: Scale = "span"
    """`span`: (x - 1) / 4; `share`: x / 5, as in the overall score of the benchmark. See `hamr.rewards.graded`."""


class ComparedConfig(GradedConfig):
    judging: Literal["comparative", "single"] = "comparative"
    """`comparative`: the responses of one group in one prompt, as in the paper. `single`: each response alone."""
    prompt_compared: str | None = None
    """Template that replaces the comparative one. `prompt` then applies to a single response."""
    max_compared: Annotated[int, Field(ge=2, le=4096)] = 16
    """Maximum number of responses in one prompt. A larger group is split evenly."""


class RubricConfig(GradedConfig):
    """Requires samples with a rubric. Without one, the component is absent."""

    reading: Literal["holistic", "items"] = "holistic"
    """`holistic`: one grade for the whole rubric (the paper's prompt). `items`: the weighted share of passed items (its
    section 4.2)."""
    reranker: str | None = None
    """With `reading=items`: pool with role `reranker` that answers every item first; the judge is asked about the items
    in doubt (`cascade`). null: the judge is asked about all."""
    cascade: ItemCascadeConfig = ItemCascadeConfig()
    """Trust interval and weights of the items; `hamr calibrate` fits them."""

    @model_validator(mode="after")
    def _reads_items(self) -> RubricConfig:
        if self.reranker is not None and self.reading != "items":
            raise self.clash("reranker", "reading", "; a reranker answers items: set reading=items or reranker=null")
        return self


class RiskConfig(JudgedConfig):
    scale: Literal["reward", "penalty"] = "reward"
    """`reward`: 1 for a clean response and 0 for a risky one (the paper's Appendix C). `penalty`: 0 and -1."""


class HallucinationConfig(JudgedConfig):
    """0 for a response without hallucination, -1 with one."""


class JudgedRewards(Section):
    """The judged part of `rewards`."""

    dialogue: GradedConfig = GradedConfig()
    policy: ComparedConfig = ComparedConfig()
    tool: ComparedConfig = ComparedConfig()
    rubric: RubricConfig = RubricConfig()
    risk: RiskConfig = RiskConfig()
    hallucination: HallucinationConfig = HallucinationConfig()
    fallback: Literal["exclude", "wait"] = "exclude"
    """Behaviour if the pool of a judged reward is unavailable. `exclude`: a typed failure; `wait`: retry until the
    response's deadline (`router.deadline_s`). The consistency reward has its own `fallback`."""
    veto_first: bool = False
    """Judge risk and hallucination first, and do not call the other judges for a response that one of them vetoes."""
    judged: dict[RewardName, OwnJudgedConfig] = Field(default_factory=dict)
    """Judged dimensions of your own, by the name of their component in records and metrics."""

    @property
    def judges(self) -> dict[str, JudgeSection]:
        """Judged rewards with a weight, by name. Those of the user come last."""
        sections: dict[str, JudgeSection] = {
            "dialogue": self.dialogue,
            "policy": self.policy,
            "tool": self.tool,
            "rubric": self.rubric,
            "risk": self.risk,
            "hallucination": self.hallucination,
            **self.judged,
        }
        return {name: section for name, section in sections.items() if section.weight}

    def key(self, judge: str) -> str:
        """Return the key of a judged reward's section below `rewards`."""
        return f"judged.{judge}" if judge in self.judged else judge
