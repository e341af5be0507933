"""Language rules: plain words, docstrings and test names that state the behaviour, verbs for functions, unique classes.

`python -m tests.unit.test_language [PATH ...]` lists what breaks the rules, by file and line.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hamr"
TESTS = ROOT / "tests"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *(path for folder in ("docs", "benchmarks", "launch") for path in sorted((ROOT / folder).rglob("*.md"))),
]

MOST_PER_1000 = 0.3
BANNED = re.compile(
    r"\b(?:whoever|whosoever|whatever it is|nobody|somebody|everybody|thereby|whereof|thereof|hitherto|amiss|in vain|"
    r"dearest|dearer|for ever|walks? away|walked away|stumbl\w+|mumbl\w+|is sick|given up|gives? up|heard|"
    r"stands beside|goes on|went on|go on|so many|so few|blotted|spared|be it|at times|luck|thrown away|what is left|"
    r"what there is|is no [a-z]+ but|as it were|of its own accord|speaks? up)\b",
    re.IGNORECASE,
)
"""Archaic or personifying words and turns. Quoted examples of customers' and agents' speech do not count."""
WH_OPENING = re.compile(r"^(?:What|Who|Whom|Whose|Whether|Where|When|Why|How|Which)\b")
UNCLEAR_SUBJECT = re.compile(
    r"test_(?:what|who|whom|whose|whether|where|when|why|how|which|whatever|whoever|i|it|its|they|them|their|those|these|"
    r"nobody|somebody|everybody|everything|something|one_that|one_whose|ones)(?:_|$)"
)
"""A test name that begins with a question word or a pronoun does not say what it tests."""
MOST_WORDS = 12
PARTICIPLES = frozenset(
    [
        "said",
        "told",
        "heard",
        "made",
        "given",
        "taken",
        "found",
        "kept",
        "left",
        "held",
        "known",
        "drawn",
        "met",
        "sent",
        "built",
        "shown",
        "spent",
        "spoken",
        "written",
        "chosen",
        "bound",
        "caught",
        "done",
        "fallen",
        "felt",
        "forgotten",
        "gone",
        "grown",
        "hidden",
        "laid",
        "lent",
        "lost",
        "meant",
        "paid",
        "seen",
        "sold",
        "stood",
        "swept",
        "taught",
        "thought",
        "thrown",
        "understood",
        "won",
        "worn",
        "wound",
        "learnt",
    ]
)
_QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"|'[^']{3,}'|^\s*>>>.*$|^\s*\|.*$|^    \S.*$", re.MULTILINE)


class Breach(NamedTuple):
    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.what}"


def files(paths: Iterable[Path] = (PACKAGE,)) -> list[Path]:
    return sorted(f for path in paths for f in ([path] if path.is_file() else path.rglob("*.py")))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings of modules, classes and functions, and the strings that describe fields and constants."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text


def words(text: str) -> int:
    return len(re.findall(r"\w+", text))


def banned(text: str) -> list[str]:
    return BANNED.findall(_QUOTED.sub(" ", text))


def openings(path: Path) -> Iterator[Breach]:
    for line, text in docstrings(ast.parse(path.read_text())):
        if WH_OPENING.match(text.strip()):
            yield Breach(path, line, f"docstring opens with a wh-clause: {text.strip().splitlines()[0]!r}")


def participles(path: Path) -> Iterator[Breach]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or "property" in map(
            _name, node.decorator_list
        ):
            continue
        name = node.name.strip("_")
        if not node.name.startswith("__") and "_" not in name and (name in PARTICIPLES or is_participle(name)):
            yield Breach(path, node.lineno, f"function named by a participle: {node.name}")


def unclear_test_names(path: Path) -> Iterator[Breach]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        if UNCLEAR_SUBJECT.match(node.name):
            yield Breach(path, node.lineno, f"test name without a subject: {node.name}")
        elif (count := node.name.count("_")) > MOST_WORDS:
            yield Breach(path, node.lineno, f"test name of {count} words, at most {MOST_WORDS}: {node.name}")


def is_participle(name: str) -> bool:
    return name.endswith("ed") and name not in ("seed", "feed", "need", "embed", "speed", "finished")


def _name(decorator: ast.expr) -> str:
    return getattr(decorator, "id", "") or getattr(decorator, "attr", "")


def test_docstrings_use_plain_words() -> None:
    texts = [text for path in files() for _, text in docstrings(ast.parse(path.read_text()))]
    found = [word for text in texts for word in banned(text)]
    assert 1000 * len(found) / sum(map(words, texts)) <= MOST_PER_1000, Counter(found).most_common(12)


def test_pages_use_plain_words() -> None:
    texts = [page.read_text() for page in PAGES]
    found = [word for text in texts for word in banned(text)]
    assert 1000 * len(found) / sum(map(words, texts)) <= MOST_PER_1000, Counter(found).most_common(12)


@pytest.mark.parametrize(
    ("rule", "folder"),
    [(openings, PACKAGE), (participles, PACKAGE), (openings, TESTS), (unclear_test_names, TESTS)],
)
def test_every_file_follows_the_rule(rule: object, folder: Path) -> None:
    assert callable(rule)
    assert [str(breach) for path in files((folder,)) for breach in rule(path)] == []


def test_no_two_public_classes_share_a_name() -> None:
    found = Counter(
        node.name
        for path in files()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, times in found.items() if times > 1] == []


def test_violations_are_detected(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text('def started():\n    """What nobody heard."""\n\n\ndef start():\n    """Start it."""\n')
    assert len(list(openings(module))) == len(list(participles(module))) == 1
    module.write_text(
        "def test_it_works(): ...\n\n\ndef test_a_b_c_d_e_f_g_h_i_j_k_l_m(): ...\n\n\ndef test_x_works(): ...\n"
    )
    assert [breach.line for breach in unclear_test_names(module)] == [1, 4]
    assert banned("What nobody heard.") == ["nobody", "heard"]
    assert banned('The customer says "nobody heard me".') == []


def main(arguments: list[str]) -> None:
    paths = [Path(a).resolve() for a in arguments] or [PACKAGE]
    for page in PAGES:
        if any(page.is_relative_to(path) for path in paths) and (found := banned(page.read_text())):
            print(Breach(page, 1, f"plain words: {', '.join(found)}"))
    for path in files(path for path in paths if path.suffix != ".md"):
        for line, text in docstrings(ast.parse(path.read_text())):
            if found := banned(text):
                print(Breach(path, line, f"plain words: {', '.join(found)}"))
        rules = (openings, unclear_test_names) if path.is_relative_to(TESTS) else (openings, participles)
        for breach in (breach for rule in rules for breach in rule(path)):
            print(breach)


if __name__ == "__main__":
    main(sys.argv[1:])
