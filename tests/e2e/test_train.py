"""The whole job with the tiny model: one run that is observed from outside, its folder and its ledger."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.finished import CHECKS
from tests.e2e.observed import KEYS, Observed, observe
from tests.integration.heads import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """It is finished: read its folder, change nothing there."""
    return observe(tmp_path_factory.mktemp("observed"))


@pytest.mark.parametrize("check", CHECKS)
def test_an_undisturbed_run_is_whole(observed: Observed, check: Callable[[Path], None]) -> None:
    check(observed.folder)


def test_its_secrets_are_in_no_file(observed: Observed) -> None:
    assert observed.asked_with == {f"Bearer {KEYS['JUDGE_API_KEY']}"}, "the key was there, and was used"
    files = {path.name for path in observed.folder.rglob("*")}
    assert {"config.yaml", "ledger.sqlite", "metrics.jsonl", "samples.jsonl", "report.html", "summary.json"} <= files
    assert any(name.endswith(".wandb") for name in files)
    assert "group: of-[redacted]" in (observed.folder / "config.yaml").read_text()
    assert observed.logs > 5, "the logs of Ray's processes were searched"
    assert observed.holders == []


def test_prometheus_is_told_all_that_the_dashboard_shows(observed: Observed) -> None:
    dashboard = json.loads((ROOT / "launch" / "grafana.json").read_text())
    wanted = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {re.match(r"ray_\w+", expression)[0] for expression in wanted}
    assert len(names) > 20
    assert names - observed.scraped.keys() == set()
    for expression in wanted:
        name, labels = re.fullmatch(r"(\w+)\{(.*)\}", expression).groups()
        fixed = [label for label in re.findall(r'\w+="[^"]*"', labels) if "$" not in label]
        assert any(all(label in seen for label in fixed) for seen in observed.scraped[name]), expression
    assert any('run="run"' in seen and 'stage="rl"' in seen for seen in observed.scraped["ray_hamr_timing_step_total"])
