"""Custom reward functions: return values, loading, and the sources that may name them."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hamr.config.custom import CustomRewardConfig, function_arguments
from hamr.config.load import ALLOWED_FUNCTIONS, dump_config, load_config, load_dumped
from hamr.errors import ConfigError
from hamr.rewards.custom import RewardSource
from hamr.security.functions import LoadedFunction
from hamr.types import FunctionFailed, FunctionTimeout, Scored, ServiceSample

SAMPLE = ServiceSample(id="s", ticket={}, policy="", tools=(), history=(), references=())
BASE = ["experiment=smoke", "rewards.custom.politeness.path=my.py:politeness"]


def function(call: Callable[..., Any], deadline_s: float = 5.0, **settings: Any) -> LoadedFunction:
    source = RewardSource(
        key="rewards.custom.politeness.path", name="politeness", path="my.py:f", deadline_s=deadline_s, **settings
    )
    return LoadedFunction(source=source, call=call, sha256=None)


async def ask(made: LoadedFunction, *responses: str) -> tuple[Any, ...]:
    assert isinstance(made.source, RewardSource)
    return await made.source.score(made, SAMPLE, responses)


def score(call: Callable[..., Any], *responses: str, batch: bool = False, **kwargs: Any) -> list[Any]:
    return list(asyncio.run(ask(function(call, batch=batch, kwargs=kwargs), *(responses or ("text",)))))


@pytest.fixture
def path_is_restored() -> Iterator[None]:
    before = list(sys.path)
    yield
    sys.path[:] = before
    sys.modules.pop("user_rewards_custom_mine", None)


def load(tmp_path: Path, text: str, name: str = "f", **section: Any) -> LoadedFunction:
    (tmp_path / "my.py").write_text(text)
    return RewardSource.of("mine", CustomRewardConfig(path=f"{tmp_path}/my.py:{name}", **section)).load()


# --- returned values ---------------------------------------------------------------------------


@given(st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6))
def test_a_number_is_the_value(value: float) -> None:
    assert score(lambda sample, response: value) == [Scored(value=float(value))]


@pytest.mark.parametrize("value", [Fraction(1, 2), np.float32(0.5), np.array(0.5), torch.tensor(0.5)], ids=type)
def test_numbers_of_other_libraries_are_accepted(value: Any) -> None:
    assert score(lambda sample, response: value) == [Scored(value=0.5)]


NOT_NUMBERS = st.one_of(
    st.none(),
    st.sampled_from([math.nan, math.inf, -math.inf, 10**400, -sys.float_info.max, 1_000_001]),
    st.booleans(),
    st.booleans().map(np.bool_),
    st.text(),
    st.sampled_from(["1.0", "nan", b"1"]),
    st.lists(st.floats(), max_size=3),
    st.dictionaries(st.text(), st.floats(), max_size=2),
    st.complex_numbers(),
    st.just(np.array([0.5, 0.5])),
)


@given(NOT_NUMBERS)
def test_other_return_values_are_failures_naming_the_function(value: Any) -> None:
    (outcome,) = score(lambda sample, response: value)
    assert isinstance(outcome, FunctionFailed)
    assert outcome.detail.startswith("politeness (my.py:f) returned ") and len(outcome.detail) < 400


@given(st.lists(st.floats(-1, 1) | NOT_NUMBERS, min_size=1, max_size=6))
def test_invalid_value_in_a_batch_fails_only_its_response(values: list[Any]) -> None:
    outcomes = score(lambda samples, responses: values, *map(str, values), batch=True)
    alone = [score(lambda sample, response, value=value: value)[0] for value in values]
    assert outcomes == alone


@pytest.mark.parametrize("returned", [[1.0], [1.0] * 3, 0.5, None, "ab", {0: 1.0, 1: 2.0}], ids=repr)
def test_batch_of_wrong_length_fails_the_whole_group(returned: Any) -> None:
    outcomes = score(lambda samples, responses: returned, "a", "b", batch=True)
    assert len(outcomes) == 2 and {type(o) for o in outcomes} == {FunctionFailed}


def test_a_batched_function_gets_two_lists() -> None:
    def longest(samples: list[ServiceSample], responses: list[str], unit: int) -> list[float]:
        assert samples == [SAMPLE] * len(responses)
        return [len(response) / unit for response in responses]

    assert score(longest, "a", "bb", "bb", batch=True, unit=2) == [Scored(value=v) for v in (0.5, 1.0, 1.0)]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no words"), SystemExit(3), AssertionError(), RecursionError("deep"), asyncio.CancelledError(),
        BaseException("a library's own"),
    ],
)  # fmt: skip
def test_an_exception_is_a_failure_with_its_type(error: BaseException) -> None:
    def fails(sample: ServiceSample, response: str) -> float:
        raise error

    (outcome,) = score(fails)
    assert isinstance(outcome, FunctionFailed) and f"raised {type(error).__name__}" in outcome.detail


async def test_async_function_is_awaited_with_a_deadline() -> None:
    async def slow(sample: ServiceSample, response: str) -> float:
        await asyncio.sleep(1000 if response == "slow" else 0)
        if response == "own":
            raise TimeoutError("of the function itself")
        return 0.25

    made = function(slow, 0.05)
    assert made.is_async and not function(lambda sample, response: 0.0).is_async
    assert await ask(made, "fast") == (Scored(value=0.25),)
    (late,) = await ask(made, "slow")
    assert late == FunctionTimeout(detail="politeness (my.py:f) did not return within 0.05 s")
    (own,) = await ask(made, "own")
    assert isinstance(own, FunctionFailed), "an exception of the function, not its deadline"


# --- loading -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("path_is_restored")
def test_file_can_import_its_neighbours_and_receives_kwargs(tmp_path: Path) -> None:
    (tmp_path / "words_of_mine.py").write_text("KIND = ('please',)\n")
    text = (
        "from dataclasses import dataclass\nfrom words_of_mine import KIND\n"
        "@dataclass\nclass Words:\n    weight: float = 1.0\n"
        "def f(sample, response, *, scale):\n    return scale * (KIND[0] in response)\n"
    )
    made = load(tmp_path, text, kwargs={"scale": 0.5})
    assert asyncio.run(ask(made, "please")) == (Scored(value=0.5),)
    assert made.sha256 is not None and len(made.sha256) == 64


@pytest.mark.usefixtures("path_is_restored")
@pytest.mark.parametrize(
    ("text", "section", "message"),
    [
        ("def g(sample, response): ...", {}, "no such function; .*my.py defines g"),
        ("f = 3", {}, r"is not a function but 3 \(int\)"),
        ("def f(response): ...", {}, r"cannot be called as f\(sample, response\): too many positional"),
        ("def f(sample, response, scale): ...", {}, "missing a required argument: 'scale'"),
        ("def f(sample, response): ...", {"kwargs": {"x": 1}}, "f.sample, response, x=.*unexpected keyword argument"),
        ("def f(samples): ...", {"batch": True}, r"cannot be called as f\(samples, responses\)"),
        ("import nothing_of_the_kind", {}, r"cannot be imported: ModuleNotFoundError.*my.py, line 1\)"),
        ("def f(:", {}, "cannot be imported: SyntaxError.*line 1"),
        ("x = 1\nraise SystemExit(2)", {}, r"cannot be imported: SystemExit: 2 \(.*line 2\)"),
        ("def f(sample, response): ...", {"sha256": "0" * 64}, "has changed since the run began"),
    ],
)
def test_unusable_function_is_reported_in_one_line(
    tmp_path: Path, text: str, section: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load(tmp_path, text, **section)
    assert error.value.where == "rewards.custom.mine.path" and "\n" not in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [("json:dumps_no", "no such function"), ("no_such_module_here:f", "no such module"), ("json.no.way:f", "json.no")],
)
def test_a_module_is_imported(path: str, message: str) -> None:
    assert RewardSource.of("mine", CustomRewardConfig(path="statistics:covariance")).load().sha256
    with pytest.raises(ConfigError, match=message):
        RewardSource.of("mine", CustomRewardConfig(path=path)).load()


@pytest.mark.parametrize("path", ["my.py", "my.py:", ":f", "my.py:f()", "my.py:a.b"])
def test_a_path_names_a_file_and_a_function(path: str) -> None:
    with pytest.raises(ConfigError, match="names no function; write FILE.py:FUNCTION or MODULE:FUNCTION"):
        load_config(["experiment=smoke", f"rewards.custom.politeness.path='{path}'"])


@pytest.mark.parametrize("name", ["format", "consistency", "total", "outcome", "fallback", "custom"])
def test_reserved_reward_name_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is a name of hamr's own"):
        load_config(["experiment=smoke", f"rewards.custom.{name}.path=my.py:f"])


def test_names_of_judged_dimensions_are_checked_too() -> None:
    for name, message in (("format", "'format' is a name of hamr's own"), ("politeness", "have the same name")):
        with pytest.raises(ConfigError, match=message):
            load_config([*BASE, f"rewards.judged.{name}.prompt=tone.yaml"])
    with pytest.raises(ConfigError, match=r"rewards\.judged\.tone\.prompt: required"):
        load_config([*BASE, "rewards.judged.tone.weight=1"])
    with pytest.raises(ConfigError, match=r"^rewards\.judged\.Tone: 'Tone': must match pattern"):
        load_config([*BASE, "rewards.judged.Tone.prompt=tone.yaml"])


@pytest.mark.parametrize("raw", [b"\xef\xbb\xbfWORD = 'f\xc3\xbcr'", b"# -*- coding: latin-1 -*-\nWORD = 'f\xfcr'"])
def test_file_is_read_in_the_encoding_that_python_sees(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "mine.py").write_bytes(raw)
    text = RewardSource.of("mine", CustomRewardConfig(path=f"{tmp_path}/mine.py:f")).text
    found: dict[str, str] = {}
    exec(text, found)
    assert found["WORD"] == "für"


def test_a_missing_file_is_reported_with_its_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no such file in {tmp_path}"):
        RewardSource.of("mine", CustomRewardConfig(path=f"{tmp_path}/none.py:f"))


# --- sources of code ---------------------------------------------------------------------------


def is_refused(config: Any) -> bool:
    try:
        config.rewards.custom["politeness"].refuse_recorded("rewards.custom.politeness")
    except ConfigError as error:
        return "repeat it on the command line: rewards.custom.politeness.path=my.py:politeness" in str(error)
    return False


def test_command_line_and_config_folder_may_name_a_function(tmp_path: Path) -> None:
    assert not is_refused(load_config(BASE))
    (tmp_path / "experiment").mkdir()
    section = "# @package _global_\nrewards: {custom: {politeness: {path: 'my.py:politeness'}}}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(section)
    assert not is_refused(load_config(["experiment=mine", "data=sage"], config_dir=tmp_path))


def test_recorded_configuration_must_repeat_function_paths(tmp_path: Path) -> None:
    config = load_config(BASE)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    recorded = load_dumped(tmp_path / "config.yaml")
    assert is_refused(recorded) and is_refused(recorded.with_asked_pools()) and is_refused(recorded.model_copy())
    with pytest.raises(ConfigError, match="cannot name code"):
        RewardSource.of("politeness", recorded.rewards.custom["politeness"])
    confirmed = load_dumped(tmp_path / "config.yaml", function_arguments(config.functions))
    assert not is_refused(confirmed) and confirmed == config


def test_a_list_in_the_environment_restricts_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED_FUNCTIONS, "other.py:f,my.py:politeness")
    assert not is_refused(load_config(BASE))
    monkeypatch.setenv(ALLOWED_FUNCTIONS, "")
    assert is_refused(load_config(BASE))
