"""The sections of the side rewards that a judge gives (second paper). Weight 0 is off: nobody is asked."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from hamr.config.section import NonNegative, Section

Scale = Literal["span", "share"]


class JudgedConfig(Section):
    """What all of them have."""

    weight: NonNegative = 0.0
    pool: str = "judge"
    """Name of the pool that is asked, of role `judge` or `grader`. Several rewards may share one, or have their own."""
    language: Literal["en", "zh"] = "en"
    """Of the shipped prompt."""
    prompt: str | None = None
    """Another template than the shipped one: a name in `prompts/`, or a path."""
    max_reasks: Annotated[int, Field(ge=0)] = 1
    """How often an answer that cannot be read is asked for again; then the outcome is a failure."""


class GradedConfig(JudgedConfig):
    """A judge's grade from 1 to 5, mapped to [0, 1]."""

    scale: Scale = "span"
    """`span`: (x - 1) / 4; `share`: x / 5, as in the benchmark's overall figure. See `hamr.rewards.grades`."""


class ComparedConfig(GradedConfig):
    judging: Literal["comparative", "single"] = "comparative"
    """`comparative`: the responses of one group in one prompt, as the paper does. `single`: each on its own."""
    prompt_compared: str | None = None
    """Another template for comparing; `prompt` is then that for a response that stands alone."""
    max_compared: Annotated[int, Field(ge=2)] = 16
    """At most so many responses in one prompt; a larger group is dealt out evenly."""


class RubricConfig(GradedConfig):
    """Needs samples with a rubric; for one without, the component is absent."""

    reading: Literal["holistic", "items"] = "holistic"
    """`holistic`: one grade with the whole rubric in view (the paper's prompt). `items`: each item passed or not, and
    their weighted share (its section 4.2)."""
    strict_integers: bool = False
    """Drop items whose weight is no integer, which Algorithm 1 as written lets pass."""


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
    """When a judged reward's pool is away: `exclude`, a typed failure; `wait`, asked again until the response's
    deadline (`router.deadline_s`). The consistency reward has a `fallback` of its own."""
    veto_first: bool = False
    """Ask about risk and hallucination first, and spare the other four judges a response that one of them vetoes."""

    @property
    def judged(self) -> dict[str, JudgedConfig]:
        """The judged rewards that have a weight, by name."""
        sections: dict[str, JudgedConfig] = {
            "dialogue": self.dialogue,
            "policy": self.policy,
            "tool": self.tool,
            "rubric": self.rubric,
            "risk": self.risk,
            "hallucination": self.hallucination,
        }
        return {name: section for name, section in sections.items() if section.weight}
