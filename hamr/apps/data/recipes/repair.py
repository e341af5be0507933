"""Write, check and repair: how a recipe gets a text that passes its checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from hamr.apps.data.recipes.runner import Desk, Dropped, WritingRecipe
from hamr.apps.data.recipes.teachers import CheckFailure, without_thought
from hamr.types import Question, ServiceSample

Kept = TypeVar("Kept")


def writing_question(
    recipe: WritingRecipe, sample: ServiceSample, prompt: str, variables: Mapping[str, str], attempt: int
) -> Question:
    """Return the question to a teacher, by a prompt's name and variables."""
    return Question(
        variables=variables,
        affinity=sample.id,
        prompt=f"{prompt}.{recipe.language}",
        attempt=attempt,
        max_new_tokens=recipe.max_new_tokens,
    )


async def ask_until_valid(
    desk: Desk,
    step: str,
    question: Callable[[dict[str, str], int], Question],
    check: Callable[[str], Awaitable[Kept | CheckFailure]],
) -> Kept:
    """Return the result of `check` on a teacher's text, with one retry.

    `question(shown, attempt)`: `shown` are the template's variables `previous` and `fault`, both "" at first, then the
    first text without its thoughts and its fault. Raises Dropped with the second text's fault.
    """
    shown = {"previous": "", "fault": ""}
    for attempt in (0, 1):
        text = await desk.teacher("repair" if attempt else step, question(shown, attempt))
        found = await check(text)
        if not isinstance(found, CheckFailure):
            return found
        fault = found
        shown = {"previous": without_thought(text), "fault": f"{fault.check}: {fault.detail}"}
        if not attempt:
            desk.notes.append(f"to be repaired: {fault.check}")
    raise Dropped(fault.check, fault.detail)
