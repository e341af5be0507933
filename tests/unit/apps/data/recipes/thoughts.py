"""Samples, valid chains and responses in both languages, and scripted pools for the tests of thought restructuring."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hamr.apps.data.recipes.runner import Make, Pools, make_one
from hamr.apps.data.recipes.teachers import Teacher, Teachers
from hamr.apps.data.recipes.thought import ThoughtRecipe, thought_items
from hamr.data.progress import ItemResult
from hamr.protocols import Ask
from hamr.types import Action, Answer, Question, Reference, Reply, ServiceSample, ToolCall, Turn

UID = "48213377"
FIND = {
    "name": "find_order",
    "description": "",
    "parameters": {"type": "object", "properties": {"user_id": {"type": "string"}}, "required": ["user_id"]},
}
CALL = ToolCall(name="find_order", parameters={"user_id": UID})
SAID = {
    "en": "I am sorry for the wait; your parcel left our house yesterday.",
    "zh": "让您久等了，包裹昨天已经从仓库发出，请您放心。",
}
PROCESS = {
    "en": "The customer waits and is cross. I know that the order was sent, so nothing has to be looked up.",
    "zh": "客户等得着急。我知道订单已经发出，不需要再查询。",
}
STRATEGY = {"en": "Say sorry first, then name the day, briefly.", "zh": "先安抚，再说明时间，语气简短真诚。"}
REFUSED = {"en": "I'm sorry, but I can't help with that.", "zh": "抱歉，我无法协助完成。"}


def sample(name: str = "s", action: Action | None = None, language: str = "en") -> ServiceSample:
    return ServiceSample(
        id=name, ticket={"product": "shop"}, policy="Be kind.", tools=(FIND,),
        history=(Turn(role="customer", content="Where is my parcel?" if language == "en" else "我的包裹在哪里？"),),
        references=(Reference(action=action or Reply(content=SAID[language])),),
    )  # fmt: skip


def chain(language: str = "en", process: str = "", strategy: str = "") -> str:
    """The two halves in their tags; a half that is not given is a good one."""
    process, strategy = process or PROCESS[language], strategy or STRATEGY[language]
    return f"<process>{process}</process>\n<strategy>{strategy}</strategy>"


def learnt(language: str = "en") -> str:
    return f"{PROCESS[language]}\n{STRATEGY[language]}"


def call_text(**parameters: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'find_order', 'arguments': parameters})}</tool_call>"


def quality(score: int = 5, reason: str = "r") -> str:
    return "Looked at. " + json.dumps({"reason": reason, "score": score})


def cot(score: int = 5, complete: str = "yes", policy: str = "yes") -> str:
    said = {"complete_and_clear": complete, "follows_policy": policy, "cot_quality": score}
    return "It leaves out the fee. " + json.dumps(said)


class ScriptedModels:
    """Says by the prompt's stem what is scripted for it: a text, one per asking of that prompt (the last stays), or a
    function of the question. Keeps what it was asked. A question in messages counts as `zero_think`."""

    def __init__(self, **said: str | list[str | Answer] | Callable[[Question], str]) -> None:
        self.said: Mapping[str, Any] = {
            "thought_extract": chain(), "thought_chain": chain(), "thought_response": SAID["en"],
            "dialogue": quality(), "cot_quality": cot(), **said,
        }  # fmt: skip
        self.asked: list[tuple[str, Question]] = []

    async def __call__(self, question: Question) -> Answer:
        stem = question.prompt.partition(".")[0] or "zero_think"
        before = sum(name == stem for name, _ in self.asked)
        self.asked.append((stem, question))
        said = self.said[stem]
        if isinstance(said, list):
            said = said[min(before, len(said) - 1)]
        elif callable(said):
            said = said(question)
        return said if isinstance(said, Answer) else Answer(text=said)

    @property
    def steps(self) -> list[str]:
        return [name.removeprefix("thought_") for name, _ in self.asked]

    def questions(self, stem: str) -> list[Question]:
        return [question for name, question in self.asked if name == stem]

    @property
    def pools(self) -> Pools:
        ask: Ask = self
        return Pools(teachers=Teachers({"t": Teacher(ask=ask)}), judge=ask, second=ask)


async def made_of(
    make: Make, recipe: ThoughtRecipe, crew: ScriptedModels, one: ServiceSample | None = None
) -> ItemResult:
    [item] = thought_items([one or sample()], recipe, "m")
    return await make_one(item, make, crew.pools)
