"""Environment classes of the user's own, on scripted engines."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hamr.apps.shared.own_functions import check_own_functions
from hamr.apps.train.episodes import unscored_note
from hamr.config.load import load_config
from hamr.data.tools import compact
from hamr.errors import ConfigError
from hamr.rollout.episodes import OwnEpisode, load_episode
from hamr.security.functions import FunctionSource
from hamr.types import FunctionFailed, Reply, RolloutGroup, ServiceSample
from tests.docs_pages import DOCS, commands, save_files
from tests.factories import sample
from tests.unit.rollout.test_episodes import Engine, controller, runner

HOOKS = DOCS / "reference" / "hooks.md"
Say = Callable[[ServiceSample], str]
"""Answer of the policy to a decision point."""


class Policy(Engine):
    """Answers with `say`. `seen`: the decision points that were shown to it."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self.say, self.seen = say, list[ServiceSample]()

    def encode(self, point: ServiceSample, tools) -> tuple[int, ...]:
        self.seen.append(point)
        return (len(self.seen),)

    async def generate(self, requests):
        async for rollout in super().generate(requests):
            yield replace(rollout, text=self.say(self.seen[rollout.prompt_ids[0] - 1]))


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def source(folder: Path, body: str, name: str = "Mine", **kwargs) -> FunctionSource:
    file = folder / "mine.py"
    file.write_text(body)
    return FunctionSource(key="rollout.episode.path", path=f"{file}:{name}", kwargs=kwargs).with_text()


async def hold(wanted: FunctionSource, say: Say, n: int = 2, **settings) -> tuple[RolloutGroup, Policy]:
    policy = Policy(say)
    own = controller(replace(runner(OwnEpisode(load_episode(wanted)), policy, **settings), encode=policy.encode), n=n)
    (group,) = await own.score_groups([sample(0)], [own.request(0, sample(0))])
    return group, policy


def last(point: ServiceSample) -> str:
    return point.history[-1].content


COUNTER = '''
class Mine:
    """Counts up to a target."""

    def reset(self, **kwargs):
        self.count = 0
        return f"seed {kwargs['seed']} of {kwargs['sample'].id}"

    async def add(self, amount: int, times: int = 1) -> dict:
        """Add a number.

        Args:
            amount: The number, which
                is added.
            times (int): How often.

        Returns:
            The new count.
        """
        if amount == 13:
            raise ValueError("unlucky")
        self.count += amount * times
        return {"count": self.count, "as float": 1 / (self.count - 99)}

    async def get_reward(self):
        return self.count

    def _hidden(self):
        raise AssertionError
'''


async def test_methods_are_the_tools_of_the_policy(tmp_path: Path) -> None:
    def say(point: ServiceSample) -> str:
        return call("add", '{"amount": 2, "times": 3}') if len(point.history) < 4 else "Done."

    group, policy = await hold(source(tmp_path, COUNTER), say)
    assert [r.key.turn for r in group.records] == [0, 1, 2] * 2
    ends = [r.episode for r in group.records if r.episode]
    assert [(e.outcome, e.reward) for e in ends] == [("ended", 12.0)] * 2, "every dialogue has its own instance"
    (tool,) = policy.seen[0].tools
    assert compact(tool) == "add(amount: integer, times?: integer)" and tool["description"] == "Add a number."
    amount, times = tool["parameters"]["properties"].values()
    assert amount["description"] == "The number, which is added." and times["description"] == "How often."
    assert last(policy.seen[0]).startswith("seed ") and last(policy.seen[0]).endswith(sample(0).id)
    assert last(policy.seen[-1]) == '{"count": 12, "as float": -0.011494252873563218}'
    assert all(r.components == () for r in group.records), "no other reward scores the turns"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (call("add", '{"amount": 13}'), '{"error": "unlucky"}'),
        (call("add", '{"amount": "many"}'), '{"error": "amount: Input should be a valid integer'),
        (call("add"), '{"error": "amount: Missing required argument"}'),
        (call("add", '{"amount": 1, "to": 2}'), '{"error": "to: Unexpected keyword argument"}'),
        (call("reset"), '{"error": "no tool \'reset\'; there is add"}'),
        (call("_hidden"), '{"error": "no tool \'_hidden\'; there is add"}'),
    ],
)
async def test_a_fault_of_the_policy_is_shown_to_it(tmp_path: Path, said: str, shown: str) -> None:
    def say(point: ServiceSample) -> str:
        return said if len(point.history) < 2 else "Done."

    group, policy = await hold(source(tmp_path, COUNTER), say)
    assert last(policy.seen[-1]).startswith(shown)
    assert [r.episode.reward for r in group.records if r.episode] == [0.0] * 2


async def test_a_raising_tool_is_a_typed_failure(tmp_path: Path) -> None:
    group, _ = await hold(source(tmp_path, COUNTER), lambda point: call("add", '{"amount": 99}'))
    assert all(isinstance(r.total, FunctionFailed) for r in group.records)
    assert "ZeroDivisionError" in group.records[0].total.detail and "(" in group.records[0].total.detail
    assert [r.episode.outcome for r in group.records if r.episode] == ["failed"] * 2


async def test_a_limit_ends_the_dialogue_with_its_reward(tmp_path: Path) -> None:
    group, _ = await hold(source(tmp_path, COUNTER), lambda point: call("add", '{"amount": 1}'), max_turns=3)
    assert [(r.episode.outcome, r.episode.reward) for r in group.records if r.episode] == [("max_turns", 3.0)] * 2


TYPED = """
import enum
import functools
from typing import Literal, Optional
from pydantic import BaseModel

class Colour(enum.Enum):
    red, blue = "red", "blue"

class Turn(BaseModel):
    degrees: int
    colours: list[Colour] = []

class Mine:
    def reset(self): return None
    def get_reward(self): return 1.0

    def turn_key(self, turn: Turn, way: Literal["left", "right"], back: Optional[Colour] = None) -> str:
        'Turn the key.'
        return f"turned {turn.degrees} {way} {back}"

    @classmethod
    def of_class(cls, kind: Colour) -> str:
        'Class.'
        return cls.__name__ + kind.value

    @staticmethod
    def static(number: int) -> str:
        'Static.'
        return str(number + 1)

    @functools.lru_cache
    def cached(self, number: int) -> str:
        'Cached.'
        return str(number + 2)

    @property
    def state(self): return "open"

    class Kind: pass
"""


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
async def test_hints_name_the_types_of_the_users_file(tmp_path: Path, future: str) -> None:
    calls = [
        call("turn_key", '{"turn": {"degrees": "90"}, "way": "left"}'),
        call("of_class", '{"kind": "red"}'),
        call("static", '{"number": 1}'),
        call("cached", '{"number": 1}'),
    ]

    def say(point: ServiceSample) -> str:
        return [*calls, "Done."][sum(turn.role == "tool" for turn in point.history)]

    _, policy = await hold(source(tmp_path, future + TYPED), say, max_turns=9)
    assert [compact(tool) for tool in policy.seen[0].tools] == [
        "cached(number: integer)",
        "of_class(kind: red|blue)",
        "static(number: integer)",
        "turn_key(turn: {degrees: integer, colours?: array of red|blue}, way: left|right, back?: red|blue)",
    ]
    results = [turn.content for turn in policy.seen[-1].history if turn.role == "tool"]
    assert results == ["turned 90 left None", "Minered", "2", "3"]


def result_of(value: str) -> str:
    return (
        "import datetime, math, numpy, pydantic\nclass Model(pydantic.BaseModel):\n    x: float = math.nan\n"
        f"class Mine:\n{RESET}{REWARD}    def look(self):\n        'Look.'\n        return {value}\n"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("{'on': datetime.date(2024, 1, 2), 'ü': {1}}", '{"on": "2024-01-02", "ü": [1]}'),
        ("[numpy.int64(3), numpy.float32(0.5), numpy.arange(2)]", "[3, 0.5, [0, 1]]"),
        ("[Model(), math.nan, numpy.float32('inf')]", '[{"x": null}, null, null]'),
    ],
)
async def test_results_of_tools_are_valid_json(tmp_path: Path, value: str, shown: str) -> None:
    def say(point: ServiceSample) -> str:
        return "Done." if point.history and point.history[-1].role == "tool" else call("look")

    _, policy = await hold(source(tmp_path, result_of(value)), say)
    assert last(policy.seen[-1]) == shown


async def test_result_that_json_cannot_write_names_the_tool(tmp_path: Path) -> None:
    group, _ = await hold(source(tmp_path, result_of("object()")), lambda point: call("look"))
    assert isinstance(group.records[0].total, FunctionFailed)
    assert "look returned <object object" in group.records[0].total.detail


@pytest.mark.parametrize(
    ("value", "reward"), [("numpy.float32(0.5)", 0.5), ("numpy.int64(2)", 2.0), ("numpy.float64(1)", 1.0)]
)
async def test_rewards_may_be_numbers_of_numpy(tmp_path: Path, value: str, reward: float) -> None:
    body = f"import numpy\nclass Mine:\n{RESET}    def get_reward(self): return {value}\n"
    group, _ = await hold(source(tmp_path, body), lambda point: "Hello.")
    ends = [r.episode for r in group.records if r.episode]
    assert [e.reward for e in ends] == [reward] * 2 and type(ends[0].components[0].value) is float


@pytest.mark.parametrize("value", ["True", "numpy.bool_(True)", "None", "numpy.nan", "'1'"])
async def test_reward_that_is_no_number_is_a_typed_failure(tmp_path: Path, value: str) -> None:
    body = f"import numpy\nclass Mine:\n{RESET}    def get_reward(self): return {value}\n"
    group, _ = await hold(source(tmp_path, body), lambda point: "Hello.")
    assert "return a number from -1,000,000" in group.records[0].total.detail


RESET, REWARD = "    def reset(self): return None\n", "    def get_reward(self): return 1\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (REWARD, r"has no method reset\(self, sample, seed\)"),
        (RESET, r"has no method get_reward\(self\)"),
        ("    def reset(self, prompt): pass\n" + REWARD, r"reset\(prompt\) cannot be called; it may take sample, seed"),
        (RESET + "    def get_reward(self, text): pass\n", r"get_reward\(text\) cannot be called"),
        (RESET + REWARD + "    def look(self, what):\n        'Look.'\n", r"look\(what\) has no type hint"),
        (RESET + REWARD + "    def look(self): pass\n", "look has no docstring"),
        (RESET + REWARD + "    def look(self, at: open):\n        'Look.'\n", "look cannot be a tool: "),
        (RESET + REWARD + "    def look(self, at: 'Lost'):\n        'Look.'\n", "look cannot be a tool: .*Lost"),
        (RESET + REWARD + "    def look(self, at: int, /):\n        'Look.'\n", "look cannot be a tool: .*by position"),
        (RESET + REWARD + "    def look(self, *at: int):\n        'Look.'\n", "look cannot be a tool: .*by position"),
        (RESET + REWARD + "    def __init__(self): 1 / 0\n", r"cannot be created: ZeroDivisionError.*line 4"),
        (RESET + REWARD + "    def __init__(self, city): pass\n", r"cannot be called as Mine\(\)"),
    ],
)
def test_an_unusable_class_is_refused(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_episode(source(tmp_path, f"class Mine:\n{body}"))


def test_mistyped_class_is_corrected(tmp_path: Path) -> None:
    body = f"class Parcels:\n{RESET}{REWARD}\ndef run(): pass\n"
    with pytest.raises(ConfigError, match=r"class or function; did you mean 'Parcels'\? .* defines Parcels, run"):
        load_episode(source(tmp_path, body, name="Parcells"))


def test_module_of_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "environment_of_mine.py").write_text(f"class Mine:\n{RESET}{REWARD}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    load_episode(FunctionSource(key="rollout.episode.path", path="environment_of_mine:Mine"))
    assert sys.path[-1] == str(tmp_path), "last, so that it hides no installed module"


def test_note_names_the_rewards_that_a_class_does_not_use(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def polite(sample, response): return 1.0\n")
    environment = source(tmp_path, f"class Mine:\n{RESET}{REWARD}\nasync def run(episode, ask): ...\n").place
    words = ["experiment=smoke", "rewards.consistency.weight=0", f"rewards.custom.polite.path={tmp_path}/own.py:polite"]
    note = unscored_note(check_own_functions(load_config([*words, f"env={environment}:Mine"])))
    names = "rewards.format, rewards.custom.polite"
    assert note == f"rollout.episode: get_reward of the class is the only reward; not used: {names}"
    note = unscored_note(check_own_functions(load_config([*words, f"env={environment}:run"])))
    assert note.endswith(f"are scored by {names}")


@pytest.mark.parametrize(("reset", "says"), [("return 7", "reset returned 7"), ("1 / 0", "ZeroDivisionError")])
async def test_a_failing_reset_is_a_typed_failure(tmp_path: Path, reset: str, says: str) -> None:
    body = f"class Mine:\n    def reset(self):\n        {reset}\n{REWARD}"
    group, _ = await hold(source(tmp_path, body), lambda point: "Hello.")
    assert all(isinstance(r.total, FunctionFailed) and says in r.total.detail for r in group.records)


async def test_documented_class_holds_dialogues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_files(HOOKS, tmp_path)
    [command] = [command for command in commands(HOOKS) if "my_environment.py" in command]
    words = shlex.split(command)[2:]
    with pytest.raises(ConfigError, match=r"is a class, whose get_reward .*; set rewards.consistency.weight=0"):
        check_own_functions(load_config([w for w in words if not w.startswith("rewards.")]))
    config = check_own_functions(load_config(words))
    assert config.rollout.episode is not None and config.rollout.episode.sha256

    def say(point: ServiceSample) -> str:
        if point.history[-1].role == "tool":
            return "It is in Turin."
        number = last(point).rstrip("?").rpartition(" ")[2]
        return call("find_parcel", f'{{"number": "{number}"}}')

    group, policy = await hold(FunctionSource.of_config("rollout.episode", config.rollout.episode), say)
    assert [r.episode.reward for r in group.records if r.episode] == [1.0, 1.0]
    assert last(policy.seen[-1]).endswith("is in Turin.")
    assert policy.seen[0].tools[0]["parameters"]["properties"]["number"]["description"] == (
        "Number of the parcel, with three digits."
    )
    assert isinstance(sample(0).references[0].action, Reply)
