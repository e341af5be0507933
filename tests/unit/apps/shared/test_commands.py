"""Models of the commands: help, parsing, rendering, and the message of each mistake."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import shlex
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from hamr.apps.data.command import SampledCommand
from hamr.apps.jobs import JOBS, find, load, path_of
from hamr.apps.shared.commands import Command, Flag, Prefix, Word, help_text, parse, parse_command, render
from hamr.config.pipeline import JobName
from hamr.errors import BadInput

COMMANDS = [path for path, (target, _) in JOBS.items() if target]


@pytest.mark.parametrize("path", COMMANDS)
def test_help_of_a_command_describes_every_option(path: str) -> None:
    kind = load(path)
    assert path_of(kind) == path
    text = " ".join(help_text(path).split())
    for name, info in kind.model_fields.items():
        assert info.description and info.description.strip().endswith("."), name
        assert " ".join(info.description.split()) in text, name
        assert (info.alias or name).replace("_", "-") in text.replace("_", "-") or info.title in text, name
    assert " ".join((inspect.getdoc(kind) or "-").split()) in text
    for example in kind.examples:
        assert example in help_text(path) and example.startswith("hamr ")


@pytest.mark.parametrize("path", COMMANDS)
def test_examples_of_the_help_are_commands(path: str) -> None:
    for example in load(path).examples:
        words = shlex.split(example.partition(" > ")[0])[1:]
        assert isinstance(parse_command(words), Command)


@pytest.mark.parametrize("path", COMMANDS)
def test_a_command_names_an_existing_function_or_runs_by_itself(path: str) -> None:
    kind = load(path)
    for target in filter(None, (kind.work, getattr(kind, "team", ""))):
        module, _, name = target.partition(":")
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None, target
        functions = [node.name for node in ast.parse(Path(spec.origin).read_text()).body if hasattr(node, "name")]
        assert name in functions, target
    assert bool(kind.work) != (kind.run is not Command.run)


def test_groups_list_their_commands() -> None:
    text = help_text("data")
    assert all(f"hamr {path} " in text for path in JOBS if path.startswith("data "))


def test_stages_of_pipelines_are_commands_with_outputs() -> None:
    for job in typing.get_args(JobName):
        kinds = [load(path) for path in COMMANDS if path == job or path.startswith(f"{job} ")]
        assert any(kind.outputs for kind in kinds), job


# --- there and back ----------------------------------------------------------------------------

NAMES = st.text("abcxyz019_-/.é", min_size=1, max_size=8)
NUMBERS = {
    int: st.sampled_from([0, 1, 2, 3, 7, 40, 1000]),
    float: st.one_of(st.sampled_from([0.0, 0.3, 1.0, 2.0]), st.floats(0, 2, allow_nan=False).filter(math.isfinite)),
}


def values(info: FieldInfo) -> st.SearchStrategy[str]:
    """Texts for a field, some of which its bounds refuse."""
    kinds = list(_types(info.annotation))
    if typing.get_origin(kinds[0]) is Literal:
        return st.sampled_from([str(value) for value in typing.get_args(kinds[0])])
    if kinds[0] is bool:
        return st.sampled_from(["true", "false"])
    if kinds[0] in NUMBERS:
        return NUMBERS[kinds[0]].map(str)
    if typing.get_origin(kinds[0]) is tuple:
        return st.lists(NAMES.filter(lambda name: "," not in name), min_size=1, max_size=3).map(",".join)
    return NAMES


def _types(annotation: Any) -> Iterator[Any]:
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, type(int | None)):
        for part in typing.get_args(annotation):
            yield from _types(part)
    else:
        yield annotation


@st.composite
def words(draw: st.DrawFn, path: str) -> list[str]:
    """Words of a command: its required options, and some of the others."""
    kind = load(path)
    found = [word for word in path.split() if not word.endswith("=")]
    for name, info in kind.model_fields.items():
        if not info.is_required() and draw(st.booleans()):
            continue
        mark = next((m for m in info.metadata if isinstance(m, Flag | Word | Prefix)), None)
        if isinstance(mark, Flag):
            found.append(f"--{name.replace('_', '-')}")
        elif isinstance(mark, Word):
            choices = {"corpus": ["star", "messages"], "shell": ["bash", "fish"]}.get(name, ["a", "./b", "é c"])
            found.append(draw(st.sampled_from(choices)))
        elif isinstance(mark, Prefix):
            found += [
                f"{mark.text}{key}={draw(st.sampled_from('123'))}" for key in draw(st.sets(st.sampled_from("abc")))
            ]
        else:
            found.append(f"{info.alias or name}={draw(values(info))}")
    return found


@pytest.mark.parametrize("path", COMMANDS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rendered_command_parses_to_the_same_command(path: str, data: st.DataObject) -> None:
    typed = data.draw(words(path))
    try:
        command = parse_command(typed)
    except BadInput:
        reject()  # a contradiction, or out of bounds
    again = render(command)
    assert find(again)[0] == path
    assert parse_command(again) == command
    assert render(parse_command(again)) == again


# --- mistakes ----------------------------------------------------------------------------------

SAMPLED = ["data", "sampled", "input=a", "ledger=b", "output=c", "min_total=1"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["data"], "data: None: missing; give one of: sage, words, import, patm"),
        (["data", "sgae"], "data: 'sgae': no such command; did you mean 'sage'? there are: sage, words, import"),
        (["evaluate"], "benchmark: None: missing; give benchmark=<name>, one of: ecs, olabench, plans, sage"),
        (["evaluate", "benchmark=sag"], "benchmark: 'sag': no such benchmark; did you mean 'sage'? there are: ecs"),
        (["data", "thought"], "step: None: missing; give step=<name>, one of: extract, migrate"),
        (["calibrate"], "scores: None: give one of scores=..., pairs=..., items=... and samples=..."),
        (["calibrate", "scores=a", "pairs=b"], "calibrate: 'scores= pairs=': give one of scores=... and pairs="),
        ([*SAMPLED, "bets=2"], "data sampled: 'bets=2': unknown option; did you mean best=...?"),
        ([*SAMPLED, "qqq"], "data sampled: 'qqq': unknown option; usage: hamr data sampled input=SAMPLES.jsonl"),
        ([*SAMPLED, "best=0"], "best: 0: must be 1 or more"),
        ([*SAMPLED, "best=two"], "best: 'two': must be a whole number"),
        ([*SAMPLED, "best=1.5"], "best: '1.5': must be a whole number"),
        ([*SAMPLED, "best="], "best: '': must be a whole number"),
        ([*SAMPLED, "min_total=high"], "min_total: 'high': must be a number"),
        ([*SAMPLED, "min_total=nan"], "min_total: 'nan': must be a number"),
        ([*SAMPLED, "overwrite=yes"], "overwrite: 'yes': must be true or false"),
        ([*SAMPLED, "render=pree"], "render: 'pree': did you mean 'pre'? must be pre, post or hybrid"),
        (SAMPLED[:-1], "min_total: None: give min_total or min_mean, one of them"),
        ([*SAMPLED, "ledger="], "ledger: None: missing; give ledger=RUN"),
        (["data", "thought", "step=extract", "input=a", "output=b", "refine=2"],
         "data thought step=extract: 'refine=2': is an option of `hamr data thought step=migrate`; remove it"),
        (["data", "import", "tau"], "CORPUS: 'tau': no such corpus; did you mean 'tau2'? there"),
        (["data", "import", "ticket", "mapping=m"], "CORPUS: 'ticket': no such corpus; did you mean 'tickets'"),
        (["data", "import", "star", "mapping=m"], "data import: 'mapping=m': unknown option;"),
        (["status"], "RUN: None: missing; write hamr status RUN [--watch]"),
        (["status", "a", "b"], "status: 'b': unknown option; usage: hamr status RUN [--watch]"),
        (["status", "a", "--wacth"], "status: '--wacth': unknown option; did you mean --watch?"),
        (["scale", "a"], "scale: None: name a pool and its number of replicas: hamr scale a judge=4"),
        (["scale", "a", "judge=many"], "judge: 'many': must be a whole number"),
        (["doctor", "x=1"], "doctor: 'x=1': unknown option; usage: hamr doctor"),
        (["train", "resum=runs/a"], "train: 'resum=runs/a': unknown option; did you mean resume=...?"),
        (["train", "resume=runs/a", "experiment.seed=1"], "a resumed run keeps its configuration"),
        (["evaluate", "benchmark=ecs", "output=a", "input=b", "run=c"], "input: 'input=b run=c': give one of"),
        (["evaluate", "benchmark=ecs", "output=a", "input=b", "judges=x,x"], "judges: 'x,x': names one twice"),
    ],
)  # fmt: skip
def test_invalid_option_names_key_value_and_remedy(args: list[str], says: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_command(args)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_resumed_run_takes_the_short_forms_of_its_functions() -> None:
    short = ["env=my_env.py:Parcels", "env.command=python my_agent.py --n=2"]
    command = parse_command(["train", "resume=runs/a", *short])
    assert command.overrides == ("rollout.episode.path=my_env.py:Parcels", "env.command.path=python my_agent.py --n=2")
    assert parse_command(["train", *short]).overrides == tuple(short)
    with pytest.raises(BadInput, match="keeps its configuration"):
        parse_command(["train", "resume=runs/a", "env=sage"])


def test_last_value_of_a_repeated_option_wins() -> None:
    assert parse(SampledCommand, [*SAMPLED[2:], "best=2", "best=3"]).best == 3


def test_unknown_options_are_passed_to_the_configuration() -> None:
    command = parse_command(["score", "input=a", "output=b", "--config-dir", "mine", "score=default", "~data", "x.y=1"])
    assert command.overrides == ("--config-dir", "mine", "score=default", "~data", "x.y=1")  # type: ignore[attr-defined]


def test_number_may_be_null_and_name_may_be_none() -> None:
    needed = ["data", "multigt", "input=a", "output=b"]
    command = parse_command([*needed, "at_once=null", "max_new_tokens=none", "utility=none"])
    assert (command.at_once, command.max_new_tokens, command.utility) == (None, None, "none")  # type: ignore[attr-defined]


def test_tilde_in_a_path_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert parse(SampledCommand, ["input=~/a", *SAMPLED[3:]]).input == Path("/home/me/a")
    assert parse(SampledCommand, ["input=~no.such.user/a", *SAMPLED[3:]]).input == Path("~no.such.user/a")
