"""Recall and false alarms of the audit of simulated customers, on planted faults and on faultless dialogues.

    python benchmarks/customer_faults.py
    python benchmarks/customer_faults.py --out benchmarks/results/customer_faults.json

Every customer of every shipped procedure, in English and Chinese, speaks in the wordings of each split. Each dialogue
gets one fault of each kind where that is possible; the faultless ones get harmless additions (small talk, a repeated
sentence). `known`: the audit knows the wordings of all splits, as it does in an evaluation. `held out`: it does not
know those of the dialogue's split, so that it understands hardly any sentence: customers by a model without judges.
`judges P`: nor any other, but three judges read the messages, each with probability P right and else one value less,
other or more. These judges are simulated, without a model: the figures say how well judges have to read. The sentences
of role breaks were written after the patterns, of which one was corrected on them. CPU only.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, get_args

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from benchmarks.results_json import results_text  # noqa: E402
from hamr.bench.sage.coverage import plan_dialogues  # noqa: E402
from hamr.bench.sage.customer_reading import CustomerReading, CustomerVote, JudgedReader  # noqa: E402
from hamr.config.sage import SageConfig  # noqa: E402
from hamr.data.customer_audit import (  # noqa: E402
    CustomerCase,
    CustomerFaultKind,
    CustomerReader,
    Ending,
    MessageReading,
    WordingReader,
    audit_customer,
)
from hamr.procedures import Scenario, load_scenario, scenario_names  # noqa: E402
from hamr.procedures.schema import LANGUAGES  # noqa: E402
from hamr.procedures.words import SPLITS, Split, Words, load_words, one_of  # noqa: E402

CUSTOMER_FAULTS: tuple[CustomerFaultKind, ...] = get_args(CustomerFaultKind)
OTHER = {"en": "zh", "zh": "en"}
ROLE_BREAKS = {
    "en": (
        "As an AI language model, I don't have a personal account.",
        "I'm only an AI, so I can't actually pay anything.",
        "I am a virtual assistant and cannot make purchases.",
        "I'm simulating a customer who is unhappy with the service.",
        "In this role-play, my character would now complain.",
        "My persona is impatient, so I will insist.",
        "According to my instructions I should not reveal everything yet.",
        "The adversarial level is strong, so I refuse.",
        "Hello! How can I help you today?",
        "Thank you for contacting us, is there anything else I can do for you?",
        "We apologize for the inconvenience and will process your refund.",
        "Agent: let me check that for you.",
        '{"chat": "I want to cancel"}',
        "Here is the next message from the customer.",
        "<message>I want my money back</message>",
        "According to stage3 you should now ask for my details.",
    ),
    "zh": (
        "作为一个人工智能，我没有真实的账户。",
        "我只是一个语言模型，无法付款。",
        "我是虚拟助手，不能购买套餐。",
        "我在扮演一位不满意的客户。",
        "根据提示词，我现在不能透露全部信息。",
        "我的人设是不耐烦的客户，所以我会坚持。",
        "您好，请问有什么可以帮您？",
        "感谢您的来电，祝您生活愉快。",
        "很高兴为您服务，请提供订单号。",
        "客服：我马上为您查询。",
        '{"chat": "我要退款"}',
        "按照stage3的要求，你应该问我的情况。",
    ),
}
HARMLESS = {
    "en": (
        "Could you please look into it?",
        "I have been waiting for a while now.",
        "My agent at the bank told me the same.",
        "I'm an artist, I don't know much about this.",
        "As a long-time customer I hope you can help me.",
        "Is there anything else you need from me?",
        "How can you help me with that?",
        "My role at work keeps me busy.",
        "The app said something about an assistant.",
        "I read the instructions on your page.",
        "Thank you for helping me.",
        "Sorry, I was on another call.",
        "What happens next?",
        "Do I have to do anything?",
    ),
    "zh": (
        "麻烦您帮我看一下。",
        "我已经等了一会儿了。",
        "我是老客户了，希望你们能帮忙。",
        "还需要我提供什么吗？",
        "那接下来怎么办？",
        "谢谢你帮我。",
        "不好意思，刚才有个电话。",
        "我在你们的App上看到过说明。",
        "我是做设计的，不太懂这些。",
        "你们客服说过可以的。",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """A customer's messages, and how the dialogue ended: with the agent's last `action`."""

    case: CustomerCase
    messages: tuple[str, ...]
    ending: Ending = "left"
    action: str = ""


def faultless(scenario: Scenario, words: Words, split: Split, language: str) -> Iterator[tuple[Dialogue, Random]]:
    config = SageConfig(language=language, per_intent=2, per_path=1)  # type: ignore[arg-type]
    for plan in plan_dialogues(scenario, config):
        rng = Random(f"{plan.id}/{split}/{language}")
        case = CustomerCase(fields=plan.fields, system=plan.system, intent=plan.intent, language=language)
        said = [text for text, _, _ in plan.messages(scenario, words, split, rng)]
        due = scenario.walk(plan.fields, plan.system).action or ""
        yield Dialogue(case=case, messages=tuple(said), action=due), rng


def harmless(dialogue: Dialogue, language: str, rng: Random) -> Dialogue:
    """Return the dialogue with small talk, a repeated message, or unchanged."""
    at, how = rng.randrange(len(dialogue.messages)), rng.choice(("talk", "extra", "repeat", "nothing"))
    said = list(dialogue.messages)
    if how == "talk":
        said[at] += " " + rng.choice(HARMLESS[language])
    elif how == "extra":
        said.insert(at + 1, rng.choice(HARMLESS[language]))
    elif how == "repeat":
        said.append(said[at])
    return replace(dialogue, messages=tuple(said))


READINGS = ("known", "held out", "judges 0.99", "judges 0.95", "judges 0.9", "judges 0.8")
JUDGES = 3


@dataclass(frozen=True, kw_only=True)
class SimulatedJudges:
    """Reader by `JUDGES` judges of which each reads a message right with a probability, and errs independently."""

    scenario: Scenario
    known: WordingReader
    right: float
    rng: Random
    case: CustomerCase

    def reader(self, messages: Sequence[str]) -> JudgedReader:
        heard = self.known.read(messages, self.case.system)
        truth = [self._truth(one) for one in heard]
        votes = [
            CustomerVote(judge=str(judge), shown=tuple(s for n, t in enumerate(truth, 1) for s in self._read(n, t)))
            for judge in range(JUDGES)
        ]
        reading = CustomerReading(agent="", dialogue="", votes=tuple(votes))
        meanings = reading.meanings(len(messages))
        assert meanings is not None
        return JudgedReader(wordings=WordingReader(self.scenario, None), meanings=meanings)

    def _truth(self, heard: MessageReading) -> dict[str, Any]:
        fields = self.case.fields
        best = [max(m, key=lambda one: all(fields.get(k, v) == v for k, v in one.items())) for m in heard.sentences]
        return {name: value for meaning in best for name, value in meaning.items()}

    def _read(self, number: int, truth: dict[str, Any]) -> list[tuple[int, str, Any]]:
        shown = dict(truth)
        if self.rng.random() >= self.right:
            how = self.rng.choice(("less", "other", "more") if shown else ("more",))
            name = self.rng.choice(list(self.scenario.file.fields) if how == "more" else list(shown))
            options = self.scenario.file.fields[name].options or ()
            shown.pop(name, None)
            if how != "less":
                shown[name] = self.rng.choice([option for option in options if option != truth.get(name)])
        return [(number, name, value) for name, value in shown.items()]


def plant_fault(
    kind: CustomerFaultKind, scenario: Scenario, words: Words, split: Split, dialogue: Dialogue, rng: Random
) -> Dialogue | None:
    """Return the dialogue with one fault of this kind, or None where the case allows none."""
    case, said, one = dialogue.case, list(dialogue.messages), words.of(split)
    pins = scenario.file.intents[case.intent].pins
    at = rng.randrange(len(said))
    if kind == "said_more":
        others = [
            texts
            for name, by_value in one.show.items()
            if name not in pins and name in case.fields
            for value, texts in by_value.items()
            if value != case.fields[name]
        ]
        if not others:
            return None
        said[at] += " " + one_of(rng.choice(others), case.system, rng)
    elif kind == "other_goal":
        others = [
            one.opening[name]
            for name, intent in scenario.file.intents.items()
            if any(key in pins and case.fields[key] != value for key, value in intent.pins.items())
        ]
        if not others:
            return None
        said[at] += " " + one_of(rng.choice(others), case.system, rng)
    elif kind == "said_less":
        if len(said) < 2:
            return None
        at = rng.randrange(1, len(said))
        said[at] = one_of(one.manner[next(iter(scenario.file.personas))], case.system, rng)
    elif kind == "ended_early":
        if len(said) < 2:
            return None
        return replace(dialogue, messages=tuple(said[: rng.randrange(1, len(said))]), action="")
    elif kind == "left_role":
        said[at] = rng.choice(ROLE_BREAKS[case.language])
    elif kind == "other_language":
        other = load_words(scenario, OTHER[case.language]).of(split)
        said[at] = one_of(other.opening[case.intent], case.system, rng)
    return replace(dialogue, messages=tuple(said))


def measure(names: list[str], readings: Sequence[str] = READINGS) -> dict[str, Any]:
    """Return counts, recall by kind and false alarms by reading."""
    found: dict[str, Any] = {}
    for reading in readings:
        plants: Counter[str] = Counter()
        caught: Counter[str] = Counter()
        named: Counter[str] = Counter()
        alarms: Counter[str] = Counter()
        suspected: dict[str, Counter[str]] = defaultdict(Counter)
        for name in names:
            scenario = load_scenario(name)
            for language in LANGUAGES:
                words = load_words(scenario, language)
                known = WordingReader(scenario, words)
                right = float(reading.partition(" ")[2]) if reading.startswith("judges") else None
                for split in SPLITS:
                    reader: CustomerReader = known
                    if reading == "held out":
                        reader = WordingReader(scenario, words, [other for other in SPLITS if other != split])
                    for dialogue, rng in faultless(scenario, words, split, language):
                        if right is not None:
                            # A model's customer knows these fields alone.
                            told = {*scenario.walk(dialogue.case.fields, dialogue.case.system).read}
                            told |= scenario.file.intents[dialogue.case.intent].pins.keys()
                            own = {name: value for name, value in dialogue.case.fields.items() if name in told}
                            dialogue = replace(dialogue, case=replace(dialogue.case, fields=own))
                        clean = harmless(dialogue, language, rng)
                        for kind in (None, *CUSTOMER_FAULTS):
                            put = clean if kind is None else plant_fault(kind, scenario, words, split, dialogue, rng)
                            if put is None:
                                continue
                            if right is not None:
                                judges = SimulatedJudges(
                                    scenario=scenario, known=known, right=right, rng=rng, case=put.case
                                )
                                reader = judges.reader(put.messages)
                                put = replace(put, ending="limit") if kind == "said_less" else put
                            audit = audit_customer(
                                scenario, put.case, put.messages, reader, ending=put.ending, action=put.action
                            )
                            plants[str(kind)] += 1
                            caught[str(kind)] += bool(audit.faults)
                            named[str(kind)] += kind in audit.kinds
                            suspected[str(kind)].update(audit.kinds)
                            alarms[language] += kind is None and bool(audit.faults)
        clean_count = plants["None"]
        faulty = sum(plants.values()) - clean_count
        found[reading] = {
            "faultless": clean_count,
            "false_alarms": caught["None"] / clean_count,
            "false_alarms_by_kind": dict(suspected["None"]),
            "planted": faulty,
            "recall": (sum(caught.values()) - caught["None"]) / faulty,
            "kinds": {
                kind: {
                    "planted": plants[kind],
                    "recall": caught[kind] / plants[kind],
                    "right_kind": named[kind] / plants[kind],
                }
                for kind in CUSTOMER_FAULTS
            },
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="all", help="a name, or `all`")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    names = scenario_names() if given.scenario == "all" else [given.scenario]
    text = results_text({"scenarios": names, "found": measure(names)})
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
