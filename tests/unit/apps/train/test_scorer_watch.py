"""Scorer checks at the start of a run and on the policy's replies."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hamr.apps.scorer.prepare import TunedScorer
from hamr.apps.train.scorer_refit import ScoredReply
from hamr.apps.train.scorer_watch import ScorerWatch, check_tuned
from hamr.config.load import load_config
from hamr.config.logging import AlarmsConfig
from hamr.config.schema import SageDataConfig
from hamr.data.contrasts import replies_of
from hamr.data.reply_clusters import ReplyClusters
from hamr.data.sage_samples import generate_samples
from hamr.data.splits import Splits
from hamr.errors import BadInput, UnreliableScorer
from hamr.procedures.acts import Context, SageActs
from hamr.rewards.truth import ExactAct
from hamr.telemetry.watch import alarms
from hamr.types import Answer, Question, Reference, Reply, ServiceSample

GOODBYE = "That is fine. Have a nice day, goodbye!"
SPLITS = generate_samples(SageDataConfig())
EVERY = (*SPLITS.train, *SPLITS.validation, *SPLITS.test)
RULE = ExactAct.of(EVERY)
assert RULE is not None


def with_all_wordings(sample: ServiceSample) -> ServiceSample:
    acts = SageActs.of(sample)
    assert acts is not None
    texts = acts.right(sample.meta["act"], Context.of(sample))
    return replace(sample, references=tuple(Reference(action=Reply(content=text)) for text in texts))


WHOLE_RULE = ExactAct.of(map(with_all_wordings, EVERY))
assert WHOLE_RULE is not None


class RuleScorer:
    """Scorer that knows the rule and additionally accepts the replies in `liked`."""

    def __init__(self, *liked: str) -> None:
        self.liked, self.asked = liked, 0

    async def ask(self, question: Question) -> Answer:
        self.asked += 1
        a, b = question.variables["statement_a"], question.variables["statement_b"]
        right = WHOLE_RULE.agree(Reply(content=a), Reply(content=b))
        return Answer(score=1.0 if b in self.liked else 0.9 if right else 0.1)


def watch(scorer: Any, *overrides: str, splits: Splits = SPLITS, truth: ExactAct | None = RULE, **more: object):
    notes: list[str] = []
    config = load_config(["experiment=smoke", "pools.reranker.model=smollm2-135m", *overrides])
    pools = {"reranker": scorer.ask, "judge": scorer.ask}
    return ScorerWatch(config=config, splits=splits, truth=truth, pools=pools, note=notes.append, **more), notes


def replies(often: Mapping[str, int], score: float | None = None) -> list[ScoredReply]:
    """Each text as often as given, to the prompts of the training split in turn."""
    texts = [text for text, times in often.items() for _ in range(times)]
    return [ScoredReply(SPLITS.train[i % len(SPLITS.train)], text, score) for i, text in enumerate(texts)]


async def test_accurate_scorer_passes() -> None:
    found, notes = watch(RuleScorer())
    await found.at_start()
    assert {role: (gate.contexts, gate.share) for role, gate in found.gates.items()} == {
        role: (24, 0.0) for role in ("reranker", "judge", "cascade", "both")
    }
    assert not any("WARNING" in note for note in notes)


async def test_overrated_courtesy_is_reported_before_rl() -> None:
    """The AUC of the scorer on mixed pairs is nearly 1."""
    found, notes = watch(RuleScorer(GOODBYE))
    await found.at_start()
    assert found.checks["reranker"]["held_out"].auc > 0.95
    assert any(repr(GOODBYE) in note and "courtesy" in note for note in notes)
    assert "WARNING" in notes[-1] and "max_fooled=0.1" in notes[-1]


async def test_scorer_without_answers_does_not_pass() -> None:
    class Half(RuleScorer):
        """Answers about the right replies only."""

        async def ask(self, question: Question) -> Answer:
            answer = await super().ask(question)
            return answer if answer.score == 0.9 else Answer(failure="timeout")

    found, notes = watch(Half())
    await found.at_start()
    assert "none of 24 contexts could be scored" in notes[-1] and "WARNING" in notes[-1]


async def test_auc_names_the_number_of_scored_pairs() -> None:
    class Flaky(RuleScorer):
        async def ask(self, question: Question) -> Answer:
            answer = await super().ask(question)
            return answer if self.asked % 3 == 0 else Answer(failure="timeout")

    found, notes = watch(Flaky())
    await found.at_start()
    check = found.checks["reranker"]["held_out"]
    assert check.failed and notes[0].startswith(
        f"reranker: AUC {check.auc:.2f} on {check.n - check.failed} held-out pairs"
    )
    assert notes[1].startswith(f"WARNING: reranker: {check.failed} of {check.n} held-out pairs have no score")


async def test_alarm_stops_the_run_if_configured() -> None:
    found, _ = watch(RuleScorer(GOODBYE), "scorers.on_alarm=stop")
    with pytest.raises(UnreliableScorer, match="on_alarm=warn to continue"):
        await found.at_start()


@pytest.mark.parametrize("truth", [RULE, None])
async def test_overrated_wrong_reply_of_the_policy_is_reported(truth: ExactAct | None) -> None:
    found, notes = watch(RuleScorer(GOODBYE), truth=truth)
    figures = await found.of_replies(replies({GOODBYE: 40, "Do you mainly use data or voice?": 12}))
    assert figures["alarm/scorers_fooled"] == 1.0
    assert figures["scorers/fooled_frac"] >= (0.7 if truth else 0.5)
    assert any(repr(GOODBYE) in note for note in notes) and "WARNING" in notes[-1]


def asking(identity: str, text: str, cluster: str) -> ServiceSample:
    return ServiceSample(
        id=identity,
        ticket={},
        policy="",
        tools=(),
        history=(),
        references=(Reference(action=Reply(content=text)),),
        meta={"reply_clusters": [cluster]},
    )


NAMES = {"Your name?": "cluster 1", "Who are you?": "cluster 1", "It costs $3.": "cluster 2", GOODBYE: "cluster 3"}
OWN = tuple(asking(str(i), text, name) for i, (text, name) in enumerate(NAMES.items()))


@pytest.mark.parametrize(("said", "share"), [(GOODBYE, 1.0), ("And your name, please?", 0.0)])
async def test_policy_reply_is_right_in_the_cluster_of_its_nearest_reference(said: str, share: float) -> None:
    """The scorer accepts the goodbye everywhere, and the question where a name is required."""

    class Scorer:
        async def ask(self, question: Question) -> Answer:
            a, b = question.variables["statement_a"], question.variables["statement_b"]
            return Answer(score=1.0 if b == said and (b == GOODBYE or NAMES[a] == "cluster 1") else 0.5)

    def embed(texts):
        return np.array([[float("name" in t), 0.5 * ("$" in t), float(t == GOODBYE)] for t in texts], np.float32)

    known = ReplyClusters(texts=tuple(NAMES), names=tuple(NAMES.values()), vectors=embed(NAMES))
    found, _ = watch(
        Scorer(),
        "rewards=reranker",
        splits=Splits(train=OWN, validation=(), test=OWN),
        truth=None,
        clusters=known,
        embed=embed,
    )
    figures = await found.of_replies(replies({said: 9}))
    assert figures["scorers/fooled_frac"] == share and figures["watch/distinct_acts"] == 1.0
    figures = await found.of_replies(replies({said: 9, "That is $4.": 1, "That is $5.": 1}))
    assert figures["watch/distinct_acts"] == 2.0


async def test_right_replies_of_logged_data_are_not_counted_as_wrong() -> None:
    """The samples name their act and no scenario. Where a goodbye is due, the scorer prefers the policy's."""

    def own(part: tuple[ServiceSample, ...]) -> tuple[ServiceSample, ...]:
        return tuple(replace(sample, meta={"act": sample.meta["act"]}) for sample in part)

    class Scorer(RuleScorer):
        async def ask(self, question: Question) -> Answer:
            answer = await super().ask(question)
            preferred = question.variables["statement_b"] == goodbye and answer.score == 0.9
            return Answer(score=1.0) if preferred else answer

    splits = Splits(train=own(SPLITS.train), validation=own(SPLITS.validation), test=own(SPLITS.test))
    [goodbye, *_] = [text for sample in splits.train if sample.meta["act"] == "GoodBye" for text in replies_of(sample)]
    found, _ = watch(Scorer(), splits=splits)
    figures = await found.of_replies([ScoredReply(sample, goodbye, None) for sample in splits.train[:20]])
    assert figures["scorers/fooled_frac"] == 0.0


async def test_accurate_scorers_raise_no_alarm_for_a_collapsed_policy() -> None:
    found, notes = watch(RuleScorer())
    assert await found.of_replies(replies({GOODBYE: 99})) == {
        "scorers/fooled_frac": 0.0,
        "alarm/scorers_fooled": 0.0,
        "watch/distinct_acts": 1.0,
        "watch/act_diversity": pytest.approx(0.25, rel=0.02),
    }
    assert notes == []


def act_replies(share: float, *acts: str) -> list[ScoredReply]:
    """Replies to the prompts that call for one: `share` of each act are right, the others of `acts` in turn."""
    wording = {sample.meta["act"]: sample for sample in SPLITS.train}
    found, seen = [], Counter[str]()
    for sample in SPLITS.train:
        if replies_of(sample):
            seen[sample.meta["act"]] += 1
            right = seen[sample.meta["act"]] % 10 < 10 * share
            other = wording[acts[len(found) % len(acts)]] if acts else sample
            found.append(ScoredReply(sample, replies_of(sample if right else other)[0], None))
    return found


REPLY_ACTS = ("GoodBye", "ask ApplicationTendency", "ask ConsumptionProfile", "ask EmotionTag")


@pytest.mark.parametrize(
    ("share", "acts", "raised"),
    [
        (1.0, (), 0.0),
        (0.3, REPLY_ACTS, 0.0),
        (0.7, ("GoodBye",), 0.0),
        (0.1, ("GoodBye",), 1.0),
        (0.0, REPLY_ACTS[:2], 1.0),
        (0.0, ("GoodBye",), 1.0),
    ],
)
async def test_replies_of_too_few_acts_raise_the_alarm(share: float, acts: tuple[str, ...], raised: float) -> None:
    """Stray replies of other acts do not hide a collapse, and wrong replies of all acts are none."""
    found, _ = watch(RuleScorer(), "scorers.contexts=0")
    figures = await found.of_replies(act_replies(share, *acts))
    flags, _ = alarms(figures, AlarmsConfig())
    assert flags["act_diversity"] == raised, figures


async def test_act_diversity_requires_data_and_single_decisions() -> None:
    few, _ = watch(RuleScorer(), "scorers.contexts=0")
    assert "watch/act_diversity" not in await few.of_replies(replies({GOODBYE: 30}))
    dialogues, _ = watch(RuleScorer(), "scorers.contexts=0", "env=sage")
    assert "watch/act_diversity" not in await dialogues.of_replies(replies({GOODBYE: 200}))


async def test_prompt_with_several_clusters_calls_for_any_of_them() -> None:
    names = {"Your name?": "cluster 1", GOODBYE: "cluster 2"}
    known = ReplyClusters(texts=tuple(names), names=tuple(names.values()), vectors=np.eye(2, dtype=np.float32))
    both = tuple(replace(asking("1", text, ""), meta={"reply_clusters": list(names.values())}) for text in names)
    found, _ = watch(
        RuleScorer(),
        "scorers.contexts=0",
        splits=Splits(train=both, validation=(), test=both),
        truth=None,
        clusters=known,
        embed=lambda texts: np.array([[float("name" in t), float("bye" in t)] for t in texts], np.float32),
    )
    one = [ScoredReply(both[0], GOODBYE, None)] * 50
    assert "watch/act_diversity" not in await found.of_replies(one), "one accepted act everywhere is no collapse"
    only = [ScoredReply(asking(text, text, name), GOODBYE, None) for text, name in names.items()]
    assert (await found.of_replies(only * 50))["watch/act_diversity"] == pytest.approx(0.5)


def answered(act: str, right: int, wrong: int, score: float) -> list[ScoredReply]:
    """Replies to prompts where this act is expected: right ones that score 0.9, and the goodbye, with `score`."""
    due = [sample for sample in map(with_all_wordings, SPLITS.train) if sample.meta["act"] == act]
    cases = [due[i % len(due)] for i in range(right + wrong)]
    exact = [ScoredReply(case, replies_of(case)[0], 0.9) for case in cases[:right]]
    return exact + [ScoredReply(case, GOODBYE, score) for case in cases[right:]]


@pytest.mark.parametrize(("score", "share"), [(0.95, 0.5), (0.7, 0.5), (0.6, 0.0)])
async def test_wrong_replies_that_score_like_right_ones_raise_the_alarm(score: float, share: float) -> None:
    """This holds even if they are rare and beat no right reply of another act."""
    said = [*answered("ask ConsumptionProfile", 90, 0, 0.0), *answered("ask ApplicationTendency", 6, 6, score)]
    found, notes = watch(RuleScorer(), truth=WHOLE_RULE)
    figures = await found.of_replies(said)
    assert figures["scorers/false_accept_frac"] == share and figures["alarm/scorers_fooled"] == float(share > 0)
    expected = "50% of the replies where ask ApplicationTendency is due are wrong and score like right ones, e.g. "
    assert any(expected + repr(GOODBYE) in note for note in notes) == (share > 0)


@pytest.mark.parametrize(("wrong", "of", "alarm"), [(4, 30, 0.0), (12, 60, 1.0)])
async def test_share_above_the_limit_by_chance_raises_no_alarm(wrong: int, of: int, alarm: float) -> None:
    found, _ = watch(RuleScorer(), "scorers.contexts=0", truth=WHOLE_RULE)
    figures = await found.of_replies(answered("ask ApplicationTendency", of - wrong, wrong, 0.95))
    assert figures["scorers/false_accept_frac"] == pytest.approx(wrong / of) and wrong / of > 0.1
    assert figures["alarm/scorers_fooled"] == alarm


async def test_act_with_few_replies_hides_no_alarm_of_another() -> None:
    """Its share may be larger by chance. The alarm is about the act whose share is certain."""
    found, notes = watch(RuleScorer(), "scorers.contexts=0", truth=WHOLE_RULE)
    few = answered("ask ConsumptionProfile", 24, 6, 0.95)
    figures = await found.of_replies([*few, *answered("ask ApplicationTendency", 340, 60, 0.95)])
    assert figures["scorers/false_accept_frac"] == pytest.approx(0.2) and figures["alarm/scorers_fooled"] == 1.0
    assert any("15% of the replies where ask ApplicationTendency is due" in note for note in notes)


async def test_own_dialogues_have_no_due_act() -> None:
    """A point of the user's own need not name an act, and its right reply follows from an earlier turn."""
    found, _ = watch(RuleScorer(), "env=my.py:run", truth=WHOLE_RULE)
    said = answered("ask ConsumptionProfile", 90, 20, 0.95)
    points = [reply._replace(sample=replace(reply.sample, meta={})) for reply in said]
    assert "scorers/false_accept_frac" not in {**await found.of_replies(said), **await found.of_replies(points)}


async def test_fraction_per_act_requires_ten_replies() -> None:
    said = [*answered("ask ConsumptionProfile", 90, 0, 0.0), *answered("ask ApplicationTendency", 4, 5, 0.95)]
    found, _ = watch(RuleScorer(), truth=WHOLE_RULE)
    assert (await found.of_replies(said))["alarm/scorers_fooled"] == 0.0


async def test_only_the_most_frequent_replies_are_checked() -> None:
    asked = {}
    for most in (1, 3):
        scorer = RuleScorer()
        found, _ = watch(scorer, f"scorers.replies={most}", "scorers.contexts=4", "rewards=reranker")
        await found.of_replies(replies({GOODBYE: 3, "Hello?": 2, "Yes.": 1}))
        asked[most] = scorer.asked
    assert asked[3] - asked[1] == 4 * 2


@pytest.mark.parametrize(
    "overrides", [["scorers.contexts=0"], ["rewards.consistency.weight=0", "rewards.format.weight=1"]]
)
async def test_no_questions_are_asked_without_contrasts(overrides: list[str]) -> None:
    scorer = RuleScorer()
    found, _ = watch(scorer, *overrides)
    assert await found.of_replies(replies({GOODBYE: 3})) == {"watch/distinct_acts": 1.0} and scorer.asked == 0


async def test_contexts_use_all_splits_if_the_test_split_has_one_act() -> None:
    one_act = tuple(sample for sample in SPLITS.test if sample.meta["act"] == "GoodBye")
    found, notes = watch(RuleScorer(), splits=replace(SPLITS, test=one_act))
    await found.at_start()
    assert found.gates["cascade"].contexts == 24 and any("taken from all splits" in note for note in notes)


@pytest.mark.parametrize(
    ("auc", "accepted", "refused"), [(0.6, "false", True), (0.6, "true", False), (0.9, "false", False)]
)
def test_fine_tuned_scorer_at_chance_is_rejected_before_its_pool_starts(
    auc: float, accepted: str, refused: bool
) -> None:
    config = load_config(["experiment=quickstart", f"scorers.accept_chance={accepted}"])
    tuned = TunedScorer(path=Path(), finetuned=True, tuned_auc=auc, tuned_error=0.06)
    scorers = {"reranker": TunedScorer(path=Path(), finetuned=True), "judge": tuned}
    expected = pytest.raises(BadInput, match=r"pools.judge.model.*AUC 0.60 ± 0.06.*accept_chance=true")
    with expected if refused else contextlib.nullcontext():
        check_tuned(config, scorers)


async def test_data_of_one_act_have_no_contrasts() -> None:
    one_act = tuple(sample for sample in SPLITS.test if sample.meta["act"] == "GoodBye")
    found, _ = watch(RuleScorer(), splits=Splits(train=one_act, validation=(), test=one_act))
    assert await found.of_replies(replies({GOODBYE: 3})) == {"watch/distinct_acts": 1.0}
    assert found.gates == {}
