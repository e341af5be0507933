from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.procedures.formulas import Expression


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("A / 3", Fraction(10, 3)),
        ("-A + 0.1 * B", Fraction(-19, 2)),
        ("max(0, A - 20)", 0),
        ("min(A, B, 7)", 5),
    ],
)
def test_formula_values_are_exact(text, expected):
    assert Expression(text).value({"A": 10, "B": 5}) == expected


@given(a=st.integers(-(10**6), 10**6), b=st.integers(1, 10**6))
def test_division_is_exact(a, b):
    assert Expression("A / B * B").value({"A": a, "B": b}) == a


def test_expression_lists_its_variable_names():
    assert Expression("max(0, Paid - Fee * 2)").names == {"Paid", "Fee"}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "A ** 9", "A // 2", "A % 2", "A if B else 1", "A.real", "A[0]", "[1]", "'x'",
        "abs(A)", "min(A)", "min(A, key=B)", "max", "True", "1j", "lambda: 1", "A; B", "A =", "", "A < B", "~A",
        "A and B",         "1 + " * 200 + "1", "(" * 250,
    ],
)  # fmt: skip
def test_unsupported_syntax_is_rejected(text):
    with pytest.raises(ValueError):
        Expression(text)
