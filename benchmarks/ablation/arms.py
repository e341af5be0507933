"""The arms: what each one is run with, what it starts from, and in which part of the sweep it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hamr.data.actions import ResponseFormat

Part = Literal["sft", "init", "modes", "gt", "rewards"]
PARTS: tuple[Part, ...] = ("sft", "init", "modes", "gt", "rewards")
Job = Literal["sft", "look", "rl"]
"""`look`: the policy of an SFT arm answers the test points, no step is made."""

MIX_DRA = "mix_dra"
OURS = "ours"
TERMS = ("rubric", "dialogue", "policy", "tool", "risk", "hallucination")
SFT_KINDS: Mapping[str, str] = {
    "decision": "[decision]",
    "decision_dra": "[decision_dra]",
    "mix": "[decision,patm]",
    "mix_dra": "[decision_dra,patm_dra]",
}
THINKS = {"decision_dra", "mix_dra"}
"""Arms that learnt rationales answer with one."""
TWICE = {"decision_twice": "decision", "decision_dra_twice": "decision_dra"}
"""No row of the paper's: as many optimiser steps as the mix has, on decisions alone. A mix is twice the data."""
TWINS = {
    "look_original": "init_original",
    "look_decision": "init_decision",
    "look_decision_dra": "init_decision_dra",
    "look_mix": "init_mix",
    "look_mix_dra": OURS,
}
"""Arms that look, and those that begin with what they would find: the same policy, test points and luck."""
_NO_SCORERS = ("~pools.judge", "~pools.reranker")
"""Nobody asks these here."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """`start`: the SFT arm whose policy is taken; None for the bundled model. `settings` are overrides of `hamr sft` or
    `hamr train`."""

    name: str
    job: Job
    part: Part
    start: str | None
    settings: tuple[str, ...]
    response_format: ResponseFormat = "plain"
    graded: bool = False
    """Rewarded by the rule engine's grades, through an endpoint of the driver's."""


def arms(files: Mapping[str, Path], endpoint: str, prompts: Path, others: Sequence[str] = ()) -> list[Arm]:
    """Every arm of the sweep, in the order in which they can be run. `others` are overrides for all of them, behind
    their experiment's and before what makes the arm."""
    rl = _Rl(files=files, others=tuple(others))
    return [*_sft(files, others), *_looks(rl), *_rl(rl), *_terms(rl, endpoint, prompts)]


def options() -> dict[str, tuple[str, ...]]:
    """What the group `arm` of the sweep offers: every arm by its name, every part with its arms, and none. An arm that
    looks stands behind those that are trained: it is not run where its twin has been."""
    known = arms(dict.fromkeys(("sft", "single", "multi", "validation", "test"), Path()), "", Path())
    parts = {part: tuple(arm.name for arm in known if arm.part == part) for part in PARTS}
    return {"none": (), **parts, **{arm.name: (arm.name,) for arm in known}}


@dataclass(frozen=True, kw_only=True)
class _Rl:
    """What all runs of `hamr train` share."""

    files: Mapping[str, Path]
    others: tuple[str, ...]

    def settings(self, train: str, start: str | None) -> tuple[str, ...]:
        return (
            "experiment=ablation_rl",
            "data.type=jsonl",
            f"data.train={self.files[train]}",
            f"data.validation={self.files['validation']}",
            f"data.test={self.files['test']}",
            f"model.response_format={_format_of(start)}",
            *self.others,
        )


def _sft(files: Mapping[str, Path], others: Sequence[str]) -> list[Arm]:
    kinds = {**SFT_KINDS, **{name: SFT_KINDS[like] for name, like in TWICE.items()}}
    return [
        Arm(
            name=name,
            job="sft",
            part="sft",
            start=None,
            settings=(
                "experiment=ablation_sft",
                *others,
                f"sft.sets=[{{path: {files['sft']}}}]",
                f"sft.kinds={kinds[name]}",
                *(("sft.epochs=2",) if name in TWICE else ()),
            ),
        )
        for name in kinds
    ]


def _looks(rl: _Rl) -> list[Arm]:
    """Answers of the SFT arms. `rules` is a reward that asks nobody: what is kept are the responses."""
    return [
        Arm(
            name=f"look_{name}",
            job="look",
            part="sft",
            start=None if name == "original" else name,
            settings=(
                *rl.settings("single", name),
                "experiment.steps=0",
                "rewards.consistency.weight=0",
                "rewards.rules.weight=1",
                *_NO_SCORERS,
            ),
            response_format=_format_of(name),
        )
        for name in ("original", *SFT_KINDS, *TWICE)
    ]


def _rl(rl: _Rl) -> list[Arm]:
    def arm(name: str, part: Part, start: str | None = MIX_DRA, train: str = "single", *settings: str) -> Arm:
        return Arm(
            name=name,
            job="rl",
            part=part,
            start=start,
            settings=(*rl.settings(train, start), *settings),
            response_format=_format_of(start),
        )

    return [
        arm(OURS, "modes"),
        arm("reranker", "modes", MIX_DRA, "single", "rewards.consistency.mode=reranker", "~pools.judge"),
        arm("hard_judge", "modes", MIX_DRA, "single", "rewards.consistency.mode=hard_judge"),
        arm("soft_judge", "modes", MIX_DRA, "single", "rewards.consistency.mode=soft_judge"),
        arm("multi_gt", "gt", MIX_DRA, "multi"),
        arm("init_original", "init", None),
        arm("init_decision", "init", "decision"),
        arm("init_decision_dra", "init", "decision_dra"),
        arm("init_mix", "init", "mix"),
    ]


def _terms(rl: _Rl, endpoint: str, prompts: Path) -> list[Arm]:
    """All six terms of the second paper, and all but one, with its weights: hallucination counts three times."""
    shared = (
        *rl.settings("single", MIX_DRA),
        "rewards.consistency.weight=0",
        *_NO_SCORERS,
        f"+pools.engine={{role: grader, type: openai, model: rule-engine, endpoint: '{endpoint}'}}",
        *(f"rewards.{term}.pool=engine" for term in TERMS),
        *(f"rewards.{term}.prompt={prompts / f'{term}.yaml'}" for term in TERMS),
        "rewards.policy.judging=single",
        "rewards.tool.judging=single",
    )
    weights = {term: 3 if term == "hallucination" else 1 for term in TERMS}
    return [
        Arm(
            name="all_terms" if left_out is None else f"without_{left_out}",
            job="rl",
            part="rewards",
            start=MIX_DRA,
            settings=(*shared, *(f"rewards.{t}.weight={0 if t == left_out else w}" for t, w in weights.items())),
            response_format=_format_of(MIX_DRA),
            graded=True,
        )
        for left_out in (None, *TERMS)
    ]


def _format_of(start: str | None) -> ResponseFormat:
    return "think_answer" if start is not None and TWICE.get(start, start) in THINKS else "plain"
