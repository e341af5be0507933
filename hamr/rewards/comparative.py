"""Comparative grading: grade the responses of one group in one prompt (second paper, Appendix G: policy, tools)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from hamr.config.judged import ComparedConfig
from hamr.errors import VerdictUnparsable
from hamr.prompting.reading import GRADE, TEXT, final_object, grade, object_schema, reason
from hamr.rewards.grades import SCHEMA, read_grade
from hamr.rewards.questions import JudgedText, judge_question
from hamr.types import Judgement, Question, ServiceSample


def response_id(place: int) -> str:
    """Return the name of the response at `place` (from 0) in a prompt: R1, R2, ... The form is distinct from any
    grade."""
    return f"R{place + 1}"


def order(count: int, *key: object) -> list[int]:
    """Return a shuffle of range(count) that depends only on `key`.

    Judges have a position bias, so the position of a response must neither depend on its arrival nor be the same in
    every prompt.
    """
    seed = hashlib.sha256("/".join(map(str, key)).encode("utf-8", "surrogatepass")).digest()
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return places


def compared_question(
    component: str, sample: ServiceSample, responses: Sequence[JudgedText], config: ComparedConfig, attempt: int
) -> Question:
    """Return the question: the pointwise template for one response, the comparative one for several."""
    if len(responses) == 1:
        prompt = config.prompt or f"{component}.{config.language}"
        return judge_question(sample, prompt, SCHEMA, attempt=attempt, response=responses[0])
    ids = [response_id(place) for place in range(len(responses))]
    scores = object_schema(**dict.fromkeys(ids, GRADE))
    return judge_question(
        sample,
        config.prompt_compared or f"{component}_compared.{config.language}",
        object_schema(reason=TEXT, scores=scores),
        attempt=attempt,
        each=[{"name": name, "response": r.words, "call": r.call} for name, r in zip(ids, responses, strict=True)],
    )


def read_compared(text: str, component: str, count: int) -> tuple[Judgement | None, ...]:
    """Return one judgement per response of the prompt, in its order. None for a response that the answer omits.

    Raises:
        VerdictUnparsable: The answer does not end with {"reason", "scores"}, names an unknown response, has an invalid
            grade, or grades no response.
    """
    if count == 1:
        return (read_grade(text, component),)
    answer = final_object(text, ("reason", "scores"))
    scores, ids = answer["scores"], [response_id(place) for place in range(count)]
    if not isinstance(scores, dict) or not scores or not scores.keys() <= set(ids):
        raise VerdictUnparsable(f"scores={scores!r} has to map {ids[0]}..{ids[-1]} to grades")
    why = reason(answer["reason"])
    return tuple(
        Judgement(component=component, grade=grade(scores[name]), reason=why, compared=count)
        if name in scores
        else None
        for name in ids
    )
