"""Repeated words of English, Chinese and mixed texts."""

from __future__ import annotations

import unicodedata
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.data.words import plain, repetitions, words_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("do you use data, do you use data", {"do you use", "you use data"}),
        ("do you use data, do you use data 好的吗 好的吗", {"do you use", "you use data"}),
        ("好的吗 好的吗", set()),
        ("你好请问一下 你好请问一下", {"你 好 请 问 一 下"}),
        ("你好请问一下 a plan a 你好请问一下", {"你 好 请 问 一 下"}),
        ("आपका रिफंड मंज़ूर हो गया है। रिफंड पाँच दिन में आएगा।", set()),
    ],
)
def test_every_sequence_has_the_size_of_its_script(text: str, found: set[str]) -> None:
    assert {" ".join(sequence) for sequence in repetitions(text)} == found


@pytest.mark.parametrize(("alphabet", "size"), [("ab ", 3), ("好的 ", 6)])
def test_texts_in_one_script_have_one_size(alphabet: str, size: int) -> None:
    @given(st.text(alphabet, max_size=60))
    def check(text: str) -> None:
        words = words_of(text)
        found = Counter(tuple(words[i : i + size]) for i in range(len(words) - size + 1))
        assert repetitions(text) == {sequence for sequence, count in found.items() if count > 1}

    check()


def test_composed_and_decomposed_words_are_equal() -> None:
    text = "Café à Málaga, क़ीमत"
    assert words_of(unicodedata.normalize("NFD", text)) == words_of(text) == ["café", "à", "málaga", "क़ीमत"]
    assert plain("दिन") != plain("दीन")
