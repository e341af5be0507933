"""Pages for the browser tests: a run's report, a SAGE report and the built site, in the distribution's Chromium."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="make test-browser installs it")

from playwright.sync_api import Browser, sync_playwright

from hamr.apps.report.report import write_report
from hamr.cli import main
from tests.unit.telemetry.synthetic import make_run

ROOT = Path(__file__).parents[2]
SITE_PAGES = ("index.html", "get-started.html", "concepts/architecture.html", "tutorials/index.html")


@pytest.fixture(scope="session")
def browser(urls: dict[str, str]) -> Iterator[Browser]:
    """Chromium. It starts after the pages are made: Playwright's event loop would keep commands from running theirs."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail("no chromium on the PATH; install it: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Name of a page -> its address."""
    folder = tmp_path_factory.mktemp("pages")
    run = write_report(make_run(folder / "run").path)
    options = {
        "benchmark": "sage",
        "scenario": "telecom_package,airline_refund",
        "agent": "scripted:perfect,scripted:wrong_action,scripted:chatty",
        "judges": "scripted:gold,scripted:strict,scripted:contrary",
        "simulator": "scripted:patient",
        "per_path": "1",
        "cover": "routes",
        "limit": "4",
        "resamples": "20",
        "output": str(folder / "sage"),
    }
    assert main(["evaluate", *(f"{key}={value}" for key, value in options.items())]) == 0
    site = ROOT / "site"
    if not (site / "index.html").is_file():
        pytest.fail("no site/index.html; build it: make docs")
    handler = functools.partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        yield {
            "run": run.as_uri(),
            "sage": (folder / "sage" / "report.html").as_uri(),
            "transcripts": (folder / "sage" / "transcripts.html").as_uri(),
            **{name: f"{address}/{name}" for name in SITE_PAGES},
        }
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass
