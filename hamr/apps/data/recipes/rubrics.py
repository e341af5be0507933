"""A rubric for every sample (second paper, section 4.2, Algorithm 1, Appendix F): a teacher writes, and what tells good
from worse is kept.

For one sample: the teacher sees policy, dialogue and responses of differing quality and writes several candidate sets
of weighted items. A candidate is valid if Algorithm 1 leaves it 8 to 16 items, one of them wanted. The paper then
selects "the optimal rubric combination by multi-dimensional rejection sampling" and does not say how. Here: a judge
goes through good responses (the references) and worse ones by the candidate, item by item, and

    separation = mean of R over the good - mean of R over the worse ones,    in [-1, 1]

with R the rubric reward of its own items. The candidate with the highest separation is kept if it reaches
`min_separation`; a set that scores everything alike would only add noise to a reward.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from hamr.apps.data.recipes.runner import Desk
from hamr.config.judged import RubricConfig
from hamr.data.actions import parse_action, render_action
from hamr.data.progress import Made, WorkItem, item_key
from hamr.data.samples import to_json
from hamr.errors import VerdictUnparsable
from hamr.protocols import Ask
from hamr.rewards import rubric_reward
from hamr.rewards.questions import Said, words_of
from hamr.rewards.rubric import RubricItem, parse_rubric, rubric_question
from hamr.types import Answer, MalformedResponse, Question, Reply, ServiceSample


@dataclass(frozen=True, kw_only=True)
class RubricRecipe:
    """How a rubric is made. `worse`: most worse responses per sample, given ones first, others' references after."""

    candidates: int = 4
    fewest_items: int = 8
    most_items: int = 16
    worse: int = 3
    min_separation: float = 0.1
    language: str = "en"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Responses:
    """What a rubric has to tell apart, in the wire format."""

    good: tuple[str, ...]
    worse: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RubricResult:
    """`items` is empty where no candidate was kept; `reason` says why. `passing` failures of a pool (nobody there, too
    late) say nothing about the sample: it is worth another try."""

    items: tuple[RubricItem, ...] = ()
    separation: float | None = None
    reason: str = ""
    rejected: tuple[str, ...] = ()
    passing: bool = False


def contrasts(
    sample: ServiceSample, others: Sequence[ServiceSample], recipe: RubricRecipe, own: int | None = None
) -> Responses:
    """The sample's references, and worse responses: `privileged.negatives` (texts) if it has any, then references of
    other samples, drawn by seed and sample. What is also a reference of this one is not worse. `own`: where among the
    others the sample itself stands, which is never drawn."""
    good = tuple(dict.fromkeys(render_action(r.action) for r in sample.references))
    given = sample.privileged.get("negatives", ())
    worse = [text for text in given if isinstance(text, str) and text.strip()] if isinstance(given, list) else []
    rng = Random(hashlib.sha256(f"{recipe.seed}/{sample.id}".encode("utf-8", "replace")).digest())
    tries, count = 0, len(others) - (own is not None)
    while len(worse) < recipe.worse and count and tries < 20 * recipe.worse:
        tries += 1
        drawn = rng.randrange(count)
        other = others[drawn + (own is not None and drawn >= own)]
        text = render_action(rng.choice(other.references).action)
        if text not in worse:
            worse.append(text)
    return Responses(good=good, worse=tuple(text for text in worse if text not in good)[: recipe.worse])


def rubric_items(samples: Sequence[ServiceSample], recipe: RubricRecipe, by: str) -> list[WorkItem]:
    """A sample with what its rubric has to tell apart."""
    items = []
    for place, sample in enumerate(samples):
        responses = contrasts(sample, samples, recipe, own=place)
        key = item_key("rubrics", to_json(sample), dataclasses.asdict(responses), dataclasses.asdict(recipe), by)
        items.append(WorkItem(id=sample.id, key=key, content=(sample, responses)))
    return items


class Rubrics:
    """The recipe's steps for one sample: kept is {"items", "separation"}."""

    def __init__(self, recipe: RubricRecipe) -> None:
        self.recipe = recipe

    async def __call__(self, item: WorkItem, desk: Desk) -> Made:
        sample, responses = item.content

        async def teacher(question: Question) -> Answer:
            return await desk.ask_teacher("rubric", question)

        async def judge(question: Question) -> Answer:
            return await desk.ask_judge("separation", question)

        result = await make_rubric(sample, responses, self.recipe, teacher, judge)
        rejected = tuple(f"candidates rejected: {why}" for why in result.rejected)
        if not result.items:
            return Made(reason=result.reason, notes=rejected, passing=result.passing)
        rubric = [dataclasses.asdict(item) for item in result.items]
        return Made(kept={"items": rubric, "separation": result.separation}, notes=rejected)


def with_made(sample: ServiceSample, made: Made) -> ServiceSample:
    """The sample with its rubric; as it came where none was kept."""
    return with_rubric(sample, [RubricItem(**item) for item in made.kept["items"]]) if made.kept else sample


async def make_rubric(
    sample: ServiceSample, responses: Responses, recipe: RubricRecipe, teacher: Ask, judge: Ask
) -> RubricResult:
    """The best of `candidates` rubrics, or why there is none. Every rejection has its reason."""
    if not responses.worse:
        return RubricResult(reason="no worse response to tell the references from")
    shown = [*responses.good, *responses.worse]
    Random(f"{recipe.seed}/{sample.id}").shuffle(shown)
    best, rejected, passing = RubricResult(), [], 0
    for attempt in range(recipe.candidates):
        question = rubric_question(sample, shown, prompt=f"rubric_create.{recipe.language}", attempt=attempt)
        answer = await teacher(question)
        items, why = _valid(answer, recipe)
        separation = None
        if not why:
            separation, why = await _separation(sample, items, responses, recipe, judge)
        if separation is None or separation < recipe.min_separation:
            rejected.append(why or "separates too little")
            passing += (why or "").endswith((": timeout", ": unavailable"))
        elif best.separation is None or separation > best.separation:
            best = RubricResult(items=items, separation=separation)
    if best.items:
        return dataclasses.replace(best, rejected=tuple(rejected))
    commonest = max(dict.fromkeys(rejected), key=rejected.count)
    return RubricResult(reason=commonest, rejected=tuple(rejected), passing=passing > 0)


def with_rubric(sample: ServiceSample, items: Sequence[RubricItem]) -> ServiceSample:
    """The sample as the rubric reward reads it: `privileged.rubric`."""
    rubric = [{"title": i.title, "description": i.description, "weight": _plain(i.weight)} for i in items]
    return dataclasses.replace(sample, privileged={**sample.privileged, "rubric": rubric})


def _valid(answer: Answer, recipe: RubricRecipe) -> tuple[tuple[RubricItem, ...], str]:
    """(the items, "") or ((), why they cannot be taken)."""
    if answer.failure is not None or answer.text is None:
        return (), f"teacher: {answer.failure or 'unparsable'}"
    items = parse_rubric(answer.text, strict_integers=True)
    if not items:
        return (), "no items could be read"
    if len({item.title.lower() for item in items}) < len(items):
        return (), "two items have one title"
    if not recipe.fewest_items <= len(items) <= recipe.most_items:
        return (), f"not {recipe.fewest_items} to {recipe.most_items} items"
    if not any(item.weight > 0 for item in items):
        return (), "no wanted behaviour"
    return items, ""


async def _separation(
    sample: ServiceSample, items: Sequence[RubricItem], responses: Responses, recipe: RubricRecipe, judge: Ask
) -> tuple[float | None, str]:
    """(how far the references lie above the worse responses, "") or (None, why the judge could not say)."""
    config = RubricConfig.model_validate({"weight": 1.0, "reading": "items", "language": recipe.language})
    tried = with_rubric(sample, items)
    values: dict[bool, list[float]] = {True: [], False: []}
    for good, texts in ((True, responses.good), (False, responses.worse)):
        for text in texts:
            answer = await judge(rubric_reward.question(tried, [_as_said(text)], config))
            if answer.failure is not None or answer.text is None:
                return None, f"judge: {answer.failure or 'unparsable'}"
            try:
                (judgement,) = rubric_reward.read(answer.text, tried, 1, config)
            except VerdictUnparsable:
                return None, "judge: unparsable"
            assert judgement is not None, "a rubric is judged response by response"
            values[good].append(rubric_reward.value(judgement, config))
    return fmean(values[True]) - fmean(values[False]), ""


def _as_said(text: str) -> Said:
    """A response that is no action is judged by its words alone."""
    action = parse_action(text)
    return words_of(text, Reply(content=text) if isinstance(action, MalformedResponse) else action, "plain")


def _plain(weight: float) -> float | int:
    return int(weight) if float(weight).is_integer() else weight
