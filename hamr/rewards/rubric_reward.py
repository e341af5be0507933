"""Rubric reward: how far does a response satisfy the rubric of its sample (second paper, section 4.2, Appendix F)?

The paper describes two variants. `holistic`: the judge sees all items with their weights and gives one grade from 1 to
5 (the prompt of its Appendix G). `items`: the judge decides for each item whether the response passes, and with the
weights w of the items

    R = sum of |w| over the passed items / sum of |w| over all items,    in [0, 1]

An item with w > 0 passes if its behaviour is present, one with w < 0 if its error is absent. This is the weighted sum
of satisfactions, sum of w x satisfied, mapped linearly from its lowest to its highest value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hamr.config.judged import RubricConfig
from hamr.errors import MissingScore, VerdictUnparsable
from hamr.prompting.reading import TEXT, choice, final_object, object_schema, reason
from hamr.rewards.graded import SCHEMA, graded_value, read_grade
from hamr.rewards.questions import JudgedText, judge_question
from hamr.rewards.rubric import sample_rubric
from hamr.types import Judgement, Question, ServiceSample

name = "rubric"

_BEHAVIOUR = {"met": "pass", "满足": "pass", "unmet": "fail", "不满足": "fail"}
_ERROR = {"clear": "pass", "未出现": "pass", "violated": "fail", "出现": "fail"}


def absent(sample: ServiceSample, config: RubricConfig) -> str | None:
    """Return a reason if the sample has no usable rubric."""
    return None if sample_rubric(sample) else "the sample has no rubric"


def question(
    sample: ServiceSample, responses: Sequence[JudgedText], config: RubricConfig, attempt: int = 0
) -> Question:
    """Return the question about one response by the sample's rubric: one grade, or a verdict for every item."""
    (response,) = responses
    items = sample_rubric(sample)
    schema, shipped = SCHEMA, "rubric"
    if config.reading == "items":
        verdicts = [["met", "unmet"] if item.weight > 0 else ["clear", "violated"] for item in items]
        checks = object_schema(**{_id(i): {"enum": names} for i, names in enumerate(verdicts)})
        schema, shipped = object_schema(reason=TEXT, checks=checks), "rubric_items"
    prompt = config.prompt or f"{shipped}.{config.language}"
    each = [
        {
            "name": _id(i),
            "title": item.title,
            "weight": f"{item.weight:g}",
            "kind": "behaviour" if item.weight > 0 else "error",
            "description": item.description,
        }
        for i, item in enumerate(items)
    ]
    return judge_question(sample, prompt, schema, attempt=attempt, each=each, response=response)


def read(text: str, sample: ServiceSample, count: int, config: RubricConfig) -> tuple[Judgement | None, ...]:
    """Parse a grade, or a verdict on every item. Raise VerdictUnparsable, also if an item has no verdict."""
    if config.reading == "holistic":
        return (read_grade(text, name),)
    answer = final_object(text, ("reason", "checks"))
    items, checks = sample_rubric(sample), answer["checks"]
    if not isinstance(checks, dict) or checks.keys() != {_id(i) for i in range(len(items))}:
        raise VerdictUnparsable(f"checks={checks!r} has to give each of the {len(items)} items a verdict")
    passed = tuple(
        (item.weight, choice(checks[_id(i)], _BEHAVIOUR if item.weight > 0 else _ERROR) == "pass")
        for i, item in enumerate(items)
    )
    return (Judgement(component=name, items=passed, reason=reason(answer["reason"])),)


def value(judgement: Judgement, config: RubricConfig) -> float:
    """Return the value, in [0, 1]. Raise MissingScore if the judgement has the other variant."""
    if config.reading == "holistic":
        return graded_value(judgement, config.scale)
    return passed_share(judgement.items)


def passed_share(items: Sequence[tuple[float, bool]]) -> float:
    """Return the weighted share of passed items (weight, passed). Raise MissingScore without items.

    >>> passed_share([(5.0, True), (3.0, False), (-2.0, True)])
    0.7
    """
    if not items:
        raise MissingScore("the judgement has no rubric items")
    return math.fsum(abs(w) for w, passed in items if passed) / math.fsum(abs(w) for w, _ in items)


def _id(index: int) -> str:
    return f"I{index + 1}"
