"""Generated service dialogues over the Telecom Package procedure: decision points with a gold action each.

A customer follows a plan (intent, profile, tendency, mood) that no one tells the agent. Turn by turn the fields
that the dialogue has shown so far go through the rule engine: what the engine waits for, or ends with, is the
agent's act. A sample is one such point: the dialogue before it, and the act as its reference.

Acts: ask_profile, recommend, penalty_notice and goodbye are replies; change_order and transfer_human tool calls.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from hamr.config.schema import SageDataConfig
from hamr.data.noise import corrupt
from hamr.data.splits import Splits
from hamr.data.telecom_offers import POLICY, TOOLS, Setting, draw_setting
from hamr.data.telecom_words import BANKS, Split
from hamr.evaluation.sage import Walk, load_scenario
from hamr.types import Action, Reference, Reply, ServiceSample, ToolCall, Turn

Act = Literal["ask_profile", "recommend", "penalty_notice", "goodbye", "change_order", "transfer_human"]
Slots = Mapping[str, str]

SHARES: Mapping[Act, float] = {
    "change_order": 0.26,
    "transfer_human": 0.19,
    "goodbye": 0.19,
    "recommend": 0.13,
    "ask_profile": 0.13,
    "penalty_notice": 0.10,
}
"""Share of each act among a split's samples; 45 % are tool calls. Of the three ends of a dialogue an order is met in
the most situations, so there are more of them. The policy of a short RL run drifts towards whichever end it gets right
most often. Only the ticket tells a fee notice from an order."""

_ACT_OF_WAIT: Mapping[str, Act] = {
    "ConsumptionProfile": "ask_profile",
    "ApplicationTendency": "recommend",
    "EmotionTag": "penalty_notice",
}
_ACT_OF_END: Mapping[str, Act] = {
    "ChangeOrder": "change_order",
    "GoodBye": "goodbye",
    "TransHuman": "transfer_human",
}
_STATES = ((False, False), (True, False), (True, True))
_MAX_TURNS = 5
_FEE = 50
"""What a corrupted reference names where no fee is due."""
_REFERENCES = 2
"""Approved wordings of each reply, the same for all samples of a split. A policy that chooses among ten spends most of
its entropy on the choice, and a policy gradient most of its noise."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the simulated customer is going to do, in the values of the scenario's fields.

    `tells_profile`: an enquiry that names its need at once. The `profile` of a change says which package of the
    catalogue it is about.
    """

    intent: str
    profile: str
    tells_profile: bool
    tendency: str
    mood: str
    contracted: bool
    penalised: bool


def generate(config: SageDataConfig) -> Splits:
    """The three splits, the same for the same config on every machine. They share no sentence."""
    train, validation, test = (
        tuple(s if config.procedure else replace(s, policy="") for s in _split(split, size, config.seed))
        for split, size in _sizes(config).items()
    )
    sft = noisy(train, config.noise, config.seed) if config.noise else ()
    return Splits(train=train, validation=validation, test=test, sft=sft)


def _sizes(config: SageDataConfig) -> dict[Split, int]:
    return {"train": config.train, "validation": config.validation, "test": config.test}


def act_of_walk(walk: Walk) -> Act:
    """What the procedure wants from the agent at this point."""
    return _ACT_OF_WAIT[walk.awaits] if walk.awaits is not None else _ACT_OF_END[str(walk.action)]


def act_of(sample: ServiceSample) -> str:
    """The act of a generated sample; for others the first reference's tool, or `reply`."""
    if "act" in sample.meta:
        return str(sample.meta["act"])
    action = sample.references[0].action
    return action.name if isinstance(action, ToolCall) else "reply"


# --- splits ------------------------------------------------------------------------------------


def _split(split: Split, size: int, seed: int) -> tuple[ServiceSample, ...]:
    """Quotas per act; within an act every kind of plan that leads there, in turn."""
    rng = Random(f"telecom/{seed}/{split}")
    by_act = {act: _shuffled_cycle(plans, rng) for act, plans in _plans_by_act().items()}
    acts = [act for act, count in _quotas(size).items() for _ in range(count)]
    rng.shuffle(acts)
    return tuple(
        _Dialogue(next(by_act[act]), split, rng).sample(act, f"telecom-{split}-{seed}-{number:05d}")
        for number, act in enumerate(acts)
    )


def _quotas(size: int) -> dict[Act, int]:
    """Whole numbers that sum to `size`, by largest remainder."""
    exact = {act: share * size for act, share in SHARES.items()}
    counts = {act: int(value) for act, value in exact.items()}
    by_remainder = sorted(exact, key=lambda act: counts[act] - exact[act])
    for act in by_remainder[: size - sum(counts.values())]:
        counts[act] += 1
    return counts


def _plans_by_act() -> dict[Act, list[list[Plan]]]:
    """For each act the plans whose dialogue comes to it within the longest history, grouped by what should be
    balanced: the intent, the system state and how the customer takes the offer. Short ones count twice."""
    grouped: dict[Act, dict[tuple[object, ...], list[Plan]]] = {act: {} for act in SHARES}
    for plan in _all_plans():
        for act, turns in _outline(plan):
            if turns <= _MAX_TURNS:
                balanced = (plan.intent, plan.contracted, plan.penalised, plan.tendency if act == "goodbye" else "")
                grouped[act].setdefault(balanced, []).extend([plan] * (1 if turns == _MAX_TURNS else 2))
    return {act: list(groups.values()) for act, groups in grouped.items()}


def _all_plans() -> Iterator[Plan]:
    names = ("ConsumptionType", "ConsumptionProfile", "ApplicationTendency", "EmotionTag")
    fields = load_scenario("telecom_package").file.fields
    options = [[str(option) for option in fields[name].options or ()] for name in names]
    for intent, profile, tendency, mood in itertools.product(*options):
        for tells, (contracted, penalised) in itertools.product((False, True), _STATES):
            if intent == "Enquiry" or (not tells and tendency == "Agree"):
                yield Plan(
                    intent=intent,
                    profile=profile,
                    tells_profile=tells,
                    tendency=tendency,
                    mood=mood,
                    contracted=contracted,
                    penalised=penalised,
                )


def _shuffled_cycle(groups: list[list[Plan]], rng: Random) -> Iterator[Plan]:
    """One random plan of each group in turn, the groups in a new order every round."""
    assert groups, "no plan leads to this act"
    while True:
        order = list(groups)
        rng.shuffle(order)
        for group in order:
            yield rng.choice(group)


# --- one dialogue ------------------------------------------------------------------------------


def _shown(plan: Plan) -> Iterator[dict[str, str]]:
    """The classification fields that the customer has shown after each of his turns."""
    shown = {"ConsumptionType": plan.intent}
    if plan.tells_profile:
        shown["ConsumptionProfile"] = plan.profile
    yield dict(shown)
    later = {"ConsumptionProfile": plan.profile, "ApplicationTendency": plan.tendency, "EmotionTag": plan.mood}
    scenario = load_scenario("telecom_package")
    while (awaited := scenario.walk(shown, _system(plan)).awaits) is not None:
        shown[awaited] = later[awaited]
        yield dict(shown)


def _outline(plan: Plan) -> Iterator[tuple[Act, int]]:
    """(act, turns of history before it) along the dialogue."""
    scenario = load_scenario("telecom_package")
    for index, fields in enumerate(_shown(plan)):
        yield act_of_walk(scenario.walk(fields, _system(plan))), 2 * index + 1


def _system(plan: Plan) -> dict[str, object]:
    """Some setting of the system variables in the plan's state; only zero or not matters of the penalty."""
    return draw_setting(Random(0), contracted=plan.contracted, penalised=plan.penalised).system


class _Dialogue:
    """Plays one plan with the words of one split."""

    def __init__(self, plan: Plan, split: Split, rng: Random) -> None:
        self.plan, self.split, self.rng = plan, split, rng
        self.setting = draw_setting(rng, contracted=plan.contracted, penalised=plan.penalised)
        self.slots = slots_of(self.setting, plan.profile)

    def sample(self, act: Act, identity: str) -> ServiceSample:
        """The decision point of `act`, with everything said before it."""
        scenario = load_scenario("telecom_package")
        history: list[Turn] = []
        asked: str | None = None
        for fields in _shown(self.plan):
            history.append(Turn(role="customer", content=self._customer(asked)))
            walk = scenario.walk(fields, self.setting.system)
            if act_of_walk(walk) == act:
                return self._point(act, identity, tuple(history), fields, walk)
            assert walk.awaits is not None, f"{self.plan} never comes to {act}"
            asked = walk.awaits
            history.append(
                Turn(role="agent", content=self.rng.choice(wordings(act_of_walk(walk), self.slots, self.split)))
            )
        raise AssertionError(f"{self.plan} never comes to {act}")

    def _point(
        self, act: Act, identity: str, history: tuple[Turn, ...], fields: Mapping[str, str], walk: Walk
    ) -> ServiceSample:
        plan = self.plan
        wish = {"Enquiry": "advice on a package", "Change": f"to change to {self.slots['target']}"}
        return ServiceSample(
            id=identity,
            ticket=self.setting.ticket,
            policy=POLICY,
            tools=TOOLS,
            history=history,
            references=tuple(
                Reference(action=action, source="generated")
                for action in actions_of(act, self.slots, self.split, cancels=plan.intent == "Cancel")
            ),
            privileged={
                "summary": f"The customer wants {wish.get(plan.intent, f'to cancel {self.setting.current}')}.",
                "plan": {"profile": plan.profile, "tendency": plan.tendency, "mood": plan.mood},
            },
            meta={
                "act": act,
                "stage": walk.path[-1],
                "fields": dict(fields),
                "system": self.setting.system,
                "path": list(walk.path),
                "slots": dict(self.slots),
                "split": self.split,
            },
        )

    def _customer(self, asked: str | None) -> str:
        """The customer's next turn: an answer to what was asked, or the opening request."""
        plan, words = self.plan, BANKS[self.split].customer
        if asked is None:
            told = {"Data": "enquiry_data", "Voice": "enquiry_voice"}[plan.profile] if plan.tells_profile else "enquiry"
            moves = words[told if plan.intent == "Enquiry" else plan.intent.lower()]
            before, tails = words["opening"], words["tail"] if plan.intent != "Enquiry" else ("",)
        else:
            moves = _answers(words, plan, asked)
            before, tails = words["lead"], ("",)
        fragment = one_of_each(self.rng.choice(moves), self.rng).format(**self.slots)
        tail = self.rng.choice(tails)
        if "please" in fragment or fragment.startswith("is it"):
            tail = ""
        text = self.rng.choice(before) + fragment[:-1] + tail + fragment[-1]
        return text[0].upper() + text[1:]


def _answers(words: Mapping[str, tuple[str, ...]], plan: Plan, asked: str) -> tuple[str, ...]:
    """Agreement to an offer and to a fee share some wordings, so that these alone do not tell which it is."""
    if asked == "ConsumptionProfile":
        return words[f"answer_{plan.profile.lower()}"]
    if asked == "ApplicationTendency":
        return words["agree"] + words["accept"] if plan.tendency == "Agree" else words[plan.tendency.lower()]
    return words["calm"] + words["accept"] if plan.mood == "Calm" else words["discontent"]


# --- wording -----------------------------------------------------------------------------------


def one_of_each(text: str, rng: Random) -> str:
    """The text with one alternative of each [a|b|c].

    >>> one_of_each("a [good|bad] plan[|, please]", Random(1))
    'a good plan'
    """
    return re.sub(r"\[([^]]*)\]", lambda found: rng.choice(found[1].split("|")), text)


def slots_of(setting: Setting, profile: str) -> dict[str, str]:
    """What the wordings can name. `package` and `target` are both the catalogue's package for the profile."""
    offer = setting.offers[profile]
    other = setting.offers["Voice" if profile == "Data" else "Data"]
    return {
        "package": offer.package,
        "target": offer.package,
        "price": str(offer.price),
        "other_package": other.package,
        "other_price": str(other.price),
        "current": setting.current,
        "fee": str(setting.penalty),
    }


def actions_of(act: str, slots: Slots, split: Split, *, cancels: bool) -> list[Action]:
    """The gold actions of an act. `cancels`: an order ends the present package."""
    if act == "change_order":
        return [ToolCall(name=act, parameters={"package": slots["current" if cancels else "target"]})]
    if act == "transfer_human":
        return [ToolCall(name=act, parameters={"reason": "penalty_dispute"})]
    return [Reply(content=text) for text in wordings(act, slots, split)[:_REFERENCES]]


def noisy(samples: Sequence[ServiceSample], noise: float, seed: int) -> tuple[ServiceSample, ...]:
    """The samples as a log with errors has them: see `hamr.data.noise`."""

    def render(sample: ServiceSample, act: str) -> list[Action]:
        meta = sample.meta
        # Nobody pays a fee of nothing.
        slots = {**meta["slots"], "fee": meta["slots"]["fee"] if meta["slots"]["fee"] != "0" else str(_FEE)}
        return actions_of(act, slots, meta["split"], cancels=meta["fields"]["ConsumptionType"] == "Cancel")

    return corrupt(samples, noise, seed, render)


def wordings(act: str, slots: Slots, split: Split) -> list[str]:
    """Every way that a split knows to say the act: the replies among the acts, and confirm_change,
    confirm_cancel, hand_over, which say what a tool call does. Raises KeyError for another act."""
    return [template.format(**slots) for template in BANKS[split].agent[act]]


def sentences(text: str) -> list[str]:
    """The text's sentences, normalised: lower case, letters and digits only.

    >>> sentences("Hi there! I want Surf 40GB.")
    ['hi there', 'i want surf 40gb']
    """
    parts = (" ".join(re.findall(r"[a-z0-9]+", part)) for part in re.split(r"[.!?\n]+", text.lower()))
    return [part for part in parts if part]
