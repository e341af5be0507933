"""Cascade over the items of a rubric: a reranker scores every item, the judge those in doubt.

For each item, S_R is the reranker's probability that the response passes it, S_J is 1 or 0 by the judge's verdict, and
Eq. 4 gives R. A probability is doubtful in the middle, so the trust interval is over the confidence |2 S_R - 1|. The
value of the rubric with the weights w of its items is

    sum of |w| R / sum of |w|,    in [0, 1]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hamr.calibration.cascade import Cascade, confidence
from hamr.config.judged import RubricConfig
from hamr.data.rendering import dialogue_text
from hamr.rewards.judged import find_judged
from hamr.rewards.questions import JudgedText
from hamr.rewards.rubric import RubricItem
from hamr.types import ItemScore, Judgement, Question, ServiceSample


def item_question(sample: ServiceSample, item: RubricItem, response: JudgedText) -> Question:
    """Ask a reranker whether the response does what the item describes."""
    return Question(
        variables={
            "history": dialogue_text(sample),
            "statement_a": f"{item.title}: {item.description}" if item.description else item.title,
            "statement_b": f"{response.words}\n{response.call}" if response.call else response.words,
        },
        affinity=sample.id,
    )


def pass_score(item: RubricItem, score: float) -> float:
    """Return the probability that the item is passed: its behaviour is present, or its error is absent."""
    return score if item.weight > 0 else 1.0 - score


def sample_with_items(sample: ServiceSample, items: Sequence[RubricItem]) -> ServiceSample:
    """Return the sample with only these items in its rubric, so that the judge is asked about them alone."""
    return replace(sample, privileged={**sample.privileged, "rubric": [vars(item) for item in items]})


def judged_value(judgement: Judgement, section: Any) -> float:
    """Return the value of a judgement before the weight. Raise MissingScore if it lacks what `section` needs."""
    if isinstance(section, RubricConfig) and judgement.item_scores:
        return items_value(judgement.item_scores, Cascade.from_config(section.cascade))
    return find_judged(judgement.component).value(judgement, section)


def items_value(scores: Sequence[ItemScore], cascade: Cascade) -> float:
    """Return the weighted mean of the items' rewards. Raise MissingScore if an item in doubt was not judged.

    >>> items_value([ItemScore(weight=3.0, s_r=0.9), ItemScore(weight=-1.0, s_r=0.4, s_j=1.0)], Cascade(0.5, 1, 0, 1))
    0.925
    """
    total = math.fsum(abs(s.weight) * cascade.mix(s.s_r, s.s_j, key=confidence(s.s_r)) for s in scores)
    return total / math.fsum(abs(score.weight) for score in scores)
