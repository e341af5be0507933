"""Reading a verdict from an endpoint's reply: soft where the log-probabilities allow it, strict where not."""

from __future__ import annotations

import math

import pytest

from hamr.config.pools import PoolConfig
from hamr.errors import ConfigError, VerdictUnparsable
from hamr.pools.scorer_openai import OpenAIScorer, read_reply
from hamr.prompting.templates import PromptTemplate

JUDGE = PromptTemplate.load("judge.en")
RERANKER = PromptTemplate.load("reranker.en")
Top = dict[str, float]


def top(**probabilities: float) -> Top:
    """{token: log-probability}; an underscore stands for the space that tokens begin with."""
    return {token.replace("_", " "): math.log(p) for token, p in probabilities.items()}


def spoken(*tokens: str, last: Top) -> tuple[str, list[tuple[str, Top]]]:
    """A reply in tokens, all certain but the last."""
    return "".join(tokens), [(t, {t: -0.01}) for t in tokens[:-1]] + [(tokens[-1], last)]


def test_soft_score_at_the_verdict() -> None:
    """0.5, 0.3 and 0.1 of 0.9: (0.5 + 0.15) / 0.9."""
    text, positions = spoken("Both ", "agree.\n", "Verdict", ":", " Yes", last=top(_Yes=0.5, _Part=0.3, _No=0.1))
    reading = read_reply(text, positions, JUDGE)
    assert reading.score == pytest.approx(0.65 / 0.9)
    assert reading.label_mass == pytest.approx(0.9)
    assert reading.verdict == "yes"


@pytest.mark.parametrize(
    "before", [(), ("<think>", "Both say\n", "Verdict:", " No", "</think>")], ids=["bare", "thought"]
)
@pytest.mark.parametrize("behind", [(), ("<|im_end|>",)], ids=["", "end of sequence"])
def test_a_server_lists_tokens_that_the_text_does_not_have(before: tuple[str, ...], behind: tuple[str, ...]) -> None:
    text, positions = spoken("Both agree.\n", "Verdict", ":", " Yes", last=top(_Yes=0.5, _Part=0.3, _No=0.1))
    listed = [*((t, top(_No=0.9)) for t in before), *positions, *((t, {t: -0.01}) for t in behind)]
    assert read_reply(text, listed, JUDGE).score == pytest.approx(0.65 / 0.9)


def test_words_in_the_reasoning_are_not_the_verdict() -> None:
    text, positions = spoken(
        "Yes", ", and", " No", ".\n", "Verdict", ":", " No", last=top(_Yes=0.1, _Part=0.1, _No=0.8)
    )
    positions[0] = ("Yes", top(Yes=1.0))
    assert read_reply(text, positions, JUDGE).score == pytest.approx(0.15)


def test_words_behind_the_verdict_are_not_the_verdict() -> None:
    """The last "no" is that of "Nothing", where the model was sure to go on."""
    tokens = ["Verdict", ":", " No", ".\n", "Nothing", " else."]
    positions = [(token, {token: -0.01}) for token in tokens]
    positions[2] = (" No", top(_Yes=0.2, _Part=0.1, _No=0.6))
    positions[4] = ("Nothing", top(No=0.9, Yes=0.05, Part=0.04))
    assert read_reply("".join(tokens), positions, JUDGE).score == pytest.approx(0.25 / 0.9)


def test_a_verdict_in_other_words_is_not_read_where_its_label_stands_in_the_reasoning() -> None:
    text, positions = spoken("Yes", ", they agree.\n", "Verdict", ":", " consistent", last={" consistent": -0.01})
    positions[0] = ("Yes", top(Yes=0.9, Part=0.05, No=0.05))
    with pytest.raises(VerdictUnparsable, match="cannot be found among the tokens"):
        read_reply(text, positions, JUDGE)


def test_spellings_of_a_label_add_up() -> None:
    text, positions = spoken("yes", last=top(yes=0.4, Yes=0.2, _yes=0.1, no=0.1, No=0.1, maybe=1e-6))
    assert read_reply(text, positions, RERANKER).score == pytest.approx(0.7 / 0.9)


def test_a_missing_label_that_cannot_matter_counts_as_nothing() -> None:
    text, positions = spoken("Verdict:", " Yes", last=top(_Yes=0.9, _No=0.09, _Maybe=1e-5))
    assert read_reply(text, positions, JUDGE).score == pytest.approx(0.9 / 0.99, abs=1e-4)


def test_a_missing_label_that_could_matter_is_no_zero() -> None:
    """The list ends at 0.05: Part may have up to as much, which would move the score."""
    text, positions = spoken("Verdict:", " Yes", last=top(_Yes=0.6, _No=0.3, _Maybe=0.05))
    with pytest.raises(VerdictUnparsable, match="part not among the 3 likeliest"):
        read_reply(text, positions, JUDGE)


def test_without_log_probabilities_the_written_verdict_counts() -> None:
    assert read_reply("Similar.\nVerdict: Part", [], JUDGE).score == 0.5
    assert read_reply("no", [], RERANKER).score == 0.0
    assert read_reply("Verdict: No", [], JUDGE).verdict == "no"


@pytest.mark.parametrize("text", ["", "Verdict: perhaps", "Verdict: Yes\nor rather Verdict: dunno", "yes and no"])
def test_anything_else_is_unparsable(text: str) -> None:
    with pytest.raises(VerdictUnparsable):
        read_reply(text, [], JUDGE)


def test_a_level_that_the_template_lacks_is_unparsable() -> None:
    with pytest.raises(VerdictUnparsable):
        read_reply("part", [], RERANKER)


def test_tokens_that_do_not_spell_the_text_are_not_trusted() -> None:
    with pytest.raises(VerdictUnparsable, match="cannot be found among the tokens"):
        read_reply("Verdict: Yes", [("something", {}), (" else", top(_Yes=0.9))], JUDGE)


def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    config = PoolConfig(
        role="judge", prompt="judge.en", type="openai", endpoint="http://localhost:1/v1", api_key_env="JUDGE_KEY"
    )
    with pytest.raises(ConfigError, match=r"pools\.judge\.api_key_env: 'JUDGE_KEY'"):
        OpenAIScorer("judge", config)
