"""Data for a hallucination judge (second paper, section 3.2, Fig. 2): a judge predicts, a second model or people
decide.

    predicted none    the second model is asked too: none again -> `simple` (simple non-hallucination), else discarded
    predicted other   to people: they confirm it, with a reason -> `confirmed`, or find none -> `hard`
                      (hard non-hallucination: a false alarm of the judge)

Responses for review are written to a file of rows with empty `label` and `reason`; the filled-in file is an input of
the next call. The second model then refines the reasons of people. The sets together train a judge, which may be the
judge of the next round.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hamr.apps.data.recipes.runner import Desk, Dropped, Judge
from hamr.apps.data.recipes.teachers import teacher_problem
from hamr.config.judged import HallucinationConfig
from hamr.data.actions import acting_text
from hamr.data.formats import PLAIN, Formats
from hamr.data.progress import ItemResult, WorkItem, item_key
from hamr.data.responses import ResponseGroup
from hamr.data.samples import to_json
from hamr.errors import DataError
from hamr.prompting.reading import TEXT, final_object, object_schema, reason
from hamr.rewards import hallucination
from hamr.rewards.questions import JudgedText, case_variables, response_words
from hamr.types import Judgement, Language, Question, ServiceSample

SETS = ("simple", "hard", "confirmed", "review")
_LONGEST_REASON = 800


@dataclasses.dataclass(frozen=True, kw_only=True)
class Responded:
    """One response to a sample."""

    sample: ServiceSample
    response: str


def hallucination_items(groups: Iterable[ResponseGroup], language: Language, by: str) -> list[WorkItem]:
    """Return an item per response, named by the group's line, the sample and the index of the response."""
    items = []
    for group in groups:
        for number, text in enumerate(group.responses):
            key = item_key("hallucination", to_json(group.sample), text, language, by)
            name = f"{group.number}/{group.sample.id}/{number}"
            items.append(WorkItem(id=name, key=key, content=Responded(sample=group.sample, response=text)))
    return items


REASON_SCHEMA = object_schema(reason=TEXT)


def reason_items(
    items: Sequence[WorkItem], labels: Mapping[str, tuple[str, str]], language: Language, by: str
) -> list[WorkItem]:
    """Return an item per response in which people confirmed a hallucination."""
    found = []
    for item in items:
        label, note = labels.get(item.id, ("none", ""))
        if label != "none":
            one = item.content
            key = item_key("hallucination reason", to_json(one.sample), one.response, label, note, language, by)
            found.append(WorkItem(id=item.id, key=key, content=(one, label, note)))
    return found


class HallucinationLoop:
    """The recipe's steps for one response: kept is {"set": simple or review, "label", "reason"}."""

    def __init__(self, language: Language, formats: Formats = PLAIN) -> None:
        self.config, self.formats = HallucinationConfig(weight=1.0, language=language), formats

    async def __call__(self, item: WorkItem, desk: Desk) -> ItemResult:
        first = await self._label(item.content, desk, "judge")
        if hallucination.vetoes(first):
            return ItemResult(kept={"set": "review", "label": first.labels[0], "reason": first.reason})
        second = await self._label(item.content, desk, "second")
        if hallucination.vetoes(second):
            raise Dropped("the second model does not confirm", f"{second.labels[0]}: {second.reason}")
        return ItemResult(kept={"set": "simple", "label": "none", "reason": first.reason})

    def _words(self, one: Responded) -> JudgedText:
        asked = self.formats.of(one.sample)
        return response_words(acting_text(one.response, asked), asked)

    async def refine_reason(self, item: WorkItem, desk: Desk) -> ItemResult:
        """Recipe for a confirmed response and its (label, reason): kept is {"reason"}, refined by the second model."""
        one, label, note = item.content
        shown = self._words(one)

        def ask(attempt: int) -> Question:
            variables = {"response": shown.words, "call": shown.call, "label": label, "note": note}
            return Question(
                variables={**case_variables(one.sample), **variables},
                affinity=one.sample.id,
                prompt=f"hallucination_reason.{self.config.language}",
                schema=REASON_SCHEMA,
                attempt=attempt,
            )

        def read(text: str) -> str:
            return reason(final_object(text, ("reason",))["reason"])

        refined = await desk.read_judge("reason", ask, read, "second")
        problem = teacher_problem(refined, self.config.language)
        if problem is not None or len(refined) > _LONGEST_REASON:
            raise Dropped("reason: unusable", problem.check if problem else f"{len(refined)} characters")
        return ItemResult(kept={"reason": refined})

    async def _label(self, one: Responded, desk: Desk, by: Judge) -> Judgement:
        words = self._words(one)

        def ask(attempt: int) -> Question:
            return hallucination.question(one.sample, [words], self.config, attempt)

        def read(text: str) -> Judgement:
            (judgement,) = hallucination.read(text, one.sample, 1, self.config)
            assert judgement is not None, "responses are judged one by one"
            return judgement

        return await desk.read_judge("prediction" if by == "judge" else "confirmation", ask, read, by)


# --- people ------------------------------------------------------------------------------------


def read_labels(rows: Sequence[tuple[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return {item: (label, reason)} of the filled-in rows, given as (location, object); open rows are skipped.

    Raises DataError for a label that is not one of the five, and for a hallucination without a reason.
    """
    found = {}
    for where, row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("id"), str) or "label" not in row:
            raise DataError(f"{where}: line", row, "must be an object with id and label")
        label, reason = row["label"], row.get("reason") or ""
        if label is None:
            continue
        if label not in hallucination.LABELS:
            raise DataError(f"{where}: label", label, f"must be one of {', '.join(hallucination.LABELS)}, or null")
        if label != "none" and not (isinstance(reason, str) and reason.strip()):
            raise DataError(f"{where}: reason", reason, "a confirmed hallucination needs a reason; write it down")
        found[row["id"]] = (label, str(reason).strip())
    return found


def sets_of(
    items: Sequence[WorkItem], done: Mapping[str, ItemResult], labels: Mapping[str, tuple[str, str]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of every set: a sample's line with `response`, `label` and `reason`.

    For `review`: the prediction, and the open `label` and `reason`. A label of people decides, whatever was predicted.
    """
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SETS}
    for item in items:
        kept = done[item.id].kept
        row = {**to_json(item.content.sample), "response": item.content.response}
        if item.id in labels:
            label, reason = labels[item.id]
            rows["hard" if label == "none" else "confirmed"].append({**row, "label": label, "reason": reason})
        elif kept is None:
            continue
        elif kept["set"] == "review":
            predicted = {"label": kept["label"], "reason": kept["reason"]}
            rows["review"].append({**row, "id": item.id, "predicted": predicted, "label": None, "reason": None})
        else:
            rows["simple"].append({**row, "label": kept["label"], "reason": kept["reason"]})
    return rows
