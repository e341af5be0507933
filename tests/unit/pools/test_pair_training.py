from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from hamr.pools.pair_training import mark_numbers

texts = st.lists(st.one_of(st.integers(0, 30).map(str), st.sampled_from(["$", "GB", " fee ", ", "])), max_size=30).map(
    " ".join
)


@given(texts, texts)
def test_equal_numbers_get_equal_letters(a: str, b: str) -> None:
    before = [found for text in (a, b) for found in re.findall(r"\d+", text)]
    after = [found for text in mark_numbers(a, b) for found in re.findall(r"[α-ω]|\d+", text)]
    assert len(before) == len(after)
    assert len(set(zip(before, after, strict=True))) == len(set(before)) == len(set(after))


@given(texts)
def test_text_apart_from_numbers_is_unchanged(text: str) -> None:
    a, b = mark_numbers(text, text)
    assert a == b
    assert re.sub(r"[α-ω]|\d+", "0", a) == re.sub(r"\d+", "0", text)


def test_numbers_beyond_the_last_letter_are_unchanged() -> None:
    numbers = [str(100 + i) for i in range(30)]
    marked, _ = mark_numbers(" ".join(numbers), "")
    assert marked.split()[24:] == numbers[24:] and not set(marked.split()[:24]) & set(numbers)


def test_existing_letters_of_the_text_are_unchanged() -> None:
    assert mark_numbers("α is 5", "5") == ("α is α", "α")
