"""Multiple ground truths on scripted pools: two streams, two judges, one source per reference, and Table 3."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.data.build_multigt import likely_replies
from hamr.apps.data.recipes.multigt import (
    Expanding,
    MultiGt,
    MultiGtRecipe,
    candidate,
    multigt_items,
    table_3,
    with_references,
)
from hamr.apps.data.recipes.runner import Pools, make_one
from hamr.apps.data.recipes.teachers import Teacher, Teachers
from hamr.cli import main as hamr
from hamr.data.progress import ItemResult
from hamr.data.samples import read_samples, write_samples
from hamr.errors import DataError
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import (
    Answer,
    Question,
    Reference,
    Reply,
    RewardRecord,
    Rollout,
    SampleKey,
    Scored,
    ServiceSample,
    ToolCall,
    Turn,
)

SECRET = "The order was lost; a new one is on its way."


def sample(name: str = "s", *said: str, **privileged: Any) -> ServiceSample:
    return ServiceSample(
        id=name, ticket={}, policy="Be exact.", tools=(), history=(Turn(role="customer", content="Where is it?"),),
        references=tuple(Reference(action=Reply(content=text)) for text in said or ("It was sent.",)),
        privileged=privileged or {"ticket_summary": SECRET},
    )  # fmt: skip


class ScriptedModel:
    """A light model that says one text a seed."""

    def __init__(self, *said: str | Answer) -> None:
        self.said, self.asked = said, []

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        text = self.said[question.seed]
        return text if isinstance(text, Answer) else Answer(text=text)


class Consistency:
    """Yes to what says "sent"; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        said = question.variables["statement_b"]
        return Answer(score=0.0, verdict="yes" if "sent" in said else "part" if "maybe" in said else "no")


class Utility:
    """Of use is what says "new"; cannot be read where it says "odd"."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        said = question.variables["response"]
        useful = "new" in said
        if "odd" in said:
            return Answer(text="Well.")
        result = {"judge_result": "available" if useful else "unavailable", "vetoes": [] if useful else ["no_evidence"]}
        return Answer(text=json.dumps({"reason": "r", "stage": "diagnostic", **result}))


async def made_of(
    one: Expanding, *said: str | Answer, **settings: Any
) -> tuple[ItemResult, ScriptedModel, Consistency, Utility]:
    light, consistency, utility = ScriptedModel(*said), Consistency(), Utility()
    recipe = MultiGtRecipe(candidates=len(said), **settings)
    (item,) = multigt_items([one], recipe, "m")
    pools = Pools(teachers=Teachers({"light": Teacher(ask=light)}), judge=consistency, second=utility)
    return await make_one(item, MultiGt(recipe), pools), light, consistency, utility


def test_summary_under_its_old_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_samples(tmp_path / "in.jsonl", [sample("a"), sample("b", summary=SECRET)])
    given = [f"input={tmp_path / 'in.jsonl'}", f"output={tmp_path / 'o.jsonl'}", "teacher=judge", "experiment=smoke"]
    assert hamr(["data", "multigt", *given]) == 2
    told = capsys.readouterr().err
    assert "sample b: privileged.summary" in told and "rename it, or give summary=summary" in told


async def test_one_approving_judge_adds_a_reference_with_one_source() -> None:
    one = Expanding(sample=sample(), online=("We sent it on Monday.", "A new one is coming."))
    made, light, consistency, utility = await made_of(
        one,
        "Your parcel has been sent.",  # consistent
        "Wait for the new parcel.",  # of use
        "It may be anywhere, maybe.",  # partly consistent, of no use
        "it was SENT!",  # the logged one again
        "We sent it on Monday",  # online already
        '<tool_call>{"name": "look", "arguments": {}}</tool_call>',
        "我们已经寄出了。",
        "",
        Answer(failure="unparsable", reasoning="It was"),
        "An odd reply.",
    )
    assert made.kept == {
        "added": [
            {"content": "We sent it on Monday.", "source": "online-consistency"},
            {"content": "A new one is coming.", "source": "utility"},
            {"content": "Your parcel has been sent.", "source": "offline-consistency"},
            {"content": "Wait for the new parcel.", "source": "utility"},
        ]
    }
    notes = {note.removeprefix("candidates: "): made.notes.count(note) for note in made.notes}
    assert notes == {
        "added": 4, "neither consistent nor of use": 1, "a duplicate": 2, "a tool call where a reply was given": 1,
        "other language": 1, "no action": 1, "cut off": 1, "utility judge: unparsable": 1,
    }  # fmt: skip
    assert [q.seed for q in light.asked] == list(range(10))
    assert {q.temperature for q in light.asked} == {1.2}
    for question in (*light.asked, *consistency.asked):
        assert SECRET not in json.dumps(dataclasses.asdict(question)), "the utility judge alone knows the summary"
    assert all(question.variables["summary"] == SECRET for question in utility.asked)
    assert not any("sent" in question.variables["response"] for question in utility.asked), "the cheaper judge first"
    after = with_references(one.sample, made)
    assert [r.source for r in after.references] == [
        "logged", "online-consistency", "utility", "offline-consistency", "utility",
    ]  # fmt: skip


async def test_candidate_may_agree_with_any_logged_reply() -> None:
    class Second(Consistency):
        async def __call__(self, question: Question) -> Answer:
            self.asked.append(question)
            return Answer(verdict="yes" if question.variables["statement_a"] == "It comes." else "no")

    (item,) = multigt_items(
        [Expanding(sample=sample("s", "It was sent.", "It comes."))], MultiGtRecipe(candidates=1), "m"
    )
    judge = Second()
    pools = Pools(teachers=Teachers({"light": Teacher(ask=ScriptedModel("Soon."))}), judge=judge, second=Utility())
    made = await make_one(item, MultiGt(MultiGtRecipe(candidates=1)), pools)
    assert made.kept == {"added": [{"content": "Soon.", "source": "offline-consistency"}]}
    assert len(judge.asked) == 2


@pytest.mark.parametrize(("score", "added"), [(0.9, 1), (0.6, 0)])
async def test_cross_encoder_judges_by_its_score(score: float, added: int) -> None:
    async def judge(question: Question) -> Answer:
        return Answer(score=score)

    (item,) = multigt_items([Expanding(sample=sample(other="x"), online=("Soon.",))], MultiGtRecipe(candidates=0), "m")
    made = await make_one(item, MultiGt(MultiGtRecipe(candidates=0)), Pools(teachers=Teachers({}), judge=judge))
    assert made.kept is not None and len(made.kept["added"]) == added


async def test_utility_is_not_judged_without_a_summary() -> None:
    made, _, _, utility = await made_of(Expanding(sample=sample(other="x")), "A new one is coming.")
    assert (made.kept, utility.asked) == ({"added": []}, [])
    assert made.notes == ("candidates: inconsistent, and no summary for the utility judge",)


async def test_tool_call_gets_no_further_references() -> None:
    call = dataclasses.replace(sample(), references=(Reference(action=ToolCall(name="look")),))
    made, light, _, _ = await made_of(Expanding(sample=call, online=("It was sent.",)), "It was sent.")
    assert (made.kept, light.asked) == ({"added": []}, [])


async def test_unavailable_pool_is_a_transient_failure() -> None:
    made, *_ = await made_of(Expanding(sample=sample()), Answer(failure="timeout"))
    assert (made.kept, made.reason, made.passing) == (None, "teacher: timeout", True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("I'm sorry, it was lost.", ""),
        ("<think>hm</think> Soon.", ""),
        ("It was sent to you!", ""),
        ("  it was   sent ", "a duplicate"),
        ("so so so " * 40, "loops"),
        ("<tool_call>{", "no action"),
    ],
)
def test_invalid_candidates_are_rejected_with_a_reason(text: str, why: str) -> None:
    assert candidate(text, ["It was sent."])[1] == why


def test_near_duplicates_are_dropped() -> None:
    known = "You will get your money back within five working days at the latest, I promise."
    assert candidate(known.replace("working", "workin"), [known])[1] == "a duplicate"
    assert candidate(known.replace("five", "fourteen"), [known])[1] == "", "another number is another reply"


@pytest.mark.parametrize(
    ("split", "queries", "online", "offline", "utility", "multi", "expand"),
    [
        ("test", 1000, 543, 34, 398, 1975, 97.5),
        ("validation", 1000, 671, 41, 379, 2091, 109.1),
        ("train", 5120, 2834, 143, 2030, 10127, 97.79),
    ],
)
def test_table_3_has_the_rows_of_the_paper(
    split: str, queries: int, online: int, offline: int, utility: int, multi: int, expand: float
) -> None:
    """Sizes before and after, and the added references by source, each of which has one."""
    one = sample()
    sources = ["online-consistency"] * online + ["offline-consistency"] * offline + ["utility"] * utility
    added = [[{"content": f"r{i}", "source": s} for i, s in enumerate(sources[at::queries])] for at in range(queries)]
    after = [with_references(one, ItemResult(kept={"added": own})) for own in added]
    assert table_3(split, [one] * queries, after) == {
        "set": split, "queries": queries, "single-GT": queries, "multi-GT": multi, "added": multi - queries,
        "online-consistency": online, "offline-consistency": offline, "utility": utility,
        "expand %": pytest.approx(expand, abs=0.005),
    }  # fmt: skip


# --- the ledger --------------------------------------------------------------------------------


def record(prompt: str, number: int, said: str, logprob: float | None) -> RewardRecord:
    return RewardRecord(
        key=SampleKey(run="r", step=0, prompt=prompt, sample=number), total=Scored(value=1.0), components=(),
        action=Reply(content=said), band="none", response=said, mean_logprob=logprob,
    )  # fmt: skip


def test_most_likely_replies_of_a_run_are_selected(tmp_path: Path) -> None:
    said = [("b", -0.4), ("a", -0.2), ("A!", -0.1), ("c", -0.9), ("d", None)]
    records = [record("s", i, text, logprob) for i, (text, logprob) in enumerate(said)]
    records.append(dataclasses.replace(record("s", 9, "", -0.01), action=ToolCall(name="look")))
    records.append(record("other", 0, "x", -0.1))
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add(records)
    assert likely_replies(tmp_path / "ledger.sqlite", {"s"}, 2) == {"s": ("A!", "b")}
    with pytest.raises(DataError, match="no replies to these samples"):
        likely_replies(tmp_path / "ledger.sqlite", {"t"}, 2)
    with Ledger(tmp_path / "old.sqlite") as ledger:
        ledger.add([record("s", 0, "a", None)])
    with pytest.raises(DataError, match="has no log-probabilities"):
        likely_replies(tmp_path / "old.sqlite", {"s"}, 2)


def test_record_keeps_its_mean_log_probability() -> None:
    kept = record("s", 0, "a", -0.25)
    assert record_from_json(record_to_json(kept)) == kept
    older = json.loads(record_to_json(kept))
    del older["mean_logprob"]
    assert record_from_json(json.dumps(older)).mean_logprob is None


@pytest.mark.parametrize(
    ("logprobs", "mean"),
    [
        ((-0.1, -0.3), -0.2),
        ((), None),
        ((-math.inf, -0.1), None),
        ((math.nan,), None),
        ((0.0,), 0.0),
        ((-1e308, -1e308), None),
    ],
)
def test_rollout_mean_log_probability_is_computed(logprobs: tuple[float, ...], mean: float | None) -> None:
    rollout = Rollout(
        key=SampleKey(run="r", step=0, prompt="s", sample=0), prompt_ids=(1,), token_ids=(2,) * len(logprobs),
        logprobs=logprobs, text="a", finish_reason="stop", versions=(),
    )  # fmt: skip
    assert rollout.mean_logprob == (None if mean is None else pytest.approx(mean))


# --- the job -----------------------------------------------------------------------------------


def test_the_job_writes_samples_records_and_table_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    write_samples(tmp_path / "train.jsonl", [sample("a"), sample("b", "Good bye.")])
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add([record("a", 0, "We sent it on Monday.", -0.1)])
    light, consistency, utility = ScriptedModel("It has been sent.", "A new one comes."), Consistency(), Utility()

    async def ask(question: Question) -> Answer:
        if question.messages:
            return await light(question)
        return await (utility if question.prompt else consistency)(question)

    def pools(config: Any, names: Any, work: Any, **_: Any) -> Any:
        return asyncio.run(work(dict.fromkeys(names, ask)))

    monkeypatch.setattr("hamr.apps.data.recipe_job.with_pools", pools)
    out = tmp_path / "out.jsonl"
    args = ["data", "multigt", f"input={tmp_path / 'train.jsonl'}", f"output={out}", "teacher=judge", "candidates=2"]
    assert hamr([*args, f"ledger={tmp_path}", "experiment=smoke"]) == 0
    assert "references by source" in capsys.readouterr().out
    assert [[r.source for r in s.references] for s in read_samples(out)] == [
        ["logged", "online-consistency", "offline-consistency", "utility"],
        ["logged", "offline-consistency", "utility"],
    ]
    (row,) = [json.loads(line) for line in (tmp_path / "out.jsonl.table3.jsonl").read_text().splitlines()]
    assert (row["set"], row["single-GT"], row["multi-GT"], row["expand %"]) == ("train", 2, 7, 250.0)


def test_no_utility_judge_leaves_consistency_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(tmp_path / "train.jsonl", [sample("a")])
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add([record("a", 0, "We sent it on Monday.", -0.1), record("a", 1, "A new one comes.", -0.2)])
    started: list[Any] = []

    def pools(config: Any, names: Any, work: Any, *, run: str, splits: Any) -> Any:
        started.append((list(names), splits))
        return asyncio.run(work(dict.fromkeys(names, Consistency())))

    monkeypatch.setattr("hamr.apps.data.recipe_job.with_pools", pools)
    args = [
        "data",
        "multigt",
        f"input={tmp_path / 'train.jsonl'}",
        f"ledger={tmp_path}",
        "candidates=0",
        "utility=none",
    ]
    assert hamr([*args, f"output={tmp_path / 'o.jsonl'}", "experiment=smoke"]) == 0
    assert [r.source for r in read_samples(tmp_path / "o.jsonl")[0].references] == ["logged", "online-consistency"]
    assert hamr([*args, f"output={tmp_path / 'p.jsonl'}", "data.sage.train=40"]) == 0
    (plain, none), (tuned, splits) = started
    assert plain == tuned == ["judge"] and none is None and len(splits.train) == 40


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["candidates=0"], "leaves no candidates"),
        (["candidates=-1", "teacher=judge"], "0 or more"),
        (["temperature=0", "teacher=judge"], "above 0"),
        (["ledger=/none", "teacher=judge"], "no such file; give a run folder"),
        (["online=0", "teacher=judge"], "1 or more"),
        (["judge=reranker", "teacher=judge"], "needs a pool with role=judge"),
        (["judge=no", "teacher=judge"], "no such pool"),
        (["utility=reranker", "teacher=judge"], "cannot write"),
        ([], "give teacher=<pool>"),
    ],
)
def test_bad_input_is_reported_in_one_line(tmp_path: Path, capsys: Any, args: list[str], said: str) -> None:
    write_samples(tmp_path / "s.jsonl", [sample()])
    given = [f"input={tmp_path / 's.jsonl'}", f"output={tmp_path / 'o.jsonl'}", "experiment=smoke", *args]
    assert hamr(["data", "multigt", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
