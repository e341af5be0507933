"""Prompts of agent, customer and judge: golden renderings, and the parts of a scenario that they must contain."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from hamr.errors import BadInput, ConfigError
from hamr.procedures import load_scenario, scenario_names
from hamr.procedures import prompts as texts
from hamr.procedures.contract import KEYS
from hamr.procedures.prompts import Phrases, TextPrompt

GOLDEN = Path(__file__).parent / "golden"
LANGUAGES = ("en", "zh")
FIELDS = {"ConsumptionType": "Enquiry", "ApplicationTendency": "Reject", "ConsumptionProfile": "Voice"}

FIELDS_UNREAD = {"ApplicationTendency": "Agree", "ConsumptionProfile": "Voice", "EmotionTag": "Calm"}


def render(kind, name, language):
    scenario = load_scenario(name)
    system = scenario.furnish(scenario.file.system_states[-1], seed=0)
    if kind == "service":
        return texts.service_prompt(scenario, system, language=language)
    if kind == "judge":
        return texts.judge_prompt(scenario, language=language)
    if kind == "policy":
        return texts.policy_text(scenario, language=language)
    if kind == "sop":
        return texts.sop_text(scenario, language=language)
    return texts.user_prompt(
        scenario,
        intent="advice",
        persona="pensioner",
        level="weak",
        fields=FIELDS,
        system=system,
        language=language,
    )


RENDERED = [(kind, "telecom_package") for kind in ("service", "user", "judge")] + [("policy", "online_education")]
RENDERED += [("sop", name) for name in scenario_names()]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("kind", "name"), RENDERED)
def test_rendering_matches_the_golden_file(kind, name, language):
    golden = GOLDEN / f"{kind}.{name}.{language}.txt"
    text = render(kind, name, language) + "\n"
    if os.environ.get("HAMR_WRITE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", scenario_names())
def test_procedure_text_covers_every_edge_of_the_graph(name, language):
    """Parsing the text back gives the graph, so no part of it is written by hand."""
    scenario = load_scenario(name)
    edges, here = set(), ""
    for line in texts.sop_text(scenario, language=language).splitlines():
        stage = re.match(r"- (stage[\w@]+)", line)
        here = stage[1] if stage else here
        found = re.search(r"(?:go on to |转到 )(stage[\w@]*\w)|ACTION = ([\w+]+)", line)
        if found:
            edges.add((here, found[1] or found[2]))
    assert edges == set(scenario.graph.edges)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", scenario_names())
def test_agent_and_judge_prompts_contain_the_whole_scenario(name, language):
    scenario = load_scenario(name)
    file = scenario.file
    system = scenario.furnish(file.system_states[0], seed=1)
    told = texts.service_prompt(scenario, system, language=language)
    judged = texts.judge_prompt(scenario, language=language)
    for text in (told, judged):
        assert texts.sop_text(scenario, language=language) in text
        for entry in (*file.actions.values(), *file.fields.values()):
            assert entry.description.of(language) in text
        for field in file.fields.values():
            assert all(meaning.of(language) in text for meaning in field.meanings.values())
    for key in KEYS:
        assert f'"{key}":' in told
    for variable, value in system.items():
        assert f"{variable} = {json.dumps(value) if isinstance(value, bool) else value}" in told
    for item in file.catalogue.values():
        assert item.of(language) in told
    for key in (texts.CLASSIFICATION, texts.QUALITY, *texts.JUDGE_REASONS, *texts.DIMENSIONS):
        assert f'"{key}":' in judged
    assert str(texts.CHAT_WORDS) in told
    assert not re.search(r"\n{3,}|&lt;|\{\w+\}", told + judged)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", scenario_names())
def test_customer_prompt_omits_hidden_fields_and_procedure(name, language):
    scenario = load_scenario(name)
    file = scenario.file
    for case in scenario.cases():
        system = scenario.furnish(case.system, seed=2)
        text = texts.user_prompt(
            scenario,
            intent=scenario.intents_of(case.fields)[0],
            persona=next(iter(file.personas)),
            level=file.levels[-1],
            fields=case.fields,
            system=system,
            language=language,
        )
        hidden = [v for part in (file.system, file.facts) for v, entry in part.items() if entry.hidden]
        assert not any(variable in text for variable in hidden)
        assert "ACTION" not in text and "stage2" not in text
        read = scenario.walk(case.fields, system).read
        own = {f: file.fields[f].meanings[value].of(language) for f, value in case.fields.items()}
        told = text.split("<behaviour>")[1].split("</behaviour>")[0].splitlines() if "<behaviour>" in text else []
        assert len([line for line in told if line.strip()]) == len(own.keys() & set(read))
        assert all(any(own[field] in line for line in told) for field in own.keys() & set(read))
        assert f"\n{texts.END_MARK}\n" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"intent": "advise"}, "did you mean 'advice'"),
        ({"persona": "comuter"}, "did you mean 'commuter'"),
        ({"level": "storng"}, "did you mean 'strong'"),
        ({"fields": {"ConsumptionType": "Cancel"}}, "the fields differ"),
        ({"fields": {"ConsumptionType": "Enquiry", "Mood": "Calm"}}, "fields.Mood: 'Calm': no such variable"),
        ({"system": {"Penaltie": 1}}, "did you mean 'Penalty'"),
        ({"language": "de"}, "known: ['en', 'zh']"),
    ],
)
def test_unknown_scenario_parts_are_rejected(change, said):
    system = {"PackageStatus": "NoContract", "Penalty": 0}
    good = {
        "intent": "advice",
        "persona": "commuter",
        "level": "zero",
        "fields": {},
        "system": system,
        "language": "en",
    }
    texts.user_prompt(load_scenario("telecom_package"), **good)
    with pytest.raises(BadInput) as caught:
        texts.user_prompt(load_scenario("telecom_package"), **{**good, **change})
    assert said in str(caught.value)


def test_customer_is_not_told_a_filler_that_its_path_does_not_read():
    scenario = load_scenario("telecom_package")
    fields = {"ConsumptionType": "Cancel", **FIELDS_UNREAD}
    who = {"intent": "quit", "persona": "commuter", "level": "strong", "fields": fields, "language": "en"}
    told = texts.user_prompt(scenario, **who, system={"PackageStatus": "NoContract", "Penalty": 0})
    assert "wants to be rid of the package" in told and "stays calm" not in told and "likes the recommended" not in told
    charged = texts.user_prompt(scenario, **who, system={"PackageStatus": "Contracted", "Penalty": 100})
    assert "stays calm" in charged


def test_both_languages_have_the_same_phrases_and_placeholders():
    one, other = (Phrases.load(f"sage_phrases.{language}").phrases for language in LANGUAGES)
    gap = re.compile(r"\{\w+\}")
    assert one.keys() == other.keys()
    assert all(set(gap.findall(one[key])) == set(gap.findall(other[key])) for key in one)


@pytest.mark.parametrize("language", LANGUAGES)
def test_templates_have_a_recordable_id(language):
    ids = texts.prompt_ids(language)
    assert set(ids) == {"service", "user", "customer", "judge", "policy", "phrases"}
    assert all(re.fullmatch(rf"sage_{role}\.{language}@\d+\+[0-9a-f]{{12}}", ids[role]) for role in ids)


def test_weights_sum_to_a_hundred():
    assert sum(texts.DIMENSIONS.values()) == 100
    assert list(texts.DIMENSIONS.values()) == [20, 25, 25, 15, 15]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: t\nversion: 1\nlanguage: en\n", "text: None: missing"),
        ("name: t\nversion: 1\nlanguage: en\ntext: '{{ a }}'\n", "alone in a tag"),
        ("name: t\nversion: one\nlanguage: en\ntext: x\n", "integer"),
    ],
)
def test_bad_template_is_reported_in_one_line(tmp_path, text, said):
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        TextPrompt.load(str(tmp_path / "t.yaml"))
