"""Customers of `env=sage` in a pool's words: the template's case, audited before the policy speaks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from hamr.apps.train.episodes import pool_customers
from hamr.bench.sage.episodes import SageEnvironment
from hamr.config.load import load_config
from hamr.errors import ConfigError
from hamr.protocols import GenerationRequest, SamplingConfig
from hamr.rollout.episodes import EpisodeRunner
from hamr.types import Answer, CustomerUnavailable, Question, SampleKey, ServiceSample, derive_seed
from tests.unit.bench.sage.test_sage_episodes import SCENARIOS, at_levels, customer_of, gold
from tests.unit.rollout.test_episodes import Engine, Scorer

CONFIG = load_config(["experiment=smoke", "env=sage", "env.simulator=judge", "env.reader=judge"])
SAMPLE = next(s for s in at_levels("strong") if "adversity" in s.meta and len(s.history) > 2)
SEED = 7


class Pool:
    """Words a draft by `word`, reads the shown values as they are by `read`, and counts its questions."""

    def __init__(self, sample: ServiceSample = SAMPLE) -> None:
        turns = list(replace(customer_of(sample), seed=derive_seed(SEED, "environment")).messages())
        self.drafts = [text for text, _, _ in turns]
        before = [{}, *(shown for _, shown, _ in turns)]
        self.shown = [
            {"message": number, "field": name, "value": value}
            for number, ((_, shown, _), old) in enumerate(zip(turns, before, strict=False), 1)
            for name, value in shown.items()
            if name not in old
        ]
        self.asked: Counter[str] = Counter()
        self.seen: list[Question] = []

    def word(self, draft: str) -> Answer:
        return Answer(text=f"Honestly: {draft}")

    def read(self) -> Answer:
        return Answer(text=json.dumps({"shown": self.shown}))

    async def __call__(self, question: Question) -> Answer:
        self.seen.append(question)
        if question.schema is not None:
            self.asked["reader"] += 1
            return self.read()
        self.asked["writer"] += 1
        return self.word(question.messages[1]["content"].removeprefix("<message>\n").removesuffix("\n</message>"))


class Policy(Engine):
    """Answers every turn right, and keeps the decision points."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[ServiceSample] = []

    def encode(self, sample: ServiceSample, tools) -> tuple[int, ...]:
        self.points.append(sample)
        return (len(self.points) - 1,)

    async def generate(self, requests):
        async for rollout in super().generate(requests):
            yield replace(rollout, text=gold(self.points[rollout.prompt_ids[0]]))


async def hold(pool: Pool, n: int = 3):
    """Return the group of N dialogues with the customer, and the policy."""
    policy = Policy()
    environment = SageEnvironment(
        config=CONFIG.env,
        scenarios=SCENARIOS,
        max_turns=10,
        format_of=lambda s: "plain",
        pool=pool_customers(CONFIG, {"judge": pool}),
    )
    runner = EpisodeRunner(
        run=environment, engine=policy, rewarder=Scorer(), encode=policy.encode, context=64, max_turns=10, deadline_s=60
    )
    keys = tuple(SampleKey(run="r", step=0, prompt=SAMPLE.id, sample=i) for i in range(n))
    sampling = SamplingConfig(max_new_tokens=8)
    request = GenerationRequest(prompt_ids=(), keys=keys, seeds=(SEED, *range(n - 1)), sampling=sampling)
    [group] = await runner.hold([SAMPLE], [request])
    return group, policy


async def test_dialogues_of_a_group_have_the_same_customer_in_the_pools_words() -> None:
    pool = Pool()
    group, policy = await hold(pool)
    ends = [r.episode for r in group.records if r.episode]
    assert [(end.outcome, end.reward) for end in ends] == [("ended", 1.0)] * 3
    assert all(end.path.endswith("/strong") for end in ends)
    said = [[t.content for t in p.history if t.role == "customer"] for p in policy.points if not p.privileged["awaits"]]
    assert said == [[f"Honestly: {draft}" for draft in pool.drafts]] * 3
    assert pool.asked == {"writer": len(pool.drafts), "reader": 1}, "the dialogues share the answers"
    level = SCENARIOS["telecom_package"].file.adversity["strong"].en
    assert all(level in q.messages[0]["content"] for q in pool.seen if q.schema is None)


async def test_gold_is_that_of_the_case_in_any_words() -> None:
    _, policy = await hold(Pool(), n=1)
    turns = list(replace(customer_of(SAMPLE), seed=derive_seed(SEED, "environment")).messages())
    assert [p.privileged["fields"] for p in policy.points] == [shown for _, shown, _ in turns]


class SaysMore(Pool):
    def read(self) -> Answer:
        shown = self.shown[-1]
        options = SCENARIOS["telecom_package"].file.fields[shown["field"]].options or ()
        other = next(option for option in options if option != shown["value"])
        return Answer(text=json.dumps({"shown": [*self.shown[:-1], {**shown, "value": other}]}))


class SaysLess(Pool):
    def read(self) -> Answer:
        return Answer(text=json.dumps({"shown": self.shown[:-1]}))


@pytest.mark.parametrize(("pool", "fault"), [(SaysMore(), "said_more"), (SaysLess(), "said_less")])
async def test_customer_that_shows_another_case_is_faulty_before_the_policy_speaks(pool: Pool, fault: str) -> None:
    group, policy = await hold(pool)
    assert {r.total.kind for r in group.records} == {"faulty_customer"}
    assert all(r.total.detail.startswith(f"{fault} at message") for r in group.records)
    assert policy.points == []
    assert pool.asked == {"writer": 3 * len(pool.drafts), "reader": 1}, "this pool words every try alike"


async def test_customer_out_of_role_is_worded_again_and_costs_no_reading() -> None:
    class Forgetful(Pool):
        def word(self, draft: str) -> Answer:
            first = self.asked["writer"] <= len(self.drafts)
            return Answer(text="As an AI I have no package.") if first else super().word(draft)

    pool = Forgetful()
    group, _ = await hold(pool)
    assert all(r.total.ok for r in group.records)
    assert pool.asked == {"writer": 2 * len(pool.drafts), "reader": 1}


@pytest.mark.parametrize("role", ["word", "read"])
async def test_pool_that_does_not_answer_is_a_failure_of_its_own_kind(role: str, monkeypatch) -> None:
    monkeypatch.setattr(Pool, role, lambda *given: Answer(failure="timeout", detail="30 s"))
    group, policy = await hold(Pool())
    key = {"word": "env.simulator", "read": "env.reader"}[role]
    assert {r.total for r in group.records} == {CustomerUnavailable(detail=f"{key}: timeout: 30 s")}
    assert policy.points == []


async def test_refusal_of_the_pool_is_retried() -> None:
    class Busy(Pool):
        def word(self, draft: str) -> Answer:
            busy = self.asked["writer"] <= len(self.drafts)
            return Answer(failure="unavailable", detail="busy", retry_in_s=0.0) if busy else super().word(draft)

    group, _ = await hold(Busy())
    assert all(r.total.ok for r in group.records)


def test_template_speaks_without_a_pool() -> None:
    assert pool_customers(load_config(["experiment=smoke", "env=sage"]), {}) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["env.simulator=nobody", "env.reader=judge"], "env.simulator='nobody' but pools has only"),
        (["env.simulator=judge", "env.reader=nobody"], "env.reader='nobody' but pools has only"),
        (["env.simulator=judge", "env.reader=reranker"], "env.reader='reranker' but pools.reranker gives verdicts"),
        (["env.simulator=scripted:gold"], "env.simulator='scripted:gold' is not a script"),
        (["env.simulator=judge"], "env.simulator='judge' but env.reader=null; name a pool that reads"),
        (["env.reader=judge"], "env.simulator='scripted:case' but env.reader='judge', whose messages need no reader"),
    ],
)
def test_unusable_customers_are_refused(changes: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        load_config(["experiment=smoke", "env=sage", *changes])
    assert refused.value.exit_code == 2


def test_run_starts_the_pools_of_the_customers() -> None:
    assert CONFIG.dialogue_pools == {"env.simulator": "judge", "env.reader": "judge"}
