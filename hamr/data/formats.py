"""Which form of response each sample's prompt asks for: the same for all, or, in hybrid-CoT, the one of two that the
sample's id draws (second paper, section 4.3: one policy, two system prompts).
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
    """`post_share`: what share of the samples is asked for the answer first where `asked` is `hybrid`.

    The draw takes the sample's id and nothing else, so that whoever has the sample knows what it was asked: the encoder
    of prompts, the router, an evaluation of last week's ledger. No response can choose its own format.
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
        """What ends the sample's answer where more may follow it; "" where the answer ends with the response."""
        return ANSWER_END if self.of(sample) == "answer_think" else ""


PLAIN = Formats()
"""Every response is the action itself."""
