"""Protocols of other trainers as values: groups, responses and missing rewards."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.adapters.groups import Missing, RewardMissing, list_unscored, read_sample, rewards_as_numbers, runs
from hamr.adapters.wire import read_get_reward, read_object, read_score, response_of, tell_get_reward, tell_score
from hamr.errors import DataError

A, B = {"id": "a"}, {"id": "b"}


@given(st.lists(st.sampled_from("ab"), max_size=20), st.integers(1, 6) | st.none())
def test_groups_cover_all_indices_in_order_with_one_key_each(keys: list[str], size: int | None) -> None:
    found = runs(keys, size)
    assert [i for run in found for i in run] == list(range(len(keys)))
    assert all(len({keys[i] for i in run}) == 1 for run in found)
    assert all(size is None or len(run) <= size for run in found)
    for left, right in pairwise(found):
        assert keys[left.start] != keys[right.start] or len(left) == size


def test_group_size_separates_two_groups_of_one_sample() -> None:
    assert runs(["a"] * 4) == [range(0, 4)]
    assert runs(["a"] * 4, size=2) == [range(0, 2), range(2, 4)]
    with pytest.raises(ValueError, match="at least one response"):
        runs(["a"], size=0)


def test_a_sample_is_an_object_or_its_json() -> None:
    assert read_sample(A, "s") == read_sample('{"id": "a"}', "s") == A
    for bad in ("{", "[1]", 3, None):
        with pytest.raises(DataError, match=r"^labels\[2\]: "):
            read_sample(bad, "labels[2]")


@given(st.lists(st.lists(st.floats(-1, 1) | st.none(), min_size=1, max_size=4), max_size=5))
def test_missing_reward_is_never_reported_as_zero(rewards: list[list[float | None]]) -> None:
    flat = [v for group in rewards for v in group]
    failures = [{"index": i, "kind": "judge_timeout", "detail": ""} for i, v in enumerate(flat) if v is None]
    assert rewards_as_numbers(rewards, "null", failures) == flat
    for there, value in zip(rewards_as_numbers(rewards, "nan", failures), flat, strict=True):
        assert there is not None and (math.isnan(there) if value is None else there == value)
    if failures:
        with pytest.raises(RewardMissing, match="judge_timeout"):
            rewards_as_numbers(rewards, "refuse", failures)
    else:
        assert rewards_as_numbers(rewards, "refuse", failures) == flat


def test_group_mean_imputation_keeps_the_baseline() -> None:
    rewards = [[0.2, None, 0.8, None], [1.0]]
    values = rewards_as_numbers(rewards, "group_mean", [{"index": 1, "kind": "failure"}])
    assert values == [0.2, 0.5, 0.8, 0.5, 1.0]
    assert sum(v for v in values[:4] if v is not None) / 4 == 0.5
    with pytest.raises(RewardMissing):
        rewards_as_numbers([[0.2, None], [None, None]], "group_mean", [{"index": 1, "kind": "failure"}])


@pytest.mark.parametrize(
    ("query", "response"),
    [
        ("P?Yes.", "Yes."),
        ("<s>P?Yes.</s>", "Yes."),
        ("P? Yes. <|im_end|>\n<|endoftext|> <|endoftext|>", "Yes."),
        ("P?", ""),
        ("P?Say P? again</s>", "Say P? again"),
        ("P?Yes.<end_of_turn>\n", "Yes."),
        ("P?Yes.<|end|>", "Yes."),
        ("P?Yes.<|eom_id|><|eot_id|>", "Yes."),
        ("P?Yes.<｜end▁of▁sentence｜>", "Yes."),
    ],
)
def test_response_is_the_text_after_the_prompt(query: str, response: str) -> None:
    assert response_of(query, "P?", where="query[0]") == response


def test_end_tokens_are_removed_in_linear_time() -> None:
    """Quadratic time would be many minutes here."""
    assert response_of("P?Yes." + "</s>\n" * 1_000_000, "P?", where="query[0]") == "Yes."


def get_reward(**changes: object) -> dict:
    labels = [json.dumps(A), json.dumps(A), json.dumps(B)]
    return {"query": ["P?x", "P?y</s>", "Q?z"], "prompts": ["P?", "P?", "Q?"], "labels": labels} | changes


def test_openrlhf_request_is_parsed_into_groups() -> None:
    assert read_get_reward(get_reward()) == [(A, ["x", "y"]), (B, ["z"])]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"query": "text"}, "query"),
        ({"query": []}, "query"),
        ({"query": ["P?x", 3, "z"]}, "query[1]"),
        ({"prompts": None}, "prompts"),
        ({"prompts": ["P?"]}, "prompts"),
        ({"labels": ["{}"]}, "labels"),
        ({"labels": ["{}", "{}", "no json"]}, "labels[2]"),
        ({"query": ["cut", "P?y", "Q?z"]}, "query[0]"),
    ],
)
def test_invalid_get_reward_request_names_the_field(change: dict, where: str) -> None:
    with pytest.raises(DataError) as error:
        read_get_reward(get_reward(**change))
    assert error.value.where == where


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({}, "groups"),
        ({"groups": [3]}, "groups[0]"),
        ({"groups": [{"responses": ["x"]}]}, "groups[0].sample"),
        ({"groups": [{"sample": A, "responses": []}]}, "groups[0].responses"),
        ({"groups": [{"sample": A, "responses": ["x"]}, {"sample": A, "responses": [1]}]}, "groups[1].responses[0]"),
    ],
)
def test_invalid_score_request_names_the_field(body: dict, where: str) -> None:
    with pytest.raises(DataError) as error:
        read_score(body)
    assert error.value.where == where


def test_a_body_must_be_a_json_object() -> None:
    assert read_object(b'{"a": 1}') == {"a": 1}
    for body in (b"{", b"[]", b"\xff"):
        with pytest.raises(DataError, match="^body: "):
            read_object(body)


def record(value: float | None, band: str = "inside", action: object = "reply") -> dict:
    total = {"kind": "judge_timeout", "detail": "late"} if value is None else {"kind": "scored", "value": value}
    return {"total": total, "band": band, "action": action, "components": [{"name": "format"}]}


@pytest.mark.parametrize("missing", ["refuse", "null", "nan", "group_mean"])
def test_answers_have_one_number_per_query(missing: Missing) -> None:
    rewards = [[0.5, 1.0], [0.0]]
    records = [record(0.5), record(1.0, band="above"), record(0.0, band="none", action=None)]
    answer = tell_get_reward((rewards, records), missing)
    assert answer == {
        "rewards": [0.5, 1.0, 0.0],
        "scores": [0.5, 1.0, 0.0],
        "extra_logs": {"malformed": [0.0, 0.0, 1.0], "escalated": [0.0, 1.0, 0.0], "failed": [0.0, 0.0, 0.0]},
    }
    unrouted = {**record(None, action=None), "components": []}
    logs = tell_get_reward(([[None]], [unrouted]), "nan")["extra_logs"]
    assert logs == {"malformed": [0.0], "escalated": [0.0], "failed": [1.0]}, "what no router answered is not malformed"
    assert tell_score((rewards, records)) == {
        "groups": [{"rewards": [0.5, 1.0], "records": records[:2]}, {"rewards": [0.0], "records": records[2:]}]
    }


def test_unscored_responses_are_listed_with_index_and_kind() -> None:
    rewards, records = [[0.5], [None]], [record(0.5), record(None)]
    assert list_unscored(rewards, records) == [{"index": 1, "kind": "judge_timeout", "detail": "late"}]
    with pytest.raises(RewardMissing, match="1 responses could not be scored; the first, 1: judge_timeout: late"):
        tell_get_reward((rewards, records), "refuse")
    assert tell_score((rewards, records))["groups"][1]["rewards"] == [None]
