"""Fixed wordings of generated items: `conf/olabench/<language>.yaml`, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from string import Formatter
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from hamr.bench.olabench.rates import HALLUCINATIONS
from hamr.config.resources import resource
from hamr.config.yaml_files import read_checked
from hamr.errors import BadInput
from hamr.procedures.schema import LANGUAGES, Strict
from hamr.rewards import risk

Phrasings = Annotated[tuple[str, ...], Field(min_length=1)]
Slots = Mapping[str, frozenset[str]]

_SLOTS: Slots = {
    "rag_policy": frozenset({"desk"}),
    "workflow_policy": frozenset({"desk"}),
    "step_ask": frozenset({"what"}),
    "step_do": frozenset({"what"}),
    "step_amount": frozenset({"what", "amount"}),
    "question": frozenset({"conditions"}),
    "reply": frozenset({"what"}),
    "condition": frozenset({"description", "meaning"}),
    "answer": frozenset({"what"}),
    "answer_amount": frozenset({"what", "amount"}),
}
_PLANTED_SLOTS = frozenset({"question", "answer", "step"})


def _plain(text: str) -> str:
    list(Formatter().parse(text))
    return text


Template = Annotated[str, AfterValidator(_plain)]


class NodeWords(Strict):
    name: str
    task: str


class BenchWords(Strict):
    """Wordings of the benchmark.

    `traps`: sentences added to customers' messages, `planted`: content inserted into responses, by type. `near`: near
    misses of a risk; `neutral`: replies that state little.
    """

    rag_policy: Template
    workflow_policy: Template
    nodes: Annotated[tuple[NodeWords, ...], Field(min_length=4, max_length=4)]
    step_ask: Template
    step_do: Template
    step_amount: Template
    no_facts: str
    reply: Template
    question: Template
    condition: Template
    joint: str
    answer: Template
    answer_amount: Template
    traps: Mapping[str, Phrasings]
    planted: Mapping[str, Phrasings]
    neutral: Phrasings
    near: Mapping[str, Phrasings]
    missing_call: Phrasings
    step_default: str

    @model_validator(mode="after")
    def _whole(self) -> BenchWords:
        types = (*risk.TYPES, *HALLUCINATIONS)
        # A misuse is built from retrieved pairs, not from a sentence.
        wanted = {"traps": types, "planted": [t for t in types if t != "misuse"], "near": risk.TYPES}
        for part, names in wanted.items():
            if set(getattr(self, part)) != set(names):
                raise ValueError(f"{part} needs exactly {', '.join(names)}")
        for name, known in _SLOTS.items():
            _check_slots(name, getattr(self, name), known)
        for kind, texts in self.planted.items():
            for text in texts:
                _check_slots(f"planted.{kind}", text, _PLANTED_SLOTS)
        return self


def _check_slots(name: str, text: str, known: frozenset[str]) -> None:
    unknown = {slot for _, slot, _, _ in Formatter().parse(text) if slot is not None} - known
    if unknown:
        raise ValueError(f"{name} has the variable {sorted(unknown)[0]!r}; known: {', '.join(sorted(known))}")


@lru_cache(maxsize=4)
def bench_words(language: str) -> BenchWords:
    """Load the wordings. Raises BadInput for an unknown language and, with file and line, for an invalid file."""
    if language not in LANGUAGES:
        raise BadInput("language", language, f"known: {', '.join(LANGUAGES)}")
    words, _ = read_checked(resource("conf", f"olabench/{language}.yaml"), BenchWords, "words")
    return words
