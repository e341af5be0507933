"""Names of persons through the real presidio, with spaCy pipelines trained here. `make test-pii` installs it."""

from __future__ import annotations

import csv
import json
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from hamr.cli import main as hamr
from hamr.data.names import name_finder

PERSONS = ("Mia Li", "John Smith", "Anna Weber", "Jonas Vogel", "Grace Hall", "Paul Krause")
SENTENCES = {
    "en": ("I am {}.", "My name is {} and I need help.", "{} called yesterday.", "The parcel goes to {}."),
    "de": ("Ich heiße {}.", "Heute hat {} angerufen.", "Das Paket geht an {}.", "{} wartet noch."),
}
OTHERS = ("I need help.", "My parcel is late.", "Thank you for it.", "Ich brauche Hilfe.", "Das Paket ist nicht da.")
LABELS = {"en": "PERSON", "de": "PER"}
"""Names of the label of persons in the published pipelines."""
SMALL = {
    "@architectures": "spacy.TransitionBasedParser.v2", "state_type": "ner", "extra_state_tokens": False,
    "hidden_width": 32, "maxout_pieces": 2, "use_upper": True,
    "tok2vec": {
        "@architectures": "spacy.HashEmbedCNN.v2", "width": 32, "depth": 2, "embed_size": 200, "window_size": 1,
        "maxout_pieces": 2, "subword_features": True, "pretrained_vectors": None,
    },
}  # fmt: skip
MAPPING = "id: id\nturn: {role: role, content: text, roles: {customer: [customer], agent: [agent]}}\n"


def train(language: str, folder: Path) -> None:
    import spacy
    from spacy.training import Example
    from spacy.util import fix_random_seed, minibatch

    fix_random_seed(0)
    pipeline = spacy.blank(language)
    pipeline.add_pipe("ner", config={"model": SMALL})
    examples = [Example.from_dict(pipeline.make_doc(text), {"entities": []}) for text in OTHERS]
    for sentence in SENTENCES[language]:
        for person in PERSONS:
            span = (sentence.index("{"), sentence.index("{") + len(person), LABELS[language])
            examples.append(Example.from_dict(pipeline.make_doc(sentence.format(person)), {"entities": [span]}))
    optimizer = pipeline.initialize(lambda: examples)
    optimizer.learn_rate = 0.01
    order = random.Random(0)
    for _ in range(20):
        order.shuffle(examples)
        for batch in minibatch(examples, 8):
            pipeline.update(batch, sgd=optimizer)
    pipeline.to_disk(folder)


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("presidio_analyzer", reason="needs presidio: make test-pii")
    folder = tmp_path_factory.mktemp("pipelines")
    for language in SENTENCES:
        train(language, folder / language)
    return folder


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("connects to the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three tickets with the same two persons, in the current folder."""
    monkeypatch.chdir(tmp_path)
    with open("export.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("id", "role", "text"))
        for number, state in enumerate(("late", "open", "lost")):
            table.writerow((number, "customer", f"My name is John Smith and I need help, my parcel is {state}."))
            table.writerow((number, "agent", "Das Paket geht an Anna Weber."))
            table.writerow((number, "customer", "Anna Weber wartet noch."))
            table.writerow((number, "agent", "Thank you, John Smith."))
    Path("map.yaml").write_text(MAPPING)
    return tmp_path


def run(names: object) -> int:
    return hamr(["data", "import", "tickets", "input=export.csv", "mapping=map.yaml", f"names={names}", "output=out"])


def test_import_hides_english_and_german_names_in_every_file(pipelines: Path, export: Path, capsys: Any) -> None:
    assert run(f"{pipelines / 'en'},{pipelines / 'de'}") == 0
    made = "".join(path.read_text(encoding="utf-8") for path in (export / "out").iterdir())
    assert not [name for name in ("John", "Smith", "Anna", "Weber") if name in made]
    row, *_ = map(json.loads, (export / "out" / "trajectories.jsonl").read_text(encoding="utf-8").splitlines())
    texts = [turn["content"] for turn in row["turns"]]
    assert texts[0].startswith("My name is [NAME_1] and I need help")
    assert texts[1:] == ["Das Paket geht an [NAME_2].", "[NAME_2] wartet noch.", "Thank you, [NAME_1]."]
    assert "name 6" in capsys.readouterr().out


@pytest.mark.parametrize("language", SENTENCES)
def test_pipeline_finds_persons_that_it_was_not_trained_on(pipelines: Path, language: str) -> None:
    find = name_finder([str(pipelines / language)])
    text = {"en": "The parcel goes to Karl Huber.", "de": "Das Paket geht an Karl Huber."}[language]
    assert find(text) == ["Karl Huber"]
    assert not [text for text in (*OTHERS, "") if find(text)]


def test_only_persons_are_names(pipelines: Path, tmp_path: Path) -> None:
    import spacy

    rules = spacy.blank("en")
    labels = [{"label": "PERSON", "pattern": "Mia Li"}, {"label": "GPE", "pattern": "Berlin"}]
    rules.add_pipe("entity_ruler").add_patterns(labels)
    rules.to_disk(tmp_path / "rules")
    assert name_finder([str(tmp_path / "rules")])("I am Mia Li of Berlin") == ["Mia Li"]


def test_unusable_pipeline_is_refused_before_anything_is_written(pipelines: Path, export: Path, capsys: Any) -> None:
    import spacy

    spacy.blank("en").to_disk("blank")
    Path("broken").mkdir()
    Path("broken/meta.json").write_text("{}")
    for given, said in (
        ("en_core_web_none", "no such spaCy pipeline; python -m spacy download en_core_web_none, or give the folder"),
        (f"{pipelines / 'en'},missing", "names: 'missing': no such spaCy pipeline"),
        ("numpy", "spaCy cannot load it"),
        ("broken", "spaCy cannot load it"),
        ("blank", "labels no persons (PERSON or PER); give a pipeline with entity recognition"),
    ):
        assert run(given) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert not Path("out").exists()


def test_missing_presidio_is_named_with_its_install_line(
    export: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("hamr.data.names.find_spec", lambda name: None)
    assert run("en_core_web_sm") == 2
    assert "names: 'en_core_web_sm': requires presidio; pip install 'presidio-analyzer" in capsys.readouterr().err
    assert not (export / "out").exists()
