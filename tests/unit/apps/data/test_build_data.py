from __future__ import annotations

import json
from pathlib import Path

import pytest

from hamr.apps.shared.preparation import load_splits
from hamr.cli import main as hamr
from hamr.config.load import load_config
from hamr.data.samples import read_samples
from hamr.procedures import scenario_names

NAMES = ("train", "validation", "test")


def _sage(folder, *more):
    sizes = [f"data.sage.{name}={size}" for name, size in zip(NAMES, (30, 10, 12), strict=True)]
    return hamr(["data", "sage", f"output={folder}", *sizes, *more])


def test_generated_splits_are_written_and_shown(tmp_path, capsys):
    assert _sage(tmp_path / "out") == 0
    assert [len(read_samples(tmp_path / "out" / f"{name}.jsonl")) for name in NAMES] == [30, 10, 12]
    shown = capsys.readouterr().out
    assert "call change_order" in shown
    assert str(tmp_path / "out" / "test.jsonl") in shown.replace("\n", "")


def test_default_scenario_is_that_of_the_quickstart(tmp_path):
    assert _sage(tmp_path / "bare") == 0
    assert _sage(tmp_path / "named", "scenario=telecom_package", "language=en") == 0
    for name in NAMES:
        written = (tmp_path / "bare" / f"{name}.jsonl").read_bytes()
        assert written == (tmp_path / "named" / f"{name}.jsonl").read_bytes()
    data = load_config([f"data={tmp_path / 'bare'}"]).data
    sizes = [f"data.sage.{name}={size}" for name, size in zip(NAMES, (30, 10, 12), strict=True)]
    assert load_splits(data, 0).train == load_splits(load_config(["data.type=sage", *sizes]).data, 0).train


def test_dialogues_of_every_scenario_are_written_and_their_paths_shown(tmp_path, capsys):
    sizes = [f"data.sage.{name}={size}" for name, size in zip(NAMES, (36, 12, 12), strict=True)]
    assert hamr(["data", "sage", "scenario=all", f"output={tmp_path}", *sizes]) == 0
    samples = read_samples(tmp_path / "train.jsonl")
    assert {sample.meta["scenario"] for sample in samples} == set(scenario_names())
    shown = capsys.readouterr().out
    assert "60 different samples" in shown
    assert "airline_refund" in shown


def test_thoughts_are_written_for_an_own_scenario_too(tmp_path):
    scenario = Path(__file__).parents[4] / "examples/hotel_booking/hotel_booking.yaml"
    assert _sage(tmp_path / "out", f"scenario={scenario}", "thoughts=pre") == 0
    items = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert items and all(item["target"][0]["text"].startswith("<think>The customer ") for item in items)


def test_files_are_replaced_only_on_request(tmp_path, capsys):
    assert _sage(tmp_path) == 0
    before = (tmp_path / "train.jsonl").read_bytes()
    assert _sage(tmp_path, "data.sage.seed=1") == 2
    assert "overwrite=true" in capsys.readouterr().err
    assert (tmp_path / "train.jsonl").read_bytes() == before
    assert _sage(tmp_path, "data.sage.seed=1", "overwrite=true") == 0
    assert (tmp_path / "train.jsonl").read_bytes() != before


@pytest.mark.parametrize(
    "words",
    [
        "patm teacher=judge",
        "dra teacher=judge",
        "multigt teacher=judge",
        "rubrics teacher=judge",
        "thought step=extract teacher=judge",
        "sampled ledger={file} min_total=1",
        "olabench labels=pairs",
    ],
)
def test_input_is_not_replaced_by_the_output(words, tmp_path, capsys):
    file = tmp_path / "in.jsonl"
    file.write_text("{}\n")
    args = [f"input={file}", f"output={tmp_path}/../{tmp_path.name}/in.jsonl", "overwrite=true"]
    assert hamr(["data", *words.format(file=file).split(), *args]) == 2
    assert "is the input; name another file" in capsys.readouterr().err
    assert file.read_text() == "{}\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "missing; give one of: sage, words, import, patm, dra, multigt, thought, sampled, hallucination"),
        (["cook"], "sage, words, import"),
        (["sage"], "give output="),
        (["sage", "output={out}", "data.sage.trian=5"], "data.sage.train"),
        (["sage", "output={out}", "data.sage.train=0"], "greater than or equal to 1"),
        (["sage", "outptu={out}"], "did you mean output"),
        (["sage", "output={out}", "overwrite=yes"], "true or false"),
        (["sage", "output={out}", "scenario=airline_refnd"], "did you mean 'airline_refund'"),
        (["sage", "output={out}", "scenario=./none.yaml"], "no such file"),
        (["sage", "output={out}", "scenario=all", "language=de"], "language: 'de': must be en or zh"),
        (["sage", "output={out}", "scenario=all", "form=xml"], "must be actions or sage"),
        (["sage", "output={out}", "form=sage", "data.sage.noise=0.4"], "requires form=actions"),
        (["sage", "output={out}", "form=sage", "data.sage.procedure=false"], "answers by the procedure"),
        (["sage", "output={out}", "judge=judge"], "requires a teacher"),
        (["import"], "missing; write hamr data import CORPUS output=FOLDER input=FILE|FOLDER"),
        (
            ["import", "moon"],
            "there are: star, abcd, tau2, multiwoz, messages, sharegpt, trl, verl, tickets, zendesk, intercom",
        ),
        (["import", "star", "output={out}"], "give input="),
        (["import", "star", "input=/none", "policies=/none", "output={out}"], "no such file"),
        (["import", "star", "input=/x", "policies=/x", "output={out}", "held_out_frac=0.9"], "must be below 0.5"),
        (["import", "star", "input=/x", "policies=/x", "output={out}", "seed=one"], "must be a whole number"),
    ],
)
def test_bad_input_is_reported_in_one_line_with_exit_code_2(tmp_path, capsys, args, said):
    out = tmp_path / "out"
    assert hamr(["data", *(arg.format(out=out) for arg in args)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_an_imported_corpus_is_split_by_dialogue(tmp_path):
    tool = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    task = {"task": "t", "start": "hello", "edges": {}, "nodes": {"hello": "Hi"}, "tool": tool}
    rows = [
        {
            "id": f"{dialogue}-{turn}",
            "source": {"dialogue_id": dialogue},
            "ticket": {},
            "policy_ref": "star/t",
            "tools_ref": ["star/t"],
            "history": [{"role": "customer", "content": "Hi"}],
            "gold": {"action": "reply", "content": f"Answer {turn}."},
        }
        for dialogue in range(10)
        for turn in range(3)
    ]
    (tmp_path / "p.json").write_text(json.dumps({"star/t": task}))
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    args = ["data", "import", "star", f"input={tmp_path / 'in.jsonl'}", f"policies={tmp_path / 'p.json'}"]
    assert hamr([*args, f"output={out}", "held_out_frac=0.2"]) == 0
    dialogues = [{s.meta["dialogue"] for s in read_samples(out / f"{name}.jsonl")} for name in NAMES]
    assert [len(d) for d in dialogues] == [6, 2, 2]
    assert len(set().union(*dialogues)) == 10


def test_existing_items_are_not_overwritten_without_permission(tmp_path, capsys):
    (tmp_path / "items.jsonl").write_text("mine")
    sizes = [f"data.sage.{split}=20" for split in ("train", "validation", "test")]
    args = ["data", "sage", f"output={tmp_path}", *sizes]
    assert hamr([*args, "thoughts=pre"]) == 2
    assert "already contains items.jsonl" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["items.jsonl"]
    assert hamr(args) == 0, "without thoughts it is in nobody's way"
    assert (tmp_path / "items.jsonl").read_text() == "mine"
    assert hamr([*args, "thoughts=pre", "overwrite=true"]) == 0
    assert (tmp_path / "items.jsonl").read_text() != "mine"


def test_noise_writes_an_sft_file_and_a_later_call_removes_it(tmp_path, capsys):
    assert _sage(tmp_path, "data.sage.noise=0.5") == 0
    assert "the same 30 training samples" in capsys.readouterr().out
    samples = read_samples(tmp_path / "sft.jsonl")
    assert [s.id for s in samples] == [s.id for s in read_samples(tmp_path / "train.jsonl")]
    assert 0 < sum("references" in s.privileged for s in samples) < 30
    data = load_config([f"data={tmp_path}"]).data
    assert load_splits(data, 0).for_sft == tuple(samples)
    assert _sage(tmp_path, "overwrite=true") == 0
    assert not (tmp_path / "sft.jsonl").exists()


def test_options_combine_for_every_scenario_and_language(tmp_path):
    options = ["scenario=all", "language=zh", "data.sage.noise=0.4", "data.sage.procedure=false", "thoughts=pre"]
    sizes = [f"data.sage.{name}={size}" for name, size in zip(NAMES, (60, 12, 12), strict=True)]
    assert hamr(["data", "sage", f"output={tmp_path}", *sizes, *options]) == 0
    samples = read_samples(tmp_path / "sft.jsonl")
    assert {s.meta["scenario"] for s in samples} == set(scenario_names())
    assert {s.policy for s in samples} == {""}
    assert 0 < sum("references" in s.privileged for s in samples) < 60
    assert (tmp_path / "items.jsonl").read_text().count("\n") >= 60
