"""Quality of the reasoning before a response (second paper, Appendix G). Used for data construction, not as a
reward."""

from __future__ import annotations

from dataclasses import dataclass

from hamr.prompting.reading import GRADE, choice, final_object, grade, object_schema
from hamr.rewards.questions import JudgedText, judge_question
from hamr.types import Question, ServiceSample

_YES_NO = {"yes": "yes", "是": "yes", "no": "no", "否": "no"}
SCHEMA = object_schema(
    complete_and_clear={"enum": ["yes", "no"]}, follows_policy={"enum": ["yes", "no"]}, cot_quality=GRADE
)


@dataclass(frozen=True, kw_only=True)
class CotQuality:
    """Fields of the judge's answer: two booleans and a grade from 1 to 5."""

    complete_and_clear: bool
    follows_policy: bool
    grade: int


def cot_question(
    sample: ServiceSample, reasoning: str, response: str, *, prompt: str = "cot_quality.en", attempt: int = 0
) -> Question:
    """Return the question that grades `reasoning` together with the resulting response."""
    return judge_question(
        sample, prompt, SCHEMA, attempt=attempt, reasoning=reasoning, response=JudgedText(words=response)
    )


def read_cot_quality(text: str) -> CotQuality:
    """Parse an answer. Raise VerdictUnparsable unless it ends with exactly the three fields."""
    answer = final_object(text, ("complete_and_clear", "follows_policy", "cot_quality"))
    return CotQuality(
        complete_and_clear=choice(answer["complete_and_clear"], _YES_NO) == "yes",
        follows_policy=choice(answer["follows_policy"], _YES_NO) == "yes",
        grade=grade(answer["cot_quality"]),
    )
