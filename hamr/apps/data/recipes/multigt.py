"""Multiple ground truths (first paper, section 3.1, Table 3): alternative replies that would have served as well.

Candidates come from two streams: offline from a light model at a high temperature (1.2), online from the responses of
an RL run that its policy found likely. Each new candidate is checked once by up to two judges, and one acceptance is
enough:

    consistency   does it lead the customer as the logged reply does? added as `online-consistency` or
                  `offline-consistency`; only "yes" of the three levels counts
    utility       given the ticket's summary, which no policy and no other judge sees: would it have helped too?
                  added as `utility`

The consistency judge is asked first, so a reference has exactly one source. Samples whose logged action is a tool call
are unchanged: calls are compared exactly, and an additional reply would blur which type of action is right.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from hamr.apps.data.recipes.runner import Desk, Dropped, WritingRecipe
from hamr.apps.data.recipes.teachers import teacher_problem, without_thought
from hamr.bench.agreement import level
from hamr.data.actions import parse_action
from hamr.data.language import language_of
from hamr.data.progress import ItemResult, WorkItem, item_key
from hamr.data.rendering import policy_messages
from hamr.data.samples import to_json
from hamr.data.words import plain
from hamr.rewards.questions import consistency_question
from hamr.rewards.utility import read_utility, utility_question
from hamr.types import Question, Reference, Reply, ServiceSample, ToolCall

SOURCES = ("online-consistency", "offline-consistency", "utility")
_ALIKE = 0.95


@dataclass(frozen=True, kw_only=True)
class MultiGtRecipe(WritingRecipe):
    """Settings of the recipe. `candidates` of the light model per sample. `summary`: the key of `privileged` that the
    utility judge sees."""

    candidates: int = 8
    temperature: float = 1.2
    summary: str = "ticket_summary"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Expanding:
    """A sample with an RL run's likely responses, likeliest first."""

    sample: ServiceSample
    online: tuple[str, ...] = ()


def multigt_items(found: Sequence[Expanding], recipe: MultiGtRecipe, by: str) -> list[WorkItem]:
    settings = dataclasses.asdict(recipe)
    return [
        WorkItem(id=one.sample.id, key=item_key("multigt", to_json(one.sample), one.online, settings, by), content=one)
        for one in found
    ]


@dataclass(frozen=True)
class MultiGt:
    """The recipe's steps for one sample: kept are the added references, possibly none."""

    recipe: MultiGtRecipe

    async def __call__(self, item: WorkItem, desk: Desk) -> ItemResult:
        one: Expanding = item.content
        logged = [r.action for r in one.sample.references if isinstance(r.action, Reply)]
        if not logged or isinstance(one.sample.references[0].action, ToolCall):
            return ItemResult(kept={"added": []}, notes=("samples left alone: a tool call",))
        known = [reply.content for reply in logged]
        added = []
        for stream, text in [*(("online", text) for text in one.online), *await self._offline(one.sample, desk)]:
            content, why = candidate(text, known)
            if not why:
                known.append(content)
                source, why = await self._accept(one.sample, logged, content, stream, desk)
                if source:
                    added.append({"content": content, "source": source})
            desk.notes.append(f"candidates: {why or 'added'}")
        return ItemResult(kept={"added": added})

    async def _offline(self, sample: ServiceSample, desk: Desk) -> list[tuple[str, str]]:
        found = []
        for number in range(self.recipe.candidates):
            question = Question(
                messages=tuple(policy_messages(sample)),
                affinity=sample.id,
                temperature=self.recipe.temperature,
                max_new_tokens=self.recipe.max_new_tokens,
                seed=self.recipe.seed + number,
            )
            answer = await desk.teacher_answer("candidate", question)
            if answer.text is None:
                desk.notes.append("candidates: cut off")
            else:
                found.append(("offline", answer.text))
        return found

    async def _accept(
        self, sample: ServiceSample, logged: Sequence[Reply], content: str, stream: str, desk: Desk
    ) -> tuple[str, str]:
        """Return (the source, "") or ("", the reason for the rejection)."""
        for reference in logged:
            answer = await desk.verdict("consistency", consistency_question(sample, reference, Reply(content=content)))
            # A cross-encoder gives no label.
            label = answer.verdict or (None if answer.score is None else level(answer.score))
            if label == "yes":
                return f"{stream}-consistency", ""
        summary = sample.privileged.get(self.recipe.summary)
        if not isinstance(summary, str) or not summary.strip():
            return "", "inconsistent, and no summary for the utility judge"

        def ask(attempt: int) -> Question:
            prompt = f"utility.{self.recipe.language}"
            return utility_question(sample, summary, logged[0].content, content, prompt=prompt, attempt=attempt)

        try:
            utility = await desk.read_judge("utility", ask, read_utility, "second")
        except Dropped as end:
            if end.passing:
                raise
            return "", end.reason.replace("second", "utility judge")
        return ("utility", "") if utility.available else ("", "neither consistent nor of use")


def candidate(text: str, known: Sequence[str]) -> tuple[str, str]:
    """Return (the reply, "") or ("", the reason why it is not a candidate: not a reply, unusable, or a duplicate).

    Two replies are duplicates if their words are the same, ignoring case and punctuation, or if 95% of their letters
    match in order. The language has to be that of the first known reply.
    """
    action = parse_action(without_thought(text))
    if isinstance(action, ToolCall):
        return "", "a tool call where a reply was given"
    if not isinstance(action, Reply):
        return "", "no action"
    problem = teacher_problem(action.content, language_of(known[0]), may_refuse=True)
    if problem is not None:
        return "", problem.check.removeprefix("teacher: ")
    words = plain(action.content)
    if any(_alike(words, plain(other)) for other in known):
        return "", "a duplicate"
    return action.content, ""


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.real_quick_ratio() >= _ALIKE and matcher.quick_ratio() >= _ALIKE and matcher.ratio() >= _ALIKE


# --- results -----------------------------------------------------------------------------------


def with_references(sample: ServiceSample, made: ItemResult) -> ServiceSample:
    """Return the sample with the added references after its own."""
    added = tuple(
        Reference(action=Reply(content=row["content"]), source=row["source"])
        for row in (made.kept or {}).get("added", ())
    )
    return dataclasses.replace(sample, references=(*sample.references, *added))


def table_3(name: str, before: Sequence[ServiceSample], after: Sequence[ServiceSample]) -> Mapping[str, Any]:
    """Return the row of the paper's Table 3 for one set.

    added = multi - single, expand = added / single * 100. Each added reference is counted under its one source.
    `single` counts the original references: one per query in the paper.
    """
    single, multi = (sum(len(sample.references) for sample in samples) for samples in (before, after))
    by_source = Counter(
        reference.source
        for old, new in zip(before, after, strict=True)
        for reference in new.references[len(old.references) :]
    )
    return {
        "set": name,
        "queries": len(before),
        "single-GT": single,
        "multi-GT": multi,
        "added": multi - single,
        **{source: by_source[source] for source in SOURCES},
        "expand %": round(100 * (multi - single) / single, 2) if single else 0.0,
    }
