"""A report that reloads itself during its run."""

from __future__ import annotations

import time
from pathlib import Path

from hamr.apps.report.live import end_reload, live_report
from hamr.apps.report.report import write_report
from hamr.config.load import dump_config, load_config
from hamr.report.html import RELOAD
from hamr.telemetry.run_folder import RunFolder


def wait_for(report: Path, text: str) -> str:
    deadline = time.monotonic() + 60
    while not (report.is_file() and text in report.read_text()):
        assert time.monotonic() < deadline, f"no {text!r} in {report}"
        time.sleep(0.1)
    return report.read_text()


def test_page_exists_before_the_first_step_and_stops_reloading(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", dump_config(load_config(["experiment=smoke"]))) as folder:
        with live_report(folder):
            page = wait_for(folder.report, RELOAD)
            assert "0 RL steps recorded" in page
        left = folder.report.read_text()
        assert RELOAD not in left and left == page.replace(RELOAD, "")


def test_only_a_live_page_reloads(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", dump_config(load_config(["experiment=smoke"]))) as folder:
        assert RELOAD in write_report(folder.path, live=True).read_text()
        assert not list(folder.plots.glob("*.png"))
        assert RELOAD not in write_report(folder.path).read_text()
        end_reload(tmp_path / "nowhere.html")
