"""Dialogues of the policy in training with the customers of a scenario."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import pytest

from hamr.bench.sage import episodes
from hamr.bench.sage.episodes import Customer, SageEnvironment, check_customers, with_levels
from hamr.bench.sage.simulation import SILENCE
from hamr.config.schema import EnvConfig
from hamr.data.actions import render_action
from hamr.data.curriculum import LEVEL, customer_path
from hamr.data.sage_samples import generate
from hamr.data.splits import Splits
from hamr.errors import BadInput, DataError
from hamr.procedures import load_scenario, scenario_names
from hamr.types import CustomerFaultError, Episode, EpisodeLimit, Reply, Rollout, SampleKey, ServiceSample, ToolCall

SCENARIOS = {name: load_scenario(name) for name in scenario_names()}
SIZES = {"train": 24, "validation": 0, "test": 0}
Answer = Callable[[ServiceSample], str]


@lru_cache
def samples(name: str = "telecom_package", form="actions") -> tuple[ServiceSample, ...]:
    return generate([SCENARIOS[name]], SIZES, seed=0, form=form).train


TOKENS = 4
"""Tokens of each response."""


async def talk(sample: ServiceSample, answer: Answer, *, max_turns: int = 10, seed: int = 5):
    """Return the ended episode and the decision points of its turns."""
    seen: list[ServiceSample] = []

    async def ask(prompt, *, tools=()):
        if len(seen) == max_turns:
            raise EpisodeLimit("max_turns")
        seen.append(prompt)
        return Rollout(
            key=episode.key,
            prompt_ids=(),
            token_ids=(7,) * TOKENS,
            logprobs=(-0.1,) * TOKENS,
            text=answer(prompt),
            finish_reason="stop",
            versions=(),
        )

    episode = Episode(key=SampleKey(run="r", step=0, prompt=sample.id, sample=0), sample=sample, seed=seed)
    environment = SageEnvironment(
        config=EnvConfig(type="sage"), scenarios=SCENARIOS, max_turns=max_turns, format_of=lambda s: "plain"
    )
    return await environment(episode, ask), seen


def customer_of(sample: ServiceSample) -> Customer:
    key = SampleKey(run="r", step=0, prompt=sample.id, sample=0)
    return Customer.of(Episode(key=key, sample=sample, seed=1), SCENARIOS)


def gold(sample: ServiceSample) -> str:
    return render_action(sample.references[0].action)


def values(episode: Episode) -> dict[str, float | None]:
    return {c.name: c.value for c in episode.components if c.weight}


def unweighted(episode: Episode) -> dict[str, float | None]:
    return {c.name: c.value for c in episode.components if not c.weight}


def ends_with_tool(sample: ServiceSample) -> bool:
    return not SCENARIOS["telecom_package"].file.actions[sample.privileged["case"]["action"]].reply


@pytest.mark.parametrize("name", scenario_names())
@pytest.mark.parametrize("form", ["actions", "sage"])
async def test_right_answers_complete_every_case(name: str, form) -> None:
    for sample in samples(name, form):
        episode, seen = await talk(sample, gold)
        assert episode.outcome == "ended" and values(episode) == {"completion": 1.0, "extra_turns": 0.0}
        assert unweighted(episode) == {"violations": 0.0, "cost": pytest.approx(-TOKENS * len(seen) / 1000)}
        case = sample.privileged["case"]
        assert seen[-1].privileged["action"] == case["action"] and seen[-1].privileged["path"] == case["path"]
        assert all(turn.privileged["awaits"] for turn in seen[:-1])
        assert episode.path.endswith(case["action"]) and episode.path.startswith(f"{name}/")


async def test_history_has_the_policys_own_replies_and_not_its_json() -> None:
    _, seen = await talk(next(s for s in samples() if len(s.history) > 1), lambda s: "May I ask more?")
    assert [t.content for t in seen[-1].history if t.role == "agent"] == ["May I ask more?"] * (len(seen) - 1)
    sample = next(s for s in samples(form="sage") if len(s.history) > 1)
    _, seen = await talk(sample, gold)
    chats = [json.loads(gold(turn))["chat"] for turn in seen[:-1]]
    assert [t.content for t in seen[-1].history if t.role == "agent"] == chats


async def test_same_seed_gives_the_same_customer() -> None:
    for sample in samples()[:6]:
        (_, first), (_, second), (_, other) = [await talk(sample, gold, seed=seed) for seed in (1, 1, 2)]
        assert first == second
        assert [t.privileged["fields"] for t in first] == [t.privileged["fields"] for t in other]
    assert first != other


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda said: [*said[:-1], "As an AI I have no package."], "left_role at message"),
        (lambda said: [*said[:-1], "我想取消我的套餐，谢谢你们。"], "other_language at message"),
        (lambda said: said[:-1], "ended_early at message"),
        (lambda said: [said[0], said[0], *said[2:]], "said_less at message"),
    ],
)
async def test_faulty_customer_is_a_fault_and_not_a_reward(monkeypatch: pytest.MonkeyPatch, change, fault: str) -> None:
    honest = Customer.messages

    def messages(customer: Customer):
        turns = list(honest(customer))
        said = change([text for text, _, _ in turns])
        return iter([(text, *turn[1:]) for text, turn in zip(said, turns, strict=False)])

    monkeypatch.setattr(Customer, "messages", messages)
    with pytest.raises(CustomerFaultError, match=fault):
        await talk(next(s for s in samples() if len(s.history) > 2), gold)


async def test_wrong_final_action_does_not_complete_the_case() -> None:
    tool = ToolCall(name="trans_human")
    wrong = [s for s in samples() if ends_with_tool(s) and s.privileged["case"]["action"] != "TransHuman"]
    assert wrong
    for sample in wrong:
        episode, seen = await talk(sample, lambda s: render_action(tool) if s.privileged["action"] else gold(s))
        assert episode.outcome == "ended" and values(episode)["completion"] == 0.0
        assert unweighted(episode)["violations"] == -1.0
    episode, _ = await talk(wrong[0], lambda s: "Goodbye.")
    assert values(episode)["completion"] == 0.0


@pytest.mark.parametrize(("action", "count"), [("TransHuman", 1), ("GoodBye", 0), ("Unknown", 0)])
async def test_last_labels_that_name_another_tool_are_a_violation(action: str, count: int) -> None:
    """As in the form of tool calls, an answer that only says something is none."""
    wrong = [s for s in samples(form="sage") if s.privileged["case"]["action"] == "ChangeOrder"]
    assert wrong
    for sample in wrong:
        named = json.dumps({**json.loads(gold(sample)), "finals": {"Action": action}})
        episode, _ = await talk(sample, lambda turn, named=named: named)
        assert values(episode)["completion"] == 0.0 and unweighted(episode)["violations"] == -count


@pytest.mark.parametrize("name", scenario_names())
async def test_only_the_due_reply_completes_a_case_that_ends_with_a_reply(name: str) -> None:
    closing = [s for s in samples(name) if SCENARIOS[name].file.actions[s.privileged["case"]["action"]].reply]
    assert closing
    for sample in closing:
        for text in ("and, to for a", "May I ask one more thing?"):
            episode, _ = await talk(sample, lambda turn, text=text: text)
            assert episode.outcome == "ended" and values(episode)["completion"] == 0.0


async def test_premature_call_is_executed_and_leaves_the_case_incomplete() -> None:
    sample = next(s for s in samples() if ends_with_tool(s) and len(s.history) > 2)
    action = sample.privileged["case"]["action"]
    right = ToolCall(name=SCENARIOS["telecom_package"].file.actions[action].tool(action))
    asked = iter([True])

    def answer(turn: ServiceSample) -> str:
        return render_action(right) if next(asked, False) else gold(turn)

    episode, seen = await talk(sample, answer)
    called = [t for t in seen[1].history if t.role == "tool"]
    assert [json.loads(t.content)["status"] for t in called] == ["done"] and called[0].name == right.name
    assert seen[1].privileged["awaits"] == seen[0].privileged["awaits"], "the customer has not said more"
    assert values(episode) == {"completion": 0.0, "extra_turns": pytest.approx(-0.1)}
    assert unweighted(episode)["violations"] == -2.0, "too early, and then again"


async def test_unknown_tool_returns_an_error_that_can_be_corrected() -> None:
    sample = next(s for s in samples() if ends_with_tool(s))
    wrong = iter([render_action(ToolCall(name="no_tool"))])
    episode, seen = await talk(sample, lambda s: next(wrong, None) or gold(s))
    assert "no such tool" in next(t.content for t in seen[1].history if t.role == "tool")
    assert values(episode) == {"completion": 1.0, "extra_turns": pytest.approx(-0.1)}


@pytest.mark.parametrize(("form", "text"), [("actions", "<tool_call>"), ("sage", "Of course!")])
async def test_unreadable_response_gets_no_answer_until_the_limit(form, text: str) -> None:
    episode, seen = await talk(samples(form=form)[0], lambda s: text, max_turns=4)
    assert episode.outcome == "max_turns" and len(seen) == 4 and values(episode)["completion"] == 0.0
    said = [t.content for t in seen[-1].history]
    assert said == [said[0], SILENCE["en"]] * 3 + [said[0]]


async def test_gold_of_a_turn_is_a_right_answer_to_it() -> None:
    for sample in samples()[:8]:
        _, seen = await talk(sample, gold)
        for turn in seen:
            calls = [isinstance(r.action, ToolCall) for r in turn.references]
            due = turn.privileged["action"]
            reply = due is None or SCENARIOS["telecom_package"].file.actions[due].reply
            assert calls == [not reply] * len(calls) and all(r.action for r in turn.references)
            assert reply == isinstance(turn.references[0].action, Reply)


def test_sample_without_a_customer_is_refused() -> None:
    good = samples()[0]
    check_customers([good], SCENARIOS)
    with pytest.raises(DataError, match="lacks privileged.case; make samples with `hamr data sage`"):
        check_customers([replace(good, privileged={})], SCENARIOS)
    with pytest.raises(DataError, match="lacks meta.persona"):
        check_customers([replace(good, meta={k: v for k, v in good.meta.items() if k != "persona"})], SCENARIOS)
    with pytest.raises(DataError, match="no such scenario"):
        check_customers([replace(good, meta={**good.meta, "scenario": "bakery"})], SCENARIOS)


def test_label_form_is_detected_by_the_references() -> None:
    for form in ("actions", "sage"):
        assert customer_of(samples(form=form)[0]).states_labels == (form == "sage")


def at_levels(*levels: str, name: str = "telecom_package") -> tuple[ServiceSample, ...]:
    return with_levels(Splits(train=samples(name), validation=(), test=()), SCENARIOS, levels).train


@pytest.mark.parametrize("name", ["telecom_package", "online_education"])
def test_each_customer_has_one_of_the_levels_that_fit_its_case(name: str) -> None:
    leveled = at_levels("zero", "weak", "strong", name=name)
    assert leveled == at_levels("zero", "weak", "strong", name=name)
    assert {s.meta[LEVEL] for s in leveled} == {"zero", "weak", "strong"}
    for plain, sample in zip(samples(name), leveled, strict=True):
        plan = customer_of(plain).plan
        assert sample.meta[LEVEL] in SCENARIOS[name].levels_of(plan.fields, plan.system)
        assert customer_path(sample) == f"{customer_path(plain)}/{sample.meta[LEVEL]}"


def test_customer_whom_no_level_fits_has_none() -> None:
    plans = [customer_of(s).plan for s in samples()]
    fits = ["strong" in SCENARIOS["telecom_package"].levels_of(plan.fields, plan.system) for plan in plans]
    assert 0 < sum(fits) < len(fits)
    for plain, sample, fitting in zip(samples(), at_levels("strong"), fits, strict=True):
        assert sample.meta.get(LEVEL) == "strong" if fitting else sample == plain


async def test_customer_of_a_level_speaks_by_it_in_every_dialogue() -> None:
    sample = next(s for s in at_levels("strong") if s.meta.get(LEVEL) == "strong")
    (episode, first), (_, second) = [await talk(sample, gold) for _ in range(2)]
    _, plain = await talk(next(s for s in samples() if s.id == sample.id), gold)
    assert first == second and episode.path.endswith("/strong") and values(episode)["completion"] == 1.0
    assert first[0].history[0].content.startswith(plain[0].history[0].content)
    assert first[0].history != plain[0].history
    assert [t.privileged["fields"] for t in first] == [t.privileged["fields"] for t in plain]


def test_unknown_level_and_level_without_wordings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        BadInput, match="env.levels.*stong.*did you mean 'strong'.*known: zero, weak, strong"
    ) as refused:
        at_levels("zero", "stong")
    assert refused.value.exit_code == 2
    words = episodes._words(SCENARIOS["telecom_package"], "en")
    mute = words.model_copy(update={"test": words.test.model_copy(update={"adversity": {}})})
    monkeypatch.setattr(episodes, "_words", lambda scenario, language: mute)
    with pytest.raises(BadInput, match="wordings of telecom_package have no adversity.weak"):
        at_levels("zero", "weak")
