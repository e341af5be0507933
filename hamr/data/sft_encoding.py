"""SFT items as token ids: the prompt, and the target with its parts. All tokens of the target have loss."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from hamr.data.policy_chat import PolicyChat, TextEncoder
from hamr.data.sft_items import PARTS, SftItem, item_messages
from hamr.errors import DataError
from hamr.types import Aggregation, SftKind, TrainBatch, TrainGroup, TrainSequence


@dataclass(frozen=True, kw_only=True)
class EncodedItem:
    """`token_ids` is the target, including the end-of-sequence token.

    `parts[i]` is the part of token i (an index into `PARTS[kind]`). Arrays, because a set may have 10^8 tokens.
    """

    kind: SftKind
    prompt_ids: array[int]
    token_ids: array[int]
    parts: bytes

    def __len__(self) -> int:
        """Number of tokens of prompt and target."""
        return len(self.prompt_ids) + len(self.token_ids)

    @property
    def group(self) -> TrainGroup:
        sequence = TrainSequence(token_ids=tuple(self.token_ids))
        return TrainGroup(prompt_ids=tuple(self.prompt_ids), sequences=(sequence,))


def encode_item(item: SftItem, encoder: TextEncoder, *, native: bool = False, where: str = "item") -> EncodedItem:
    """Encode an item.

    The target is encoded as one text, as a policy would generate it, with `native` in the form of its chat template
    (`PolicyChat`). A token that spans the end of one part and the beginning of the next belongs to the later part. The
    end-of-sequence token belongs to the last part.

    Raises:
        DataError: The target contains a special token, which would train the policy to write turns of other roles.
    """
    chat = PolicyChat(tokenizer=encoder, native=native)
    item = replace(item, target=tuple(replace(part, text=chat.rewrite(part.text)) for part in item.target))
    spans = encoder.spans(item.text)
    found = next((item.text[start:end] for token, start, end in spans if token in encoder.special_ids), None)
    if found is not None:
        raise DataError(f"{where}: target", found, "is a special token of the model; remove it from the text")
    ends = list(accumulate(len(part.text) for part in item.target))
    last = len(ends) - 1
    parts = bytes([*(min(bisect_right(ends, max(end - 1, start)), last) for _, start, end in spans), last])
    return EncodedItem(
        kind=item.kind,
        prompt_ids=array("i", chat.encode(item.sample, item_messages(item, native=native))),
        token_ids=array("i", [*(token for token, _, _ in spans), encoder.eos_id]),
        parts=parts,
    )


def items_batch(items: Sequence[EncodedItem], aggregation: Aggregation = "token_mean") -> TrainBatch:
    """Return the data of one optimiser step."""
    return TrainBatch(groups=tuple(item.group for item in items), loss="sft", aggregation=aggregation)


def part_names(kind: SftKind) -> tuple[str, ...]:
    """Return the parts of a kind by names that distinguish the two actions of a plan.

    >>> part_names("patm_dra")
    ('rationale', 'action', 'environment', 'next_action')
    """
    return tuple(f"next_{part}" if part in PARTS[kind][:i] else part for i, part in enumerate(PARTS[kind]))


def part_losses(items: Sequence[EncodedItem], logprobs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the mean negative log-likelihood per token (nats) from log p of every target token.

    `loss` covers all tokens, each part its own under its name; the end-of-sequence token belongs to the last part. With
    c the rationale these are the four terms of Eq. 3's factorisation: reasoning, policy (`action`), world model
    (`environment`) and contingency planning (`next_action`). A name without tokens is omitted.
    """
    sums: dict[str, list[float]] = {}
    for item, values in zip(items, logprobs, strict=True):
        names = part_names(item.kind)
        for part, value in zip(item.parts, values, strict=True):
            for name in ("loss", names[part]):
                sums.setdefault(name, []).append(-value)
    return {name: sum(values) / len(values) for name, values in sums.items()}
