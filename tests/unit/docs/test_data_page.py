"""Imports of docs/how-to/data.md run as written, on the page's own files."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pytest
import yaml

from hamr import cli
from tests.docs_pages import DOCS, commands, save_files
from tests.releases import tau2_results, write_abcd, write_json, write_multiwoz_22, write_star, write_tau2_domain
from tests.unit.data.importers.test_star import ROW, TASK

PAGE = DOCS / "how-to" / "data.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_files(PAGE, tmp_path)
    rows = list(csv.reader((tmp_path / "tickets.csv").read_text().splitlines()))
    with (tmp_path / "tickets_de.csv").open("w", encoding="cp1252", newline="") as file:
        csv.writer(file, delimiter=";").writerows([cell.replace("parcel", "Päckchen") for cell in row] for row in rows)
    return tmp_path


def run(start: str) -> list[str]:
    """Run the page's commands that begin so."""
    chosen = [command for command in commands(PAGE) if command.startswith(start)]
    assert chosen
    for command in chosen:
        assert cli.main(shlex.split(command)[1:]) == 0
    return chosen


def meta(folder: str) -> list[dict[str, str]]:
    paths = [Path(folder) / f"{split}.jsonl" for split in ("train", "validation", "test")]
    rows = "".join(path.read_text() for path in paths if path.exists())
    return [json.loads(line)["meta"] for line in rows.splitlines()]


def write_star_points(folder: Path) -> None:
    rows = [{**ROW, "id": f"star-{n}-1", "source": {"dialogue_id": n}} for n in range(4)]
    (folder / "star_steps.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "star_policies.json").write_text(json.dumps({"star/room_book": TASK}))


def test_public_corpora_are_imported_as_published(folder: Path) -> None:
    write_star(folder / "STAR")
    write_abcd(folder / "abcd" / "data")
    write_json(folder / "results.json", tau2_results())
    write_tau2_domain(folder / "domains")
    (folder / "domains" / "mock").rename(folder / "domains" / "retail")
    write_multiwoz_22(folder / "MultiWOZ_2.2")
    write_star_points(folder)
    for corpus, imports, samples in (("star", 2, 20), ("abcd", 1, 25), ("tau2", 2, 12), ("multiwoz", 1, 12)):
        assert len(run(f"hamr data import {corpus} ")) == imports
        assert len(meta(f"data/{corpus}")) == samples
    assert len(meta("data/star_steps")) == 4
    assert meta("data/tau2_tasks")


def test_chats_are_imported(folder: Path) -> None:
    chats = [
        {"messages": [{"role": "user", "content": f"Wish {n}"}, {"role": "assistant", "content": "Yes."}]}
        for n in range(4)
    ]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    run("hamr data import messages input=chats.jsonl")
    assert len(meta("data/chats")) == 4


def test_forms_of_other_trainers_are_imported_from_every_file_format(folder: Path) -> None:
    said, answered = ([f"{word} {n}" for n in range(4)] for word in ("Wish", "Answer"))
    pairs = list(zip(said, answered, strict=True))
    sharegpt = [
        {"conversations": [{"from": "human", "value": wish}, {"from": "gpt", "value": answer}]}
        for wish, answer in pairs
    ]
    (folder / "conversations.json").write_text(json.dumps(sharegpt))
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"prompt": said, "completion": answered}), folder / "completions.parquet")
    (folder / "my_dataset").mkdir()
    verl = [
        {"prompt": [{"role": "user", "content": wish}], "reward_model": {"ground_truth": answer}}
        for wish, answer in pairs
    ]
    (folder / "my_dataset" / "train.jsonl").write_text("\n".join(map(json.dumps, verl)))
    for form in ("sharegpt", "trl", "verl"):
        run(f"hamr data import {form}")
        splits = (Path(f"data/{form}/{split}.jsonl") for split in ("train", "validation", "test"))
        rows = [json.loads(line) for path in splits if path.exists() for line in path.read_text().splitlines()]
        assert sorted(row["references"][0]["content"] for row in rows) == answered


def test_preview_proposes_the_mapping_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    run("hamr data import tickets --preview")
    assert yaml.safe_load(capsys.readouterr().out) == yaml.safe_load(Path("tickets.yaml").read_text())


def test_help_desks_are_imported_without_internal_notes() -> None:
    run("hamr data import zendesk")
    run("hamr data import intercom")
    zendesk, intercom = (Path(f"data/{name}/train.jsonl").read_text() for name in ("zendesk", "intercom"))
    assert "Lost by the carrier" not in zendesk
    assert json.loads(zendesk)["references"][0]["content"] == "I am sorry. I refund it now."
    assert json.loads(intercom)["privileged"]["internal_notes"] == ["Lost by the carrier."]
    assert json.loads(intercom)["references"][0]["content"] == "I refund it now."


def test_tickets_are_grouped_by_the_mapping_or_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a recogniser that finds one name."""
    found = {("en_core_web_sm", "de_core_news_sm"): lambda text: ["Friday"] if "Friday" in text else []}
    monkeypatch.setattr("hamr.apps.data.import_data.name_finder", found.__getitem__)
    assert len(run("hamr data import tickets input=")) == 4
    nameless = "".join(path.read_text() for path in Path("data/nameless").glob("*.jsonl"))
    assert "It ends on [NAME_1]." in nameless
    assert "Päckchen" in "".join(path.read_text() for path in Path("data/german").glob("*.jsonl"))
    assert len({row["group"] for row in meta("data/tickets")}) <= 3
    groups = [row["group"] for row in meta("data/products")]
    assert (len(groups), len(set(groups))) == (4, 2)
