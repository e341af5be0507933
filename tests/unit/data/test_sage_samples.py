"""Generated samples of the six scenarios: correct by the rule engine, and disjoint across splits by setting and
wording.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import combinations
from random import Random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hamr.config.schema import SageDataConfig
from hamr.data.rendering import policy_messages
from hamr.data.sage_samples import deal, generate, generate_samples, tools_of
from hamr.data.samples import from_json, to_json
from hamr.errors import BadInput
from hamr.procedures import Scenario, load_scenario, scenario_names
from hamr.procedures.acts import Context, SageActs
from hamr.procedures.contract import KEYS
from hamr.procedures.prompts import CHAT_WORDS
from hamr.procedures.schema import LANGUAGES
from hamr.procedures.words import SPLITS, draw_alternatives, expansions, load_words, sentences
from hamr.types import Reply, ToolCall

SIZES = {"train": 240, "validation": 72, "test": 72}
EVERY = pytest.mark.parametrize("name", scenario_names())


@pytest.fixture(scope="module")
def made():
    return generate([load_scenario(name) for name in scenario_names()], SIZES, seed=0)


def of(made, split, name=None):
    return [s for s in getattr(made, split) if name is None or s.meta["scenario"] == name]


def setting_of(sample):
    return json.dumps([sample.meta["scenario"], sample.privileged["case"]["fields"], sample.meta["system"]])


@pytest.mark.slow
def test_sizes_are_split_evenly_and_samples_survive_the_round_trip(made):
    for split, size in SIZES.items():
        samples = of(made, split)
        assert len(samples) == size
        assert Counter(s.meta["scenario"] for s in samples) == dict.fromkeys(scenario_names(), size // 6)
        for sample in samples:
            assert from_json(to_json(sample)) == sample
    every = [s for split in SPLITS for s in of(made, split)]
    assert len({s.id for s in every}) == len(every)
    odd = generate(
        [load_scenario("telecom_package"), load_scenario("airline_refund")], dict.fromkeys(SPLITS, 3), seed=1
    )
    assert [len(of(odd, "train", name)) for name in ("telecom_package", "airline_refund")] == [2, 1]


@pytest.mark.slow
def test_samples_are_determined_by_the_seed(made):
    scenarios = [load_scenario(name) for name in scenario_names()]
    assert generate(scenarios, SIZES, seed=0) == made
    assert generate(scenarios, SIZES, seed=1).train != made.train


def test_gold_acts_follow_from_the_rule_engine(made):
    for split in SPLITS:
        for sample in of(made, split):
            scenario = load_scenario(sample.meta["scenario"])
            gold, system = sample.privileged, sample.meta["system"]
            walk = scenario.walk(gold["fields"], system)
            assert (list(walk.path), walk.action, walk.awaits) == (gold["path"], gold["action"], gold["awaits"])
            whole = scenario.reference(gold["case"]["fields"], system)
            assert whole == (gold["case"]["path"], gold["case"]["action"])
            assert whole[0][: len(walk.path)] == list(walk.path)
            action = scenario.file.actions.get(str(walk.action))
            for reference in sample.references:
                if action is None or action.reply:
                    assert isinstance(reference.action, Reply)
                    continue
                assert isinstance(reference.action, ToolCall)
                assert reference.action.name == action.tool(str(walk.action))
                assert reference.action.parameters.get("option") == action.option
                expected = scenario.amount(action.amount, sample.ticket) if action.amount else None
                assert reference.action.parameters.get("amount") == expected


def test_gold_fields_never_reach_the_policy(made):
    """The prompt is unchanged if all privileged fields are removed."""
    for sample in of(made, "train"):
        bare = {**to_json(sample), "privileged": {}, "meta": {}}
        assert policy_messages(from_json(bare)) == policy_messages(sample)
        assert not any(isinstance(value, bool) for value in sample.ticket.values())
        said = " ".join(turn.content for turn in sample.history)
        assert sample.meta["persona"] not in policy_messages(sample)[0]["content"]
        assert "stage" not in said and "{" not in said and "[" not in said


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(min_value=0, max_value=10**6),
    name=st.sampled_from(scenario_names()),
    language=st.sampled_from(LANGUAGES),
)
def test_settings_and_wordings_are_disjoint_across_splits(seed, name, language):
    sizes = {"train": 120, "validation": 40, "test": 40}
    made = generate([load_scenario(name)], sizes, seed=seed, language=language)
    found = {split: {setting_of(s) for s in of(made, split)} for split in SPLITS}
    values = {str(v) for split in SPLITS for s in of(made, split) for v in s.ticket.values()}
    said = {}
    for split in SPLITS:
        texts = [turn.content for s in of(made, split) for turn in s.history]
        texts += [r.action.content for s in of(made, split) for r in s.references if isinstance(r.action, Reply)]
        said[split] = set()
        for text in texts:
            for value in sorted(values, key=len, reverse=True):
                text = text.replace(value, "X") if len(value) > 2 else text
            said[split] |= set(sentences(text))
    for one, other in combinations(SPLITS, 2):
        assert not found[one] & found[other]
        assert not said[one] & said[other]


def test_files_of_different_seeds_keep_their_splits_apart(made):
    scenarios = [load_scenario(name) for name in scenario_names()]
    other = generate(scenarios, SIZES, seed=7)
    for one, two in combinations(SPLITS, 2):
        assert not {setting_of(s) for s in of(made, one)} & {setting_of(s) for s in of(other, two)}


@EVERY
def test_every_split_has_every_path_with_enough_settings(name):
    scenario = load_scenario(name)
    for seed in range(3):
        by_split = deal(scenario, Random(seed))
        assert set(by_split["train"]) == set(scenario.paths())
        counts = Counter()
        for dealt in by_split.values():
            counts.update({route: len(group) for route, group in dealt.items()})
        for route, number in counts.items():
            assert (route in by_split["test"]) == (number >= 2)
            assert (route in by_split["validation"]) == (number >= 3)


def test_no_two_samples_have_the_same_ticket_and_dialogue(made):
    every = [(s.meta["scenario"], s.history, tuple(s.ticket.items())) for split in SPLITS for s in of(made, split)]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("language", LANGUAGES)
@EVERY
def test_sage_form_answers_follow_from_the_rule_engine(name, language):
    scenario = load_scenario(name)
    sizes = {"train": 120, "validation": 20, "test": 20}
    made = generate([scenario], sizes, seed=3, form="sage", language=language)
    for sample in (s for split in SPLITS for s in of(made, split)):
        assert sample.tools == ()
        for reference in sample.references:
            said = json.loads(reference.action.content)
            assert tuple(said) == tuple(KEYS)
            labels, gold = said["classification_output"], sample.privileged
            assert list(labels) == list(scenario.file.fields)
            assert {field: labels[field] for field in gold["fields"]} == gold["fields"]
            path, action = scenario.reference(labels, sample.meta["system"])
            assert (said["now_path"], said["finals"]) == (path, {"Action": action})
            assert path[: len(gold["path"])] == gold["path"]
            assert gold["action"] in (None, action)
            assert said["cot"].endswith(f" {action}" + {"en": ".", "zh": "。"}[language])
            words = said["chat"].split() if language == "en" else said["chat"]
            assert 1 <= len(words) <= CHAT_WORDS
            assert not set(said["chat"]) & set('"\\[]{}')
    assert {"en": "stands in the ticket", "zh": "见下面的工单"}[language] in made.train[0].policy


@pytest.mark.parametrize("language", LANGUAGES)
@EVERY
def test_acts_are_balanced_and_every_path_occurs(name, language):
    scenario = load_scenario(name)
    made = generate([scenario], SIZES, seed=0, language=language)
    settings = deal(scenario, Random(f"sage/{name}"))
    for split in SPLITS:
        counts = Counter(s.meta["act"] for s in of(made, split))
        assert set(scenario.file.actions) & set(counts) == {route.action for route in settings[split]}
        assert max(counts.values()) - min(counts.values()) <= 4, counts
        ends = {
            (tuple(s.meta["path"]), s.meta["act"]) for s in of(made, split) if s.meta["act"] in scenario.file.actions
        }
        assert ends == {(tuple(route.stages), route.action) for route in settings[split]}


def test_paths_are_balanced_within_the_acts():
    """The dialogue length must not reveal the act: each act ends short and long dialogues."""
    made = generate([load_scenario("telecom_package")], SIZES, seed=0)
    by_act = defaultdict(Counter)
    for sample in made.train:
        by_act[sample.meta["act"]][tuple(sample.meta["path"])] += 1
    assert {act: len(paths) for act, paths in by_act.items()} == {
        "ask ConsumptionProfile": 1,
        "ask ApplicationTendency": 1,
        "ask EmotionTag": 3,
        "GoodBye": 1,
        "ChangeOrder": 8,
        "TransHuman": 3,
    }
    for paths in by_act.values():
        assert max(paths.values()) - min(paths.values()) <= 1
    moods = Counter(s.meta["act"] for s in made.train if "EmotionTag" in s.meta["fields"])
    assert set(moods) == {"ChangeOrder", "TransHuman"}
    assert min(moods.values()) >= 10, "customers stay calm too"


def test_act_depends_on_both_message_and_ticket():
    """The same kind of message leads to an order or to a notice of the penalty, depending on the ticket; each ticket
    state leads to most acts.
    """
    made = generate_samples(SageDataConfig())
    by_message, by_state = defaultdict(set), defaultdict(set)
    for sample in made.train:
        system, fields = sample.meta["system"], sample.meta["fields"]
        by_message[json.dumps(fields)].add(sample.meta["act"])
        by_state[system["PackageStatus"], system["Penalty"] > 0].add(sample.meta["act"])
    both = [fields for fields, acts in by_message.items() if {"ChangeOrder", "ask EmotionTag"} <= acts]
    assert len(both) >= 4
    assert len(by_state) == 3
    assert all(len(acts) >= 4 for acts in by_state.values())
    refused = Counter(s.meta["system"]["Penalty"] > 0 for s in made.train if s.meta["act"] == "GoodBye")
    assert refused[False] > refused[True] > 0, "two states of three have no penalty"


def test_configured_samples_equal_those_of_the_generator():
    config = SageDataConfig(train=60, validation=12, test=12, seed=4)
    sizes = {"train": 60, "validation": 12, "test": 12}
    assert generate_samples(config) == generate([load_scenario("telecom_package")], sizes, seed=4)
    bare = generate_samples(config.model_copy(update={"procedure": False}))
    assert {s.policy for s in (*bare.train, *bare.validation, *bare.test)} == {""}
    assert [s.history for s in bare.train] == [s.history for s in generate_samples(config).train]
    both = generate_samples(config.model_copy(update={"scenario": "all", "language": "zh"}))
    assert {s.meta["scenario"] for s in both.train} == set(scenario_names())


def test_replies_are_wordings_of_their_act_and_vary(made):
    for sample in (s for split in SPLITS for s in of(made, split)):
        acts = SageActs.of(sample)
        replies = [r.action.content for r in sample.references if isinstance(r.action, Reply)]
        assert len(set(replies)) == len(replies)
        assert set(replies) <= set(acts.texts(sample.meta["act"], Context.of(sample)))
        assert sample.history[-1].role == "customer"
    quickstart = generate_samples(SageDataConfig())
    assert len({t.content for s in quickstart.train for t in s.history if t.role == "customer"}) >= 300


def test_prompts_without_the_procedure_are_short_with_a_shared_prefix():
    """The bundled model has a context of 1,024 tokens, at about 1.6 tokens per word."""
    prompts = [policy_messages(s) for s in generate_samples(SageDataConfig(procedure=False)).train]
    systems = [messages[0]["content"] for messages in prompts]
    low, high = min(systems), max(systems)
    common = low[: next(i for i in range(len(low)) if low[i] != high[i])]
    assert max(len(text[len(common) :].split()) for text in systems) <= 15
    assert max(sum(len(m["content"].split()) for m in messages) for messages in prompts) <= 200


def test_ticket_numbers_vary_without_changing_the_path():
    made = generate([load_scenario("telecom_package")], dict.fromkeys(SPLITS, 60), seed=0)
    penalties = {s.ticket["Penalty"] for s in made.train}
    assert 0 in penalties
    assert len(penalties) > 5


def test_a_group_of_actions_is_one_tool():
    tools = {tool["name"]: tool for tool in tools_of(load_scenario("online_education"), "en")}
    assert set(tools) == {"review", "plan", "refund", "negotiate"}
    assert tools["plan"]["parameters"]["properties"]["option"]["enum"] == list("ABCDEF")
    assert tools["refund"]["parameters"]["required"] == ["amount"]
    assert tools["review"]["parameters"] == {"type": "object", "properties": {}}


# --- wordings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
@EVERY
def test_every_scenario_has_wordings_in_both_languages(name, language):
    words = load_words(load_scenario(name), language)
    assert words.opens_with == load_words(load_scenario(name), "en").opens_with


def test_text_alternatives_are_expanded():
    assert sorted(expansions("[a|b] c [|d]")) == ["a c ", "a c d", "b c ", "b c d"]
    assert draw_alternatives("[x|x] y", Random(0)) == "x y"


MINE = """\
name: mine
code: MI
title: Lost keys
description: Finds keys.
start: begin
fields:
  Found: {type: boolean, description: whether it was found, options: {true: found it, false: still looks for it}}
  Mood: {type: enum, description: the mood, options: {Good: is glad, Fair: is calm, Bad: is sad}}
system: {}
actions:
  Thank: {description: Say thank you., reply: true}
  SendHelp: {description: Send somebody to look.}
stages:
  begin:
    title: was it found
    reads: Found
    branches:
      - {values: [true], to: Thank}
      - {values: [false], to: SendHelp}
coverage: {crossed: [Found], filled: {Mood: Fair}}
intents: {keys: {description: You lost your keys., pins: {}}}
personas: {somebody: {description: An ordinary person.}}
adversity: {zero: You are kind.}
"""


def split_words(mark):
    return {
        "manner": {"somebody": [f"Hi {mark}."]},
        "opening": {"keys": [f"My keys {mark} [went|ran] away."]},
        "show": {"Found": {True: [f"Got them {mark}."], False: [f"Gone {mark}."]}},
        "ask": {"Found": [f"Are they there {mark}?"]},
        "say": {"Thank": [f"Thank you {mark}."], "SendHelp": [f"Somebody comes {mark}."]},
    }


def mine(tmp_path, change=lambda words: None, text=MINE):
    (tmp_path / "words").mkdir()
    (tmp_path / "mine.yaml").write_text(text)
    words = {split: split_words(split) for split in SPLITS}
    change(words)
    (tmp_path / "words" / "mine.en.yaml").write_text(yaml.safe_dump(words))
    return load_scenario(tmp_path / "mine.yaml")


def test_custom_scenario_needs_two_files_and_no_code(tmp_path):
    made = generate([mine(tmp_path)], {"train": 4, "validation": 0, "test": 1}, seed=0)
    known = [Reply(content="Are they there train?"), Reply(content="Thank you train."), ToolCall(name="send_help")]
    assert all(sample.references[0].action in known for sample in made.train)
    assert made.train[0].history[0].content in (
        "Hi train. My keys train went away.",
        "Hi train. My keys train ran away.",
    )


def test_procedure_without_settings_for_a_split_is_reported(tmp_path):
    mine(tmp_path)
    text = MINE.replace(", Fair: is calm, Bad: is sad", "").replace("Mood: Fair", "Mood: Good")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(BadInput, match=r"data\.sage\.test.*too few settings"):
        generate([load_scenario(tmp_path / "mine.yaml")], {"train": 2, "validation": 0, "test": 1}, seed=0)


def test_insufficient_wordings_are_reported(tmp_path):
    with pytest.raises(BadInput, match="give only"):
        generate([mine(tmp_path)], {"train": 100, "validation": 0, "test": 0}, seed=0)


@pytest.mark.parametrize("form", ["actions", "sage"])
def test_amount_without_a_value_is_reported(tmp_path, form):
    text = MINE.replace("look.}", "look., amount: Fee}").replace(
        "stages:",
        "facts: {Days: {description: days, low: 1, high: 4}}\nformulas: "
        "{Fee: {description: fee, cases: [{value: 9 / Days}]}}\nstages:",
    )
    scenario = mine(tmp_path, text=text)
    days = scenario.file.facts["Days"].model_copy(update={"low": 0, "high": 0})
    later = Scenario(scenario.file.model_copy(update={"facts": {"Days": days}}), scenario.source)
    with pytest.raises(BadInput, match=r"mine\.formulas\.Fee: {'Days': 0}: divides by zero"):
        generate([later], {"train": 4, "validation": 0, "test": 0}, seed=0, form=form)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w["train"]["opening"].pop("keys"), "train.opening.keys: None: has no wording"),
        (lambda w: w["test"]["show"]["Found"].pop(False), "test.show.Found.False"),
        (lambda w: w["test"]["say"].clear(), "test.say.Thank"),
        (lambda w: w["test"]["say"]["Thank"].append("Thanks for {Room}."), "no such variable"),
        (lambda w: w["test"]["say"]["Thank"].append("Thanks {0.__class__}."), "no such variable"),
        (lambda w: w["test"]["say"]["Thank"].append("Thanks {."), "braces mark variables"),
        (lambda w: w["test"]["say"]["Thank"].append(5), "valid string"),
        (lambda w: w["test"]["say"]["Thank"].append("[a|b]" * 30), "more than 500 texts"),
        (lambda w: w["test"].update(mannner={}), "did you mean 'manner'"),
        (lambda w: w.update(opens_with=["Fond"]), "is not a field"),
        (lambda w: w["test"]["say"]["Thank"].append("Hello. My keys train ran away!"), "is also in train"),
        (lambda w: w["test"].update(reworded={"Thank": ["Thank you train."]}), "is also in train"),
        (lambda w: w["test"].update(partial={"Found": ["Are they there train?"]}), "is also in train"),
        (lambda w: w["test"].update(negated={"Thank": ["I do not thank {Who}."]}), "no such variable"),
        (lambda w: w["test"].update(reworded={"Thnak": ["Many thanks."]}), "did you mean 'Thank'"),
        (lambda w: w["test"].update(partial={"Lost": ["Are they?"]}), "test.partial.Lost: 'Lost': is not an act"),
        (lambda w: w["test"].update(negated={"Fuond": ["They are."]}), "did you mean 'Found'"),
    ],
)
def test_invalid_wordings_are_rejected_with_their_line(tmp_path, change, said):
    scenario = mine(tmp_path, change)
    with pytest.raises(BadInput) as caught:
        load_words(scenario, "en")
    assert said in str(caught.value)
    assert f"{tmp_path / 'words' / 'mine.en.yaml'}:" in str(caught.value)


def test_question_without_a_matching_value_is_reported(tmp_path):
    scenario = mine(tmp_path, lambda w: w["train"]["ask"].update(Found={"Mood=Bad": ["Are they gone?"]}))
    with pytest.raises(BadInput, match=r"ask\.Found.*none of"):
        generate([scenario], {"train": 4, "validation": 0, "test": 0}, seed=0)


def test_missing_language_lists_the_available_wordings(tmp_path):
    with pytest.raises(BadInput, match=r"mine\.en\.yaml"):
        load_words(mine(tmp_path), "zh")
