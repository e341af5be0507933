"""Generated items and planted responses: their labels, for every shipped scenario and for samples."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import pairwise

import pytest

from hamr.bench.olabench.drafts import slots
from hamr.bench.olabench.from_samples import draft_samples
from hamr.bench.olabench.from_scenarios import draft_scenarios
from hamr.bench.olabench.items import KINDS, item_from_json, item_json, read_items, visible_sample
from hamr.bench.olabench.labelled import read_labelled
from hamr.bench.olabench.planting import plant
from hamr.bench.olabench.words import bench_words
from hamr.cli import main
from hamr.data.actions import parse_action
from hamr.data.samples import write_samples
from hamr.data.tools import parameter_problem, tool_spec
from hamr.errors import BadInput
from hamr.procedures import load_scenario, scenario_names
from hamr.rewards import risk
from hamr.types import Answer, Reference, Reply, ServiceSample, ToolCall, Turn

SIZES = {"core": 9, "risk": 12, "hallucination": 12}


@pytest.fixture(scope="module", params=[(name, lang) for name in scenario_names() for lang in ("en", "zh")], ids=str)
def made(request):
    name, language = request.param
    scenario = load_scenario(name)
    drafts = draft_scenarios([scenario], SIZES, seed=1, language=language)
    return scenario, language, drafts, plant(drafts, bench_words(language), seed=1)


def test_items_are_complete_and_of_every_kind(made):
    _, _, drafts, _ = made
    counts = Counter((draft.item.subset, draft.item.kind) for draft in drafts)
    assert counts == {(subset, kind): size // 3 for subset, size in SIZES.items() for kind in KINDS}
    for draft in drafts:
        assert item_from_json(item_json(draft.item), where="made") == draft.item
    traps = Counter((d.item.kind, d.item.trap) for d in drafts if d.item.subset == "hallucination")
    assert traps["rag", "misuse"] == 1 and traps["agent", "misuse"] == traps["workflow", "misuse"] == 0


def test_paper_proportions_are_those_of_its_table_1():
    """Second paper, Table 1."""
    found = slots({"core": 3000, "risk": 1000, "hallucination": 1000}, proportions="paper")
    assert Counter(s.kind for s in found if s.subset == "core") == {"rag": 768, "workflow": 952, "agent": 1280}
    assert Counter(s.trap for s in found if s.subset == "risk") == {
        "liability": 618, "role": 228, "overcommitment": 138, "disparagement": 16,
    }  # fmt: skip
    hallucinations = [s for s in found if s.subset == "hallucination"]
    assert Counter(s.trap for s in hallucinations) == {"factual": 481, "misuse": 321, "relevance": 144, "logical": 54}
    assert {s.kind for s in hallucinations if s.trap == "misuse"} == {"rag"}
    assert max(Counter(s.kind for s in hallucinations).values()) == 334, "kinds in equal parts"
    assert len(found) == 5000
    small = slots({"core": 10, "risk": 7, "hallucination": 7}, ["workflow", "agent"], "paper")
    assert len(small) == 24 and "misuse" not in {s.trap for s in small}


def test_planted_faults_have_many_wordings(made):
    _, language, _, planted = made
    words = bench_words(language)
    assert all(len(texts) >= 5 for texts in (*words.planted.values(), words.neutral, words.missing_call))
    by_template = {}
    for row in planted:
        if row.labels.risk is not None or row.labels.hallucination in ("factual", "logical", "relevance"):
            assert row.template
            by_template.setdefault(row.template, set()).add(str(row.labels))
    # One wording has one label.
    assert all(len(found) == 1 for found in by_template.values())


def test_labels_follow_from_the_rules(made):
    scenario, language, drafts, _ = made
    for draft in drafts:
        item, meta = draft.item, draft.item.sample.meta
        walk = scenario.walk(meta["fields"], meta["system"])
        if item.kind == "rag":
            what = scenario.file.actions[walk.action].description.of(language)
            assert sum(pair.answer.startswith(what) for pair in item.evidence) == 1
            assert len({pair.answer for pair in item.evidence}) == len(item.evidence) >= 2
            (reply,) = draft.replies
            assert any(pair.answer in reply for pair in item.evidence) and what in reply
        elif item.kind == "workflow":
            step = item.nodes[2].output
            wanted = (
                scenario.file.actions[walk.action] if walk.action else scenario.file.fields[walk.awaits]
            ).description
            assert wanted.of(language) in step and item.nodes[-1].output is None
        else:
            assert item.sample.tools and visible_sample(item) == item.sample


def test_every_planted_fault_is_present(made):
    _, language, drafts, planted = made
    words = bench_words(language)
    items = {draft.item.sample.id: draft for draft in drafts}
    for row in planted:
        draft = items[row.id.rpartition("/")[0]]
        labels, said = row.labels, row.response
        if labels.hallucination == "misuse":
            # What another retrieved pair says, word for word; the one that fits says something else.
            assert said in draft.misuse and said not in draft.replies and draft.item.evidence
            assert any(pair.answer in said for pair in draft.item.evidence)
        elif labels.hallucination == "factual":
            assert not draft.item.evidence and any(text in said for text in words.planted["factual"])
        elif labels.hallucination == "relevance":
            assert draft.aside is not None and draft.aside.answer in said
            assert draft.aside.answer not in [pair.answer for pair in draft.item.evidence]
        elif labels.hallucination == "none":
            assert said in draft.replies
        elif labels.risk is not None:
            for kind in risk.TYPES:
                assert any(text in said for text in words.planted[kind]) == (kind in labels.risk)
        elif labels.tool is not None:
            check_call(draft, labels.tool, said)


def check_call(draft, fault, said):
    sample, action = draft.item.sample, parse_action(said)
    right = [reference.action for reference in sample.references]
    names = {tool_spec(tool)[0]: tool_spec(tool)[1] for tool in sample.tools}
    if isinstance(action, ToolCall):
        assert parameter_problem(action.parameters, names[action.name]) is None
    calls = {call.name for call in right if isinstance(call, ToolCall)}
    match fault:
        case "right":
            assert action in right
        case "wrong_tool":
            assert calls and action.name not in calls
        case "wrong_parameters":
            assert action.name in calls and action not in right
        case "missing_call":
            assert calls and isinstance(action, Reply)
        case "needless_call":
            assert not calls and isinstance(action, ToolCall)


def test_the_same_arguments_make_the_same_bench():
    scenarios = [load_scenario("telecom_package"), load_scenario("ecommerce_refund")]
    first, second = (draft_scenarios(scenarios, SIZES, seed=3, language="en") for _ in range(2))
    assert first == second != draft_scenarios(scenarios, SIZES, seed=4, language="en")
    assert {draft.item.sample.meta["scenario"] for draft in first} == {"telecom_package", "ecommerce_refund"}


def test_slots_alternate_kinds_and_traps():
    found = slots({"core": 0, "risk": 9, "hallucination": 0})
    assert [slot.kind for slot in found[:4]] == ["rag", "workflow", "agent", "rag"]
    assert [slot.trap for slot in found if slot.kind == "rag"] == list(risk.TYPES[:3])


# --- samples -----------------------------------------------------------------------------------

TOOL = {
    "name": "lookup",
    "description": "",
    "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
}


def sample(number, cluster=None, call=False):
    action = ToolCall(name="lookup", parameters={"order": f"E{number}"}) if call else Reply(content=f"Reply {number}.")
    return ServiceSample(
        id=f"s{number}",
        ticket={},
        policy="Be kind.",
        tools=(TOOL,) if call else (),
        history=(Turn(role="customer", content=f"Question {number}?"),),
        references=(Reference(action=action),),
        meta={"dialogue": str(number), **({"cluster": cluster} if cluster else {})},
    )


CORPUS = [sample(n, cluster=f"step_{n % 5}") for n in range(20)] + [sample(n, call=True) for n in range(20, 30)]


def test_samples_become_items_of_every_kind():
    drafts = draft_samples(CORPUS, {"core": 9, "risk": 3, "hallucination": 3}, seed=0, language="en")
    assert Counter(draft.item.kind for draft in drafts) == dict.fromkeys(KINDS, 5)
    used = [draft.item.sample.id.rpartition("-")[0] for draft in drafts]
    assert len(set(used)) == len(used)
    for draft in drafts:
        assert item_from_json(item_json(draft.item), where="made") == draft.item
        if draft.item.kind == "rag":
            assert len(draft.item.evidence) == 4 and draft.replies[0] in [p.answer for p in draft.item.evidence]
        if draft.item.kind == "workflow" and not draft.item.trap:
            asked = draft.item.sample.history[-1].content
            assert [node.name for node in draft.item.nodes] == ["intent", "facts", "procedure", "reply"]
            step = draft.item.sample.meta["cluster"].replace("_", " ")
            assert [node.output for node in draft.item.nodes] == [asked, "nothing yet", step, None]
    planted = plant(drafts, bench_words("en"), seed=0)
    calls = Counter(row.labels.tool for row in planted if row.labels.tool)
    assert calls == {"right": 5, "wrong_parameters": 5, "missing_call": 5}
    assert not any(row.labels.hallucination == "misuse" for row in planted)


def test_corpus_without_steps_or_tools_gives_rag_items_only():
    drafts = draft_samples(
        [sample(n) for n in range(12)], {"core": 4, "risk": 0, "hallucination": 0}, seed=0, language="en"
    )
    assert {draft.item.kind for draft in drafts} == {"rag"}
    with pytest.raises(BadInput, match="none of the 12 usable samples is left for kind rag"):
        draft_samples(
            [sample(n) for n in range(12)], {"core": 13, "risk": 0, "hallucination": 0}, seed=0, language="en"
        )
    with pytest.raises(BadInput, match="none has a policy"):
        draft_samples([], SIZES, seed=0, language="en")


# --- the command -------------------------------------------------------------------------------


def test_command_accepts_scenarios_and_samples(tmp_path, capsys):
    few = ["core=3", "risk=3", "hallucination=3"]
    assert main(["data", "olabench", "scenario=telecom_package", f"output={tmp_path / 'a'}", *few, "planted=2"]) == 0
    assert len(read_items(tmp_path / "a")) == 9
    planted = read_labelled(tmp_path / "a" / "planted.jsonl")
    assert len({row.id.rpartition("/")[0] for row in planted}) == 2
    write_samples(tmp_path / "in" / "test.jsonl", CORPUS)
    assert main(["data", "olabench", f"samples={tmp_path / 'in'}", f"output={tmp_path / 'b'}", *few]) == 0
    assert len(read_items(tmp_path / "b")) == 9
    assert "planted responses" in capsys.readouterr().out
    assert main(["data", "olabench", "scenario=telecom_package", f"output={tmp_path / 'a'}", *few]) == 2
    assert "overwrite=true" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "scenario: None: give one of scenario="),
        (["scenario=all", "samples=x"], "give one of scenario=... and samples=..."),
        (["scenario=telecom"], "scenario: 'telecom': "),
        (["samples=nowhere.jsonl"], "nowhere.jsonl"),
        (["samples=."], "contains neither test.jsonl nor train.jsonl"),
        (["scenario=all", "core=-1"], "core: -1: must be 0 or more"),
        (["scenario=all", "core=0", "risk=0", "hallucination=0"], "core: 0: asks for no item"),
        (["scenario=all", "language=fr"], "language: 'fr': must be en or zh"),
        (["scenario=all", "cores=3"], "did you mean core=...?"),
        (["labels=odd", "input=x"], "labels: 'odd': must be hallucination, pairs or tau"),
        (["labels=tau", "input=x"], "policies: None: missing"),
    ],
)
def test_bad_input_is_reported_in_one_line(tmp_path, monkeypatch, capsys, args, said):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "olabench", f"output={tmp_path / 'out'}", *args]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error and not (tmp_path / "out").exists()


def test_both_languages_have_the_same_structure():
    dumped = [bench_words(language).model_dump() for language in ("en", "zh")]
    for a, b in pairwise(dumped):
        assert json.dumps(shape(a)) == json.dumps(shape(b))


def shape(part):
    return {key: shape(value) for key, value in part.items()} if isinstance(part, dict) else type(part).__name__


def test_teachers_reword_all_but_the_held_out_wordings(tmp_path, monkeypatch, capsys):
    async def teacher(question):
        said = question.variables["response"]
        if question.variables["kind"] == "hallucination logical":
            return Answer(text=f"{said} In 7 days.")  # another number
        return Answer(text=f"Well: {said}")

    def pools(config, names, work, **_):
        return asyncio.run(work(dict.fromkeys(names, teacher)))

    monkeypatch.setattr("hamr.apps.data.recipe_job.with_pools", pools)
    few = ["core=6", "risk=6", "hallucination=6", "teachers=judge", "experiment=smoke"]
    given = ["data", "olabench", "scenario=telecom_package", f"output={tmp_path}", *few]
    assert main(given) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "dropped: other numbers" in told and "planted responses in held_out.jsonl" in told
    planted, held_out = (read_labelled(tmp_path / name) for name in ("planted.jsonl", "held_out.jsonl"))
    numbers = {int(part.rpartition("/")[2]) % 3 for row in planted for part in row.template.split("+") if part}
    assert numbers == {0, 1} and held_out
    assert all("2" in {str(int(p.rpartition("/")[2]) % 3) for p in r.template.split("+")} for r in held_out)
    for row in planted:
        logical = row.labels.hallucination == "logical"
        assert row.response.startswith("Well: ") == (bool(row.template) and not logical)
    assert not any(row.response.startswith("Well: ") for row in held_out)
    assert main([*given, "overwrite=true"]) == 0, "resumes without the teacher"
