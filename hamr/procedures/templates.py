"""Fixed texts of the SAGE prompts: texts with tagged variables, and the sentences that describe a graph."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import StrictStr

from hamr.errors import BadInput
from hamr.procedures.schema import LANGUAGES
from hamr.prompting.templates import PromptFile, TaggedText, fill_template


class TextPrompt(PromptFile):
    """A text with variables, each alone in a tag.

    >>> TextPrompt.load("sage_user.en").language
    'en'
    """

    text: TaggedText

    def render(self, variables: Mapping[str, str]) -> str:
        """Return the text with the variables. Raise DataError for a variable that is missing or not a text."""
        return fill_template(self.text, variables, self.name)


class Phrases(PromptFile):
    """Sentences by name."""

    phrases: dict[StrictStr, StrictStr]

    def say(self, phrase: str, **values: object) -> str:
        return self.phrases[phrase].format(**values)


def phrases_in(language: str) -> Phrases:
    """Return the shipped sentences of a language. Raise BadInput for an unknown language."""
    if language not in LANGUAGES:
        raise BadInput("language", language, f"known: {list(LANGUAGES)}")
    return Phrases.load(f"sage_phrases.{language}")
