"""The README and the pages of docs/: links, commands, files and keys exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import unicodedata
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from hamr import cli
from hamr.apps import jobs
from hamr.config.explain import known_keys
from hamr.config.schema import Config
from tests.docs_pages import PAGES as DOCS
from tests.docs_pages import ROOT

OTHERS = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", "benchmarks/NOTES.md"]
PAGES = [*(ROOT / name for name in OTHERS), *DOCS]
SECTIONS = "rewards|router|pools|rollout|trainer|algorithm|experiment|cluster|logging|serve|scorers"
FOLDERS = "hamr|conf|tests|benchmarks|examples|prompts|launch|scripts|docs"


@cache
def site() -> ModuleType:
    """scripts/docs_site.py, which makes the generated parts of the pages."""
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(pages: list[Path]) -> list[str]:
    return [page.relative_to(ROOT).as_posix() for page in pages]


@cache
def text_of(page: Path) -> str:
    """Return a page as the site shows it, with its generated parts."""
    return site().expand(page.read_text(), page)


def links(page: Path) -> list[str]:
    """Return the targets of the page's links to files of the repository."""
    return [t for t in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in t]


@cache
def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings: lower case, letters, digits, _ and - kept, blanks to dashes."""
    found = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    kept = (
        "".join(c for c in h.lower() if c in " -_" or unicodedata.category(c)[0] in "LN").replace(" ", "-")
        for h in found
    )
    return set(kept)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_point_to_existing_files_and_headings(page: Path) -> None:
    for target in links(page):
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not heading or heading in anchors(file), target


def test_every_page_is_in_the_navigation() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(re.findall(r"[\w/-]+\.md", str(nav))) == sorted(p.relative_to(ROOT / "docs").as_posix() for p in DOCS)


def test_generated_pages_list_every_command_key_and_metric() -> None:
    from hamr.telemetry.glossary import METRICS

    reference = ROOT / "docs" / "reference"
    assert all(f"\n## hamr {job}\n" in text_of(reference / "commands.md") for job in jobs.names())
    shown = re.findall(r"^\| `([\w.<>]+)` \|", text_of(reference / "configuration.md"), re.MULTILINE)
    keys = set(known_keys(Config, {"pools": {"<name>": {}}}))
    assert keys - {key.rpartition(".")[0] for key in keys} <= set(shown)
    assert len(shown) == len(set(shown))
    assert all(f"| `{metric.pattern}` |" in text_of(reference / "metrics.md") for metric in METRICS)


def test_links_of_included_files_are_valid_on_the_site() -> None:
    method = text_of(ROOT / "docs" / "results" / "method.md")
    assert "](../how-to/data.md#recipes)" in method
    assert "](../docs/" not in method


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_documented_commands_exist(page: Path) -> None:
    named = set(re.findall(r"(?:^ *|`)hamr ([a-z]+)", page.read_text(), re.MULTILINE))
    assert named <= set(cli.JOBS), named - set(cli.JOBS)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_documented_files_exist(page: Path) -> None:
    named = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", page.read_text())
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_documented_configuration_keys_exist(page: Path) -> None:
    own = {"pools": {"mine": {}}, "rewards": {"custom": {"mine": {}}, "judged": {"mine": {}}}}
    known = set(known_keys(Config, own))
    text = re.sub(r"((?:pools|rewards\.(?:custom|judged))\.)(?:<\w+>|\w+)", r"\1mine", page.read_text())
    named = re.findall(rf"(?:`|^hamr .* | )((?:{SECTIONS})\.[a-z_.]+[a-z_])(?==|`)", text, re.MULTILINE)
    missing = [key for key in named if key not in known]
    assert not missing


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "images").iterdir()), ids=lambda path: path.name)
def test_pictures_match_the_stored_results(picture: Path, tmp_path: Path) -> None:
    from benchmarks.learning_curve import draw_picture

    draw_picture(picture.stem, tmp_path)
    assert (tmp_path / picture.name).read_text() == picture.read_text()


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    """Broken links, missing pages and unknown names are errors (`strict`). No page loads anything from elsewhere."""
    pytest.importorskip("material", reason="make docs installs the documentation's packages")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    elsewhere = re.compile(r"<(?:(?:script|img|iframe)[^>]+src|link[^>]+stylesheet[^>]+href)=\"(?:https?:)?//")
    for page in tmp_path.rglob("*.html"):
        assert not elsewhere.search(page.read_text()), page


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "examples" / "trl_grpo.py", ROOT / "hamr" / "adapters" / "__init__.py"]
)
def test_no_page_installs_hamr_by_an_unpublished_name(page: Path) -> None:
    assert not re.findall(r"pip install [^`\n]*(?<![\w./-])hamr(?![\w./-])[^`\n]*", text_of(page))
