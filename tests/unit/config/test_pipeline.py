"""Pipeline files: the message and the line of each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from hamr.config.pipeline import check_references, find_pipeline, read_pipeline, substitute_paths
from hamr.errors import ConfigError

OUTPUTS = {"sft": ("run", "policy"), "train": ("run", "policy", "ledger"), "data sage": ("train",)}

GOOD = """\
name: two
inputs: {experts: dialogues}
stages:
  - name: first
    job: sft
    args:
      - experiment=sft_small
      - "sft.sets=[{path: @inputs.experts}]"
  - name: second
    job: train
    args: [model.path=@first.policy]
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    return file


def complaint(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check_references(read_pipeline(written(tmp_path, text)), OUTPUTS)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_valid_pipeline_is_read_with_line_numbers(tmp_path: Path) -> None:
    source = read_pipeline(written(tmp_path, GOOD))
    check_references(source, OUTPUTS)
    assert [stage.name for stage in source.pipeline.stages] == ["first", "second"]
    assert source.where(0, 1) == f"{tmp_path}/mine.yaml:8: stages.first"
    assert source.where(1) == f"{tmp_path}/mine.yaml:9: stages.second"
    assert source.where() == f"{tmp_path}/mine.yaml"


def test_references_are_replaced_but_addresses_are_not() -> None:
    paths = {("a", "policy"): "/x/policy", ("inputs", "b"): "/y"}
    arg = "sft.sets=[{path: @a.policy}, {path: @inputs.b}] to=me@a.policy"
    said = substitute_paths(arg, lambda stage, output: paths[stage, output])
    assert said == "sft.sets=[{path: /x/policy}, {path: /y}] to=me@a.policy"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("@first.policy", "@frist.policy", "mine.yaml:11: stages.second: @frist: no such stage; there are (nearest"),
        ("@first.policy", "@first.ledger", "mine.yaml:11: stages.second: @first.ledger: no such output; there are"),
        ("@inputs.experts", "@inputs.expert", "mine.yaml:8: stages.first: @inputs.expert: no such input; there are"),
        ("@inputs.experts", "@first.run", "mine.yaml:8: stages.first: @first: no such stage"),
        ("@inputs.experts", "@second.run", "a cycle: first takes from second takes from first; no order"),
        ("name: second", "name: first", "'first' is the name of an earlier stage"),
        ("name: second", "name: inputs", "'inputs' is reserved for the inputs"),
        ("job: train", "job: trian", "mine.yaml:10: stages.1.job: 'trian': must be 'train', 'sft'"),
        ("job: train", "jop: train", "mine.yaml:10: stages.1.jop: 'jop': unknown key; did you mean 'job'?"),
        ("    job: train\n", "", "mine.yaml:9: stages.1.job: None: missing; add it"),
        ("name: two", "name: two\nstage: []", "mine.yaml:2: stage: 'stage': unknown key; did you mean 'stages'?"),
        ("stages:", "stages: {", "is not YAML"),
    ],
)
def test_each_mistake_names_its_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert says in complaint(tmp_path, GOOD.replace(old, new))


def test_later_stages_and_cycles_are_reported(tmp_path: Path) -> None:
    stages = {"a": "c", "b": "a", "c": "b"}

    def text(stages: dict[str, str]) -> str:
        rows = "".join(f"  - {{name: {n}, job: sft, args: ['model.path=@{t}.policy']}}\n" for n, t in stages.items())
        return "name: x\nstages:\n" + rows

    assert "a cycle: a takes from c takes from b takes from a" in complaint(tmp_path, text(stages))
    later = text({"a": "b"}) + "  - {name: b, job: sft}\n"
    assert complaint(tmp_path, later) == "mine.yaml:3: stages.a: takes from b, which comes later; put b before it"
    assert "stages.a: takes from b, which comes later" in complaint(tmp_path, text({"a": "b", "b": "unknown"}))


def test_pipelines_are_found_by_name_or_file(tmp_path: Path) -> None:
    assert find_pipeline("olamind").name == "olamind.yaml"
    assert find_pipeline(str(written(tmp_path, GOOD))).name == "mine.yaml"
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "own.yaml").write_text(GOOD)
    assert find_pipeline("own", tmp_path) == tmp_path / "pipeline" / "own.yaml"
    with pytest.raises(ConfigError, match=r"no such pipeline; there are \(nearest first\): olamind"):
        find_pipeline("olamin")
    with pytest.raises(ConfigError, match="no such file"):
        find_pipeline("./not/there.yaml")
