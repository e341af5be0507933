"""Judge grades from 1 (worst) to 5 (best) and their values."""

from __future__ import annotations

from hamr.config.judged import Scale
from hamr.errors import MissingScore
from hamr.prompting.reading import GRADE, TEXT, final_object, grade, object_schema, reason
from hamr.types import Judgement

SCHEMA = object_schema(reason=TEXT, score=GRADE)


def normalise_grade(given: int, scale: Scale) -> float:
    """Return a grade x in 1..5 as a reward in [0, 1].

    `span`: (x - 1) / 4, from 0 to 1. `share`: x / 5, from 0.2 to 1, as in the overall score of the benchmark.

    The paper states that these rewards are normalised to [0, 1], but not how (Appendix C). `span` is the default
    because only it reaches both ends. With the weights of Stage 2 the total then covers [-4, 6.2], which follows from
    the stated ranges, and a weight of 1 is worth 1 between worst and best. A malformed response, which is 0 without a
    judge, is then not below one that a judge calls unusable. Within a group the two scales differ only by the factor
    1.25.

    >>> normalise_grade(4, "span"), normalise_grade(4, "share")
    (0.75, 0.8)
    """
    if not 1 <= given <= 5:
        raise ValueError(f"{given} is not a grade from 1 to 5")
    return (given - 1) / 4 if scale == "span" else given / 5


def read_grade(text: str, component: str) -> Judgement:
    """Parse the grade of an answer that ends with {"reason", "score"}. Raise VerdictUnparsable otherwise."""
    answer = final_object(text, ("reason", "score"))
    return Judgement(component=component, grade=grade(answer["score"]), reason=reason(answer["reason"]))


def graded_value(judgement: Judgement, scale: Scale) -> float:
    """Return the value of the grade. Raise MissingScore if the judgement has none."""
    if judgement.grade is None:
        raise MissingScore(f"the judgement has no grade: {judgement}")
    return normalise_grade(judgement.grade, scale)
