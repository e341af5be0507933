"""README.md and docs/: links lead somewhere, and what they name exists."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest

from hamr import cli
from hamr.config.explain import known_keys
from hamr.config.schema import Config

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "benchmarks" / "README.md", *DOCS]
POOL = {"judge": {}}
SECTIONS = (
    "rewards",
    "router",
    "pools",
    "rollout",
    "trainer",
    "algorithm",
    "experiment",
    "cluster",
    "logging",
    "serve",
)


def names(pages: list[Path]) -> list[str]:
    return [page.relative_to(ROOT).as_posix() for page in pages]


def links(page: Path) -> list[str]:
    """Targets of the page's links to files of the repository."""
    return [t for t in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if "://" not in t]


def anchors(page: Path) -> set[str]:
    """What GitHub calls a page's headings: lower case, letters, digits, _ and - kept, blanks to dashes."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    kept = (
        "".join(c for c in h.lower() if c in " -_" or unicodedata.category(c)[0] in "LN").replace(" ", "-")
        for h in found
    )
    return set(kept)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in links(page):
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not heading or heading in anchors(file), target


@pytest.mark.parametrize("page", DOCS, ids=names(DOCS))
def test_every_page_of_docs_and_the_readme_lead_to_each_other(page: Path) -> None:
    assert f"docs/{page.name}" in links(ROOT / "README.md")
    assert any(target.startswith("../README.md") for target in links(page))


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_commands_exist(page: Path) -> None:
    named = set(re.findall(r"(?:^ *|`)hamr ([a-z]+)", page.read_text(), re.MULTILINE))
    assert named <= set(cli.JOBS), named - set(cli.JOBS)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:hamr|conf|tests|benchmarks|examples|prompts|launch|scripts)/[\w./]+)`", page.read_text())
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_configuration_keys_that_are_named_exist(page: Path) -> None:
    known = set(known_keys(Config, {"pools": POOL}))
    text = re.sub(r"(?<=pools\.)(?:<\w+>|\w+)", "judge", page.read_text())
    named = re.findall(rf"(?:`|^hamr .* | )((?:{'|'.join(SECTIONS)})\.[a-z_.]+[a-z_])(?==|`)", text, re.MULTILINE)
    missing = [key for key in named if key not in known]
    assert not missing
