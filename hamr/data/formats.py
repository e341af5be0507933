"""Response format that the prompt of each sample requests.

It is the same for all samples or, in hybrid-CoT, one of two that a hash of the sample id selects (second paper, section
4.3: one policy, two system prompts).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hamr.config.schema import ModelConfig
from hamr.data.actions import ANSWER_END, ResponseFormat
from hamr.types import ServiceSample

NAMES: Mapping[ResponseFormat, str] = {"plain": "plain", "think_answer": "pre_cot", "answer_think": "post_cot"}


@dataclass(frozen=True, kw_only=True)
class Formats:
    """`post_share` is the share of the samples with the answer first if `asked` is `hybrid`.

    The selection depends only on the sample id, so it can be recomputed from the sample: in the encoder of prompts, in
    the router, in an evaluation of an old ledger. A response cannot choose its own format.
    """

    asked: ResponseFormat | Literal["hybrid"] = "plain"
    post_share: float = 0.5

    @classmethod
    def of_model(cls, model: ModelConfig) -> Formats:
        return cls(asked=model.response_format, post_share=model.post_cot_share)

    def of(self, sample: ServiceSample) -> ResponseFormat:
        if self.asked != "hybrid":
            return self.asked
        drawn = int.from_bytes(hashlib.sha256(f"format/{sample.id}".encode("utf-8", "replace")).digest()[:4], "big")
        return "answer_think" if drawn < self.post_share * 2**32 else "think_answer"

    def mark(self, sample: ServiceSample) -> str:
        """Return the text that ends the answer of the sample if more may follow it, else ""."""
        return ANSWER_END if self.of(sample) == "answer_think" else ""


PLAIN = Formats()
"""Every response is the action itself."""
