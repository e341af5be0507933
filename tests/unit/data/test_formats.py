"""The response format that each sample's prompt requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hamr.config.schema import ModelConfig
from hamr.data.formats import Formats
from hamr.types import ServiceSample


def sample(name: str) -> ServiceSample:
    return ServiceSample(id=name, ticket={}, policy="", tools=(), history=(), references=())


@given(st.text(), st.sampled_from(["plain", "think_answer", "answer_think"]), st.floats(0, 1))
def test_fixed_format_applies_to_all_samples(name: str, asked, share: float) -> None:
    assert Formats(asked=asked, post_share=share).of(sample(name)) == asked


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_draw_per_sample_is_stable_and_monotone_in_the_fraction(name: str, one: float, other: float) -> None:
    few, many = (Formats(asked="hybrid", post_share=share) for share in sorted((one, other)))
    assert few.of(sample(name)) == few.of(sample(name))
    if few.of(sample(name)) == "answer_think":
        assert many.of(sample(name)) == "answer_think"
    assert many.mark(sample(name)) == ("</answer>" if many.of(sample(name)) == "answer_think" else "")


def test_drawn_fraction_matches_the_configured_one() -> None:
    names = [sample(f"telecom-train-{i}") for i in range(2000)]
    for share, low, high in ((0.0, 0, 0), (0.25, 430, 570), (0.5, 930, 1070), (1.0, 2000, 2000)):
        formats = Formats.of_model(ModelConfig(response_format="hybrid", post_cot_share=share))
        assert low <= sum(formats.of(s) == "answer_think" for s in names) <= high
