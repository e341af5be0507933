"""Grading the responses of one group beside each other, in one prompt (second paper, Appendix G: policy, tools)."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

from hamr.config.judged import ComparedConfig
from hamr.errors import VerdictUnparsable
from hamr.prompting.reading import GRADE, TEXT, final_object, grade, object_schema, reason
from hamr.rewards.grades import SCHEMA, read_grade
from hamr.rewards.questions import Said, judge_question
from hamr.types import Judgement, Question, ServiceSample


def response_id(place: int) -> str:
    """What the response at `place` (from 0) is called in a prompt: R1, R2, ... no grade looks like it."""
    return f"R{place + 1}"


def order(count: int, *key: object) -> list[int]:
    """A shuffle of range(count) that follows from `key` alone: judges favour places, and a response's place must
    neither depend on when it came nor be the same in every prompt."""
    seed = hashlib.sha256("/".join(map(str, key)).encode("utf-8", "surrogatepass")).digest()
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return places


def compared_question(
    component: str, sample: ServiceSample, responses: Sequence[Said], config: ComparedConfig, attempt: int
) -> Question:
    """One response is asked about with the template that knows no others; several with the one that compares."""
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
    """A judgement per response of the prompt, in the prompt's order; None for one that the answer leaves out.

    Raises VerdictUnparsable for an answer that cannot be read: no {"reason", "scores"} at its end, a response that was
    not there, a grade that is none, or no response at all.
    """
    if count == 1:
        return (read_grade(text, component),)
    said = final_object(text, ("reason", "scores"))
    scores, ids = said["scores"], [response_id(place) for place in range(count)]
    if not isinstance(scores, dict) or not scores or not scores.keys() <= set(ids):
        raise VerdictUnparsable(f"scores={scores!r} has to map {ids[0]}..{ids[-1]} to grades")
    why = reason(said["reason"])
    return tuple(
        Judgement(component=component, grade=grade(scores[name]), reason=why, compared=count)
        if name in scores
        else None
        for name in ids
    )
