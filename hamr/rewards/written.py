"""Templates for written answers of a judge: an analysis that ends with one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hamr.prompting.templates import FixedText, PromptFile, TaggedText, fill_template, variables_of


class WrittenPrompt(PromptFile):
    """Prompt of one judge.

    `system` is fixed. The rest is Jinja, as in the templates of the scorers: `user`, then `each` once per entry of a
    list (the responses of a group, the items of a rubric; "" without a list), then `after` ("" for nothing). The shared
    part of a group comes first, so its prefix is computed once.

    >>> sorted(WrittenPrompt.load("dialogue.en").variables)
    ['call', 'history', 'response']
    """

    system: FixedText
    user: TaggedText
    each: TaggedText
    after: TaggedText

    @property
    def variables(self) -> frozenset[str]:
        """Variables that `render` needs in addition to those of the entries."""
        return variables_of(self.user) | variables_of(self.after)

    def render(self, variables: Mapping[str, str], each: Sequence[Mapping[str, str]] = ()) -> list[dict[str, str]]:
        """Return chat messages with neutralised texts. Ignore unknown variables. Raise DataError for a variable that is
        missing or not a text."""
        entries = [fill_template(self.each, entry, self.name) for entry in each] if self.each else []
        parts = [
            fill_template(self.user, variables, self.name),
            *entries,
            fill_template(self.after, variables, self.name),
        ]
        user = "\n\n".join(part for part in parts if part)
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]
