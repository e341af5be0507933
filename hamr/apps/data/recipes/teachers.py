"""Load balancing over several teachers, and checks of a teacher's text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hamr.data.language import CHINESE_FROM, chinese_share
from hamr.protocols import Ask
from hamr.types import TRANSIENT, Answer, Language, Question


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A pool that generates text; `capacity` is the number of concurrent requests."""

    ask: Ask
    capacity: int = 1


class Teachers:
    """Least-load balancing: the next request goes to the teacher with the fewest pending requests per capacity.

    Each transient failure since its last answer counts as load, so that a dead teacher, which fails fast, does not
    attract every item. A failed request is passed to the next teacher.
    """

    def __init__(self, teachers: Mapping[str, Teacher]) -> None:
        self._teachers = dict(teachers)
        self._under_way = dict.fromkeys(teachers, 0)
        self._failed = dict.fromkeys(teachers, 0)
        self.answered: Counter[str] = Counter()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._teachers)

    async def ask(self, question: Question, first: str = "") -> tuple[str, Answer]:
        """Return (the name of the teacher, the answer).

        `first`: the preferred teacher. If all teachers have a transient failure, the last failure is returned.
        """
        untried = [name for name in self._teachers if name != first]
        name = first
        while True:
            if not name:
                name = min(untried, key=self._load)
                untried.remove(name)
            answer = await self._ask(name, question)
            if answer.failure not in TRANSIENT or not untried:
                return name, answer
            name = ""

    def _load(self, name: str) -> float:
        return (self._under_way[name] + self._failed[name]) / self._teachers[name].capacity

    async def _ask(self, name: str, question: Question) -> Answer:
        self._under_way[name] += 1
        try:
            answer = await self._teachers[name].ask(question)
        finally:
            self._under_way[name] -= 1
        if answer.failure in TRANSIENT:
            self._failed[name] += 1
        else:
            self._failed[name] = 0
            self.answered[name] += 1
        return answer


# --- refused texts of teachers -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CheckFailure:
    """`check` is the name of a rule or of a judge's score, `detail` describes the finding and its location."""

    check: str
    detail: str = ""


_THOUGHT = re.compile(r"\s*<think>.*?</think>\s*", re.DOTALL)
_REFUSAL = re.compile(
    r"^\W*(?:(?:i['’]?m|i am) (?:sorry|afraid|unable)|sorry, |i (?:must decline|apologi[sz]e)"
    r"|i (?:can(?:not|['’]t)|won['’]t) (?:help|assist|comply|provide|write|create|generate|answer|fulfil|do that)"
    r"|as an? (?:ai|language model)|抱歉|对不起|很遗憾，我|作为(?:一个|一名)?(?:ai|人工智能|语言模型)"
    r"|我(?:不能|无法)(?:提供|协助|完成|满足|回答))",
    re.IGNORECASE,
)


def without_thought(text: str) -> str:
    """Return the text after a thinking model's <think> block, trimmed."""
    return _THOUGHT.sub("", text, count=1).strip() if text.lstrip().startswith("<think>") else text.strip()


def teacher_problem(text: str, language: Language, *, may_refuse: bool = False) -> CheckFailure | None:
    """Return the failure of an unusable text: empty, a refusal, a loop, or the wrong language.

    With `may_refuse`, refusals are accepted, since an agent may apologise to a customer.

    A loop: eight words (or Chinese characters) three times in a row, or thirty words three times in total. The language
    is detected by script (`hamr.data.language`).

    >>> teacher_problem("我可以查询", "en")
    CheckFailure(check='teacher: other language', detail='100% of the words are Chinese')
    """
    if not text.strip():
        return CheckFailure(check="teacher: nothing")
    if not may_refuse and _REFUSAL.match(text):
        return CheckFailure(check="teacher: refused", detail=text[:80])
    loop = _loop(text)
    if loop:
        return CheckFailure(check="teacher: loops", detail=loop[:80])
    share = chinese_share(text)
    if share is not None and (share >= CHINESE_FROM) != (language == "zh"):
        return CheckFailure(check="teacher: other language", detail=f"{share:.0%} of the words are Chinese")
    return None


def _loop(text: str) -> str:
    units = re.findall(r"[\u4e00-\u9fff]|\w+", text)
    for start in range(len(units) - 23):
        piece = units[start : start + 8]
        if units[start + 8 : start + 16] == piece == units[start + 16 : start + 24]:
            return " ".join(piece)
    counts = Counter(tuple(units[i : i + 30]) for i in range(len(units) - 29))
    most = counts.most_common(1)
    return " ".join(most[0][0]) if most and most[0][1] >= 3 else ""
