"""Invalid scenario files are rejected with the line; a new scenario needs only a new file."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hamr.config.resources import resource
from hamr.errors import BadInput
from hamr.procedures import load_scenario, scenario_names
from hamr.procedures.prompts import service_prompt

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def text_of(name):
    return resource("conf", f"scenarios/{name}.yaml").read_text(encoding="utf-8")


MINE = """\
name: mine
code: MI
title: Lost keys
description: Finds keys.
start: begin
fields:
  Found: {type: boolean, description: whether it was found, options: {true: found it, false: still looks for it}}
system:
  Room: {type: enum, description: where, options: {Hall: the hall, Attic: the attic}}
actions:
  Thank: {description: Say thank you., reply: true}
  Search: {description: Send somebody to look.}
stages:
  begin: {title: classify, next: ask}
  ask:
    title: was it found
    reads: Found
    branches:
      - {values: [true], to: Thank}
      - {values: [false], to: look}
  look:
    title: where
    reads: Room
    branches:
      - {values: [Hall, Attic], to: Search}
coverage: {crossed: [Found], filled: {}}
intents:
  keys: {description: You lost your keys., pins: {}}
personas:
  somebody: {description: An ordinary person.}
adversity: {zero: You are kind.}
"""
OTHER = "{description: Another action.}"
GROUPED = "{description: Another action., group: plan, option: A}"
ALL_REFUSED = "{when: {Room: {values: [Hall, Attic]}}, why: small}"
FIELD = (
    "  Found: {type: boolean, description: whether it was found, options: {true: found it, false: still looks for it}}"
)


def broken(tmp_path, old, new, text=MINE):
    assert text.count(old) >= 1
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


def test_new_scenario_needs_only_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(MINE)
    scenario = load_scenario(str(path))
    assert scenario.reference({"Found": False}, {"Room": "Attic"}) == (["begin", "ask", "look"], "Search")
    assert [dict(state) for state in scenario.file.system_states] == [{"Room": "Hall"}, {"Room": "Attic"}]
    assert scenario.file.title.of("zh") == "Lost keys"
    assert load_scenario(path).name == "mine"


@pytest.mark.parametrize("name", scenario_names())
def test_shipped_file_can_be_loaded_by_path(name, tmp_path):
    assert load_scenario(resource("conf", f"scenarios/{name}.yaml")).paths() == load_scenario(name).paths()
    path = tmp_path / "copy.yaml"
    path.write_text(text_of(name).replace(f"name: {name}\n", "name: mine\n"), encoding="utf-8")
    assert load_scenario(path).paths() == load_scenario(name).paths()


def test_copy_with_the_name_of_a_shipped_procedure_is_rejected(tmp_path):
    path = broken(tmp_path, "name: mine", "name: telecom_package")
    with pytest.raises(BadInput) as caught:
        load_scenario(path)
    assert str(caught.value) == f"{path}:1: name: 'telecom_package': is a shipped procedure; choose another name"


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        # the graph
        ("      - {values: [false], to: look}", "      - {values: [false], to: Thank}", 21, "unreachable: no"),
        ("      - {values: [true], to: Thank}\n", "", 18, "Found=True fires no branch"),
        ("{values: [false], to: look}", "{values: [false, true], to: look}", 18, "Found=True fires 2 branches"),
        ("  Search: {", "  Shout: {description: Shout.}\n  Search: {", 12, "never used"),
        ("to: Search}", "to: ask}", 15, "loop"),
        ("to: Thank}", "to: Thanks}", 19, "did you mean 'Thank'"),
        ("next: ask", "next: aks", 14, "did you mean 'ask'"),
        ("reads: Room", "reads: Roon", 23, "is not a variable; did you mean 'Room'"),
        ("values: [Hall, Attic]", "values: [Hall, Attik]", 25, "allowed: ['Hall', 'Attic']"),
        ("values: [Hall, Attic]", "above: 3", 25, "not a number"),
        ("start: begin", "start: began", 5, "did you mean 'begin'"),
        # names
        ("  Search: {", "  ask: {", 12, "already used in"),
        ("  Room: {type: enum", "  Found: {type: enum", 9, "already used in fields"),
        # tools
        ("  Search: {", f"  Go_On: {OTHER}\n  GoOn: {OTHER}\n  Search: {{", 13, "shares the tool 'go_on' with Go_On;"),
        ("  Search: {", f"  寻找: {OTHER}\n  Search: {{", 12, "a letter from a to z or a digit"),
        ("  Search: {", f"  A: {GROUPED}\n  B: {GROUPED}\n  Search: {{", 13, "'plan' and its option 'A' with A;"),
        ("  Search: {", f"  Plan: {OTHER}\n  A: {GROUPED}\n  Search: {{", 13, "shares the tool 'plan' with Plan;"),
        ("  Search: {", f"  A: {GROUPED}\n  Plan: {OTHER}\n  Search: {{", 13, "shares the tool 'plan' with A;"),
        ("coverage: {crossed: [Found]", "coverage: {crossed: []", 26, "name every field"),
        ("pins: {}", "pins: {Fond: true}", 28, "did you mean 'Found'"),
        ("pins: {}", "pins: {Found: 1}", 28, "allowed: [True, False]"),
        ("pins: {}", "pins: {Found: true}", 27, "no intent allows"),
        # the form
        ("    title: where\n", "    titel: where\n", 22, "did you mean 'title'"),
        ("code: MI\n", "code: MI\ncolour: red\n", 3, "unknown key"),
        ("code: MI\n", "", 1, "missing; add it"),
        ("title: Lost keys", "title: {en: Lost keys}", 3, "missing; add it"),
        ("type: boolean", "type: bool", 7, "'enum', 'boolean' or 'integer'"),
        ("{type: boolean,", "{type: enum,", 7, "true and false are the options"),
        ("type: enum, description: where", "type: integer, minimum: 0, description: where", 9, "has no options"),
        ("    reads: Room\n", "", 21, "a stage needs either next"),
        ("code: MI\n", "code: MI\ncode: MI\n", 3, "first on line 2"),
        ("code: MI\n", "code: [MI\n", 3, "not YAML"),
        # system states, refusals, formulas
        ("coverage:", "system_states: [{Room: Cellar}]\ncoverage:", 26, "allowed: ['Hall', 'Attic']"),
        ("coverage:", "system_states: [{}]\ncoverage:", 26, "is missing"),
        ("coverage:", "system_states: []\ncoverage:", 26, "system_states: []: no state is left"),
        ("coverage:", f"refused: [{ALL_REFUSED}]\ncoverage:", 26, "refused: ['small']: no state is left"),
        ("coverage:", "refused: [{when: {Rom: {values: [Hall]}}, why: small}]\ncoverage:", 26, "did you mean 'Room'"),
        ("coverage:", "formulas: {F: {description: f, cases: [{value: Money * 2}]}}\ncoverage:", 26, "can read"),
        ("coverage:", "formulas: {F: {description: f, cases: [{value: 2 ** 9}]}}\ncoverage:", 26, "not allowed"),
        ("coverage:", "facts: {Money: {description: m, low: 3, high: 1}}\ncoverage:", 26, "low must be at most high"),
        ("to look.}", "to look., amount: Fee}", 12, "is not a formula"),
        ("coverage:", "fitting_levels: {Fond: {true: [zero]}}\ncoverage:", 26, "did you mean 'Found'"),
        ("coverage:", "fitting_levels: {Found: {1: [zero]}}\ncoverage:", 26, "allowed: [True, False]"),
        ("coverage:", "fitting_levels: {Found: {true: [zer]}}\ncoverage:", 26, "did you mean 'zero'"),
        ("coverage:", "fitting_levels: {Found: {true: []}}\ncoverage:", 26, "{'Found': True}: no level fits"),
        ("coverage:", "metrics: {logic: 0.9}\ncoverage:", 26, "sum to 1"),
    ],
)  # fmt: skip
def test_invalid_file_is_rejected_with_its_line(tmp_path, old, new, line, said):
    path = broken(tmp_path, old, new)
    with pytest.raises(BadInput) as caught:
        load_scenario(path)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}")
    assert "\n" not in str(caught.value)


def test_integer_field_is_rejected(tmp_path):
    text = MINE.replace("values: [true]", "values: [0]").replace("values: [false]", "above: 0")
    path = broken(tmp_path, FIELD, "  Found: {type: integer, minimum: 0, description: how many were found}", text)
    with pytest.raises(BadInput, match=r"yaml:7: fields\.Found\.type: 'integer': a field has options"):
        load_scenario(path)


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ("[{value: 9 / Days}]", "0.value: '9 / Days': divides by zero with {'Days': 0}"),
        ("[{value: Days / (Total - Days)}]", "0.value: 'Days / (Total - Days)': divides by zero with {'Days': 3,"),
        ("[{value: Days / (Stock - 300)}]", "divides by zero with {'Stock': 300}"),
        ("[{value: Days / Stock}]", None),
        ("[{when: {Room: {values: [Attic]}}, value: 9}, {value: 9 / Days}]", "1.value: '9 / Days': divides by zero"),
        ("[{when: {Days: {values: [0]}}, value: 0}, {value: 9 / Days}]", None),
        ("[{when: {Days: {above: 0}}, value: 9 / Days}, {value: 0}]", None),
        (
            "[{when: {Stock: {above: 250}}, value: 9 / (Stock - 251)}, {value: 0}]",
            "divides by zero with {'Stock': 251}",
        ),
        ("[{value: 'Days / max(1, Days)'}]", None),
    ],
)
def test_formula_that_can_divide_by_zero_is_rejected(tmp_path, cases, said):
    facts = "facts: {Days: {description: d, low: 0, high: 3}, Total: {description: t, one_of: [3, 5]}, "
    facts += "Stock: {description: s, low: 1, high: 300}}"
    path = broken(tmp_path, "coverage:", f"{facts}\nformulas:\n  Fee: {{description: f, cases: {cases}}}\ncoverage:")
    if said is None:
        assert load_scenario(path).file.formulas["Fee"]
        return
    with pytest.raises(BadInput) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{path}:28: formulas.Fee.cases.")
    assert said in str(caught.value)


def test_levels_that_contradict_each_other_are_rejected(tmp_path):
    levels = "fitting_levels:\n  Found: {false: [zero]}\n  Sad: {true: [strong]}\n"
    second = (
        "  look:\n    title: mood\n    reads: Sad\n    branches:\n      - {values: [true, false], to: room}\n  room:"
    )
    text = MINE.replace("  look:", second).replace("You are kind.", "You are kind., strong: You shout.")
    text = text.replace(FIELD, f"{FIELD}\n{FIELD.replace('Found', 'Sad')}").replace("filled: {}", "filled: {Sad: true}")
    path = broken(tmp_path, "coverage:", f"{levels}coverage:", text)
    with pytest.raises(BadInput, match=r"yaml:32: fitting_levels: {'Found': False, 'Sad': True}: no level fits"):
        load_scenario(path)


def test_stage_behind_contradictory_conditions_is_unreachable(tmp_path):
    twice = "  look:\n    title: again\n    reads: Found\n    branches:\n      - {values: [false], to: Search}\n"
    twice += "      - {values: [true], to: dead}\n  dead: {title: dead, next: Search}\n"
    start = MINE.index("  look:")
    text = MINE[:start] + twice + MINE[MINE.index("coverage:") :]
    with pytest.raises(BadInput, match="no setting of the variables leads to it"):
        load_scenario(broken(tmp_path, "MI", "MJ", text))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("telecom_packages", "did you mean 'telecom_package'"),
        ("nothing at all", "known: airline_refund"),
        ("./no_such.yaml", "no such file"),
    ],
)
def test_unknown_scenario_suggests_the_nearest_name(name, said):
    with pytest.raises(BadInput, match=said):
        load_scenario(name)


JUNK = [
    None,
    True,
    0,
    -3,
    10**30,
    1.5,
    "",
    "x",
    "stage3",
    [],
    {},
    [1],
    {"a": 1},
    "Penalty",
    {"en": "a", "zh": "b"},
    "1/0",
]


@pytest.mark.slow
@given(st.data())
def test_mutated_file_loads_or_is_rejected_in_one_line(tmp_path_factory, data):
    """One part of a shipped scenario is removed or replaced; a file that still loads can be rendered and walked."""
    raw = {**yaml.load(text_of(data.draw(st.sampled_from(scenario_names()))), Loader=LOADER), "name": "mine"}
    here, key = data.draw(st.sampled_from(list(parts(raw))))
    if data.draw(st.booleans()):
        del here[key]
    else:
        here[key] = data.draw(st.sampled_from(JUNK))
    path = tmp_path_factory.mktemp("junk") / "mine.yaml"
    path.write_text(yaml.dump(raw, allow_unicode=True), encoding="utf-8")
    scenario, said = loaded(path)
    if scenario is None:
        assert said.startswith(f"{path}:")
        assert "\n" not in said
        return
    case = scenario.cases()[0]
    ticket = scenario.furnish(case.system, seed=1)
    assert service_prompt(scenario, ticket, language="zh")
    assert all(scenario.amount(formula, ticket) is not None for formula in scenario.file.formulas)


def loaded(path):
    try:
        return load_scenario(path), ""
    except BadInput as error:
        return None, str(error)


def parts(node):
    for key, value in list(node.items()) if isinstance(node, dict) else list(enumerate(node)):
        yield node, key
        if isinstance(value, dict | list):
            yield from parts(value)


@pytest.mark.parametrize("content", [b"", b"- a\n", b"\xff\xfe", b"name: [\n", b"a: &a [*a]\n"])
def test_non_scenario_file_is_rejected_in_one_line(tmp_path, content):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        load_scenario(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
