"""`hamr calibrate items=`: recorded answers to rubric items become a cascade over items."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from hamr.apps.calibrate.items import ItemAnswers, read_items, response_figures
from hamr.calibration import fit as calibration
from hamr.calibration.cascade import Cascade, confidence
from hamr.calibration.fit import calibrate
from hamr.calibration.search import Effort
from hamr.cascade.rubric_cascade import items_value
from hamr.cli import main as hamr
from hamr.config.load import load_config
from hamr.errors import DataError
from hamr.telemetry.record_json import record_to_json
from hamr.types import ItemScore, Judgement, RewardRecord, SampleKey, Scored

WEIGHTS = (5.0, 3.0, -2.0)
FAST = ("folds=0", "resamples=0", "max_escalated_frac=0.35")


@pytest.fixture(autouse=True)
def little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "Effort", lambda: Effort(pairs=8, shares=4, climbs=1, steps=8))


def write(path: Path, judgements: Sequence[Judgement], run: str = "score") -> Path:
    records = [
        RewardRecord(
            key=SampleKey(run=run, step=1, prompt="p", sample=i),
            total=Scored(value=0.0),
            components=(),
            action=None,
            band="none",
            judgements=(Judgement(component="dialogue", grade=3), judgement),
        )
        for i, judgement in enumerate(judgements)
    ]
    path.write_text("".join(record_to_json(record) + "\n" for record in records))
    return path


def answers(n: int, seed: int = 0) -> list[tuple[Judgement, Judgement]]:
    """Reranker's and judge's answers to three items each, and the teacher's. The reranker is unsure of some."""
    rng, found = Random(seed), []
    for _ in range(n):
        truth = [rng.random() < 0.5 for _ in WEIGHTS]
        sure = [rng.random() < 0.75 for _ in WEIGHTS]
        s_r = [(0.1 + 0.8 * t if s else 0.5) + rng.uniform(-0.04, 0.04) for t, s in zip(truth, sure, strict=True)]
        scores = tuple(ItemScore(weight=w, s_r=r, s_j=float(t)) for w, r, t in zip(WEIGHTS, s_r, truth, strict=True))
        taught = tuple(zip(WEIGHTS, truth, strict=True))
        found.append((Judgement(component="rubric", item_scores=scores), Judgement(component="rubric", items=taught)))
    return found


def test_recorded_items_become_a_cascade_for_the_rubric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = answers(60)
    items = write(tmp_path / "records.jsonl", [own for own, _ in both])
    teacher = write(tmp_path / "teacher.jsonl", [taught for _, taught in both], run="other")
    out = tmp_path / "out"
    assert hamr(["calibrate", f"items={items}", f"teacher={teacher}", f"output={out}", *FAST]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "60 responses: rho of the rubric's value with the teacher is" in shown
    section = load_config(["rewards=calibrated"], out).rewards.rubric
    assert (section.reading, section.weight) == ("items", 1.0)
    figures = json.loads((out / "calibration.json").read_text())
    assert figures["cascade"] == section.cascade.model_dump()
    responses = figures["responses"]
    assert 0.0 < figures["escalated_frac"] <= 0.35
    assert responses["judge"] == pytest.approx(1.0), "it agrees with the teacher here"
    assert responses["reranker"] < responses["spearman"] <= 1.0
    # The values are those of a reward by this cascade.
    cascade = Cascade.from_config(section.cascade)
    read = read_items(items, teacher)
    fitted = [items_value(own.item_scores, cascade) for own, _ in both]
    by_columns = [cascade.mix(r, j, key=confidence(r)) for r, j in zip(read.s_r, read.s_j, strict=True)]
    assert read.rewards(by_columns).tolist() == pytest.approx(fitted)


def test_rho_of_one_response_is_none() -> None:
    n = 30
    rng = np.random.default_rng(0)
    s_r, s_j, y = rng.random(n), rng.random(n), rng.random(n)
    fit = calibrate(s_r, s_j, y)
    found = response_figures(ItemAnswers(s_r=s_r, s_j=s_j, y=y, weight=np.ones(n), response=np.zeros(n, int)), fit)
    assert (found["spearman"], found["responses"]) == (None, 1)
    json.dumps(found, allow_nan=False)


def test_responses_without_every_answer_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (whole, _), (other, _) = answers(2)
    partly = Judgement(component="rubric", item_scores=(ItemScore(weight=5.0, s_r=0.9), *other.item_scores[1:]))
    read = read_items(write(tmp_path / "records.jsonl", [partly, whole]), None)
    assert read.weight.tolist() == list(WEIGHTS)
    assert read.y.tolist() == read.s_j.tolist(), "without a teacher the target is the judge"
    assert "left out 1 of 2 responses" in capsys.readouterr().out


def test_records_without_a_reranker_are_refused(tmp_path: Path) -> None:
    _, taught = answers(1)[0]
    with pytest.raises(DataError, match=r"no response has the answers .*rewards\.rubric\.cascade=\{tau_a: 0\.5"):
        read_items(write(tmp_path / "records.jsonl", [taught]), None)


def test_file_of_something_else_is_refused_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"s_r": 0.5}\n')
    with pytest.raises(DataError, match=r"records\.jsonl:1: .* is not a record; give the output of hamr score"):
        read_items(path, None)
