from __future__ import annotations

import asyncio
import json

import pytest

from hamr.apps.shared.commands import parse_command
from hamr.apps.shared.preparation import load_splits
from hamr.cli import main
from hamr.config.load import dump_config, load_config
from hamr.data.actions import render_action
from hamr.errors import HamrError
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.run_folder import RunFolder
from hamr.types import Answer, Question, RewardRecord, SampleKey, Scored, ScorerCall, ToolCall

LOOKUP = {"name": "lookup", "description": "", "parameters": {"type": "object", "properties": {"order": {}}}}
LABELS = {"yes": 1.0, "part": 0.5, "no": 0.0}
PAID = ScorerCall(
    pool="p", model="m", prompt_version="", replica="", queue_s=0.0, service_s=0.1, prompt_tokens=90, output_tokens=10,
    cost=0.5,
)  # fmt: skip


def row(name, references, *responses):
    made = []
    for content, source in references:
        act = {"action": "call_tool", "name": "lookup", "parameters": content}
        made.append(
            {**(act if isinstance(content, dict) else {"action": "reply", "content": content}), "source": source}
        )
    return {
        "id": name,
        "ticket": {},
        "policy": "",
        "tools": [LOOKUP],
        "history": [{"role": "customer", "content": f"I am {name}."}],
        "references": made,
        "responses": list(responses),
    }


def file_of(path, *rows):
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


A = [("Hello.", "logged"), ("Good day.", "consistency")]
CALL = render_action(ToolCall(name="lookup", parameters={"order": 7}))


class Judges:
    """Pools whose answers are a table: (judge, reference, response) -> label, "yes" by default."""

    def __init__(self, monkeypatch, **said):
        self.said = said
        self.asked = []
        self.splits = "not started"
        monkeypatch.setattr("hamr.apps.evaluate.ecs.run.with_pools", self.with_pools)

    def with_pools(self, config, names, work, *, run, splits=None):
        self.splits = splits
        return asyncio.run(work({name: self.ask_of(name) for name in names}))

    def ask_of(self, name):
        async def ask(question: Question) -> Answer:
            about = (question.variables["statement_a"], question.variables["statement_b"])
            self.asked.append((name, *about))
            said = self.said.get(name, {}).get(about, self.said.get(name, {}).get("else", "yes"))
            if isinstance(said, Exception):
                raise said
            if said in ("timeout", "unavailable", "unparsable"):
                return Answer(failure=said, detail="scripted")
            verdict, _, score = said.partition(" ")
            return Answer(score=float(score or LABELS[verdict]), verdict=verdict, call=PAID)

        return ask


POOLS = ["pools=tiny", "pools.second={role: judge, model: tiny, prompt: judge_short.en, dtype: float32}"]


def evaluate(tmp_path, *args, judges="judge,second", source="in.jsonl"):
    given = [f"input={tmp_path / source}", f"output={tmp_path / 'out'}", "resamples=50", *args]
    return main(["evaluate", "benchmark=ecs", *given, *([f"judges={judges}"] if judges else []), *POOLS])


def metrics(tmp_path):
    return json.loads((tmp_path / "out" / "metrics.json").read_text())


def values(tmp_path, policy="in"):
    return {name: figure["mean"] for name, figure in metrics(tmp_path)["policies"][policy]["values"].items()}


def votes(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out" / "judgements.jsonl").read_text().splitlines()]


def test_command_writes_all_documented_outputs(tmp_path, monkeypatch, capsys):
    judges = Judges(
        monkeypatch,
        judge={("Hello.", "Hi."): "no", ("Good day.", "Hi."): "yes"},
        second={("Hello.", "Hi."): "part", ("Good day.", "Hi."): "part 0.4"},
    )
    rows = [row("a", A, "Hi."), row("t", [({"order": 7}, "logged")], CALL), row("m", [({"order": 7}, "logged")], "Hm.")]
    file_of(tmp_path / "in.jsonl", *rows)
    assert evaluate(tmp_path) == 0
    # a: Multi max(.25, .75), Single .25; t: a right call; m: a reply where a tool was called.
    assert values(tmp_path) == {
        "multi_ecs": pytest.approx(1.75 / 3),
        "single_ecs": pytest.approx(1.25 / 3),
        "call_tool_accuracy": 0.5,
    }
    assert sorted(judges.asked) == sorted((j, r, "Hi.") for j in ("judge", "second") for r in ("Hello.", "Good day."))
    found = metrics(tmp_path)
    assert found["judges"]["judge"]["missing"] == {} and found["judges"]["judge"]["asked"] == 2
    assert found["between_judges"] == [{"judges": ["judge", "second"], "n": 2, "same": 0.0, "kappa": 0.0}]
    spent = {"answers": 2, "tokens": 200, "cost": 1.0}
    assert found["usage"] == {"judge judge": spent, "judge second": spent}
    items = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert [(i["id"], i["kind"], i["multi"]) for i in items] == [
        ("a", "reply", 0.75),
        ("t", "tool_call", 1.0),
        ("m", "type_mismatch", 0.0),
    ]
    shown = capsys.readouterr().out
    assert "0.583" in shown and max(len(line) for line in shown.splitlines() if "/" not in line) <= 80
    report = (tmp_path / "out" / "report.html").read_text()
    assert "Multi-ECS of 0.583 on 3 samples" in report and report.count("<svg ") == 2
    assert "http://" not in report and "https://" not in report


def test_four_default_judges_vote_if_none_is_named(tmp_path, monkeypatch):
    judges = Judges(monkeypatch)
    file_of(tmp_path / "in.jsonl", row("a", A[:1], "Hi."))
    given = [f"input={tmp_path / 'in.jsonl'}", f"output={tmp_path / 'out'}", "resamples=50"]
    assert main(["evaluate", "benchmark=ecs", *given, "pools.judge_2.endpoint=http://127.0.0.1:9/v1"]) == 0
    assert {name for name, *_ in judges.asked} == {"judge", "judge_2", "judge_3", "judge_4"}
    assert set(metrics(tmp_path)["judges"]) == {"judge", "judge_2", "judge_3", "judge_4"}


def test_soft_scores_reuse_recorded_votes(tmp_path, monkeypatch):
    judges = Judges(monkeypatch, judge={"else": "yes 0.8"}, second={"else": "part 0.4"})
    file_of(tmp_path / "in.jsonl", row("a", A[:1], "Hi."))
    evaluate(tmp_path)
    assert values(tmp_path)["multi_ecs"] == 0.75
    asked = len(judges.asked)
    evaluate(tmp_path, "scores=soft")
    assert values(tmp_path)["multi_ecs"] == pytest.approx(0.6) and len(judges.asked) == asked == 2


def test_failed_judge_is_excluded_and_retried(tmp_path, monkeypatch, capsys):
    file_of(tmp_path / "in.jsonl", row("a", A[:1], "Hi."), row("b", A[:1], "Bye."))
    judges = Judges(monkeypatch, judge={"else": "no"}, second={"else": "unavailable", ("Hello.", "Bye."): "unparsable"})
    assert evaluate(tmp_path) == 0
    assert values(tmp_path)["multi_ecs"] == 0.0
    assert metrics(tmp_path)["judges"]["second"]["missing"] == {"unavailable": 1, "unparsable": 1}
    assert metrics(tmp_path)["policies"]["in"]["missing"] == 2
    assert "did not answer: 1;" in capsys.readouterr().out
    again = Judges(monkeypatch, second={"else": "yes"})
    assert evaluate(tmp_path) == 0
    # An unreadable answer is final, and the first judge has answered every question.
    assert again.asked == [("second", "Hello.", "Hi.")] and len(judges.asked) == 4
    assert values(tmp_path)["multi_ecs"] == pytest.approx(0.25)


def test_item_without_votes_is_unscored_and_fails_the_command(tmp_path, monkeypatch, capsys):
    file_of(tmp_path / "in.jsonl", row("a", A, "Hi."), row("t", [({"order": 7}, "logged")], CALL))
    Judges(monkeypatch, judge={"else": "unavailable"}, second={"else": "timeout"})
    assert evaluate(tmp_path) == 1
    assert values(tmp_path)["multi_ecs"] == 1.0 and metrics(tmp_path)["policies"]["in"]["unscored"] == 1
    said = capsys.readouterr().err
    assert "no judge gave a vote" in said and "; first failure: scripted; see " in said and "judgements.jsonl" in said


def test_recorded_votes_survive_an_interruption(tmp_path, monkeypatch):
    file_of(tmp_path / "in.jsonl", *(row(f"s{i}", A[:1], f"Hi {i}.") for i in range(4)))
    Judges(monkeypatch, judge={("Hello.", "Hi 3."): HamrError("the cluster is gone")})
    assert evaluate(tmp_path, judges="judge") == 1
    before = votes(tmp_path)
    assert 0 < len(before) < 4
    with (tmp_path / "out" / "judgements.jsonl").open("a") as file:
        file.write('{"key": "cut o')
    again = Judges(monkeypatch)
    assert evaluate(tmp_path, judges="judge") == 0
    assert votes(tmp_path)[: len(before)] == before and len(votes(tmp_path)) == 4
    assert len(again.asked) == 4 - len(before)


def test_two_policies_are_compared_on_the_same_samples(tmp_path, monkeypatch, capsys):
    judges = Judges(
        monkeypatch, judge={"else": "no", ("Hello.", "Hi."): "yes"}, second={"else": "no", ("Hello.", "Hi."): "yes"}
    )
    names = [f"s{i}" for i in range(6)]
    file_of(tmp_path / "in.jsonl", *(row(name, A[:1], "Hi.") for name in names))
    file_of(tmp_path / "other.jsonl", *(row(name, A[:1], "Hi." if name == "s0" else "Ho.") for name in reversed(names)))
    assert evaluate(tmp_path, f"compare={tmp_path / 'other.jsonl'}") == 0
    found = metrics(tmp_path)["comparison"]
    assert (found["a"], found["b"]) == ("in", "other")
    assert found["multi_ecs"]["difference"]["mean"] == pytest.approx(5 / 6)
    # Of 64 signs the five that count have to agree; the sixth does not matter.
    assert found["multi_ecs"]["p_value"] == pytest.approx(4 / 64)
    assert found["call_tool_accuracy"]["p_value"] is None
    assert "in minus other" in capsys.readouterr().out
    # The same words to the same reference after the same history: asked once, though both files have them.
    assert len(judges.asked) == 2 * (6 + 5)


def test_agreement_with_human_labels_is_reported(tmp_path, monkeypatch):
    Judges(monkeypatch, judge={("A", "1"): "yes", ("A", "2"): "no"}, second={("A", "1"): "yes", ("A", "2"): "yes"})
    file_of(tmp_path / "in.jsonl", row("t", [({"order": 7}, "logged")], CALL))
    pairs = [
        {"content_A": "A", "content_B": b, "label": label} for b, label in (("1", "consistent"), ("2", "inconsistent"))
    ]
    file_of(tmp_path / "pairs.jsonl", *pairs)
    assert evaluate(tmp_path, f"labels={tmp_path / 'pairs.jsonl'}") == 0
    found = metrics(tmp_path)["people"]
    assert (found["pairs"], found["judges"]["judge"]["accuracy"]["mean"]) == (2, 1.0)
    assert found["judges"]["judge"]["kappa"] == 1.0 and found["judges"]["second"]["accuracy"]["mean"] == 0.5
    # The ensemble says 1 and .5: yes, and part.
    assert found["ensemble"]["accuracy"]["mean"] == 0.5 and found["ensemble"]["spearman"]["rho"] == pytest.approx(1.0)
    assert "Agreement with people" in (tmp_path / "out" / "report.html").read_text()


def test_labels_of_people_correct_the_score(tmp_path, monkeypatch, capsys):
    Judges(monkeypatch)  # "yes" throughout
    file_of(tmp_path / "in.jsonl", *(row(f"s{i}", A[:1], f"Hi {i}.") for i in range(30)), row("m", A[:1], CALL))
    labels = [{"sample": f"s{i}", "reply": f"Hi {i}.", "label": 0.5 + 0.25 * (i % 2)} for i in range(24)]
    assert evaluate(tmp_path, f"audits={file_of(tmp_path / 'labels.jsonl', *labels)}") == 0
    found = metrics(tmp_path)["debiased"]["in"]
    # People take 0.375 off the 30 replies on average. The call is 0 without a judge.
    assert (found["naive"], found["audits"]) == (pytest.approx(30 / 31), 24)
    assert found["mean"] == pytest.approx((30 - 30 * 0.375) / 31) and found["low"] < found["mean"] < found["high"]
    assert "corrected by people's labels" in capsys.readouterr().out


def test_agreement_of_the_utility_judge_is_reported(tmp_path, monkeypatch, capsys):
    """People find replies 1, 2 and 4 available, the judge 1 and 3; its answer about 4 has no verdict."""

    class WritingJudges(Judges):
        def ask_of(self, name):
            consistency = super().ask_of(name)

            async def ask(question: Question) -> Answer:
                if question.prompt != "utility.en":
                    return await consistency(question)
                shown = question.variables
                assert (shown["summary"], shown["reference"]) == ("Router reset.", "Hello.")
                said = {"reason": "r", "stage": "operational", "vetoes": []}
                said["judge_result"] = "available" if shown["response"] in ("1", "3") else "unavailable"
                return Answer(text="Hm." if shown["response"] == "4" else json.dumps(said))

            return ask

    WritingJudges(monkeypatch)
    file_of(tmp_path / "in.jsonl", row("a", A[:1], "Hi."))
    bare = {key: value for key, value in row("a", A[:1]).items() if key != "responses"}
    rated = [
        {
            **bare,
            "id": text,
            "response": text,
            "available": text != "3",
            "privileged": {"ticket_summary": "Router reset."},
        }
        for text in "1234"
    ]
    file_of(tmp_path / "rated.jsonl", *rated)
    given = [f"utility_labels={tmp_path / 'rated.jsonl'}", "utility=judge"]
    assert evaluate(tmp_path, *given, judges="judge") == 0
    found = metrics(tmp_path)["utility"]
    assert (found["replies"], found["missing"], found["accuracy"]["mean"]) == (4, 1, pytest.approx(1 / 3))
    assert "Utility judge and people" in (tmp_path / "out" / "report.html").read_text()
    capsys.readouterr()
    for broken, said in (
        ({"available": "yes"}, "rated.jsonl:1: available: 'yes': give true or false"),
        ({"privileged": {}}, "rated.jsonl:1: privileged.ticket_summary: None: give the summary"),
        ({"response": ""}, "rated.jsonl:1: response: '': give the reply"),
    ):
        file_of(tmp_path / "rated.jsonl", {**rated[0], **broken})
        assert evaluate(tmp_path, *given, judges="judge") == 2
        assert said in capsys.readouterr().err
    assert evaluate(tmp_path, "utility=judge") == 2
    assert "utility_labels: None: missing; required with utility" in capsys.readouterr().err


@pytest.mark.parametrize("pools", ["cpu_small", "compact"])
def test_scorers_to_be_trained_get_their_data(tmp_path, monkeypatch, pools):
    """Of `compact`, the judge is a cross-encoder, which has no prompt."""
    judges = Judges(monkeypatch)
    file_of(tmp_path / "in.jsonl", row("a", A[:1], "Hi."))
    given = [f"input={tmp_path / 'in.jsonl'}", f"output={tmp_path / 'out'}", "resamples=10", f"pools={pools}"]
    assert parse_command(["evaluate", "benchmark=ecs", *given]).run() == 0
    assert judges.splits is not None and len(judges.splits.train) > 0
    assert [name for name, *_ in judges.asked] == ["judge"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["judges=judge,nobody"], "judges: 'nobody': no such pool"),
        (["judges=reranker"], "judges: 'reranker': is a reranker, which gives no three-level verdict"),
        (["judges=judge,judge"], "judges: 'judge,judge': names one twice"),
        (["scores=medium"], "scores: 'medium': must be hard or soft"),
        (["resamples=0"], "resamples: 0: must be between 1 and 1000000"),
        (["output="], "output: None: missing"),
        (["run=somewhere"], "give one of input=<jsonl of responses>, run=<run folder>"),
        (["labls=x"], "unknown option; did you mean labels=...?"),
        (["input=nowhere.jsonl"], "nowhere.jsonl"),
        (["compare=COMPARE"], "compare: 'a': its references differ"),
        (["compare=OTHERS"], "compare: 'a': is missing this sample; 1 and 1 samples"),
        (["input=TWICE"], "already used on line 1"),
        (["input=FOLDER"], "has no config.yaml, so it is not a run folder"),
    ],
)
def test_bad_input_is_reported_in_one_line(tmp_path, monkeypatch, capsys, args, said):
    judges = Judges(monkeypatch)
    file_of(tmp_path / "in.jsonl", row("a", A[:1], "Hi."))
    places = {
        "COMPARE": file_of(tmp_path / "c.jsonl", row("a", A, "Hi.")),
        "OTHERS": file_of(tmp_path / "o.jsonl", row("b", A[:1], "Hi.")),
        "TWICE": file_of(tmp_path / "t.jsonl", row("a", A, "Hi."), row("a", A, "Hi.")),
        "FOLDER": tmp_path,
    }
    for name, place in places.items():
        args = [arg.replace(name, str(place)) for arg in args]
    keys = {arg.partition("=")[0] for arg in args}
    given = {"input": tmp_path / "in.jsonl", "output": tmp_path / "out", "judges": "judge"}
    rest = [f"{key}={value}" for key, value in given.items() if key not in keys]
    assert main(["evaluate", "benchmark=ecs", *rest, *args, *POOLS]) == 2
    shown = capsys.readouterr().err
    assert said in shown and len(shown.strip().splitlines()) == 1
    assert judges.asked == [] and not (tmp_path / "out" / "metrics.json").exists()


def recorded(folder, *stages):
    """A run folder with generated data; of each stage an evaluation that answered the first two test samples."""
    config = load_config(["pools=tiny", "data.sage.train=12", "data.sage.validation=4", "data.sage.test=4"])
    test = load_splits(config.data, config.experiment.seed).test
    with RunFolder.create(folder, dump_config(config)) as run, Ledger(run.ledger) as ledger:
        for stage, step, text in stages:
            for sample in test[:2]:
                key = SampleKey(run=f"r/eval-{stage}", step=step, prompt=sample.id, sample=0)
                record = RewardRecord(
                    key=key, total=Scored(value=1.0), components=(), action=None, band="none", response=text
                )
                ledger.add([record])
    return folder


def test_run_is_evaluated_at_its_last_evaluation_step(tmp_path, monkeypatch, capsys):
    Judges(monkeypatch, judge={"else": "yes"})
    run = recorded(tmp_path / "run", ("base", 0, "<tool_call>{"), ("rl", 1, "<tool_call>{"), ("rl", 2, "Hi there."))
    given = [f"run={run}", f"output={tmp_path / 'out'}", "judges=judge", "resamples=10", *POOLS]
    assert parse_command(["evaluate", "benchmark=ecs", *given]).run() == 0
    assert metrics(tmp_path)["policies"]["run-rl"]["responses"] == 2
    assert "malformed" not in metrics(tmp_path)["policies"]["run-rl"]["kinds"]
    assert parse_command(["evaluate", "benchmark=ecs", *given, "stage=base"]).run() == 0
    assert metrics(tmp_path)["policies"]["run-base"]["kinds"] == {"malformed": 2}
    assert main(["evaluate", "benchmark=ecs", *given, "stage=sft"]) == 2
    assert "stage: 'sft': was not evaluated in" in capsys.readouterr().err


AGENT = """
def reply(messages, tools):
    if "t." in messages[-1]["content"]:
        call = {"name": tools[0]["function"]["name"], "arguments": {"order": 7}}
        return {"content": None, "tool_calls": [{"function": call}]}
    if "x." in messages[-1]["content"]:
        raise ValueError("no idea")
    return "Hi."
"""


def test_own_function_answers_samples_and_is_scored(tmp_path, monkeypatch, capsys):
    judges = Judges(monkeypatch, judge={("Hello.", "Hi."): "part"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(AGENT)
    calls = [({"order": 7}, "logged")]
    rows = [row("a", A), row("t", calls), row("x", A)]
    file_of(tmp_path / "samples.jsonl", *({k: v for k, v in one.items() if k != "responses"} for one in rows))
    command = ["evaluate", "benchmark=ecs", "policy=mine.py:reply", "samples=samples.jsonl", "output=out"]
    for _ in range(2):
        assert main([*command, "judges=judge", "resamples=50", *POOLS]) == 0
    found = values(tmp_path, "mine.py:reply")
    assert found == {"multi_ecs": 1.0, "single_ecs": 0.75, "call_tool_accuracy": 1.0}
    assert "not answered by mine.py:reply: {'function_failed': 1}" in capsys.readouterr().out
    assert metrics(tmp_path)["policies"]["mine.py:reply"]["unanswered"] == 1
    assert "1 more have no answer" in (tmp_path / "out" / "report.html").read_text()
    assert len((tmp_path / "out" / "responses.jsonl").read_text().splitlines()) == 3
    assert len(judges.asked) == 2
    file_of(tmp_path / "other.jsonl", row("a", A, "Hi."), row("t", calls, "Hi."), row("x", A, "Hi."))
    assert main([*command, "compare=other.jsonl", "judges=judge", "resamples=50", *POOLS]) == 0
    for late in ("compare=none.jsonl", "audits=none.jsonl", "labels=none.jsonl"):
        assert main([*command, "output=new", late, "judges=judge", *POOLS]) == 2 and not (tmp_path / "new").exists()
    compared = metrics(tmp_path)["comparison"]["multi_ecs"]
    assert [compared[name] for name in ("wins", "ties", "losses", "left_out")] == [1, 1, 0, 1]
    (tmp_path / "mine.py").write_text("def reply(messages, tools): raise ValueError")
    assert main([*command, "judges=judge", *POOLS]) == 1
    assert "mine.py:reply answered nothing" in capsys.readouterr().err


def test_messages_with_tool_calls_are_responses(tmp_path, monkeypatch):
    Judges(monkeypatch)
    message = {"role": "assistant", "content": None}
    message["tool_calls"] = [{"function": {"name": "lookup", "arguments": '{"order": 7}'}}]
    file_of(tmp_path / "in.jsonl", row("t", [({"order": 7}, "logged")], message, {"content": "Hm."}))
    assert evaluate(tmp_path) == 0
    items = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert [item["kind"] for item in items] == ["tool_call", "type_mismatch"]
    assert items[0]["response"] == CALL


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["policy=judge"], "samples: None: missing; required with policy"),
        (["input=in.jsonl", "policy=judge", "samples=in.jsonl"], "give one of input="),
        (["policy=nobody", "samples=in.jsonl"], "no such pool, run folder, function"),
        (["policy=none.py:f", "samples=in.jsonl"], "policy: 'none.py:f': no such file"),
        (["policy=in.jsonl", "samples=in.jsonl"], "give a pool or FILE.py:FUNCTION"),
    ],
)
def test_policy_is_a_pool_or_a_function(tmp_path, monkeypatch, capsys, args, said):
    monkeypatch.chdir(tmp_path)
    assert main(["evaluate", "benchmark=ecs", "output=out", "judges=judge", *args, *POOLS]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
