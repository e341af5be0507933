"""The run that several files look at. It is finished: read its folder, change nothing there."""

from __future__ import annotations

import pytest

from tests.e2e.observed import Observed, observe


@pytest.fixture(scope="session")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return observe(tmp_path_factory.mktemp("observed"))
