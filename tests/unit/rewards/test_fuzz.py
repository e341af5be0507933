"""Every parser of model output on broken texts; the integration tier draws many more."""

from tests.fuzzing import VALID, check, texts


def test_valid_texts_pass_the_checks() -> None:
    for text in VALID:
        check(text)


def test_broken_texts_give_values_or_typed_failures() -> None:
    drawn = list(texts(seed=0, count=1_000))
    assert len(set(drawn)) > 750
    for text in drawn:
        check(text)


def test_same_seed_draws_the_same_texts() -> None:
    assert list(texts(3, 50)) == list(texts(3, 50)) != list(texts(4, 50))


def test_blank_lines_deep_nesting_and_many_keys_are_parsed_quickly() -> None:
    """Regressions: the rubric parser took hours, and the comparison of tool calls exceeded the recursion limit."""
    check(" " * 20_000)
    check("* " * 20_000 + "(w")
    check("(" * 20_000)
    check("{" + ",".join(f'"{i}":0' for i in [*range(9_000), 8_999]) + "}")
    for depth in (60, 70, 400, 900):
        check('<tool_call>{"name": "look", "arguments": {"order": ' + "[" * depth + "]" * depth + "}}</tool_call>")
