import pytest

from hamr.telemetry.glossary import STRICT_ENV


@pytest.fixture(autouse=True)
def strict_metric_names(monkeypatch):
    monkeypatch.setenv(STRICT_ENV, "1")
