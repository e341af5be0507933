"""The loss covers exactly the tokens in the formula of each kind, counted with one token per letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hamr.data.sft_encoding import encode_item, items_batch, part_losses, part_names
from hamr.data.sft_items import PARTS, SftItem, TargetPart, item_messages
from hamr.errors import DataError
from hamr.types import Reference, Reply, ServiceSample, SftKind, Turn

END = 0
SPECIAL = 9999


class Letters:
    """A token a letter; but what `joined` holds is one token, and `§` is a special one."""

    eos_id = END
    special_ids = frozenset({SPECIAL})

    def __init__(self, *joined: str) -> None:
        self.joined = joined

    def chat_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return [1, *(ord(letter) for m in messages for letter in m["content"]), 2]

    def spans(self, text: str) -> list[tuple[int, int, int]]:
        found, at = [], 0
        while at < len(text):
            piece = next((j for j in self.joined if text.startswith(j, at)), text[at])
            token = SPECIAL if piece == "§" else 5000 + self.joined.index(piece) if len(piece) > 1 else ord(piece)
            found.append((token, at, at + len(piece)))
            at += len(piece)
        return found


SAMPLE = ServiceSample(
    id="s",
    ticket={},
    policy="Help.",
    tools=(),
    history=(Turn(role="customer", content="hi"), Turn(role="agent", content="yo"), Turn(role="customer", content="?")),
    references=(Reference(action=Reply(content="ok")),),
)


def item(kind: SftKind, *texts: str) -> SftItem:
    parts = tuple(TargetPart(part=p, text=t) for p, t in zip(PARTS[kind], texts, strict=True))
    return SftItem(kind=kind, sample=SAMPLE, target=parts)


def learnt(kind: SftKind, *texts: str) -> str:
    """The letters of the completion, which has loss, with the end of sequence as |."""
    encoded = encode_item(item(kind, *texts), Letters())
    [sequence] = encoded.group.sequences
    assert len(sequence.token_ids) == len(encoded.parts) and not sequence.mask
    return "".join({END: "|"}.get(t, chr(t)) for t in sequence.token_ids)


def test_decision_trains_on_action_and_end_token() -> None:
    assert learnt("decision", "ok") == "ok|"


def test_eq_2_trains_on_rationale_and_action() -> None:
    assert learnt("decision_dra", "why ", "ok") == "why ok|"


def test_post_cot_trains_on_action_and_then_rationale() -> None:
    assert learnt("decision_post", "ok", " why") == "ok why|"
    assert part_names("decision_post") == ("action", "rationale")
    encoded = encode_item(item("decision_post", "ok", "y"), Letters())
    losses = part_losses([encoded], [[-1.0, -2.0, -4.0, -8.0]])
    assert losses == pytest.approx({"loss": 15 / 4, "action": 3 / 2, "rationale": 12 / 2})


def test_eq_3_trains_on_both_actions_and_the_predicted_environment() -> None:
    assert learnt("patm", "ask", "yes", "do") == "askyesdo|"
    assert learnt("patm_dra", "why", "ask", "yes", "do") == "whyaskyesdo|"


def test_prompt_tokens_carry_no_loss() -> None:
    encoded = encode_item(item("patm", "ask", "yes", "do"), Letters())
    group = encoded.group
    assert list(group.prompt_ids) == Letters().chat_ids(item_messages(item("patm", "ask", "yes", "do")))
    assert "yo" in "".join(map(chr, group.prompt_ids))
    [sequence] = group.sequences
    assert sequence.token_ids == (*map(ord, "askyesdo"), END) and not sequence.mask
    assert len(encoded) == len(group.prompt_ids) + 9


def test_token_across_a_boundary_belongs_to_the_later_part() -> None:
    """'><' closes the thought and opens the answer, and is a single token in many vocabularies."""
    texts = ("<t>", "<a>")
    encoded = encode_item(item("decision_dra", *texts), Letters("><"))
    assert list(encoded.parts) == [0, 0, 1, 1, 1, 1]


def test_all_tokens_of_one_character_belong_to_its_part() -> None:
    class Bytes(Letters):
        def spans(self, text: str) -> list[tuple[int, int, int]]:
            return [(byte, i, i + 1) for i, letter in enumerate(text) for byte in letter.encode()]

    encoded = encode_item(item("decision_dra", "为", "好"), Bytes())
    assert list(encoded.parts) == [0, 0, 0, 1, 1, 1, 1]


def test_special_token_in_the_target_is_rejected_with_its_line() -> None:
    with pytest.raises(DataError, match=r"a.jsonl:3: target: '§'"):
        encode_item(item("decision", "ok§"), Letters(), where="a.jsonl:3")


def test_batch_has_one_group_per_item_and_counts_loss_tokens() -> None:
    items = [encode_item(item("decision", "ok"), Letters()), encode_item(item("patm", "a", "b", "c"), Letters())]
    batch = items_batch(items, "sequence_mean")
    assert (batch.loss, batch.aggregation, len(batch.groups), batch.tokens) == ("sft", "sequence_mean", 2, 3 + 4)


def test_both_actions_of_a_plan_have_separate_names() -> None:
    assert part_names("patm") == ("action", "environment", "next_action")
    assert part_names("decision_dra") == ("rationale", "action")


def test_losses_by_part_match_hand_computed_values() -> None:
    """Two items: a plan of a, b, cc + end, and a decision of one letter + end."""
    items = [encode_item(item("patm", "a", "b", "cc"), Letters()), encode_item(item("decision", "x"), Letters())]
    rows = [[-1.0, -2.0, -3.0, -4.0, -5.0], [-6.0, -8.0]]
    assert part_losses(items, rows) == pytest.approx(
        {
            "loss": (1 + 2 + 3 + 4 + 5 + 6 + 8) / 7,
            "action": (1 + 6 + 8) / 3,
            "environment": 2.0,
            "next_action": (3 + 4 + 5) / 3,
        }
    )
