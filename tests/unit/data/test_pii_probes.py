"""Recall of private values and false alarms on ordinary sentences."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.pii import RESULTS, figures
from hamr.data.pii import Aliases, find_pii
from tests.pii_probes import LANGUAGES, THE_36, Probe, is_hidden, ordinary, probes


def _is_found(probe: Probe) -> bool:
    return is_hidden(probe, [(found.start, found.end) for found in find_pii(probe.text)])


@pytest.mark.parametrize("probe", THE_36, ids=lambda probe: f"{probe.kind}-{probe.value}")
def test_each_of_36_forms_is_hidden(probe: Probe) -> None:
    aliases = Aliases()
    aliases.learn(probe.text)
    assert probe.value not in aliases.hide(probe.text)
    assert _is_found(probe)


@pytest.mark.parametrize("seed", [0, 1])
def test_95_percent_of_generated_values_are_hidden_in_every_language(seed: int) -> None:
    made = probes(500, seed)
    missed = [probe for probe in made if not _is_found(probe)]
    for language in LANGUAGES:
        share = sum(p.language == language for p in missed) / sum(p.language == language for p in made)
        assert share <= 0.05, [(p.kind, p.text) for p in missed if p.language == language]


@pytest.mark.parametrize("seed", [0, 1])
def test_2_percent_of_ordinary_sentences_are_false_alarms_at_most(seed: int) -> None:
    found = [(text, find_pii(text)) for _, text in ordinary(500, seed)]
    assert sum(bool(values) for _, values in found) <= 10, [(text, values) for text, values in found if values]


def test_probes_are_the_same_in_every_process() -> None:
    code = "from tests.pii_probes import probes; print(probes(8, 3)[7].text)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == probes(8, 3)[7].text


def test_a_half_hidden_value_is_missed() -> None:
    probe = Probe(kind="card", language="en", text="card 4111 1111 now", value="4111 1111")
    assert is_hidden(probe, [(5, 9), (10, 14)])
    assert not is_hidden(probe, [(5, 13)])


def test_the_published_figures_come_from_this_code() -> None:
    assert figures() == json.loads(RESULTS.read_text(encoding="utf-8"))
