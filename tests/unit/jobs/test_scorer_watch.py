"""The checks of scorers at the start of a run and on what the policy says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hamr.config.load import load_config
from hamr.config.schema import SageDataConfig
from hamr.data.sage_acts import Context, SageActs
from hamr.data.sage_samples import generated
from hamr.data.splits import Splits
from hamr.errors import UnreliableScorer
from hamr.evaluation.reply_clusters import ReplyClusters
from hamr.evaluation.truth import ExactAct
from hamr.jobs.scorer_watch import ScorerWatch
from hamr.types import Answer, Question, Reference, Reply, ServiceSample

GOODBYE = "That is fine. Have a nice day, goodbye!"
SPLITS = generated(SageDataConfig())
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


class Right:
    """Knows the rule, and likes the replies in `liked` whatever is due."""

    def __init__(self, *liked: str) -> None:
        self.liked, self.asked = liked, 0

    async def ask(self, question: Question) -> Answer:
        self.asked += 1
        a, b = question.variables["statement_a"], question.variables["statement_b"]
        right = WHOLE_RULE.agree(Reply(content=a), Reply(content=b))
        return Answer(score=1.0 if b in self.liked else 0.9 if right else 0.1)


def watch(scorer: object, *overrides: str, splits: Splits = SPLITS, truth: ExactAct | None = RULE, **more: object):
    notes: list[str] = []
    config = load_config(["experiment=smoke", "pools.reranker.model=smollm2-135m", *overrides])
    pools = {"reranker": scorer, "judge": scorer}
    return ScorerWatch(config=config, splits=splits, truth=truth, pools=pools, note=notes.append, **more), notes


async def test_a_right_scorer_passes() -> None:
    found, notes = watch(Right())
    await found.at_start()
    assert {role: (gate.contexts, gate.share) for role, gate in found.gates.items()} == {
        role: (24, 0.0) for role in ("reranker", "judge", "cascade", "both")
    }
    assert not any("WARNING" in note for note in notes)


async def test_a_courtesy_that_wins_everywhere_is_named_before_rl() -> None:
    """Its AUC on mixed pairs is nearly one."""
    found, notes = watch(Right(GOODBYE))
    await found.at_start()
    assert found.checks["reranker"]["held_out"].auc > 0.95
    assert any(repr(GOODBYE) in note and "courtesy" in note for note in notes)
    assert "WARNING" in notes[-1] and "max_fooled=0.1" in notes[-1]


async def test_the_alarm_stops_the_run_where_that_is_asked_for() -> None:
    found, _ = watch(Right(GOODBYE), "scorers.on_alarm=stop")
    with pytest.raises(UnreliableScorer, match="on_alarm=warn goes on"):
        await found.at_start()


@pytest.mark.parametrize("truth", [RULE, None])
async def test_a_reply_of_the_policy_that_wins_where_it_is_wrong_is_named(truth: ExactAct | None) -> None:
    found, notes = watch(Right(GOODBYE), truth=truth)
    figures = await found.of_replies({GOODBYE: 40, "Do you mainly use data or voice?": 12})
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
async def test_a_reply_of_the_policy_is_not_wrong_in_the_cluster_of_its_nearest_reference(
    said: str, share: float
) -> None:
    """The scorer likes the goodbye wherever it is asked, and the question where a name is asked for."""

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
    figures = await found.of_replies({said: 9})
    assert figures["scorers/fooled_frac"] == share and figures["watch/distinct_acts"] == 1.0
    figures = await found.of_replies({said: 9, "That is $4.": 1, "That is $5.": 1})
    assert figures["watch/distinct_acts"] == 2.0


async def test_right_scorers_raise_no_alarm_about_a_policy_of_one_reply() -> None:
    found, notes = watch(Right())
    assert await found.of_replies({GOODBYE: 99}) == {
        "scorers/fooled_frac": 0.0,
        "alarm/scorers_fooled": 0.0,
        "watch/distinct_acts": 1.0,
    }
    assert notes == []


async def test_only_the_most_frequent_replies_are_tried() -> None:
    asked = {}
    for replies in (1, 3):
        scorer = Right()
        found, _ = watch(scorer, f"scorers.replies={replies}", "scorers.contexts=4", "rewards=reranker")
        await found.of_replies({GOODBYE: 3, "Hello?": 2, "Yes.": 1})
        asked[replies] = scorer.asked
    assert asked[3] - asked[1] == 4 * 2


@pytest.mark.parametrize(
    "overrides", [["scorers.contexts=0"], ["rewards.consistency.weight=0", "rewards.format.weight=1"]]
)
async def test_nothing_is_asked_where_nothing_can_be(overrides: list[str]) -> None:
    scorer = Right()
    found, _ = watch(scorer, *overrides)
    assert await found.of_replies({GOODBYE: 3}) == {"watch/distinct_acts": 1.0} and scorer.asked == 0


async def test_data_of_one_act_have_no_contrasts() -> None:
    one_act = tuple(sample for sample in SPLITS.test if sample.meta["act"] == "GoodBye")
    found, _ = watch(Right(), splits=Splits(train=one_act, validation=(), test=one_act))
    assert await found.of_replies({GOODBYE: 3}) == {"watch/distinct_acts": 1.0}
    assert found.gates == {}
