"""Token layout of a scorer's prompt: question, optional reasoning, verdict.

Scoring and scorer training share this layout, so that a fine-tuned scorer sees the tokens it was trained on:

    chat template(system, user) [thinking.open reasoning thinking.close] verdict_prefix | label
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hamr.errors import BadInput, VerdictUnparsable
from hamr.models.tokenizer import Tokenizer
from hamr.prompting.templates import PromptTemplate
from hamr.rewards.verdict import soft_score

MIN_LABEL_MASS = 1e-6
"""Below this total probability of the labels, the model intended another text and the distribution is noise."""


@dataclass(frozen=True, kw_only=True)
class LabelReading:
    """Reading of the label position. `probabilities` are renormalised over the labels, `label_mass` is their sum."""

    score: float
    verdict: str
    probabilities: Mapping[str, float]
    label_mass: float


class ScorerPrompt:
    """Template in one model's tokens. `labels` maps each canonical label to its token id.

    Raises:
        BadInput: A label is not exactly one token of this model after the verdict's prefix.
    """

    def __init__(self, template: PromptTemplate, tokenizer: Tokenizer) -> None:
        self.template, self.tokenizer = template, tokenizer
        self.labels: dict[str, int] = {
            label: _label_id(tokenizer, template, label, written.token) for label, written in template.labels.items()
        }

    def question_ids(self, variables: Mapping[str, str]) -> list[int]:
        """Return the rendered question up to the scorer's reply. Raises DataError for a missing variable."""
        return self.tokenizer.chat_ids(self.template.render(variables), thinks=self.template.thinks)

    def thinking_ids(self) -> list[int]:
        return self.tokenizer.encode(self.template.thinking.open)

    def verdict_ids(self, *, after_thinking: bool) -> list[int]:
        """Return the tokens between the question, or the reasoning, and the label."""
        close = self.template.thinking.close if after_thinking else ""
        return self.tokenizer.encode(close + self.template.verdict_prefix)

    @property
    def stop(self) -> str:
        """Return the text that ends the reasoning, stripped, since the white space around it varies between models."""
        return self.template.thinking.close.strip()

    def read(self, logprobs: Mapping[int, float]) -> LabelReading:
        """Return the score from the labels' log-probabilities (nats) at the verdict position.

        Raises VerdictUnparsable if their total probability is below MIN_LABEL_MASS.
        """
        return read_labels({label: math.exp(logprobs[token]) for label, token in self.labels.items()})


def read_labels(mass: Mapping[str, float]) -> LabelReading:
    """Return the score P(Yes) + 0.5 P(Part) and the hard verdict from the labels' probabilities.

    Ties go to the label that the template lists first. Raises VerdictUnparsable below MIN_LABEL_MASS.

    >>> read_labels({"yes": 0.3, "part": 0.2, "no": 0.1}).verdict
    'yes'
    """
    total = math.fsum(mass.values())
    if not total >= MIN_LABEL_MASS:
        raise VerdictUnparsable(f"the labels hold {total:.2e} of the probability, less than {MIN_LABEL_MASS:.0e}")
    probabilities = {label: p / total for label, p in mass.items()}
    return LabelReading(
        score=soft_score(probabilities),
        verdict=max(probabilities, key=lambda label: probabilities[label]),
        probabilities=probabilities,
        label_mass=min(1.0, total),
    )


def _label_id(tokenizer: Tokenizer, template: PromptTemplate, label: str, text: str) -> int:
    before = tokenizer.encode(template.verdict_prefix)
    both = tokenizer.encode(template.verdict_prefix + text)
    if both[:-1] != before or len(both) != len(before) + 1:
        pieces = len(tokenizer.encode(text))
        raise BadInput(
            f"prompt {template.name}: labels.{label}.token",
            text,
            f"has to be exactly one token after {template.verdict_prefix!r} but this model's tokenizer makes {pieces} "
            "of it or joins it with the prefix; choose another word for it, or another model",
        )
    return both[-1]
