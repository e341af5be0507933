"""Written answers that a real engine constrains to a schema: complete and parsable, although the model is random."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hamr.config.judged import ComparedConfig, GradedConfig, HallucinationConfig, RiskConfig, RubricConfig
from hamr.config.pools import EngineConfig, PoolConfig
from hamr.pools.scorers import build_scorer, scorer_env
from hamr.rewards.judged import JUDGED
from hamr.rewards.questions import JudgedText
from hamr.rewards.rubric import parse_rubric, rubric_question
from hamr.types import Answer, Question, ServiceSample, Turn

pytestmark = [pytest.mark.deep, pytest.mark.integration, pytest.mark.timeout(500)]

POOL = PoolConfig(
    role="grader",
    model="tiny",
    dtype="float32",
    engine=EngineConfig(threads=1, kv_cache_mb=64, num_cpus=0.5),
    max_context=3072,
    answer_tokens=700,
    structured=True,
)
SAMPLE = ServiceSample(
    id="s",
    ticket={"Penalty": 12},
    policy="Name the fee before you cancel.",
    tools=(),
    history=(Turn(role="customer", content="Cancel it."),),
    references=(),
    privileged={"rubric": [{"title": "Names it", "description": "Says 12.", "weight": 5},
                           {"title": "Lies", "description": "Says 13.", "weight": -2}]},
)  # fmt: skip
REWARDS: dict[str, tuple[Any, int]] = {
    "dialogue": (GradedConfig(), 1),
    "policy": (ComparedConfig(), 2),
    "rubric": (RubricConfig(reading="items"), 1),
    "risk": (RiskConfig(), 1),
    "hallucination": (HallucinationConfig(), 1),
}


@pytest.fixture(scope="module")
def ask(local_ray: None, tiny: Path) -> Iterator[Callable[[list[Question]], list[Answer]]]:
    """Puts questions to a grader in a process of its own, as engines need it."""
    import ray

    class Host:
        def __init__(self) -> None:
            self.scorer = build_scorer("side", POOL, tiny)

        async def score(self, asked: list[Question]) -> list[Answer]:
            return await self.scorer.score(asked)

    env = {"env_vars": dict(scorer_env(POOL))}
    host = ray.remote(Host).options(num_cpus=0.5, runtime_env=env).remote()
    yield lambda asked: ray.get(host.score.remote(asked), timeout=300)
    ray.kill(host)


def test_structured_answers_of_every_judged_reward_are_parsable(ask: Callable[..., Any]) -> None:
    asked = []
    for attempt in range(3):
        for name, (config, count) in REWARDS.items():
            responses = [JudgedText(words=f"The fee is {12 + i} euros.") for i in range(count)]
            asked.append((name, config, count, JUDGED[name].question(SAMPLE, responses, config, attempt)))
    answers = ask([question for *_, question in asked])
    for (name, config, count, question), answer in zip(asked, answers, strict=True):
        assert answer.failure is None, (name, answer.detail, answer.reasoning)
        said = json.loads(answer.text)
        assert question.schema is not None
        assert list(said) == list(question.schema["properties"])
        if name == "risk" and (said["risk"] == "yes") != bool(said["types"]):
            continue  # what a random model says may contradict itself, which no schema forbids and no reader believes
        judgements = JUDGED[name].read(answer.text, SAMPLE, count, config)
        assert len(judgements) == count
        assert all(judgement is not None for judgement in judgements)
    assert len({answer.text for answer in answers}) > len(REWARDS), "asking again is not greedy"


def test_structured_rubric_is_a_list_of_valid_items(ask: Callable[..., Any]) -> None:
    (answer,) = ask([rubric_question(SAMPLE, ["The fee is 12 euros.", "Done."])])
    assert answer.failure is None, (answer.detail, answer.reasoning)
    written = json.loads(answer.text)["rubric"]
    assert len(written) <= 16
    assert len(parse_rubric(answer.text)) == len([item for item in written if item["title"].strip(" *")])
