"""Errors survive pickling and state the remedy in one line."""

from __future__ import annotations

import inspect
import pickle

import pytest

from hamr import errors
from hamr.config.explain import Contradiction, UnknownKey

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.HamrError)]
CLASSES += [Contradiction, UnknownKey]


def example(kind: type[errors.HamrError]) -> errors.HamrError:
    if issubclass(kind, errors.BadInput):
        return kind("data.train", "x.jsonl", "no such file")
    return kind("replica judge-2 is gone")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_errors_survive_pickling(kind: type[errors.HamrError]) -> None:
    error = example(kind)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert copy.args == error.args
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_exit_code_depends_on_the_kind_of_error(
    kind: type[errors.HamrError],
) -> None:
    told_to_end = {errors.Preempted: 0, errors.Interrupted: 130}
    expected = told_to_end[kind] if kind in told_to_end else 2 if issubclass(kind, errors.BadInput) else 1
    assert kind.exit_code == expected


def test_bad_input_message_has_where_value_and_remedy() -> None:
    assert str(errors.BadInput("data.train", "x.jsonl", "give a JSONL")) == "data.train: 'x.jsonl': give a JSONL"


def test_long_values_are_truncated() -> None:
    shown = str(errors.BadInput("k", "v" * 1000, "shorten it"))
    assert len(shown) < 200
    assert shown.endswith("...: shorten it")


def test_missing_score_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="judge"):
        raise errors.MissingScore("the judge's score is needed")


def test_unknown_key_and_contradiction_omit_the_value() -> None:
    assert str(UnknownKey("a.b", 3, "did you mean a.c?")) == "a.b: unknown key; did you mean a.c?"
    assert str(Contradiction("a", None, "x=1 but y=2")) == "a: x=1 but y=2"
    assert str(Contradiction("", None, "x=1 but y=2")) == "x=1 but y=2"
