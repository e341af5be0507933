"""Language rules: plain words, docstrings and test names that state the behaviour, verbs for functions, unique types.

Plain words are required of docstrings, comments and pages, and of the package's strings, which are its messages.

`python -m tests.unit.test_language [PATH ...]` lists what breaks the rules, by file and line.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hamr"
TESTS = ROOT / "tests"
BENCHMARKS = ROOT / "benchmarks"
CONF = ROOT / "conf"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *(path for folder in ("docs", "benchmarks", "launch") for path in sorted((ROOT / folder).rglob("*.md"))),
]

MOST_PER_1000 = 0.3
BANNED = re.compile(
    r"\b(?:whoever|whosoever|whatever it is|nobody|somebody|everybody|thereby|whereof|thereof|hitherto|amiss|in vain|"
    r"dearest|dearer|for ever|walks? away|walked away|stumbl\w+|mumbl\w+|is sick|given up|gives? up|heard|"
    r"stands beside|goes on|went on|go on|so many|so few|blotted|spared|be it|at times|luck|thrown away|what is left|"
    r"what there is|as it were|of its own accord|speaks? up|said|told|stands|beside|at once|"
    r"(?<!there )(?:is|are|was|were) no (?!longer|more|less|better|worse|faster|slower)[a-z]+)\b",
    re.IGNORECASE,
)
"""Archaic or personifying words and turns. Quoted examples of customers' and agents' speech do not count."""
WH_OPENING = re.compile(
    r"^(?:whether|(?:(?:Return|Yield|Record|Give|Print|Say)s? )?(?:what|who|whom|whose|where|when|why|how|which))\b",
    re.IGNORECASE,
)
SECTION = "# --- "
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
_QUOTED = re.compile(
    r"`[^`]*`|\"[^\"]*\"|(?<!\w)'[^']{3,}'(?!\w)|^\s*>>>.*$|^\s*\|.*$|(?<=\n\n)(?:    .*\n?)+", re.MULTILINE
)


class Breach(NamedTuple):
    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.what}"


def files(paths: Iterable[Path] = (PACKAGE,)) -> list[Path]:
    ending = {CONF: "*.yaml"}
    return sorted(f for path in paths for f in ([path] if path.is_file() else path.rglob(ending.get(path, "*.py"))))


@cache
def parse(source: str) -> ast.Module:
    return ast.parse(source)


def docstrings(path: Path) -> list[tuple[int, str]]:
    """Docstrings of modules, classes and functions, and the strings that describe fields and constants."""
    return [(node.lineno, inspect.cleandoc(node.value)) for node in _described(path.read_text())]


def comments(path: Path) -> list[tuple[int, str]]:
    source = path.read_text()
    return _comments(source) if path.suffix == ".py" else _yaml_comments(source)


def messages(path: Path) -> list[tuple[int, str]]:
    """Strings of several words other than docstrings, f-strings in pieces."""
    source = path.read_text()
    described = set(_described(source))
    constants = (n for n in ast.walk(parse(source)) if isinstance(n, ast.Constant) and n not in described)
    return [(n.lineno, n.value) for n in constants if isinstance(n.value, str) and " " in n.value]


@cache
def _described(source: str) -> list[ast.Constant]:
    bodies = (getattr(node, "body", None) for node in ast.walk(parse(source)))
    values = (s.value for body in bodies if isinstance(body, list) for s in body if isinstance(s, ast.Expr))
    return [value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


@cache
def _comments(source: str) -> list[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def _yaml_comments(source: str) -> list[tuple[int, str]]:
    found = (re.search(r"(?:^|\s)(#.*)", line) for line in source.splitlines())
    return [(number, match[1]) for number, match in enumerate(found, start=1) if match]


def words(text: str) -> int:
    return len(re.findall(r"\w+", text))


def banned(text: str) -> list[str]:
    return BANNED.findall(" ".join(_QUOTED.sub(" ", text).split()))


def openings(path: Path) -> Iterator[Breach]:
    for line, text in docstrings(path):
        if WH_OPENING.match(text.strip()):
            yield Breach(path, line, f"docstring opens with a wh-clause: {text.strip().splitlines()[0]!r}")
    for line, text in comments(path):
        if text.startswith(SECTION) and WH_OPENING.match(text.removeprefix(SECTION)):
            yield Breach(path, line, f"section named by a wh-clause: {text.strip('# -')!r}")


def participles(path: Path) -> Iterator[Breach]:
    for node in ast.walk(parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            name = node.name.strip("_")
            if name in PARTICIPLES or ("_" not in name and is_participle(name)):
                yield Breach(path, node.lineno, f"function named by a participle: {node.name}")


def speech_variables(path: Path) -> Iterator[Breach]:
    for node in ast.walk(parse(path.read_text())):
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            name = node.arg if isinstance(node, ast.arg) else node.id
            if name in ("said", "told", "heard"):
                yield Breach(path, node.lineno, f"variable named {name}: name its content")


def unclear_test_names(path: Path) -> Iterator[Breach]:
    for node in ast.walk(parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        if UNCLEAR_SUBJECT.match(node.name):
            yield Breach(path, node.lineno, f"test name without a subject: {node.name}")
        elif (count := node.name.count("_")) > MOST_WORDS:
            yield Breach(path, node.lineno, f"test name of {count} words, at most {MOST_WORDS}: {node.name}")


def is_participle(name: str) -> bool:
    return name.endswith("ed") and name not in ("seed", "feed", "need", "embed", "speed")


Texts = Callable[[Path], list[tuple[int, str]]]
TEXTS: list[tuple[Texts, Path]] = [
    *((texts, folder) for texts in (docstrings, comments) for folder in (PACKAGE, TESTS, BENCHMARKS)),
    (messages, PACKAGE),
    (comments, CONF),
]
RULES: list[tuple[Callable[[Path], Iterator[Breach]], Path]] = [
    *((openings, folder) for folder in (PACKAGE, TESTS, BENCHMARKS)),
    (participles, PACKAGE),
    (speech_variables, PACKAGE),
    (unclear_test_names, TESTS),
]


@pytest.mark.parametrize(("texts", "folder"), TEXTS)
def test_texts_use_plain_words(texts: Texts, folder: Path) -> None:
    read = [text for path in files((folder,)) for _, text in texts(path)]
    found = [word for text in read for word in banned(text)]
    assert 1000 * len(found) / sum(map(words, read)) <= MOST_PER_1000, Counter(found).most_common(12)


def test_pages_use_plain_words() -> None:
    texts = [page.read_text() for page in PAGES]
    found = [word for text in texts for word in banned(text)]
    assert 1000 * len(found) / sum(map(words, texts)) <= MOST_PER_1000, Counter(found).most_common(12)


@pytest.mark.parametrize(("rule", "folder"), RULES)
def test_every_file_follows_the_rule(rule: Callable[[Path], Iterator[Breach]], folder: Path) -> None:
    assert [str(breach) for path in files((folder,)) for breach in rule(path)] == []


def public_types(tree: ast.Module) -> Iterator[str]:
    """Names of public classes and type aliases. A type variable belongs to its module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
    for statement in tree.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign) and getattr(getattr(statement.value, "func", None), "id", "") != "TypeVar":
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        yield from (t.id for t in targets if isinstance(t, ast.Name) and re.match(r"[A-Z]\w*[a-z]", t.id))


def test_no_two_public_types_share_a_name() -> None:
    found = Counter(name for path in files() for name in public_types(parse(path.read_text())))
    assert [name for name, times in found.items() if times > 1] == []


def test_classes_and_type_aliases_are_public_types() -> None:
    source = (
        "class A: ...\nclass _B: ...\nRow = dict[str, int]\nLIMIT = 1\nWork = TypeVar('Work')\nText: TypeAlias = str\n"
    )
    assert list(public_types(parse(source))) == ["A", "Row", "Text"]


def test_violations_are_detected(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text(
        '@property\ndef finished():\n    """What nobody heard."""\n\n\ndef start():\n    """Start it."""\n'
    )
    assert len(list(openings(module))) == len(list(participles(module))) == 1
    module.write_text("def start(said):\n    told = 1\n    answer = said\n")
    assert [breach.line for breach in speech_variables(module)] == [1, 2]
    module.write_text('def start():\n    """Return how it ends."""\n\n\n# --- what follows ---\n')
    assert [breach.line for breach in openings(module)] == [2, 5]
    module.write_text(
        "def test_it_works(): ...\n\n\ndef test_a_b_c_d_e_f_g_h_i_j_k_l_m(): ...\n\n\ndef test_x_works(): ...\n"
    )
    assert [breach.line for breach in unclear_test_names(module)] == [1, 4]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("What nobody heard.", ["nobody", "heard"]),
        ("The run\n    goes on at once.", ["goes on", "at once"]),
        ("It is no list, but there is no other.", ["is no list"]),
        ('The customer says "nobody heard me".', []),
        ("Usage:\n\n    hamr said\n", []),
        ("Args:\n    text: As the pool said.", ["said"]),
    ],
)
def test_banned_words_are_found_in_prose(text: str, found: list[str]) -> None:
    assert banned(text) == found


def test_texts_of_a_file_are_found_by_kind(tmp_path: Path) -> None:
    module, config = tmp_path / "m.py", tmp_path / "c.yaml"
    module.write_text('"""The module."""\n\nX = f"the {1} run"  # a comment\n')
    config.write_text("x: a#b  # a comment\n")
    assert [text for _, text in docstrings(module)] == ["The module."]
    assert [text for _, text in messages(module)] == ["the ", " run"]
    assert [text for file in (module, config) for _, text in comments(file)] == ["# a comment"] * 2


def main(arguments: list[str]) -> None:
    paths = [Path(a).resolve() for a in arguments] or [PACKAGE]
    for page in PAGES:
        if any(page.is_relative_to(path) for path in paths) and (found := banned(page.read_text())):
            print(Breach(page, 1, f"plain words: {', '.join(found)}"))
    for path in files(path for path in paths if path.suffix != ".md"):
        for texts, _ in (row for row in TEXTS if path.is_relative_to(row[1])):
            for line, text in texts(path):
                if found := banned(text):
                    print(Breach(path, line, f"plain words: {', '.join(found)}"))
        for rule, _ in (row for row in RULES if path.is_relative_to(row[1])):
            for breach in rule(path):
                print(breach)


if __name__ == "__main__":
    main(sys.argv[1:])
