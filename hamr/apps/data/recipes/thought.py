"""Thought restructuring, first half (second paper, section 4.1 and Appendix G): extraction of an expert's reasoning.

A teacher extracts the reasoning process and the strategy from an expert's action, and the judge of chains grades them.
The kept items are the set on which the paper trains Zero-Think, by supervision alone: the chain, then the expert's
action (pre-CoT). That model then writes the chains of the second half (`hamr.apps.data.recipes.migration`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from hamr.apps.data.recipes.runner import Desk, WritingRecipe
from hamr.apps.data.recipes.teachers import CheckFailure, without_thought
from hamr.apps.data.recipes.thought_checks import chain_of
from hamr.data.actions import parse_action, render_action
from hamr.data.progress import ItemResult, WorkItem, item_key
from hamr.data.rendering import turns_text
from hamr.data.samples import to_json
from hamr.data.sft_items import SftItem, decision_item
from hamr.data.trajectories import action_turn
from hamr.rewards.cot import CotQuality, cot_question, read_cot_quality
from hamr.rewards.questions import case_variables
from hamr.types import Action, MalformedResponse, Question, ServiceSample

Rendering = Literal["pre", "post", "hybrid"]
ORDERS: Mapping[Rendering, tuple[bool, ...]] = {"pre": (False,), "post": (True,), "hybrid": (False, True)}
"""Per rendering, the items made from one chain and action: True where the answer comes first."""
_ANALYSIS_SHOWN = 1500
"""Number of characters of a judge's analysis used as feedback: its end, which justifies the grade."""


@dataclass(frozen=True, kw_only=True)
class ThoughtRecipe(WritingRecipe):
    """Settings of the recipe.

    `min_cot`: the minimum grade of a chain, 1 to 5. The paper gives no threshold; its chains have 4.55 on average.
    """

    min_cot: int = 4


def thought_items(samples: Sequence[ServiceSample], recipe: ThoughtRecipe, by: str) -> list[WorkItem]:
    """Return the items, named by their samples."""
    settings = (type(recipe).__name__, dataclasses.asdict(recipe), by)
    return [WorkItem(id=s.id, key=item_key("thought", to_json(s), *settings), content=s) for s in samples]


@dataclass(frozen=True)
class Extraction:
    """The recipe's steps for the sample's first reference. A faulty text is rewritten once, then dropped."""

    recipe: ThoughtRecipe

    async def __call__(self, item: WorkItem, desk: Desk) -> ItemResult:
        sample: ServiceSample = item.content
        check = partial(self._check, sample, desk)
        return await desk.ask_until_valid("extract", partial(self.question, sample), check)

    async def _check(self, sample: ServiceSample, desk: Desk, text: str) -> ItemResult | CheckFailure:
        action = sample.references[0].action
        chain = chain_of(text, sample, self.recipe.language, action)
        if isinstance(chain, CheckFailure):
            return chain
        grade = await cot_checked(sample, chain, action, self.recipe, desk)
        return (
            grade if isinstance(grade, CheckFailure) else ItemResult(kept=to_record(chain, action, cot_quality=grade))
        )

    def question(self, sample: ServiceSample, shown: dict[str, str], attempt: int) -> Question:
        acted = turns_text([action_turn(sample.references[0].action)])
        variables = {**case_variables(sample), "first": acted, **shown}
        return self.recipe.question(sample, "thought_extract", variables, attempt)


async def cot_checked(
    sample: ServiceSample, chain: str, action: Action, recipe: ThoughtRecipe, desk: Desk
) -> int | CheckFailure:
    """Return the grade of the judge of chains, or its first fault. Raises Dropped where it does not answer."""

    def ask(attempt: int) -> Question:
        acted = turns_text([action_turn(action)])
        return cot_question(sample, chain, acted, prompt=f"cot_quality.{recipe.language}", attempt=attempt)

    def read(text: str) -> tuple[CotQuality, str]:
        return read_cot_quality(text), _analysis(text)

    quality, analysis = await desk.read_judge("chain's quality", ask, read)
    wanting = {
        "judge: cot_complete_and_clear": not quality.complete_and_clear,
        "judge: cot_follows_policy": not quality.follows_policy,
        "judge: cot_quality": quality.grade < recipe.min_cot,
    }
    check = next((check for check, found in wanting.items() if found), None)
    if check is None:
        return quality.grade
    return CheckFailure(check=check, detail=f"grade {quality.grade} of 5. {analysis}".strip())


def _analysis(text: str) -> str:
    """Return the text before the verdict."""
    visible = without_thought(text)
    return visible[: visible.rfind("{")].strip().removesuffix("```json").strip()[-_ANALYSIS_SHOWN:]


# --- training items ----------------------------------------------------------------------------


def to_record(chain: str, action: Action, **figures: int) -> dict[str, Any]:
    """Return the stored record of an item; `renderings` reads it."""
    return {"reasoning": chain, "response": render_action(action), **figures}


def renderings(sample: ServiceSample, made: Mapping[str, Any], rendering: Rendering) -> list[SftItem]:
    """Return the thoughts and the action before the answer (pre-CoT), after it (post-CoT), or as two items
    (hybrid-CoT).

    Hybrid-CoT: second paper, Appendix C. Each item has the system prompt that asks for its order.
    """
    action = parse_action(made["response"])
    assert not isinstance(action, MalformedResponse), "it was rendered from an action"
    return [decision_item(sample, action, made["reasoning"], answer_first=order) for order in ORDERS[rendering]]
