from __future__ import annotations

import asyncio
import json

import pytest

from hamr.apps.evaluate.policies import with_policies
from hamr.cli import main
from hamr.config.benchmarks import AgentConfig
from hamr.config.load import dump_config, load_config
from hamr.errors import BadInput, HamrError
from hamr.trainer.checkpoints import Checkpoints
from hamr.types import Answer, Question, RequestedCall, ScorerCall
from tests.tool_models import tiny_with_tools

POOLS = ["pools=tiny", "pools.second={role: grader, model: tiny, dtype: float32}"]
CASE = {
    "ticket": {},
    "policy": "Be kind.",
    "tools": [],
    "references": [{"action": "reply", "content": "Hi."}],
    "kind": "rag",
    "evidence": [{"answer": "Hi."}],
}


def item(name, **changes):
    return {"id": name, "history": [{"role": "customer", "content": f"I am {name}."}], **CASE, **changes}


def file_of(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ITEMS = [item("a"), item("b"), item("r", subset="risk"), item("h", subset="hallucination")]


class Pools:
    """Pools whose answers follow from the question; a policy says who it is."""

    def __init__(self, monkeypatch, **faults):
        self.faults, self.asked, self.started = faults, [], []
        monkeypatch.setattr("hamr.apps.evaluate.olabench.run.with_pools", self.with_pools)

    def with_pools(self, config, names, work, *, run):
        self.started.append(list(dict.fromkeys(names)))
        return asyncio.run(work({name: self.ask_of(name) for name in names}))

    def ask_of(self, name):
        async def ask(question: Question) -> Answer:
            kind = "answer" if question.messages else question.prompt.partition(".")[0]
            self.asked.append((name, kind))
            fault = self.faults.get(kind)
            if isinstance(fault, Exception):
                raise fault
            if fault is not None:
                return Answer(failure=fault, detail="scripted")
            call = ScorerCall(
                pool=name, model="m", prompt_version="", replica="",
                queue_s=0.0, service_s=0.5, prompt_tokens=9, output_tokens=4,
            )  # fmt: skip
            return Answer(text=self.said(name, kind, question), call=call)

        return ask

    def said(self, name, kind, question):
        if kind == "answer":
            return f"Hello from {name}."
        if kind == "risk":
            return '{"reason": "so", "types": ["role"], "risk": "yes"}'
        if kind == "hallucination":
            label = "misuse" if "wrong" in question.variables["response"] else "none"
            return f'{{"reason": "so", "judgment": "{label}"}}'
        if kind.endswith("_compared"):
            grades = {entry["name"]: 5 if "judge" in entry["response"] else 3 for entry in question.each}
            return json.dumps({"reason": "so", "scores": grades})
        return '{"reason": "so", "score": 4}'


def evaluate(tmp_path, *args, policy="second"):
    data = [f"data={tmp_path / 'items.jsonl'}", f"policy={policy}"] if policy else []
    given = ["judge=judge", *data, f"output={tmp_path / 'out'}", "resamples=20", *args]
    return main(["evaluate", "benchmark=olabench", *given, *POOLS])


def summary(tmp_path):
    return json.loads((tmp_path / "out" / "summary.json").read_text())


@pytest.mark.slow
def test_command_writes_all_documented_outputs(tmp_path, monkeypatch, capsys):
    pools = Pools(monkeypatch)
    file_of(tmp_path / "items.jsonl", *ITEMS)
    assert evaluate(tmp_path) == 0
    found = summary(tmp_path)["policies"]["second"]["all"]
    assert {name: figure["mean"] for name, figure in found["grades"].items()} == {"dialogue": 4, "policy": 4, "tool": 4}
    # Every risk item is of type role, no hallucination: 100 * mean(.8, .8, .8, 0, 1).
    assert found["overall"]["mean"] == pytest.approx(68.0)
    assert found["latency"]["seconds"]["mean"] == 0.5 and found["latency"]["response_tokens"]["mean"] == 4
    kinds = [kind for _, kind in pools.asked]
    assert kinds[:4] == ["answer"] * 4
    assert sorted(kinds[4:]) == sorted(["dialogue", "policy", "tool"] * 2 + ["risk", "hallucination"])
    rows = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert [(r["id"], r["response"], sorted(r["judgements"])) for r in rows][2] == ("r", "Hello from second.", ["risk"])
    shown = capsys.readouterr().out
    assert "68.0" in shown and max(len(line) for line in shown.splitlines() if "/" not in line) <= 80
    report = (tmp_path / "out" / "report.html").read_text()
    assert "second scores 68.0 of 100 on 4 items." in report and report.count("<svg ") == 2
    assert "http://" not in report and "https://" not in report
    # Once more: no question is asked, and no pool is started.
    assert evaluate(tmp_path) == 0 and len(pools.started) == 1


def test_policies_are_compared_with_responses_from_files(tmp_path, monkeypatch):
    pools = Pools(monkeypatch)
    file_of(tmp_path / "items.jsonl", *ITEMS)
    mine = file_of(tmp_path / "mine.jsonl", *({"id": row["id"], "response": "A judge said so."} for row in ITEMS))
    assert evaluate(tmp_path, policy=f"second,{mine}") == 0
    found = summary(tmp_path)
    grades = {name: groups["all"]["grades"]["policy"]["mean"] for name, groups in found["policies"].items()}
    assert grades == {"second": 3, "mine": 5} and found["judges"]["policy"]["compared"] == 2
    assert [kind for _, kind in pools.asked].count("answer") == 4
    assert [kind for _, kind in pools.asked].count("policy_compared") == 2
    assert found["policies"]["mine"]["all"]["latency"]["seconds"]["mean"] is None


AGENT = """
def reply(messages, tools):
    if not tools:
        return "No tool."
    call = {"name": tools[0]["function"]["name"], "arguments": {"order": 7}}
    return {"content": "One moment.", "tool_calls": [{"function": call}]}


def broken(messages, tools):
    return messages
"""
TOOLS = [{"name": "lookup", "description": "", "parameters": {"type": "object", "properties": {"order": {}}}}]


def test_function_answers_the_items_with_tool_calls(tmp_path, monkeypatch):
    pools = Pools(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(AGENT)
    agent = {"kind": "agent", "tools": TOOLS, "evidence": []}
    file_of(tmp_path / "items.jsonl", ITEMS[0], item("t", **agent))
    message = {"content": None, "tool_calls": [{"function": {"name": "lookup", "arguments": '{"order": 7}'}}]}
    said = file_of(tmp_path / "said.jsonl", {"id": "a", "response": "Hi."}, {"id": "t", "response": message})
    assert evaluate(tmp_path, policy=f"mine.py:reply,mine.py:broken,{said}") == 1
    assert evaluate(tmp_path, policy=f"mine.py:reply,{said}") == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    call = '<tool_call>{"name": "lookup", "arguments": {"order": 7}}</tool_call>'
    assert [row["response"] for row in rows] == ["No tool.", f"One moment.{call}", "Hi.", call]
    assert not any(row["malformed"] for row in rows)
    assert rows[0]["seconds"] >= 0 and rows[0]["tokens"] is None
    assert [kind for _, kind in pools.asked].count("answer") == 0
    kept = [json.loads(line) for line in (tmp_path / "out" / "responses.jsonl").read_text().splitlines()]
    assert {row["failure"] for row in kept if row["policy"] == "mine.py:broken"} == {"function_failed"}
    assert len(kept) == 4, "the second command asked for nothing again"


def test_endpoint_gets_tools_and_its_calls_are_responses(tmp_path, monkeypatch):
    asked = []

    async def ask(question):
        if question.prompt:
            return Answer(text='{"reason": "so", "score": 4}')
        asked.append(question)
        return Answer(text="", tool_calls=(RequestedCall(name="lookup", arguments="{}"),))

    monkeypatch.setattr(
        "hamr.apps.evaluate.olabench.run.with_pools",
        lambda config, names, work, *, run: asyncio.run(work(dict.fromkeys(names, ask))),
    )
    called = {"role": "agent", "action": "call_tool", "name": "lookup", "parameters": {"order": 7}}
    history = [item("t")["history"][0], called, {"role": "tool", "name": "lookup", "content": "lost"}]
    file_of(tmp_path / "items.jsonl", item("t", kind="agent", tools=TOOLS, evidence=[], history=history))
    endpoint = "pools.mine={role: grader, type: openai, endpoint: 'http://127.0.0.1:1/v1', model: m}"
    assert evaluate(tmp_path, "tools=native", endpoint, policy="mine") == 0
    [question] = asked
    assert [tool["function"]["name"] for tool in question.tools] == ["lookup"]
    assert [message["role"] for message in question.messages] == ["system", "user", "assistant", "tool"]
    [row] = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert row["response"] == '<tool_call>{"name": "lookup", "arguments": {}}</tool_call>'


def test_all_judges_grade_all_items_without_subsets(tmp_path, monkeypatch):
    Pools(monkeypatch)
    file_of(tmp_path / "items.jsonl", *ITEMS[:2])
    assert evaluate(tmp_path, "judged=all") == 0
    assert summary(tmp_path)["policies"]["second"]["all"]["overall"]["mean"] == pytest.approx(68.0)


def test_judges_are_graded_on_labelled_files(tmp_path, monkeypatch, capsys):
    pools = Pools(monkeypatch)
    said = [("All is wrong.", "misuse"), ("All is well.", "none"), ("All is well.", "factual")]
    rows = [
        {**item(f"l{i}"), "response": text, "labels": {"hallucination": label}} for i, (text, label) in enumerate(said)
    ]
    labels = file_of(tmp_path / "labels.jsonl", *rows)
    assert evaluate(tmp_path, f"labels={labels}", policy="") == 0
    found = summary(tmp_path)["grading"][str(labels)]["hallucination"]
    assert found["accuracy"]["mean"] == pytest.approx(2 / 3)
    assert (found["types"]["misuse"]["precision"]["mean"], found["types"]["factual"]["recall"]["mean"]) == (1.0, 0.0)
    assert pools.started == [["judge"]] and {kind for _, kind in pools.asked} == {"hallucination"}
    shown = capsys.readouterr().out
    assert "hallucination: misuse" in shown and "66.7" in shown
    assert "Right verdicts on labels.jsonl: hallucination 67 %." in (tmp_path / "out" / "report.html").read_text()


def test_labels_of_people_correct_the_rates(tmp_path, monkeypatch):
    Pools(monkeypatch)
    items = [item(f"h{i}", subset="hallucination") for i in range(40)]
    file_of(tmp_path / "items.jsonl", *items)
    own = file_of(tmp_path / "own.jsonl", *({"id": one["id"], "response": "All is well."} for one in items))
    known = [{"hallucination": "misuse" if i % 4 == 0 else "none"} for i in range(20)]
    rows = [
        {**one, "response": "All is well.", "labels": labels} for one, labels in zip(items[:20], known, strict=True)
    ]
    other = {**item("h20", subset="hallucination"), "response": "Another reply.", "labels": {"hallucination": "misuse"}}
    labels = file_of(tmp_path / "labels.jsonl", *rows, other)
    assert evaluate(tmp_path, f"labels={labels}", policy=own) == 0
    found = summary(tmp_path)["policies"]["own"]["all"]
    assert found["hallucination"]["rate"]["mean"] == 0.0, "the judge finds none"
    corrected = found["debiased"]["hallucination"]
    assert (corrected["naive"], corrected["mean"], corrected["audits"]) == (0.0, pytest.approx(0.25), 20)
    assert list(found["debiased"]) == ["hallucination"]
    assert "Corrected by people&#39;s labels" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
def test_unavailable_judge_is_retried_without_losing_results(tmp_path, monkeypatch, capsys):
    file_of(tmp_path / "items.jsonl", *ITEMS)
    Pools(monkeypatch, risk="unavailable")
    assert evaluate(tmp_path) == 0
    found = summary(tmp_path)
    assert found["policies"]["second"]["all"]["risk"]["rate"]["mean"] is None
    assert found["policies"]["second"]["all"]["overall"]["mean"] is None
    assert found["judges"]["risk"]["missing"] == {"judge_unavailable": 1}
    assert "1 by judges" in capsys.readouterr().out
    back = Pools(monkeypatch)
    assert evaluate(tmp_path) == 0
    assert back.asked == [("judge", "risk")]
    assert summary(tmp_path)["policies"]["second"]["all"]["overall"]["mean"] == pytest.approx(68.0)


def test_unavailable_policy_fails_the_command(tmp_path, monkeypatch, capsys):
    file_of(tmp_path / "items.jsonl", *ITEMS)
    Pools(monkeypatch, answer="timeout")
    assert evaluate(tmp_path) == 1
    error = capsys.readouterr().err
    assert "second answered nothing; first failure: scripted; see " in error and "responses.jsonl and run" in error
    back = Pools(monkeypatch)
    assert evaluate(tmp_path) == 0 and len(back.asked) == 4 + 8


def test_judges_without_a_judgement_fail_the_command_with_the_cause(tmp_path, monkeypatch, capsys):
    file_of(tmp_path / "items.jsonl", ITEMS[0])
    Pools(monkeypatch, dialogue="unavailable", policy="unavailable", tool="unavailable")
    assert evaluate(tmp_path) == 1
    error = capsys.readouterr().err
    assert "no judge gave a judgement ({'judge_unavailable': 3}); first failure: scripted; see " in error
    assert "judgements.jsonl and run the command again" in error


def test_limit_ignores_responses_to_the_other_items(tmp_path, monkeypatch):
    Pools(monkeypatch)
    file_of(tmp_path / "items.jsonl", *ITEMS)
    own = file_of(tmp_path / "own.jsonl", *({"id": row["id"], "response": "Hi."} for row in ITEMS))
    assert evaluate(tmp_path, "limit=1", policy=own) == 0
    assert summary(tmp_path)["policies"]["own"]["all"]["responses"]["given"] == 1


def test_interrupted_evaluation_loses_no_results(tmp_path, monkeypatch):
    file_of(tmp_path / "items.jsonl", *ITEMS)
    Pools(monkeypatch, hallucination=HamrError("the cluster is gone"))
    assert evaluate(tmp_path) == 1
    back = Pools(monkeypatch)
    assert evaluate(tmp_path) == 0
    kinds = [kind for _, kind in back.asked]
    assert "answer" not in kinds and "hallucination" in kinds


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["policy=nobody"], "policy: 'nobody': no such pool, run folder, function or file of responses"),
        (["policy=reranker"], "policy: 'reranker': is a reranker and cannot write"),
        (["policy=second,second"], "policy: 'second,second': names one twice"),
        (["policy=", "labels=x.jsonl"], "policy: None: missing; required with data"),
        (["data="], "data: None: missing; required with policy"),
        (["policy="], "give policy=<pool, run folder or responses.jsonl>"),
        (["output="], "output: None: missing"),
        (["judge=nobody"], "judge: 'nobody': no such pool"),
        (["judge=", "rewards.tool.pool=reranker"], "rewards.tool.pool: 'reranker': is a reranker"),
        (["cot=both"], "cot: 'both': must be none, pre or post"),
        (["limits=3"], "unknown option; did you mean limit=...?"),
        (["data=NOPOLICY"], "items.jsonl:1: policy: '': is empty"),
        (["data=NOEVIDENCE"], "items.jsonl:1: evidence: []: missing"),
        (["policy=SHORT.jsonl"], "'r': has no response to this item; it has 2 responses for 4 items"),
        (["policy=ODD.jsonl"], "ODD.jsonl:1: "),
        (["policy=MORE.jsonl"], "MORE.jsonl:5: id: 'z': names no item of the bench"),
        (["labels=nowhere.jsonl"], "nowhere.jsonl"),
        (["policy=FOLDER"], "has no config.yaml, so it is not a run folder"),
    ],
)
def test_bad_input_is_reported_in_one_line(tmp_path, monkeypatch, capsys, args, said):
    pools = Pools(monkeypatch)
    file_of(tmp_path / "items.jsonl", *ITEMS)
    for name, change in (("NOPOLICY", {"policy": ""}), ("NOEVIDENCE", {"evidence": []})):
        (tmp_path / name).mkdir()
        file_of(tmp_path / name / "items.jsonl", item("a", **change))
    file_of(tmp_path / "SHORT.jsonl", *({"id": name, "response": "Hi."} for name in "ab"))
    file_of(tmp_path / "ODD.jsonl", {"id": "a"})
    file_of(tmp_path / "MORE.jsonl", *({"id": row["id"], "response": "Hi."} for row in (*ITEMS, {"id": "z"})))
    (tmp_path / "FOLDER").mkdir()
    for name in ("NOPOLICY", "NOEVIDENCE", "SHORT", "ODD", "MORE", "FOLDER"):
        args = [arg.replace(f"={name}", f"={tmp_path / name}") for arg in args]
    given = {
        "data": str(tmp_path / "items.jsonl"),
        "policy": "second",
        "judge": "judge",
        "output": str(tmp_path / "out"),
    }
    given |= dict(arg.split("=", 1) for arg in args)
    call = ["evaluate", "benchmark=olabench", *(f"{key}={value}" for key, value in given.items()), *POOLS]
    assert main(call) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error and pools.started == []


@pytest.mark.parametrize(("tools", "native"), [(None, True), ("native", True), ("prompt", False)])
def test_run_folder_gets_its_tools_as_in_training(tmp_path, tools, native):
    config = load_config(["experiment=smoke"])
    run = tmp_path / "my-run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(config))

    async def write(folder):
        tiny_with_tools(folder / "policy")

    asyncio.run(Checkpoints(run / "checkpoints").save(1, write, {}))
    asked = with_policies(config, "policy", [str(run)], "none", AgentConfig(tools=tools))
    assert (asked.native == {"run-my-run"}) == native


def test_run_folder_is_served_from_its_newest_checkpoint(tmp_path):
    config = load_config(["experiment=smoke", "model.tools_prompt=compact"])
    run = tmp_path / "my-run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text(dump_config(config))

    async def write(folder):
        (folder / "policy").mkdir()
        (folder / "policy" / "config.json").write_text("{}")

    with pytest.raises(BadInput, match="has no complete checkpoint"):
        with_policies(config, "policy", [str(run)], "none", AgentConfig())
    for step in (1, 2):
        asyncio.run(Checkpoints(run / "checkpoints").save(step, write, {}))
    asked = with_policies(config, "policy", [str(run), "judge", "some.jsonl"], "none", AgentConfig())
    assert asked.pools == asked.names == ("run-my-run", "judge")
    pool = asked.config.pools["run-my-run"]
    assert pool.model == str(run / "checkpoints" / "step_2" / "policy")
    with pytest.raises(BadInput, match="cot: 'post': .* learned model.response_format=plain; set cot=none"):
        with_policies(config, "policy", [str(run)], "post", AgentConfig())
    assert (pool.role, pool.dtype, pool.max_context) == ("grader", "float32", config.model.max_context)
