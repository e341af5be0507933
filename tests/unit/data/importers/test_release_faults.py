"""Broken copies of published corpora and exports are refused in one line, whatever is broken."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hamr.data.helpdesk import HelpdeskOptions, read_intercom, read_zendesk
from hamr.data.importers import IMPORTERS
from hamr.data.proposal import propose_mapping
from hamr.errors import DataError
from tests.releases import (
    multiwoz_dialogue,
    tau2_results,
    write_abcd,
    write_json,
    write_multiwoz_21,
    write_star,
    write_tau2_domain,
)
from tests.unit.data.test_helpdesk import conversation, ticket
from tests.unit.data.test_proposal import chat

JUNK: tuple[Any, ...] = (None, 7, -1.5, "", "x", [], {}, [7], {"a": 7}, True, [[]], "{", ["x"])
DRAWS = 60


def broken(value: Any, rng: random.Random) -> Any:
    """Return a copy in which one part is missing or has another type."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def collect(inner: Any) -> None:
        for key in inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ():
            places.append((inner, key))
            collect(inner[key])

    collect(value)
    outer, key = rng.choice(places)
    if rng.random() < 0.3:
        del outer[key]
    else:
        outer[key] = rng.choice(JUNK)
    return value


def read_corpus(name: str) -> Callable[[Path], Any]:
    return lambda path: IMPORTERS[name]({"input": path})


def propose(path: Path) -> None:
    rows = json.loads(path.read_text())
    propose_mapping([row for row in rows if isinstance(row, dict)], "t")


def write_file(name: str, content: Any) -> Callable[[Path], Path]:
    return lambda folder: write_json(folder / name, content)


ZENDESK = {"tickets": [ticket(1)], "users": [{"id": 11, "role": "end-user"}]}
CASES: list[tuple[Callable[[Path], Path], list[str], Callable[[Path], Any]]] = [
    (
        write_star,
        ["dialogues/1.json", "tasks/room_book/room_book.json", "apis/apis/room_book.json"],
        read_corpus("star"),
    ),
    (
        lambda folder: write_abcd(folder, name="abcd_v1.1.json").parent,
        ["abcd_v1.1.json", "guidelines.json", "ontology.json"],
        read_corpus("abcd"),
    ),
    (write_file("r.json", tau2_results()), [""], read_corpus("tau2")),
    (write_tau2_domain, ["tasks.json"], read_corpus("tau2")),
    (write_multiwoz_21, ["data.json"], read_corpus("multiwoz")),
    (write_file("dialogues_1.json", [multiwoz_dialogue(1, service_call=True)]), [""], read_corpus("multiwoz")),
    (write_file("z.json", ZENDESK), [""], lambda path: read_zendesk(path, HelpdeskOptions())),
    (
        write_file("c.json", {"conversations": [conversation(1)]}),
        [""],
        lambda path: read_intercom(path, HelpdeskOptions()),
    ),
    (write_file("t.json", [chat(n) for n in range(4)]), [""], propose),
]


@pytest.mark.parametrize(("write", "files", "read"), CASES)
def test_broken_copy_is_read_or_refused_in_one_line(
    tmp_path: Path, write: Callable[[Path], Path], files: list[str], read: Callable[[Path], Any]
) -> None:
    source = write(tmp_path)
    rng = random.Random(0)
    refusals: list[str] = []
    for file in files:
        path = source / file if file else source
        original = json.loads(path.read_text())
        for _ in range(DRAWS):
            write_json(path, broken(original, rng))
            try:
                read(source)
            except DataError as refused:
                refusals.append(str(refused))
        write_json(path, original)
    assert refusals and not any("\n" in refusal for refusal in refusals)
