"""Messages about number formats at the start of a run."""

from __future__ import annotations

from hamr import hardware
from hamr.config.load import load_config
from hamr.models import precision


def test_forced_bfloat16_that_is_slower_warns_once(monkeypatch):
    monkeypatch.setattr(hardware, "cpu_prefers_bfloat16", lambda: False)
    monkeypatch.setattr(precision, "cpu_prefers_bfloat16", lambda: False)
    monkeypatch.setattr(precision, "measure_gflops", lambda: {"float32": 74.0, "bfloat16": 0.85})
    config = load_config(["experiment=quickstart", "trainer.dtype=bfloat16"])
    notes = precision.precision_notes(precision.computations(config))
    assert notes[0] == "dtype: model float32, trainer bfloat16, pools.reranker float32, pools.judge float32"
    (warning,) = notes[1:]
    assert "87.1 times slower" in warning and warning.endswith("for trainer")


def test_faster_bfloat16_needs_no_warning(monkeypatch):
    monkeypatch.setattr(hardware, "cpu_prefers_bfloat16", lambda: True)
    monkeypatch.setattr(precision, "cpu_prefers_bfloat16", lambda: True)
    assert len(precision.precision_notes(precision.computations(load_config(["experiment=quickstart"])))) == 1


def test_both_formats_are_measured():
    speed = precision.measure_gflops(seconds=0.0)
    assert set(speed) == {"float32", "bfloat16"} and min(speed.values()) > 0
