"""A hundred thousand broken texts through every parser of model output."""

import pytest

from tests.fuzzing import check, texts

pytestmark = [pytest.mark.integration, pytest.mark.deep, pytest.mark.timeout(600)]


@pytest.mark.parametrize("seed", range(1, 5))
def test_broken_texts_give_values_or_typed_failures(seed: int) -> None:
    for number, text in enumerate(texts(seed, 25_000)):
        try:
            check(text)
        except Exception as error:
            raise AssertionError(f"text {number} of seed {seed}: {text[:500]!r}") from error
