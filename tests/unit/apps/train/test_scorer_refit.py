"""Training pairs of a scorer refit, and settings that are rejected before Ray starts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.scorer.prepare import Progress
from hamr.apps.train.scorer_refit import ScoredReply, ScorerRefit, check_refit
from hamr.config.load import load_config
from hamr.config.schema import SageDataConfig
from hamr.data.contrasts import replies_of
from hamr.data.sage_samples import generate_samples
from hamr.data.stream import PromptStream
from hamr.errors import BadInput, DataError
from hamr.experience import Draw, Experience
from hamr.pools.pair_training import PairExample
from hamr.rewards.truth import ExactAct
from hamr.types import Answer, Question, RolloutGroup
from tests.factories import sample

SPLITS = generate_samples(SageDataConfig())
RULE = ExactAct.of((*SPLITS.train, *SPLITS.validation, *SPLITS.test))
WITH_REPLIES = [sample for sample in SPLITS.train if replies_of(sample)]


class Recorded(ScorerRefit):
    """Trains nothing, and keeps what it would train on."""

    def _train(self, step: int, pairs: Any) -> dict[str, Path]:
        self.trained = list(pairs)
        return {"reranker": self.folder / f"reranker-{step}", "judge": self.folder / f"judge-{step}"}


def refit(folder: Path, *overrides: str) -> tuple[Recorded, list[Mapping[str, Path]]]:
    loaded: list[Mapping[str, Path]] = []

    async def load(paths: Mapping[str, Path]) -> None:
        loaded.append(paths)

    async def judge(question: Question) -> Answer:
        return Answer(score=0.25) if question.variables["history"] else Answer(failure="unparsable")

    made = Recorded(
        config=load_config(["experiment=quickstart", "scorers.on_alarm=refit", *overrides]),
        truth=RULE,
        train=SPLITS.train,
        folder=folder / "scorers",
        paths={"reranker": folder / "first", "judge": folder / "second"},
        judge=judge,
        reload=load,
        progress=Progress(lambda line: None),
    )
    return made, loaded


def said(wrong: int, right: int) -> list[ScoredReply]:
    """Wrong replies with rising scores, and right ones with falling ones."""
    replies = [ScoredReply(WITH_REPLIES[i], f"Wrong {i}.", i / 100) for i in range(wrong)]
    return replies + [ScoredReply(s, replies_of(s)[0], 1 - i / 100) for i, s in enumerate(WITH_REPLIES[:right])]


async def test_refit_by_rule_takes_the_worst_scored_replies(tmp_path: Path) -> None:
    made, loaded = refit(tmp_path, "scorers.refit.examples=10")
    await made.run(20, said(30, 3))
    wrong, right = ([p for p in made.trained if p.target == target] for target in (0.0, 1.0))
    assert [pair.b for pair in wrong] == [f"Wrong {i}." for i in (29, 28, 27, 26, 25)] and len(right) == 3
    assert loaded == [{"reranker": tmp_path / "scorers/reranker-20", "judge": tmp_path / "scorers/judge-20"}]
    assert made.state() == [20]


async def test_later_refits_repeat_pairs_of_earlier_refits(tmp_path: Path) -> None:
    made, loaded = refit(tmp_path)
    await made.run(20, said(4, 0))
    first = made.trained
    await made.run(40, said(0, 2))
    assert made.trained[:4] == first and len(made.trained) == 6 and made.state() == [20, 40]
    again, loaded = refit(tmp_path)
    await again.restore([20])
    assert loaded == [{"reranker": tmp_path / "scorers/reranker-20", "judge": tmp_path / "scorers/judge-20"}]
    await again.run(40, said(2, 0))
    assert again.trained[:4] == first and len(again.trained) == 6


async def test_judge_scores_are_targets_for_the_reranker_only(tmp_path: Path) -> None:
    made, _ = refit(tmp_path, "scorers.refit.labels=judge")
    await made.run(20, said(3, 0))
    assert {pair.target for pair in made.trained} == {0.25} and len(made.trained) == 3


async def test_refit_from_a_file_uses_its_pairs(tmp_path: Path) -> None:
    rows = [{"content_A": "Yes.", "content_B": "Sure.", "label": "consistent"}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made, _ = refit(tmp_path, f"scorers.refit.labels={tmp_path / 'pairs.jsonl'}")
    await made.run(20, said(3, 0))
    assert made.trained == [PairExample("Yes.", "Sure.", 1.0)]


async def test_refit_without_scored_replies_is_skipped(tmp_path: Path) -> None:
    made, loaded = refit(tmp_path)
    await made.run(20, [ScoredReply(WITH_REPLIES[0], "Hello.", None)])
    assert made.state() == [] and loaded == [] and not made.folder.exists()


@pytest.mark.parametrize("wrong", [3, 0])
async def test_no_group_is_scored_while_the_pools_load_the_scorers(wrong: int, tmp_path: Path) -> None:
    """Four groups are under way, and would all end during the reload. Without a refit they continue."""
    draws: list[Draw] = []
    loading = asyncio.Event()

    async def produce(draw: Draw) -> RolloutGroup:
        draws.append(draw)
        await loading.wait()
        return RolloutGroup(sample=draw.sample, rollouts=(), records=())

    async def load(paths: Mapping[str, Path]) -> None:
        loading.set()
        await asyncio.sleep(0.01)
        assert len(draws) == 4
        loading.clear()

    stream = PromptStream([sample(i) for i in range(9)], seed=0)
    groups = Experience(produce, lambda group: True, stream, batch=2, max_policy_age=1)
    taking = asyncio.create_task(groups.take(1, 2, 9))
    await asyncio.sleep(0.01)
    made, _ = refit(tmp_path)
    made.reload = load
    await made.run(1, said(wrong, 0), groups.hold)
    await asyncio.sleep(0.01)
    assert not taking.done() and len(draws) == (8 if wrong else 4)
    assert [draw.sample for draw in draws[4:]] == [draw.sample for draw in draws[:4] if wrong]
    taking.cancel()
    await groups.close()


@pytest.mark.parametrize(
    ("overrides", "truth", "error", "message"),
    [
        (["pools=tiny"], True, BadInput, r"pools.reranker.type: 'vllm': is the reranker and cannot be refitted"),
        (["pools.judge.finetune=null"], True, BadInput, r"pools.judge.type: 'cross_encoder'.*with a finetune section"),
        ([], False, BadInput, r"scorers.refit.labels: 'rule': the samples name no act"),
        (["scorers.refit.labels=judge", "rewards.consistency.mode=reranker"], True, BadInput, "needs a reranker and a"),
        (["scorers.refit.labels=absent.jsonl"], True, DataError, "absent.jsonl"),
    ],
)
def test_impossible_refit_is_rejected(overrides: list[str], truth: bool, error: type[Exception], message: str) -> None:
    config = load_config(["experiment=quickstart", "scorers.on_alarm=refit", *overrides])
    with pytest.raises(error, match=message):
        check_refit(config, RULE if truth else None)


def test_other_alarm_actions_need_no_refit_settings() -> None:
    check_refit(load_config(["experiment=quickstart", "pools=tiny", "scorers.on_alarm=warn"]), None)
