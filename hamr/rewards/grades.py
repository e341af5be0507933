"""A judge's grade from 1 (worst) to 5 (best), and what it is worth."""

from __future__ import annotations

from hamr.config.judged import Scale
from hamr.errors import MissingScore
from hamr.prompting.reading import GRADE, TEXT, final_object, grade, object_schema, reason
from hamr.types import Judgement

SCHEMA = object_schema(reason=TEXT, score=GRADE)


def normalise_grade(given: int, scale: Scale) -> float:
    """A grade x in 1..5 as a reward in [0, 1].

    `span`: (x - 1) / 4, from 0 to 1. `share`: x / 5, from 0.2 to 1, as the benchmark's overall figure has it.

    The paper says that these rewards are normalised to [0, 1] and not how (Appendix C). `span` is the default because
    only it reaches both ends: with the weights of Stage 2 the total then spans the [-4, 6.2] that the stated ranges
    give, a weight of 1 is worth a whole 1 between worst and best, and a response that is no action, which is 0 without
    a judge, is not below one that a judge calls unusable. Within a group the two differ by the factor 1.25 alone.

    >>> normalised(4, "span"), normalised(4, "share")
    (0.75, 0.8)
    """
    if not 1 <= given <= 5:
        raise ValueError(f"{given} is no grade from 1 to 5")
    return (given - 1) / 4 if scale == "span" else given / 5


def read_grade(text: str, component: str) -> Judgement:
    """The grade of an answer that ends with {"reason", "score"}. Raises VerdictUnparsable."""
    said = final_object(text, ("reason", "score"))
    return Judgement(component=component, grade=grade(said["score"]), reason=reason(said["reason"]))


def graded_value(judgement: Judgement, scale: Scale) -> float:
    """Raises MissingScore where the judgement has no grade."""
    if judgement.grade is None:
        raise MissingScore(f"no grade was asked for: {judgement}")
    return normalise_grade(judgement.grade, scale)
